//! Memory windows of type 2 belong to the queue pair they are bound on. Against the fake provider; no device needed.

mod fake;

use fake::Fake;
use fake::chaos::LeaksOnPurpose;
use fake::rig::Rig;
use rdma_safe::*;

fn rig() -> Rig {
    let config = QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::default() };
    Rig::on(Fake::open_infiniband(), 64, &config)
}

impl Rig {
    fn region(&self) -> MemoryRegion<Remote> {
        self.pd.register_remote(vec![0; 64].into(), RemoteAccess::Windows).unwrap()
    }

    /// Redeems one completion that is a window's.
    fn window(&mut self) -> MemoryWindow {
        let mut wc = [Wc::empty()];
        assert_eq!(self.cq.poll(&mut wc).unwrap(), 1);
        let [mut wc] = wc;
        let done = self.a.complete(&mut wc).or_else(|| self.b.complete(&mut wc)).unwrap();
        assert!(done.status.is_ok(), "{}", done.status);
        window_of(done.into_payload())
    }

    fn windows_alive(&self) -> u32 {
        self.fake.state().more.alive().1
    }

    fn bound(&mut self, region: &MemoryRegion<Remote>) -> MemoryWindow {
        let window = self.pd.alloc_window(WindowKind::Type2).unwrap();
        self.a.post(Request::bind(window, region, 0, 64, WindowAccess::READ)).unwrap();
        self.fake.progress();
        self.window()
    }
}

fn window_of(payload: Option<Payload>) -> MemoryWindow {
    match payload.map(Payload::into_kind) {
        Some(PayloadKind::Window(window)) => window,
        other => panic!("no window: {other:?}"),
    }
}

#[test]
fn a_window_ends_with_the_queue_pair_it_is_bound_on() {
    let mut rig = rig();
    let region = rig.region();
    let window = rig.bound(&region);
    assert!(window.remote().is_some());
    let Rig { a, mut b, cq, pd, fake } = rig;
    drop(a);
    assert_eq!(fake.state().more.alive().1, 0, "before its queue pair, which waits for it");
    assert_eq!(window.remote(), None, "nobody can use it any more");
    let e = b.post(Request::bind(window, &region, 0, 64, WindowAccess::READ)).unwrap_err();
    assert_eq!(e.why, Why::WrongRequest);
    let window = window_of(e.payload);
    let e = b.post(Request::local_invalidate(window)).unwrap_err();
    assert_eq!(e.why, Why::WrongRequest);
    drop(e);
    assert_eq!(region.deregister().unwrap().len(), 64, "the dead window held it, and is gone");
    drop((b, cq, pd));
    fake.check();
    assert!(fake.closes_on_drop());
}

/// Whoever still holds the window, in flight or forgotten.
#[test]
fn no_window_outlives_its_queue_pair() {
    let _leaks = LeaksOnPurpose::new();
    let mut rig = rig();
    let region = rig.region();
    std::mem::forget(rig.bound(&region));
    let window = rig.pd.alloc_window(WindowKind::Type2).unwrap();
    rig.a.post(Request::bind(window, &region, 0, 64, WindowAccess::READ)).unwrap();
    assert_eq!(rig.windows_alive(), 2);
    let mut left = rig.a.close_payloads().unwrap();
    assert_eq!(rig.fake.state().more.alive().1, 0);
    assert_eq!(window_of(left.pop()).remote(), None);
    rig.fake.check();
}

#[test]
fn a_window_that_is_not_bound_stays() {
    let mut rig = rig();
    let region = rig.region();
    let bound = rig.bound(&region);
    let e = rig.b.post(Request::bind(bound, &region, 0, 64, WindowAccess::READ)).unwrap_err();
    assert_eq!(e.why, Why::WrongRequest, "bound on another queue pair");
    rig.a.post(Request::local_invalidate(window_of(e.payload))).unwrap();
    rig.fake.progress();
    let free = rig.window();
    // One that finds no room was not bound either.
    let mut late = rig.pd.alloc_window(WindowKind::Type2).unwrap();
    loop {
        match rig.a.post(Request::bind(late, &region, 0, 64, WindowAccess::READ)) {
            Ok(()) => late = rig.pd.alloc_window(WindowKind::Type2).unwrap(),
            Err(e) => {
                assert_eq!(e.why, Why::Full);
                late = window_of(e.payload);
                break;
            }
        }
    }
    drop(rig.a);
    assert_eq!(rig.fake.state().more.alive().1, 2);
    rig.b.post(Request::bind(free, &region, 0, 64, WindowAccess::READ)).unwrap();
    rig.b.post(Request::bind(late, &region, 0, 64, WindowAccess::READ)).unwrap();
    rig.fake.check();
}

/// A window that cannot be freed keeps what peers may use through it.
#[test]
fn a_window_that_cannot_be_freed_keeps_its_region() {
    let _leaks = LeaksOnPurpose::new();
    let mut rig = rig();
    let region = rig.region();
    let window = rig.bound(&region);
    rig.fake.state().more.frees_fail = true;
    drop(rig.a);
    assert!(window.remote().is_some());
    drop((window, region));
    assert_eq!(rig.fake.state().alive().2, 1);
    rig.fake.check();
}
