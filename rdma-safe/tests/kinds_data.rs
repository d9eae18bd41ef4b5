//! Messages over what neither soft device has: extended reliable connections and raw packets. Against the fake provider;
//! no device needed.

mod fake;

use fake::Fake;
use rdma_safe::*;

fn config(kind: QpKind) -> QpConfig {
    QpConfig { kind, send_depth: 4, recv_depth: 4, ..QpConfig::default() }
}

fn slot(pd: &ProtectionDomain, data: &[u8]) -> Slot {
    let mut slot = pd.slots(data.len(), 1).unwrap().pop().unwrap();
    slot.copy_from_slice(data);
    slot
}

fn path(to: u32) -> RtrAttr {
    let path = Some(AddressVector::infiniband(1, 7));
    RtrAttr { path, dest_qp_num: to, ..RtrAttr::default() }
}

/// One completion, which there has to be.
fn one(cq: &mut CompletionQueue) -> Wc {
    let mut wc = [Wc::empty()];
    assert_eq!(cq.poll(&mut wc).unwrap(), 1);
    let [wc] = wc;
    wc
}

/// A sender, a target, and two shared receive queues of the target's domain: each message goes to the one it names, by
/// send and by write with immediate data, and one that names none of them fails.
#[test]
fn a_message_goes_through_a_target_to_the_queue_it_names() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let (mut out, mut into) = (fake.ctx.create_cq(16).unwrap(), fake.ctx.create_cq(64).unwrap());
    let domain = XrcDomain::open(&fake.ctx).unwrap();
    let make = || domain.create_srq(&pd, &into.cq_ref(), 4).unwrap();
    let (mut first, mut second) = (make(), make());
    let numbers = (first.xrc_number().unwrap(), second.xrc_number().unwrap());
    assert_ne!(numbers.0, numbers.1);
    for srq in [&mut first, &mut second] {
        srq.post_recv_batch(pd.slots(64, 2).unwrap()).unwrap();
    }

    let at = out.cq_ref();
    let sender = pd.create_manual_qp(&at, &at, &config(QpKind::XrcSend)).unwrap();
    let mut target = domain.create_target().unwrap();
    target.init(&InitAttr { access: PeerAccess::WRITE, ..InitAttr::default() }).unwrap();
    target.ready_to_receive(&path(sender.qp_num())).unwrap();
    let sender = sender.init(&InitAttr::default()).unwrap();
    let sender = sender.ready_to_receive(&path(target.qp_num())).unwrap();
    let mut sender = sender.ready_to_send(&RtsAttr::default()).unwrap();
    fake.connect(sender.qp_num(), target.qp_num());

    let e = sender.post(Request::send(slot(&pd, b"to nobody"), 9)).unwrap_err();
    assert_eq!(e.why, Why::WrongKind, "a queue has to be named");
    let long = [7; 40];
    sender.post(Request::send(slot(&pd, &long), 40).to_srq(numbers.1)).unwrap();
    sender.post(Request::send_inline(b"first").to_srq(numbers.0)).unwrap();
    let memory = OwnedMemory::zeroed(64).unwrap();
    let region = pd.register_remote(memory, RemoteAccess::Write).unwrap();
    let write = Request::write(slot(&pd, &[9; 64]), 64, region.remote());
    sender.post(write.imm(0x0102_0304).to_srq(numbers.0)).unwrap();
    assert_eq!(fake.progress(), 3);
    for _ in 0..3 {
        let done = sender.complete(&mut one(&mut out)).unwrap();
        assert!(done.status.is_ok(), "{}", done.status);
    }

    // Redeemed by the queue it went to, and by no other.
    let mut wc = one(&mut into);
    assert_eq!((wc.queue(), wc.serial()), (Some(Queue::SharedRecv), second.serial()));
    assert!(first.complete(&mut wc).is_none());
    let done = second.complete(&mut wc).unwrap();
    assert_eq!((done.message(), done.op), (&long[..], Op::Recv));
    assert_eq!(done.extra.qp_num(), Some(target.qp_num()), "it came over the target");
    assert_eq!(first.complete(&mut one(&mut into)).unwrap().message(), b"first");
    let told = first.complete(&mut one(&mut into)).unwrap();
    assert_eq!((told.op, told.imm()), (Op::RecvWithImm, Some(0x0102_0304)));
    let mut written = [0; 64];
    region.copy_out(0, &mut written).unwrap();
    assert_eq!(written, [9; 64]);

    sender.post(Request::send_inline(b"lost").to_srq(0xbad)).unwrap();
    fake.progress();
    let done = sender.complete(&mut one(&mut out)).unwrap();
    assert!(done.status.to_string().contains("invalid request at the peer"), "{}", done.status);
    assert_eq!(sender.state(), QpState::Error);
    assert_eq!(second.close().map_err(|(_, e)| e).unwrap().len(), 1, "the one that is not used");
    assert_eq!(first.close().map_err(|(_, e)| e).unwrap().len(), 0);
    drop((sender, target, domain, region));
    fake.check();
}

/// Whole frames, headers and all, from one queue pair to the other: no address, no 40 bytes in front.
#[test]
fn raw_packets_carry_whole_frames() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut cq = fake.ctx.create_cq(64).unwrap();
    let make = || {
        let at = cq.cq_ref();
        let qp = pd.create_manual_qp(&at, &at, &config(QpKind::RawPacket)).unwrap();
        let qp = qp.init(&InitAttr::default()).unwrap();
        qp.ready_to_receive(&RtrAttr::default()).unwrap().ready_to_send(&RtsAttr::default())
    };
    let (mut a, mut b) = (make().unwrap(), make().unwrap());
    fake.connect(a.qp_num(), b.qp_num());
    let mut frame = [0; 64];
    frame[..6].fill(0xff); // to all
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    frame[14..19].copy_from_slice(b"frame");
    for _ in 0..2 {
        b.post_recv(pd.slots(2048, 1).unwrap().pop().unwrap()).unwrap();
    }
    let to = AddressVector::infiniband(1, 7);
    let ah = pd.create_ah(&to).unwrap();
    let e = a.post(Request::send(slot(&pd, &frame), 64).to(&ah, 1, 2)).unwrap_err();
    assert_eq!(e.why, Why::WrongKind, "a frame has its address in it");
    a.post_send(slot(&pd, &frame), 64, SendFlags::empty()).unwrap();
    a.post(Request::send(slot(&pd, &frame), 60)).unwrap();
    fake.progress();
    let mut heard = Vec::new();
    for _ in 0..4 {
        let mut wc = one(&mut cq);
        let done = a.complete(&mut wc).or_else(|| b.complete(&mut wc)).unwrap();
        assert!(done.status.is_ok(), "{}", done.status);
        if done.op == Op::Recv {
            assert_eq!(done.byte_len, done.message().len());
            assert_eq!(done.extra.origin(), None);
            heard.push(done.message().to_vec());
        }
    }
    assert_eq!(heard, [frame.to_vec(), frame[..60].to_vec()]);
    let region = pd.register_remote(vec![0; 64].into(), RemoteAccess::Write).unwrap();
    let e = a.post(Request::write(slot(&pd, &frame), 64, region.remote())).unwrap_err();
    assert_eq!(e.why, Why::WrongKind);
    drop((a, b));
    fake.check();
}
