//! What is rare on the message path, against the fake provider: batches that end in the middle, windows, and shared queues
//! of other domains.

mod fake;

use fake::Fake;
use fake::rig::{Rig, by_hand};
use rdma_safe::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

const SIG: SendFlags = SendFlags::empty();
const LAZY: SendFlags = SendFlags::UNSIGNALLED;

fn config() -> QpConfig {
    QpConfig { send_depth: 20, recv_depth: 20, ..QpConfig::default() }
}

fn rig() -> Rig {
    Rig::on(Fake::open_infiniband(), 400, &config())
}

impl Rig {
    fn slots(&self, count: usize) -> Vec<Slot> {
        self.pd.slots(64, count).unwrap()
    }

    fn region(&self) -> MemoryRegion<Remote> {
        let memory = OwnedMemory::zeroed(64).unwrap();
        self.pd.register_remote(memory, RemoteAccess::Windows).unwrap()
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

    /// A window of type 2, bound on `a`.
    fn bound(&mut self, region: &MemoryRegion<Remote>) -> MemoryWindow {
        let window = self.pd.alloc_window(WindowKind::Type2).unwrap();
        self.a.post(Request::bind(window, region, 0, 64, WindowAccess::READ)).unwrap();
        self.window(Op::Bind)
    }

    fn window(&mut self, op: Op) -> MemoryWindow {
        let done = self.done().pop().unwrap();
        assert!(done.op == op && done.status.is_ok(), "{done:?}");
        window_of(done.payload)
    }
}

fn window_of(payload: Option<Payload>) -> MemoryWindow {
    match payload.map(Payload::into_kind) {
        Some(PayloadKind::Window(window)) => window,
        other => panic!("a window, and no {other:?}"),
    }
}

/// At every position, with unsignalled requests before and after: what the device may have comes back from the close,
/// what it never saw at once, and nothing is counted twice.
#[test]
fn a_batch_that_fails_at_any_request_accounts_for_all_of_them() {
    for fails_at in 0..6 {
        for lazy in 0..1u32 << 6 {
            let mut rig = rig();
            rig.fake.state().faults.list_fails_at = Some(fails_at);
            let flags = |i| if lazy >> i & 1 == 0 { SIG } else { LAZY };
            let slots = rig.slots(6).into_iter().enumerate();
            let requests = slots.map(|(i, slot)| Request::send(slot, 64).flags(flags(i)));
            let e = rig.a.post_batch(requests).unwrap_err();
            assert_eq!((e.posted, e.unseen.len()), (fails_at, 5 - fails_at));
            assert_eq!(rig.a.in_flight(), (fails_at + 1, 0));
            rig.fake.state().faults.list_fails_at = None;
            assert!(rig.a.reclaim_payload().is_none(), "nothing has completed");
            assert_eq!(rig.a.close().unwrap().len(), fails_at + 1);
            rig.fake.check();
        }
    }
}

/// A refused request ends the list; if the device then fails the list, both have to come back.
#[test]
fn a_refused_request_comes_back_also_when_the_device_fails_those_before_it() {
    let mut rig = rig();
    let mut slots = rig.slots(9);
    rig.fake.state().faults.list_fails_at = Some(1);
    let lens = [64, 64, 64, 65];
    let requests = slots.drain(..4).zip(lens).map(|(slot, len)| Request::send(slot, len));
    let e = rig.a.post_batch(requests).unwrap_err();
    assert_eq!((e.posted, e.error.why), (1, Why::Device(libc::ENOMEM)));
    assert_eq!(e.unseen.len(), 2, "one behind the failed one, and the one that is too long");
    assert_eq!(rig.a.close().unwrap().len(), 2);
    // Receives: the strange slot is refused.
    let strange = rig.fake.ctx.alloc_pd().unwrap().slots(64, 1).unwrap().pop().unwrap();
    let list: Vec<_> = slots.drain(..2).chain([strange]).collect();
    let e = rig.b.post_recv_batch(list).unwrap_err();
    assert_eq!((e.posted, e.unseen.len(), rig.b.close().unwrap().len()), (1, 1, 2));
    let mut srq = rig.pd.create_srq(8).unwrap();
    let strange = rig.fake.ctx.alloc_pd().unwrap().slots(64, 1).unwrap().pop().unwrap();
    let list: Vec<_> = slots.drain(..3).chain([strange]).collect();
    let e = srq.post_recv_batch(list).unwrap_err();
    assert_eq!((e.posted, e.unseen.len()), (1, 2));
    assert_eq!(srq.close().map_err(|(_, e)| e).unwrap().len(), 2);
    rig.fake.check();
}

/// The caller's iterator may panic. The device has seen nothing of what was staged, and the queues work on.
#[test]
fn a_panic_between_two_requests_leaves_nothing_half_posted() {
    let mut rig = rig();
    let mut srq = rig.pd.create_srq(8).unwrap();
    for round in 0..50 {
        let panicking = |count: usize| {
            let slots = rig.pd.slots(64, count + 1).unwrap().into_iter().take(count).map(Some);
            slots.chain([None]).map(|slot| slot.expect("a panic of the iterator"))
        };
        let flags = if round % 2 == 0 { SIG } else { LAZY };
        let sends = panicking(round % 7).map(|slot| Request::send(slot, 64).flags(flags));
        assert!(catch_unwind(AssertUnwindSafe(|| rig.a.post_batch(sends))).is_err());
        let recvs = panicking(round % 7);
        assert!(catch_unwind(AssertUnwindSafe(|| rig.b.post_recv_batch(recvs))).is_err());
        let shared = panicking(round % 7);
        assert!(catch_unwind(AssertUnwindSafe(|| srq.post_recv_batch(shared))).is_err());
        assert_eq!((rig.a.in_flight(), rig.b.in_flight(), srq.in_flight()), ((0, 0), (0, 0), 0));
        let [to, from] = <[Slot; 2]>::try_from(rig.slots(2)).unwrap();
        rig.b.post_recv(to).unwrap();
        rig.a.post_send(from, 64, SIG).unwrap();
        assert_eq!(rig.done().len(), 2);
    }
    rig.fake.check();
}

#[test]
fn a_window_whose_bind_was_never_posted_is_as_it_was() {
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let mut rig = rig();
        let region = rig.region();
        let window = rig.pd.alloc_window(kind).unwrap();
        let slot = rig.slots(1).pop().unwrap();
        rig.fake.state().faults.list_fails_at = Some(0);
        let bind = |window| Request::bind(window, &region, 0, 64, WindowAccess::READ);
        let mut e = rig.a.post_batch([Request::send(slot, 64), bind(window)]).unwrap_err();
        rig.fake.state().faults.list_fails_at = None;
        let window = window_of(e.unseen.pop());
        assert_eq!(window.remote(), None);
        rig.b.post(bind(window)).unwrap();
        let window = rig.window(Op::Bind);
        assert!(window.remote().is_some());
        drop(rig.b.close().unwrap());
        rig.fake.check();
    }
}

