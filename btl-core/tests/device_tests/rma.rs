//! Put, get, atomics and fences on a device: every kind of memory, every byte checked, both ways at once, and how they
//! end.
use super::foreign::Lent;
use crate::device_support::{
    JOB, Node, Other, check, die, fill, lines_of, name, progress, selection, tell, watchdog,
};
use btl_core::error::FaultKind;
use btl_core::rma::{Atomic, RmaErrorKind};
use btl_core::verbs::{Caps, VerbsMemory};
use btl_core::{Config, Event, PeerId, RemoteRange};
use rdma_safe::{MemoryRegion, Remote, RemoteAccess, RemoteSlot, Slot};
use std::net::SocketAddr;
use std::time::Duration;

/// Bytes that each side shares.
const SHARED: usize = 4 << 20;
const LIMIT: Duration = Duration::from_secs(60);

// What is asked of the peer, with three numbers; it answers with tag `ANSWER`.
const WHERE: u8 = 1;
const CHECK: u8 = 2;
const FILL: u8 = 3;
const WORD: u8 = 4;
const ANSWER: u8 = 9;

fn config(rank: u32) -> Config {
    Config::new(name(rank), JOB)
}

/// Memory that the other side may use in every way the device has.
fn share(node: &Node) -> MemoryRegion<Remote> {
    let access = match node.published.caps.contains(Caps::ATOMICS) {
        true => RemoteAccess::ReadWriteAtomic,
        false => RemoteAccess::ReadWrite,
    };
    let pd = node.engine.port().protection_domain();
    let region = pd.register_remote(vec![0; SHARED].into(), access);
    region.unwrap_or_else(|e| die(&format!("sharing memory: {e}")))
}

/// The first process: an engine, its peer, and the peer's memory.
struct Talk {
    node: Node,
    other: Other,
    peer: PeerId,
    there: RemoteRange,
    cookie: u64,
}

