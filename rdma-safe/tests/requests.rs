//! Requests of every kind against the fake provider: what devices do wrong with them, and what none of the soft devices
//! has. What they can do is tested on them in `device_ops.rs`.

mod fake;

use fake::Fake;
use fake::rig::Rig;
use rdma_safe::*;

const SIG: SendFlags = SendFlags::empty();

fn config() -> QpConfig {
    QpConfig {
        send_depth: 40,
        recv_depth: 40,
        max_send_sge: 3,
        max_recv_sge: 3,
        ..QpConfig::default()
    }
}

fn rig() -> Rig {
    Rig::on(Fake::open(), 400, &config())
}

impl Rig {
    fn slots(&self, count: usize) -> Vec<Slot> {
        self.pd.slots(64, count).unwrap()
    }

    fn slot(&self) -> Slot {
        self.slots(1).pop().unwrap()
    }

    fn remote(&self) -> RemoteSlot {
        let memory = OwnedMemory::zeroed(64).unwrap();
        let access = RemoteAccess::ReadWrite;
        let region = self.pd.register_remote(memory, access).unwrap();
        region.into_slots(64, 1).unwrap().pop().unwrap()
    }

    fn done(&mut self) -> Vec<Done> {
        self.fake.progress();
        let mut all = Vec::new();
        let mut wc = [Wc::empty()];
        while self.cq.poll(&mut wc).unwrap() == 1 {
            let [wc] = &mut wc;
            all.push(self.a.complete(wc).or_else(|| self.b.complete(wc)).unwrap());
        }
        all
    }
}

#[test]
fn a_batch_has_one_doorbell_for_sixteen() {
    let mut rig = rig();
    let (recvs, sends) = (rig.slots(33), rig.slots(33));
    let mut before = rig.fake.state().doorbells;
    let mut rung = |rig: &Rig| {
        let now = rig.fake.state().doorbells;
        let since = (now.0 - before.0, now.1 - before.1);
        before = now;
        since
    };
    assert_eq!(rig.b.post_recv_batch(recvs).unwrap(), 33);
    assert_eq!(rung(&rig), (3, 33));
    let requests = sends.into_iter().map(|s| Request::send(s, 40));
    assert_eq!(rig.a.post_batch(requests).unwrap(), 33);
    assert_eq!(rung(&rig), (3, 33));
    assert_eq!(rig.a.post_batch([]).unwrap(), 0);
    assert_eq!(rung(&rig), (0, 0), "nothing rings nothing");
    assert_eq!(rig.done().len(), 66);
    rig.fake.check();
}

/// What the device may have stays; what it never saw comes back; and the lie of siw is seen through.
#[test]
fn a_batch_that_fails_half_way_loses_nothing() {
    for lies in [false, true] {
        let mut rig = rig();
        rig.fake.state().faults.list_fails_at = Some(2);
        rig.fake.state().faults.list_lies = lies;
        let mut requests: Vec<_> = rig.slots(4).into_iter().map(|s| Request::send(s, 40)).collect();
        requests.push(Request::write(rig.remote(), 40, RemoteRange { addr: 8, len: 40, rkey: 1 }));
        let e = rig.a.post_batch(requests).unwrap_err();
        assert_eq!((e.posted, e.error.why), (2, Why::Device(libc::ENOMEM)), "lies {lies}");
        assert!(e.error.slot.is_none(), "the device may have it");
        let unseen: Vec<_> = e.unseen.into_iter().map(Payload::into_kind).collect();
        assert!(matches!(unseen[..], [PayloadKind::Slot(_), PayloadKind::Remote(_)]), "{unseen:?}");
        assert_eq!((rig.a.in_flight(), rig.a.state()), ((3, 0), QpState::Error));
        assert_eq!(
            rig.a.post_batch([Request::send_inline(b"x")]).unwrap_err().error.why,
            Why::Broken
        );
        let slots = rig.slots(4);
        let e = rig.b.post_recv_batch(slots).unwrap_err();
        assert_eq!((e.posted, e.unseen.len(), rig.b.in_flight()), (2, 1, (0, 3)));
        rig.fake.state().faults = Default::default();
        assert_eq!(rig.a.close().unwrap().len(), 3);
        assert_eq!(rig.b.close().unwrap().len(), 3);
        rig.fake.check();
    }
}

