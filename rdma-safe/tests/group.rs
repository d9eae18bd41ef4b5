//! The poll group, against the fake provider.

mod fake;

use fake::Fake;
use rdma_safe::*;

const SIG: SendFlags = SendFlags::empty();

fn config() -> QpConfig {
    QpConfig { send_depth: 4, recv_depth: 4, max_inline: 64, ..QpConfig::default() }
}

struct Rig {
    group: PollGroup,
    pd: ProtectionDomain,
    fake: Fake,
}

fn rig(depth: u32) -> Rig {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let group = PollGroup::new(fake.ctx.create_cq(depth).unwrap());
    Rig { group, pd, fake }
}

fn pair(r: &Rig) -> (QueuePair, QueuePair) {
    let cq = r.group.cq_ref();
    let mut a = r.pd.create_qp(&cq, &cq, &config()).unwrap();
    let mut b = r.pd.create_qp(&cq, &cq, &config()).unwrap();
    r.fake.connect(a.qp_num(), b.qp_num());
    a.mark_connected().unwrap();
    b.mark_connected().unwrap();
    (a, b)
}

fn adopt(g: &mut PollGroup, qp: QueuePair) -> QpKey {
    g.adopt(qp).map_err(|(_, e)| e).unwrap()
}

fn drain(g: &mut PollGroup) -> Vec<Completion> {
    std::iter::from_fn(|| g.poll().unwrap()).collect()
}