impl Talk {
    fn start() -> Talk {
        watchdog(LIMIT, "one-sided operations");
        let mut node = Node::open(&selection(), &config(0));
        let mut other = Other::peer(&["rma", &node.addr().to_string()]);
        let addr = other.hear_addr();
        let peer = node.engine.add_peer(name(1), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
        let there = RemoteRange { addr: 0, len: 0, rkey: 0 };
        let mut talk = Talk { node, other, peer, there, cookie: 0 };
        let told = talk.ask(WHERE, [0; 3]);
        talk.there = RemoteRange::from_bytes(&told[..].try_into().expect("20 bytes"));
        talk
    }

    fn tell(&mut self, tag: u8, numbers: [u64; 3]) {
        let mut buf = self.node.engine.alloc(24).unwrap_or_else(|e| die(&e.to_string()));
        for (to, n) in buf.chunks_mut(8).zip(numbers) {
            to.copy_from_slice(&n.to_le_bytes());
        }
        self.node.send(self.peer, tag, buf, 0);
    }

    /// Asks the peer; nothing one-sided may end meanwhile.
    fn ask(&mut self, tag: u8, numbers: [u64; 3]) -> Vec<u8> {
        self.tell(tag, numbers);
        self.answer()
    }

    fn answer(&mut self) -> Vec<u8> {
        self.node.wait("an answer", LIMIT, |node, event| match event {
            Event::Message { tag: ANSWER, buf, .. } => {
                let answer = buf.to_vec();
                node.engine.release(buf);
                progress();
                Some(answer)
            }
            other => ordinary(node, other),
        })
    }

    /// Waits for the end of operation `cookie`.
    fn done(&mut self, cookie: u64) -> VerbsMemory {
        self.node.wait("the end of an operation", LIMIT, |node, event| match event {
            Event::Done { cookie: of, memory, result, .. } => {
                assert_eq!((of, result), (cookie, Ok(())));
                progress();
                memory
            }
            other => ordinary(node, other),
        })
    }

    fn put(&mut self, memory: impl Into<VerbsMemory>, len: usize, at: usize) -> u64 {
        self.cookie += 1;
        let to = self.there.slice(at as u64, len as u64).expect("within");
        let taken = self.node.engine.put(self.peer, memory.into(), len as u64, to, self.cookie);
        taken.unwrap_or_else(|e| die(&format!("put of {len}: {e}")));
        self.cookie
    }

    fn get(&mut self, memory: impl Into<VerbsMemory>, len: usize, at: usize) -> u64 {
        self.cookie += 1;
        let from = self.there.slice(at as u64, len as u64).expect("within");
        let taken = self.node.engine.get(self.peer, memory.into(), len as u64, from, self.cookie);
        taken.unwrap_or_else(|e| die(&format!("get of {len}: {e}")));
        self.cookie
    }

    /// Whether the peer has the bytes of `seq`, when a message that was sent now arrives there.
    fn has(&mut self, at: usize, len: usize, seq: u64) -> bool {
        self.ask(CHECK, [at as u64, len as u64, seq]) == [1]
    }

    fn slot(&self, len: usize) -> Slot {
        let slots = self.node.engine.port().protection_domain().slots(len, 1);
        slots.ok().and_then(|mut s| s.pop()).unwrap_or_else(|| die("no slot"))
    }

    fn sink(&self, len: usize) -> RemoteSlot {
        let pd = self.node.engine.port().protection_domain();
        let region = pd.register_remote(vec![0; len].into(), RemoteAccess::ReadSink);
        let slots = region.and_then(|region| region.into_slots(len, 1));
        slots.ok().and_then(|mut s| s.pop()).unwrap_or_else(|| die("no sink"))
    }

    fn end(mut self) {
        self.node.close();
        self.other.say("end");
        self.other.finish(Duration::from_secs(20));
    }
}

/// Events that mean nothing to a test.
fn ordinary<T>(node: &mut Node, event: crate::device_support::Events) -> Option<T> {
    match event {
        Event::Sent { buf: Some(buf), result: Ok(()), .. } => node.engine.free(buf),
        Event::PeerConnected { .. } | Event::NewPeer { .. } => {}
        other => die(&format!("unexpected {other:?}")),
    }
    None
}

/// Lengths at the limits of inline data, packets and pages.
const LENGTHS: [usize; 12] = [1, 8, 31, 32, 33, 64, 1023, 1024, 4096, 4097, 65_537, SHARED - 64];

/// The notice is sent right behind the put, before its end is known, and after it: either way the bytes are there.
pub(crate) fn puts_arrive_before_their_notice() {
    let mut talk = Talk::start();
    let mut slot = talk.slot(SHARED);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        for wait in [false, true] {
            let (seq, at) = (2 * n as u64 + u64::from(wait), n);
            fill(&mut slot[..len], 0, seq);
            let cookie = talk.put(slot, len, at);
            if wait {
                slot = slot_of(talk.done(cookie));
                assert!(talk.has(at, len, seq), "{len} bytes, notice after the end");
            } else {
                talk.tell(CHECK, [at as u64, len as u64, seq]);
                slot = slot_of(talk.done(cookie));
                assert_eq!(talk.answer(), [1], "{len} bytes, notice right behind");
            }
        }
    }
    assert_eq!(talk.node.engine.stats().puts, 2 * LENGTHS.len() as u64);
    talk.end();
}

fn slot_of(memory: VerbsMemory) -> Slot {
    match memory {
        VerbsMemory::Slot(slot) => slot,
        other => die(&format!("{other:?} came back for a slot")),
    }
}