/// Bound again and again on one queue pair, and then refused for want of room.
#[test]
fn a_window_that_finds_no_room_stays_where_it_is_bound() {
    let mut rig = rig();
    let region = rig.region();
    let mut window = rig.bound(&region);
    for _ in 0..200 {
        rig.a.post(Request::local_invalidate(window)).unwrap();
        window = rig.window(Op::LocalInvalidate);
        rig.a.post(Request::bind(window, &region, 0, 64, WindowAccess::READ)).unwrap();
        window = rig.window(Op::Bind);
    }
    // Receives are missing: nothing completes.
    while rig.a.post_inline(b"fill", SIG).is_ok() {}
    let e = rig.a.post(Request::local_invalidate(window)).unwrap_err();
    assert_eq!(e.why, Why::Full);
    let window = window_of(e.payload);
    let e = rig.b.post(Request::local_invalidate(window)).unwrap_err();
    assert_eq!(e.why, Why::WrongRequest, "it is still bound on the other one");
    let window = window_of(e.payload);
    drop(rig.a);
    assert_eq!((window.remote(), rig.fake.state().more.mws), (None, 0), "and ends with that");
    rig.fake.check();
}

#[test]
fn a_window_bound_to_nothing_names_nothing() {
    let mut rig = rig();
    let region = rig.region();
    let window = rig.pd.alloc_window(WindowKind::Type1).unwrap();
    rig.a.post(Request::bind(window, &region, 0, 64, WindowAccess::READ)).unwrap();
    let window = rig.window(Op::Bind);
    assert!(window.remote().is_some());
    let unbind = Request::bind(window, &region, 0, 0, WindowAccess::READ);
    rig.a.post(unbind).unwrap();
    let window = rig.window(Op::Bind);
    assert_eq!(window.remote(), None);
    region.deregister().expect("no window holds it");
    drop(window);
    rig.fake.check();
}

/// What takes a receive over XRC names the queue that is in, which a raw request cannot.
#[test]
fn raw_immediate_data_has_no_way_over_an_extended_connection() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let cq = fake.ctx.create_cq(64).unwrap();
    let config = QpConfig { kind: QpKind::XrcSend, send_depth: 4, ..QpConfig::default() };
    let mut qp = by_hand(pd.create_manual_qp(&cq.cq_ref(), &cq.cq_ref(), &config).unwrap());
    let to = RemoteRange { addr: 8, len: 8, rkey: 1 };
    for (imm, wanted) in [(Some(1), Err(Why::WrongRequest)), (None, Ok(()))] {
        let raw = RawRequest { verb: RawVerb::Write(to), pieces: &[], flags: SIG, imm };
        // SAFETY: no memory is named.
        assert_eq!(unsafe { qp.post_raw(&raw, 1) }.map_err(|e| e.why), wanted);
    }
    fake.check();
}

/// How much of a list counts is said in the list.
#[test]
fn a_list_is_posted_whole() {
    let mut rig = rig();
    let range = RemoteRange { addr: 8, len: 64, rkey: 1 };
    let mut list = SgList::new();
    list.push(rig.slots(1).pop().unwrap(), 40).unwrap();
    for (len, why) in [(41, Why::TooLong), (39, Why::WrongRequest), (0, Why::WrongRequest)] {
        for write in [false, true] {
            let e = match write {
                true => rig.a.post(Request::write(list, len, range)),
                false => rig.a.post(Request::send(list, len)),
            };
            let e = e.unwrap_err();
            assert_eq!(e.why, why, "{len} of 40");
            let Some(PayloadKind::List(back)) = e.payload.map(Payload::into_kind) else {
                panic!("the list comes back");
            };
            list = back;
        }
    }
    let e = rig.a.post(Request::fetch_add(list, range, 1)).unwrap_err();
    assert_eq!(e.why, Why::Misaligned);
    assert_eq!(rig.a.in_flight(), (0, 0));
    rig.fake.check();
}