/// The same with a single request: siw says 0 there, too.
#[test]
fn a_post_that_claims_success_and_names_a_failed_request_has_failed() {
    let mut rig = rig();
    rig.fake.state().faults.list_fails_at = Some(0);
    rig.fake.state().faults.list_lies = true;
    let slot = rig.slot();
    let e = rig.a.post(Request::send(slot, 40)).unwrap_err();
    assert_eq!((e.why, e.slot.is_none()), (Why::Device(libc::ENOMEM), true));
    let into = rig.remote();
    let e = rig.b.post_recv_remote(into).unwrap_err();
    assert_eq!((e.why, e.payload.is_none()), (Why::Device(libc::ENOMEM), true));
    rig.fake.state().faults = Default::default();
    assert_eq!(rig.a.close_payloads().unwrap().len(), 1);
    assert_eq!(rig.b.close_payloads().unwrap().len(), 1);
    rig.fake.check();
}

#[test]
fn every_kind_of_memory_comes_back_as_what_it_was() {
    let mut rig = rig();
    let mut target = rig.remote();
    let shared = rig.pd.register(vec![7; 100].into()).unwrap().into_shared();
    let mut list = SgList::new();
    list.push(rig.slot(), 10).unwrap();
    list.push(shared.slice(0, 50).unwrap(), 30).unwrap();
    let to = target.remote();
    let slot = rig.slot();
    rig.a.post(Request::write(slot, 64, to)).unwrap();
    rig.a.post(Request::write(shared.slice(0, 64).unwrap(), 64, to)).unwrap();
    rig.a.post(Request::write_list(list, to)).unwrap();
    rig.a.post(Request::write_inline(b"inline", to)).unwrap();
    let sink = rig.remote();
    rig.a.post(Request::read(sink, 64, to)).unwrap();
    let done = rig.done();
    let ops: Vec<_> = done.iter().map(|d| d.op).collect();
    assert_eq!(ops, [Op::Write, Op::Write, Op::Write, Op::Write, Op::Read]);
    let kinds: Vec<_> =
        done.into_iter().map(|d| d.into_payload().map(Payload::into_kind)).collect();
    let [Some(slot), Some(slice), Some(list), None, Some(sink)] = &kinds[..] else {
        panic!("{kinds:?}")
    };
    assert!(matches!(slot, PayloadKind::Slot(_)) && matches!(slice, PayloadKind::Shared(_)));
    assert!(matches!(list, PayloadKind::List(l) if l.len() == 2));
    let PayloadKind::Remote(sink) = sink else { panic!("{sink:?}") };
    let mut got = [1; 64];
    sink.copy_out(0, &mut got).unwrap();
    let want = [&b"inline"[..], &[0; 4], &[7; 54]].concat();
    assert_eq!(got[..], want[..], "the last writer of each byte");
    target.copy_in(0, &[0; 64]).unwrap();
    // Everything again, and the queue pair is closed over it.
    rig.a.post(Request::write(shared.slice(0, 64).unwrap(), 64, to)).unwrap();
    // SAFETY: the fake moves nothing before the close.
    unsafe {
        let raw = RawRequest { verb: RawVerb::Send, pieces: &[], flags: SIG, imm: None };
        rig.a.post_raw(&raw, 99).unwrap();
        rig.a.post_recv_raw(&[RawSge { addr: 1, len: 1, lkey: 1 }], 98).unwrap();
    }
    let left: Vec<_> =
        rig.a.close_payloads().unwrap().into_iter().map(Payload::into_kind).collect();
    use PayloadKind::{Shared, Token};
    assert!(matches!(left[..], [Shared(_), Token(99), Token(98)]), "{left:?}");
    rig.fake.check();
}

#[test]
fn unsignalled_requests_of_all_kinds_are_reclaimed() {
    let mut rig = rig();
    let target = rig.remote();
    let to = target.remote();
    let shared = rig.pd.register(vec![7; 100].into()).unwrap().into_shared();
    let lazy = SendFlags::UNSIGNALLED;
    let slot = rig.slot();
    rig.a.post(Request::write(shared.slice(0, 40).unwrap(), 40, to).flags(lazy)).unwrap();
    rig.a.post(Request::write_inline(b"x", to).flags(lazy)).unwrap();
    rig.a.post(Request::write(slot, 40, to).flags(lazy)).unwrap();
    // A read is signalled whatever is asked for.
    let sink = rig.remote();
    rig.a.post(Request::read(sink, 8, to).flags(lazy)).unwrap();
    let done = rig.done();
    assert_eq!((done.len(), done[0].op), (1, Op::Read));
    let kinds: Vec<_> =
        std::iter::from_fn(|| rig.a.reclaim_payload()).map(Payload::into_kind).collect();
    assert!(matches!(kinds[..], [PayloadKind::Shared(_), PayloadKind::Slot(_)]), "{kinds:?}");
    assert_eq!(rig.a.in_flight(), (0, 0));
    rig.fake.check();
}

