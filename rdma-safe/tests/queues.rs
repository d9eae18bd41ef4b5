//! Completion queues that are resized, moderated or extended, against the fake provider. No device needed.

mod fake;

use fake::Fake;
use rdma_safe::*;

fn config(depth: u32) -> QpConfig {
    QpConfig { send_depth: depth, recv_depth: depth, max_inline: 64, ..QpConfig::default() }
}

/// The booking follows the depth, and what is booked cannot be taken away.
#[test]
fn a_resized_queue_books_by_its_new_depth() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(16).unwrap();
    let at = cq.cq_ref();
    let qp = pd.create_qp(&at, &at, &config(8)).unwrap();
    assert_eq!(pd.create_qp(&at, &at, &config(8)).unwrap_err().kind(), ErrorKind::CqDepth);
    let cq = cq.resize(32).unwrap();
    assert_eq!(at.depth(), (32, 16));
    let other = pd.create_qp(&at, &at, &config(8)).unwrap();
    let (cq, e) = cq.resize(31).unwrap_err();
    assert_eq!((e.kind(), at.depth()), (ErrorKind::CqDepth, (32, 32)), "{e}");
    assert!(e.to_string().contains("32 completions are booked"), "{e}");
    drop(other);
    let cq = cq.unwrap().resize(16).unwrap();
    for depth in [0, u32::MAX, fake.ctx.attr().max_cqe + 1] {
        let again = fake.ctx.create_cq(4).unwrap().resize(depth).unwrap_err();
        assert_eq!(again.1.kind(), ErrorKind::InvalidArgument);
    }
    drop((qp, cq, at, pd));
    fake.check();
    assert!(fake.closes_on_drop());
}

/// librxe forgets the ring when it cannot map the new one, and would crash at the next poll: so there is none.
#[test]
fn a_queue_lost_in_a_resize_is_not_given_back() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    for (errno, kept) in [(libc::EINVAL, true), (libc::ENOMEM, false), (libc::EOPNOTSUPP, true)] {
        let cq = fake.ctx.create_cq(16).unwrap();
        let at = cq.cq_ref();
        let qp = pd.create_qp(&at, &at, &config(4)).unwrap();
        fake.state().more.resize_fails = errno;
        let (cq, e) = cq.resize(64).unwrap_err();
        assert_eq!((e.errno(), cq.is_some(), at.depth()), (errno, kept, (16, 8)));
        drop((qp, cq, at));
    }
    assert_eq!(fake.state().alive().1, 0);
    fake.check();
}

#[test]
fn moderation_reaches_the_provider() {
    let fake = Fake::open_infiniband();
    let mut cq = fake.ctx.create_cq(16).unwrap();
    cq.moderate(50, 200).unwrap();
    assert_eq!(fake.state().more.moderated, Some((50, 200)));
    fake.state().more.unsupported = true;
    assert_eq!(cq.moderate(0, 0).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Completions of an extended queue are redeemed as any others; each call is a poll of its own, closed before it returns.
#[test]
fn extended_completions_are_redeemed_once() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq_ex(32, WcFields::DEVICE_TIME, None).unwrap();
    let at = cq.cq_ref();
    assert_eq!(at.depth(), (32, 0));
    let mut a = pd.create_qp(&at, &at, &config(8)).unwrap();
    let mut b = pd.create_qp(&at, &at, &config(8)).unwrap();
    assert_eq!(pd.create_qp(&at, &at, &config(8)).unwrap_err().kind(), ErrorKind::CqDepth);
    fake.connect(a.qp_num(), b.qp_num());
    a.mark_connected().unwrap();
    b.mark_connected().unwrap();
    assert!(cq.poll().unwrap().is_none());
    for round in 0..5u8 {
        b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
        a.post_inline(&[round; 40], SendFlags::empty()).unwrap();
        fake.progress();
        let mut seen = 0;
        while let Some(mut got) = cq.poll().unwrap() {
            assert_eq!(got.device_time.map(|t| t != 0), Some(true));
            assert_eq!(got.wall_time_ns, None, "not asked for");
            let done = a.complete(&mut got.wc).or_else(|| b.complete(&mut got.wc)).unwrap();
            assert!(got.wc.is_spent());
            if done.op == Op::Recv {
                assert_eq!(done.slot.unwrap()[..done.byte_len], [round; 40]);
            }
            seen += 1;
        }
        assert_eq!(seen, 2);
    }
    // A failure tells nothing but that.
    fake.state().faults.status = 12;
    b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    a.post_inline(&[1; 40], SendFlags::empty()).unwrap();
    fake.progress();
    while let Some(mut got) = cq.poll().unwrap() {
        assert_eq!(got.device_time, None);
        let done = a.complete(&mut got.wc).or_else(|| b.complete(&mut got.wc)).unwrap();
        assert_eq!((done.status.is_ok(), done.byte_len), (false, 0));
    }
    // A dead share returns after a poll that found nothing, as on a classic queue.
    drop(a);
    assert!(cq.poll().unwrap().is_none());
    assert_eq!(at.depth().1, 16);
    fake.state().faults.poll_fails = -libc::EIO;
    assert_eq!(cq.poll().unwrap_err().kind(), ErrorKind::DeviceGone);
    fake.state().faults.poll_fails = 0;
    drop((b, cq, at, pd));
    fake.check();
    assert!(fake.closes_on_drop());
}

#[test]
fn a_provider_without_extended_queues_says_what_to_use() {
    let fake = Fake::open();
    fake.state().more.unsupported = true;
    let e = fake.ctx.create_cq_ex(16, WcFields::empty(), None).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("create_cq makes a classic one on every device"), "{e}");
    drop(fake.ctx.create_cq(16).unwrap());
}
