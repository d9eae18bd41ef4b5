//! A port's connection to itself: RDMA_TEST_DEVICE names the device, RDMA_TEST_ADDR its address.

use btl_core::rma::{Atomic, RemoteRange, RmaErrorKind, Verb};
use btl_core::verbs::{self, Selection, SelfLink, VerbsPort};
use btl_core::{Config, ProcName};
use rdma_safe::{Access, Foreign, ForeignSlice, MemoryRegion, ProtectionDomain, Registration};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 16;
const ALL: Access = Access::all().difference(Access::BIND_WINDOWS);

/// Memory for as long as the program runs: what an operation uses stays, however a test ends.
struct Memory {
    start: *mut u64,
    region: MemoryRegion<Foreign>,
}

impl Memory {
    fn new(pd: &ProtectionDomain) -> Memory {
        let start = Box::leak(vec![0_u64; LEN / 8].into_boxed_slice()).as_mut_ptr();
        // SAFETY: leaked, so mapped and writable for ever, and no reference to it is left.
        let region = unsafe { pd.register_foreign(start.cast(), LEN, ALL, &Registration::new()) };
        Memory { start, region: region.unwrap() }
    }

    fn slice(&self, len: usize) -> ForeignSlice {
        // SAFETY: nobody touches the memory while an operation is under way: `run` waits for its end.
        unsafe { self.region.slice(0, len) }.unwrap()
    }

    fn at(&self, len: usize) -> RemoteRange {
        RemoteRange { len: len as u64, ..self.region.remote().into() }
    }

    fn word(&self, i: usize) -> u64 {
        assert!(i < LEN / 8);
        // SAFETY: within the memory, which is this thread's while nothing is under way.
        unsafe { self.start.add(i).read() }
    }

    fn set(&self, i: usize, value: u64) {
        assert!(i < LEN / 8);
        // SAFETY: as above.
        unsafe { self.start.add(i).write(value) };
    }
}

fn open() -> VerbsPort {
    let device = std::env::var("RDMA_TEST_DEVICE").expect("RDMA_TEST_DEVICE names a device");
    let config = Config::new(ProcName { job: 1, rank: 0 }, 1);
    let selection = Selection { device: Some(device), ..Selection::default() };
    verbs::open(&selection, &config).unwrap().0
}

fn is_iwarp(port: &VerbsPort) -> bool {
    port.protection_domain().context().transport().is_iwarp()
}

/// The end of the next operation: its cookie.
fn done(link: &mut SelfLink) -> u64 {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(done) = link.poll() {
            done.result.unwrap();
            return done.cookie;
        }
        assert!(Instant::now() < end, "an operation did not end in 10 s");
        std::thread::yield_now();
    }
}

fn run(link: &mut SelfLink, verb: Verb, memory: ForeignSlice, remote: RemoteRange) {
    link.start(verb, memory, remote, 7).map_err(|(why, _)| why).unwrap();
    assert_eq!((done(link), link.under_way()), (7, 0));
}

#[test]
fn bytes_and_counters_of_this_process() {
    let port = open();
    if is_iwarp(&port) {
        let refused = port.self_link(1).err().expect("iWARP is not connected by hand").to_string();
        assert!(refused.contains("siw0") || refused.contains("iWARP"), "{refused}");
        return;
    }
    let mut link = port.self_link(1).unwrap();
    let (a, b) = (Memory::new(port.protection_domain()), Memory::new(port.protection_domain()));
    (0..LEN / 8).for_each(|i| a.set(i, i as u64 * 3 + 1));
    run(&mut link, Verb::Put, a.slice(LEN), b.at(LEN));
    assert!((0..LEN / 8).all(|i| b.word(i) == i as u64 * 3 + 1), "put");
    (0..LEN / 8).for_each(|i| a.set(i, 0));
    run(&mut link, Verb::Get, a.slice(4096), b.at(4096));
    assert!((0..LEN / 8).all(|i| a.word(i) == if i < 512 { i as u64 * 3 + 1 } else { 0 }), "get");
    b.set(0, u64::MAX);
    run(&mut link, Verb::Atomic(Atomic::FetchAdd { add: 11 }), a.slice(8), b.at(8));
    assert_eq!((a.word(0), b.word(0)), (u64::MAX, 10), "the sum wraps");
    for (compare, left) in [(9, 10), (10, 77)] {
        let verb = Verb::Atomic(Atomic::CompareSwap { compare, swap: 77 });
        run(&mut link, verb, a.slice(8), b.at(8));
        assert_eq!((a.word(0), b.word(0)), (10, left));
    }
}

#[test]
fn more_than_fit_are_refused_and_all_end_in_order() {
    let port = open();
    if is_iwarp(&port) {
        assert!(port.self_link(1).is_err());
        return;
    }
    let mut link = port.self_link(1).unwrap();
    let (a, b) = (Memory::new(port.protection_domain()), Memory::new(port.protection_domain()));
    let mut started = 0;
    loop {
        let add = Verb::Atomic(Atomic::FetchAdd { add: 1 });
        match link.start(add, a.slice(8), b.at(8), started) {
            Ok(()) => started += 1,
            Err((why, _)) => {
                assert_eq!(why, RmaErrorKind::Busy);
                break;
            }
        }
    }
    assert!(started >= 16, "only {started} at a time");
    for cookie in 0..started {
        assert_eq!(done(&mut link), cookie);
    }
    assert_eq!(b.word(0), started);
    let refused = link.start(Verb::Put, a.slice(8), b.at(16), 0).err().map(|(why, _)| why);
    assert_eq!(refused, Some(RmaErrorKind::TooLong { len: 16, max: 8 }));
    let odd = RemoteRange { addr: b.at(8).addr + 4, ..b.at(8) };
    let add = Verb::Atomic(Atomic::FetchAdd { add: 1 });
    let refused = link.start(add, a.slice(8), odd, 0).err().map(|(why, _)| why);
    assert_eq!(refused, Some(RmaErrorKind::Misaligned { addr: odd.addr }));
}

/// A key that names nothing ends the link: the operation fails, later ones are refused, the memory comes back.
#[test]
fn a_wrong_key_ends_the_link() {
    let port = open();
    if is_iwarp(&port) {
        assert!(port.self_link(1).is_err());
        return;
    }
    let mut link = port.self_link(1).unwrap();
    let (a, b) = (Memory::new(port.protection_domain()), Memory::new(port.protection_domain()));
    let wrong = RemoteRange { rkey: b.at(8).rkey ^ 0x5555, ..b.at(8) };
    for cookie in 0..2 {
        link.start(Verb::Put, a.slice(8), wrong, cookie).map_err(|(why, _)| why).unwrap();
    }
    let end = Instant::now() + Duration::from_secs(10);
    let mut failed = Vec::new();
    while failed.len() < 2 {
        if let Some(done) = link.poll() {
            assert!(done.result.is_err());
            failed.push(done.cookie);
        }
        assert!(Instant::now() < end, "no end in 10 s");
        std::thread::yield_now();
    }
    assert_eq!(failed, [0, 1]);
    let refused = link.start(Verb::Put, a.slice(8), b.at(8), 2).err().map(|(why, _)| why);
    assert_eq!(refused, Some(RmaErrorKind::Closing));
}