/// Shared and foreign memory as a source, remote and foreign memory as a sink, and what refuses.
pub(crate) fn every_kind_of_memory() {
    let mut talk = Talk::start();
    let len = 10_000;
    let mut bytes = vec![0; len];
    fill(&mut bytes, 0, 1);
    let pd = talk.node.engine.port().protection_domain().clone();
    let shared =
        pd.register(bytes.clone().into()).unwrap_or_else(|e| die(&e.to_string())).into_shared();
    let slices = [0, 1].map(|_| shared.slice(0, len).unwrap_or_else(|e| die(&e.to_string())));
    // Two operations from the same memory at once.
    for (n, slice) in slices.into_iter().enumerate() {
        talk.put(slice, len, n * len);
    }
    for cookie in [talk.cookie - 1, talk.cookie] {
        let VerbsMemory::Shared(slice) = talk.done(cookie) else { die("other memory") };
        assert!(check(&slice, 0, 1));
    }
    assert!(talk.has(0, len, 1) && talk.has(len, len, 1));

    let lent = Lent::new(&pd, bytes);
    let cookie = talk.put(lent.slice(), len, 3 * len);
    let VerbsMemory::Foreign(slice) = talk.done(cookie) else { die("other memory") };
    assert!(talk.has(3 * len, len, 1));
    talk.ask(FILL, [0, len as u64, 7]);
    let cookie = talk.get(slice, len, 0);
    let VerbsMemory::Foreign(slice) = talk.done(cookie) else { die("other memory") };
    drop(slice);
    assert!(check(&lent.take_back(), 0, 7));

    // A peer's device writes what is read on iWARP: a slot, which is `&mut [u8]` here, is no place for it.
    let slot = talk.slot(64);
    let from = talk.there.slice(0, 64).expect("within");
    let read = talk.node.engine.get(talk.peer, slot.into(), 64, from, 0);
    if talk.node.published.caps.contains(Caps::READ_SINK_REMOTE_WRITE) {
        let error = read.err().unwrap_or_else(|| die("a slot was taken as a sink"));
        assert!(matches!(error.kind, RmaErrorKind::WrongMemory { .. }), "{error}");
    } else {
        read.unwrap_or_else(|e| die(&e.to_string()));
        let slot = slot_of(talk.done(0));
        assert!(check(&slot, 0, 7));
    }
    let shared = shared.slice(0, 64).unwrap_or_else(|e| die(&e.to_string()));
    let read = talk.node.engine.get(talk.peer, shared.into(), 64, from, 0);
    let error = read.err().unwrap_or_else(|| die("shared memory was taken as a sink"));
    assert!(matches!(error.kind, RmaErrorKind::WrongMemory { .. }), "{error}");
    let error = talk.node.engine.put(talk.peer, error.memory, 65, from, 0);
    let error = error.err().unwrap_or_else(|| die("65 bytes of 64"));
    assert_eq!(error.kind, RmaErrorKind::OutOfRange { len: 65, room: 64 });
    talk.end();
}

/// More gets than the connection allows at once: the rest waits, and all bytes come.
pub(crate) fn gets_beyond_the_limit() {
    let mut talk = Talk::start();
    const EACH: usize = 5000;
    for n in 0..200 {
        talk.ask(FILL, [n * EACH as u64, EACH as u64, n]);
    }
    for n in 0..200 {
        let sink = talk.sink(EACH);
        talk.get(sink, EACH, n * EACH);
    }
    for n in 0..200u64 {
        let VerbsMemory::Remote(sink) = talk.done(n + 1) else { die("other memory") };
        let mut bytes = vec![0; EACH];
        sink.copy_out(0, &mut bytes).unwrap_or_else(|e| die(&e.to_string()));
        assert!(check(&bytes, 0, n), "get {n}");
    }
    let stats = talk.node.engine.stats();
    assert_eq!((stats.gets, stats.bytes_got), (200, 200 * EACH as u64));
    assert!(stats.stalls.send_queue + stats.stalls.reads > 0, "{stats:?}");
    talk.end();
}