/// One shared queue, two queue pairs, and a number that is given again while an old completion is in the queue.
#[test]
fn a_shared_queue_outlives_its_queue_pairs_and_trusts_no_number() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut group = PollGroup::new(fake.ctx.create_cq(200).unwrap());
    let (cq, out) = (group.cq_ref(), fake.ctx.create_cq(200).unwrap());
    let mut srq = pd.create_srq(8).unwrap();
    let serial = srq.serial();
    assert_eq!(pd.create_srq(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(srq.post_recv_batch(pd.slots(64, 8).unwrap()).unwrap(), 8);
    let connect = |srq: &SrqRef| {
        let mut b = pd.create_qp_on_srq(&cq, &cq, srq, &config()).unwrap();
        let mut a = pd.create_qp(&out.cq_ref(), &out.cq_ref(), &config()).unwrap();
        fake.connect(a.qp_num(), b.qp_num());
        a.mark_connected().unwrap();
        b.mark_connected().unwrap();
        (a, b)
    };
    let names = srq.srq_ref();
    let booked = cq.depth().1;
    let (mut a, b) = connect(&names);
    assert_eq!(cq.depth().1, booked + 40 + 8, "its sends, and the shared queue once");
    let number = b.qp_num();
    let key = group.adopt(b).map_err(|(_, e)| e).unwrap();
    a.post_inline(b"first", SIG).unwrap();
    fake.progress();
    assert!(group.poll().unwrap().is_none(), "parked: the group has no such queue yet");
    group.adopt_srq(srq);
    let first = group.poll().unwrap().unwrap();
    assert_eq!(
        (first.key, first.message(), first.extra.qp_num()),
        (key, &b"first"[..], Some(number))
    );
    a.post_inline(b"second", SIG).unwrap();
    fake.progress();
    assert!(group.remove(key).unwrap().is_empty());
    let (mut a2, b2) = connect(&names);
    assert_eq!(b2.qp_num(), number, "the fake gives the lowest free number, as siw");
    let key2 = group.adopt(b2).map_err(|(_, e)| e).unwrap();
    let second = group.poll().unwrap().unwrap();
    assert_eq!(
        (second.key, second.message()),
        (QpKey::UNKNOWN, &b"second"[..]),
        "not the new one's"
    );
    for _ in 0..3 {
        assert!(group.poll().unwrap().is_none());
    }
    a2.post_inline(b"third", SIG).unwrap();
    fake.progress();
    let third = group.poll().unwrap().unwrap();
    assert_eq!((third.key, third.message()), (key2, &b"third"[..]));
    drop((names, a, a2));
    // Dropped while a queue pair is on it: what it owns stays until that is gone.
    drop(group.release_srq(serial));
    assert_eq!(fake.state().srqs_alive(), 1);
    drop(group);
    assert_eq!(fake.state().srqs_alive(), 0);
    drop((first, second, third));
    assert_eq!(fake.state().alive().2, 0, "every region is deregistered");
    fake.check();
}

#[test]
fn a_shared_queue_that_cannot_be_destroyed_leaks() {
    let _leaks = fake::chaos::LeaksOnPurpose::new();
    for close in [false, true] {
        let fake = Fake::open();
        let pd = fake.ctx.alloc_pd().unwrap();
        let mut srq = pd.create_srq(4).unwrap();
        srq.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap();
        fake.state().faults.destroy_srq_fails = libc::EIO;
        match close {
            true => {
                let (srq, e) = srq.close().unwrap_err();
                assert!(srq.is_none() && e.kind() == ErrorKind::DeviceGone);
            }
            false => drop(srq),
        }
        drop(pd);
        let s = fake.state();
        assert_eq!((s.srqs_alive(), s.alive().2, s.alive().3), (1, 1, 1), "close {close}");
    }
}

#[test]
fn a_shared_queue_that_fails_a_post_keeps_the_slot_and_takes_no_more() {
    for lies in [false, true] {
        let fake = Fake::open();
        let pd = fake.ctx.alloc_pd().unwrap();
        let mut srq = pd.create_srq(8).unwrap();
        fake.state().faults.list_fails_at = Some(1);
        fake.state().faults.list_lies = lies;
        let e = srq.post_recv_batch(pd.slots(64, 4).unwrap()).unwrap_err();
        assert_eq!((e.posted, e.error.why, e.unseen.len()), (1, Why::Device(libc::ENOMEM), 2));
        fake.state().faults = Default::default();
        let e = srq.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap_err();
        assert!(e.why == Why::Broken && e.slot.is_some());
        assert_eq!(srq.close().map_err(|(_, e)| e).unwrap().len(), 2);
        fake.check();
    }
}