#[test]
fn completions_find_their_queue_pair() {
    let mut r = rig(1024);
    let mut keys = Vec::new();
    for _ in 0..40 {
        let (a, b) = pair(&r);
        keys.push((adopt(&mut r.group, a), adopt(&mut r.group, b)));
    }
    for round in 0..10u8 {
        for (i, (a, b)) in keys.iter().enumerate() {
            r.group.post_recv(*b, r.pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
            r.group.post_inline(*a, &[round, i as u8], SIG).unwrap();
        }
        r.fake.progress();
        let done = drain(&mut r.group);
        assert_eq!(done.len(), 80);
        for c in done.iter().filter(|c| c.op == Op::Recv) {
            let i = keys.iter().position(|(_, b)| *b == c.key).unwrap();
            assert_eq!(c.slot.as_ref().unwrap()[..2], [round, i as u8]);
        }
    }
    assert_eq!(r.group.keys().count(), 80);
    assert_eq!((r.group.stale(), r.group.parked()), (0, 0));
    r.fake.check();
}

#[test]
fn early_completions_are_parked_in_order_and_delivered_first() {
    let mut r = rig(64);
    let (mut a, mut b) = pair(&r);
    for s in r.pd.slots(64, 4).unwrap() {
        b.post_recv(s).unwrap();
    }
    for i in 0..3u8 {
        a.post_inline(&[i], SIG).unwrap();
    }
    r.fake.progress();
    assert!(r.group.poll().unwrap().is_none());
    assert_eq!(r.group.parked(), 6);
    // One more, in the device's queue when the queue pair joins: after the parked ones.
    a.post_inline(&[3], SIG).unwrap();
    r.fake.progress();
    let kb = adopt(&mut r.group, b);
    let got: Vec<u8> = drain(&mut r.group).iter().map(|c| c.slot.as_ref().unwrap()[0]).collect();
    assert_eq!(got, [0, 1, 2, 3]);
    assert_eq!(r.group.parked(), 4, "the sender's own");
    let ka = adopt(&mut r.group, a);
    assert_eq!(drain(&mut r.group).len(), 4);
    assert_ne!(ka, kb);
    assert_eq!(r.group.stale(), 0);
    r.fake.check();
}

/// The queue pair joins while later completions of it are already in the group's batch.
#[test]
fn parked_completions_come_before_the_rest_of_the_batch() {
    let mut r = rig(64);
    let (mut a, mut b) = pair(&r);
    let (c, d) = pair(&r);
    let (kc, kd) = (adopt(&mut r.group, c), adopt(&mut r.group, d));
    for s in r.pd.slots(64, 2).unwrap() {
        b.post_recv(s).unwrap();
    }
    r.group.post_recv(kd, r.pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    a.post_inline(&[0], SIG).unwrap();
    r.fake.progress();
    r.group.post_inline(kc, b"between", SIG).unwrap();
    r.fake.progress();
    a.post_inline(&[1], SIG).unwrap();
    r.fake.progress();
    let first = r.group.poll().unwrap().unwrap();
    assert_eq!(first.key, kd);
    let kb = adopt(&mut r.group, b);
    let got: Vec<u8> = drain(&mut r.group)
        .iter()
        .filter(|c| c.key == kb)
        .map(|c| c.slot.as_ref().unwrap()[0])
        .collect();
    assert_eq!(got, [0, 1]);
    r.fake.check();
}

#[test]
fn the_parked_of_the_dead_are_dropped() {
    let mut r = rig(64);
    r.fake.state().faults.flush_on_destroy = true;
    let (mut a, mut b) = pair(&r);
    for s in r.pd.slots(64, 4).unwrap() {
        b.post_recv(s).unwrap();
    }
    a.post_inline(b"x", SIG).unwrap();
    r.fake.progress();
    assert!(r.group.poll().unwrap().is_none());
    assert_eq!(r.group.parked(), 2);
    assert_eq!(b.close().unwrap().len(), 4, "the parked one's slot, too: it was never redeemed");
    assert!(r.group.poll().unwrap().is_none());
    assert_eq!(r.group.stale(), 3, "flushed by the destroy");
    drop(a);
    // A new pair with the same numbers gets nothing of theirs.
    let (a, b) = pair(&r);
    adopt(&mut r.group, a);
    adopt(&mut r.group, b);
    assert!(r.group.poll().unwrap().is_none());
    r.fake.check();
}

#[test]
fn a_device_gone_mad_cannot_fill_the_memory() {
    let mut r = rig(32);
    let (mut a, mut b) = pair(&r);
    let slots = r.pd.slots(64, 2).unwrap();
    for s in slots {
        b.post_recv(s).unwrap();
    }
    a.post_inline(b"x", SIG).unwrap();
    r.fake.progress();
    for _ in 0..20 {
        r.fake.repeat(8);
        assert!(r.group.poll().unwrap().is_none());
    }
    assert_eq!(r.group.parked(), 32, "no more than the queue is deep");
    // They were copies of the sender's. When it is gone, they make room for those who live.
    drop(a);
    let (mut c, d) = pair(&r);
    c.post_inline(b"y", SIG).unwrap();
    let kd = adopt(&mut r.group, d);
    r.group.post_recv(kd, r.pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
    r.fake.progress();
    assert_eq!(drain(&mut r.group).len(), 1);
    let kc = adopt(&mut r.group, c);
    assert_eq!(drain(&mut r.group).iter().map(|c| c.key).collect::<Vec<_>>(), [kc]);
    let kb = adopt(&mut r.group, b);
    assert_eq!(drain(&mut r.group).iter().map(|c| c.key).collect::<Vec<_>>(), [kb]);
}

/// Dials that fail leave flush completions, polled while the queue pair still lived.
#[test]
fn the_parked_of_the_dead_do_not_pile_up() {
    let mut r = rig(64);
    for _ in 0..50 {
        let cq = r.group.cq_ref();
        let mut dial = r.pd.create_qp(&cq, &cq, &config()).unwrap();
        dial.mark_connected().unwrap();
        for s in r.pd.slots(64, 4).unwrap() {
            dial.post_recv(s).unwrap();
        }
        r.fake.fail(dial.qp_num());
        assert!(r.group.poll().unwrap().is_none());
        drop(dial);
        let (a, b) = pair(&r);
        for qp in [a, b] {
            let key = adopt(&mut r.group, qp);
            r.group.remove(key).unwrap();
        }
        assert_eq!(r.group.parked(), 0);
        assert!(r.group.poll().unwrap().is_none());
    }
    assert_eq!(r.group.stale(), 200);
    r.fake.check();
}

#[test]
fn a_released_queue_pair_loses_nothing() {
    let mut r = rig(64);
    let (a, mut b) = pair(&r);
    let ka = adopt(&mut r.group, a);
    for s in r.pd.slots(64, 2).unwrap() {
        b.post_recv(s).unwrap();
    }
    let kb = adopt(&mut r.group, b);
    let b = r.group.release(kb).unwrap();
    let (c, _d) = pair(&r);
    let kc = adopt(&mut r.group, c);
    assert_eq!(kc.index(), kb.index(), "its place is taken meanwhile");
    r.group.post_inline(ka, b"x", SIG).unwrap();
    r.fake.progress();
    assert_eq!(drain(&mut r.group).len(), 1, "the send");
    assert_eq!(r.group.parked(), 1);
    let kb = adopt(&mut r.group, b);
    r.group.post_inline(ka, b"y", SIG).unwrap();
    r.fake.progress();
    let got: Vec<u8> = drain(&mut r.group)
        .iter()
        .filter(|c| c.key == kb)
        .map(|c| c.slot.as_ref().unwrap()[0])
        .collect();
    assert_eq!(got, *b"xy");
    assert_eq!(r.group.stale(), 0);
    r.fake.check();
}

#[test]
fn keys_die_with_their_queue_pair() {
    let mut r = rig(64);
    let (a, b) = pair(&r);
    let ka = adopt(&mut r.group, a);
    let kb = adopt(&mut r.group, b);
    assert!(r.group.remove(ka).unwrap().is_empty());
    assert_eq!(r.group.remove(ka).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let slot = r.pd.slots(64, 1).unwrap().pop().unwrap();
    let e = r.group.post_send(ka, slot, 1, SIG).unwrap_err();
    assert_eq!((e.why, e.slot.is_some()), (Why::NoSuchQp, true));
    let (c, _d) = pair(&r);
    let kc = adopt(&mut r.group, c);
    assert_eq!(kc.index(), ka.index(), "the place is used again");
    assert_ne!(kc, ka);
    assert!(r.group.qp_mut(ka).is_none());
    // Released and adopted again: the same queue pair, the same serial.
    let b = r.group.release(kb).unwrap();
    assert!(r.group.release(kb).is_none());
    assert_eq!(adopt(&mut r.group, b).serial(), kb.serial());
    r.fake.check();
}

#[test]
fn a_queue_pair_of_another_queue_is_given_back() {
    let mut r = rig(64);
    let other = r.fake.ctx.create_cq(64).unwrap();
    let qp = r.pd.create_qp(&r.group.cq_ref(), &other.cq_ref(), &config()).unwrap();
    let serial = qp.serial();
    let (qp, e) = r.group.adopt(qp).unwrap_err();
    assert_eq!((qp.serial(), e.kind()), (serial, ErrorKind::WrongContext));
    drop(qp);
    r.fake.check();
}

/// One thread makes queue pairs, talks over them at once and hands them over late or never; another polls all along.
#[test]
fn handed_over_while_completions_come() {
    const PAIRS: usize = 200;
    let mut r = rig(16 * 64);
    let (hand, take) = std::sync::mpsc::channel();
    let (pd, cq, fake) = (r.pd.clone(), r.group.cq_ref(), r.fake);
    fake.state().faults.flush_on_destroy = true;
    let maker = std::thread::spawn(move || {
        let mut made = 0;
        while made < PAIRS {
            let pair = pd
                .create_qp(&cq, &cq, &config())
                .and_then(|a| Ok((a, pd.create_qp(&cq, &cq, &config())?)));
            let Ok((mut a, mut b)) = pair else {
                // Booked out until the poller has seen the queue empty.
                std::thread::yield_now();
                continue;
            };
            fake.connect(a.qp_num(), b.qp_num());
            a.mark_connected().unwrap();
            b.mark_connected().unwrap();
            for s in pd.slots(64, 2).unwrap() {
                b.post_recv(s).unwrap();
            }
            a.post_inline(&[made as u8], SIG).unwrap();
            fake.progress();
            // Every third pair dies before it joins.
            if made % 3 != 0 {
                hand.send((a, b, made as u8)).unwrap();
            }
            made += 1;
        }
        fake
    });
    let (mut heard, mut expected) = (Vec::new(), Vec::new());
    let mut poll = |group: &mut PollGroup| {
        while let Some(c) = group.poll().unwrap() {
            assert!(c.status.is_ok());
            if let Some(slot) = &c.slot {
                heard.push(slot[0]);
                // Both are done with: destroyed while others talk.
                assert_eq!(group.remove(c.key).unwrap().len(), 1);
            } else {
                group.remove(c.key).unwrap();
            }
        }
    };
    while let Ok((a, b, tag)) = take.recv_timeout(std::time::Duration::from_secs(20)) {
        poll(&mut r.group);
        adopt(&mut r.group, b);
        poll(&mut r.group);
        adopt(&mut r.group, a);
        expected.push(tag);
        poll(&mut r.group);
    }
    let fake = maker.join().unwrap();
    poll(&mut r.group);
    heard.sort();
    expected.sort();
    assert_eq!(heard, expected);
    assert_eq!(r.group.keys().count(), 0);
    fake.check();
}