/// Where the device has them; a clear refusal where it has not.
pub(crate) fn atomics_or_a_clear_refusal() {
    let mut talk = Talk::start();
    let word = talk.there.slice(64, 8).expect("within");
    let add = Atomic::FetchAdd { add: 3 };
    if !talk.node.engine.rma_caps().atomics {
        let sink = talk.sink(8);
        let refused = talk.node.engine.atomic(talk.peer, sink.into(), word, add, 0);
        let error = refused.err().unwrap_or_else(|| die("an atomic was taken"));
        assert_eq!(error.kind, RmaErrorKind::NotSupported { what: "atomics" });
        assert!(error.to_string().contains("the device has no atomics"), "{error}");
        return talk.end();
    }
    for n in 0..100u64 {
        let sink = talk.sink(8);
        let taken = talk.node.engine.atomic(talk.peer, sink.into(), word, add, n);
        taken.unwrap_or_else(|e| die(&e.to_string()));
    }
    for n in 0..100 {
        assert_eq!(old_value(talk.done(n)), 3 * n);
    }
    for (compare, old, now) in [(5, 300, 300), (300, 300, 1 << 40)] {
        let sink = talk.sink(8);
        let swap = Atomic::CompareSwap { compare, swap: 1 << 40 };
        let taken = talk.node.engine.atomic(talk.peer, sink.into(), word, swap, 7);
        taken.unwrap_or_else(|e| die(&e.to_string()));
        assert_eq!(old_value(talk.done(7)), old);
        assert_eq!(talk.ask(WORD, [64, 0, 0]), u64::to_le_bytes(now));
    }
    talk.end();
}

fn old_value(memory: VerbsMemory) -> u64 {
    let VerbsMemory::Remote(sink) = memory else { die("other memory") };
    sink.load_u64(0).unwrap_or_else(|e| die(&e.to_string()))
}

/// After a fence the bytes are there although no message follows on lane 0: the question travels on the other lane.
pub(crate) fn fences_end_when_all_is_there() {
    let mut talk = Talk::start();
    let long = talk.node.engine.eager_limit() + 1;
    let mut slot = talk.slot(SHARED);
    for seq in 0..20 {
        fill(&mut slot, 0, seq);
        let put = talk.put(slot, SHARED, 0);
        let fenced = talk.node.engine.fence(talk.peer, 1000 + seq);
        fenced.unwrap_or_else(|e| die(&e.to_string()));
        slot = slot_of(talk.done(put));
        talk.node.wait("a fence", LIMIT, |node, event| match event {
            Event::Fenced { cookie, result, .. } => {
                assert_eq!((cookie, result), (1000 + seq, Ok(())));
                Some(())
            }
            other => ordinary(node, other),
        });
        let mut buf = talk.node.engine.alloc(long).unwrap_or_else(|e| die(&e.to_string()));
        assert_eq!(buf.class(), 1);
        for (to, n) in buf.chunks_mut(8).zip([0, SHARED as u64, seq]) {
            to.copy_from_slice(&n.to_le_bytes());
        }
        talk.node.send(talk.peer, CHECK, buf, 0);
        assert_eq!(talk.answer(), [1], "round {seq}");
    }
    assert_eq!(talk.node.engine.stats().fences, 20);
    talk.end();
}

/// A wrong key ends the connection, with a clear report, and the memory comes back.
pub(crate) fn a_wrong_key_fails_the_peer() {
    let mut talk = Talk::start();
    let wrong = RemoteRange { rkey: talk.there.rkey ^ 0x5500, ..talk.there };
    let slot = talk.slot(5000);
    let taken = talk.node.engine.put(talk.peer, slot.into(), 5000, wrong, 1);
    taken.unwrap_or_else(|e| die(&e.to_string()));
    let sink = talk.sink(64);
    let taken =
        talk.node.engine.get(talk.peer, sink.into(), 64, wrong.slice(0, 64).expect("64"), 2);
    taken.unwrap_or_else(|e| die(&e.to_string()));
    let (mut back, mut get_failed) = (0, false);
    let fault = talk.node.wait("the failure", LIMIT, |node, event| match event {
        Event::Done { cookie, memory, result, .. } => {
            back += u32::from(memory.is_some());
            get_failed |= cookie == 2 && result.is_err();
            None
        }
        Event::PeerFailed { fault, .. } => Some(fault),
        other => ordinary(node, other),
    });
    // On iWARP a put may have ended before the peer's device refused it.
    assert!(back == 2 && get_failed, "{back} pieces of memory back");
    let lane = matches!(fault.kind, FaultKind::Lane { .. } | FaultKind::Disconnected { .. });
    assert!(lane, "{fault}");
    talk.other.kill();
}

/// A peer that dies: each operation under way ends once, badly or well, and its memory comes back.
pub(crate) fn a_killed_peer_ends_operations() {
    let mut talk = Talk::start();
    let mut open = std::collections::BTreeSet::new();
    for n in 0..50 {
        let cookie = if n % 2 == 0 {
            let slot = talk.slot(100_000);
            talk.put(slot, 100_000, n * 100)
        } else {
            let sink = talk.sink(100_000);
            talk.get(sink, 100_000, n * 100)
        };
        open.insert(cookie);
    }
    let fenced = talk.node.engine.fence(talk.peer, 777);
    fenced.unwrap_or_else(|e| die(&e.to_string()));
    talk.other.kill();
    let mut fences = 0;
    talk.node.wait("the failure", LIMIT, |node, event| match event {
        Event::Done { cookie, memory, .. } => {
            assert!(open.remove(&cookie) && memory.is_some(), "operation {cookie}");
            progress();
            None
        }
        Event::Fenced { cookie: 777, .. } => {
            fences += 1;
            None
        }
        Event::PeerFailed { .. } => Some(()),
        other => ordinary(node, other),
    });
    assert!(open.is_empty() && fences == 1, "{open:?} {fences}");
}

/// The second process: shares its memory and does what it is told.
pub(crate) fn peer(addr: &str) {
    let mut node = Node::open(&selection(), &config(1));
    let region = share(&node);
    tell(&node.addr().to_string());
    let addr: SocketAddr = addr.parse().unwrap_or_else(|_| die(addr));
    node.engine.add_peer(name(0), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    let lines = lines_of(std::io::stdin());
    while lines.try_recv().is_err() {
        match node.poll() {
            Some(Event::Message { peer, tag, buf, .. }) => {
                let number = |n: usize| {
                    let bytes = buf.get(8 * n..8 * n + 8).unwrap_or(&[0; 8]);
                    u64::from_le_bytes(bytes.try_into().unwrap_or_default())
                };
                let (at, len, seq) = (number(0) as usize, number(1) as usize, number(2));
                let answer = obey(&region, tag, at, len, seq);
                node.engine.release(buf);
                let mut buf = node.engine.alloc(answer.len()).unwrap_or_else(|_| die("no buffer"));
                buf.copy_from_slice(&answer);
                node.send(peer, ANSWER, buf, 0);
                progress();
            }
            Some(Event::Sent { buf: Some(buf), .. }) => node.engine.free(buf),
            // The test ends so, or is about that.
            Some(Event::PeerFailed { .. }) => {}
            _ => {}
        }
    }
    node.close();
}

fn obey(region: &MemoryRegion<Remote>, tag: u8, at: usize, len: usize, seq: u64) -> Vec<u8> {
    let fine = |result: rdma_safe::Result<()>| result.unwrap_or_else(|e| die(&e.to_string()));
    match tag {
        WHERE => RemoteRange::from(region.remote()).to_bytes().to_vec(),
        CHECK => {
            let mut bytes = vec![0; len];
            fine(region.copy_out(at, &mut bytes));
            vec![u8::from(check(&bytes, 0, seq))]
        }
        FILL => {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 0, seq);
            fine(region.copy_in(at, &bytes));
            vec![1]
        }
        WORD => {
            let word = region.load_u64(at).unwrap_or_else(|e| die(&e.to_string()));
            word.to_le_bytes().to_vec()
        }
        _ => die("an unknown question"),
    }
}
