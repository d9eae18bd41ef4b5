//! Every kind of request on a real device, with the content checked, and a clear refusal where the device lacks it.

mod support;

use rdma_safe::*;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use support::cm::{Cm, Link};
use support::under_test::open;
use support::{LIMIT, address, redeem};

const SIG: SendFlags = SendFlags::empty();

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two connected queue pairs, the memory that `a` uses of `b`, and eight receives posted on `b`.
struct Rig {
    _link: Link,
    _cm: Cm,
    a: QueuePair,
    b: QueuePair,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    ctx: Context,
}

fn config() -> QpConfig {
    QpConfig {
        send_depth: 32,
        recv_depth: 32,
        max_send_sge: 3,
        max_recv_sge: 3,
        ..QpConfig::default()
    }
}

fn rig() -> Rig {
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(256).unwrap();
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config()).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config()).unwrap();
    let cm = Cm::new(address());
    let link = cm.connect(&mut a, &mut b, |_, _| {});
    let mut rig = Rig { _link: link, _cm: cm, a, b, cq, pd, ctx };
    // On iWARP the initiator speaks first, and the acceptor may only then.
    let hello = rig.slots(64, 2);
    rig.b.post_recv(hello.into_iter().next().unwrap()).unwrap();
    rig.a.post_inline(b"hello", SIG).unwrap();
    assert!(rig.done(2).iter().all(|d| d.status.is_ok()));
    rig
}

impl Rig {
    fn slots(&self, size: usize, count: usize) -> Vec<Slot> {
        self.pd.slots(size, count).unwrap()
    }

    fn slot(&self, data: &[u8]) -> Slot {
        let mut slot = self.slots(data.len().max(8), 1).pop().unwrap();
        slot[..data.len()].copy_from_slice(data);
        slot
    }

    fn remote(&self, access: RemoteAccess, size: usize) -> RemoteSlot {
        let memory = OwnedMemory::zeroed(size).unwrap();
        let region = self.pd.register_remote(memory, access).unwrap();
        region.into_slots(size, 1).unwrap().pop().unwrap()
    }

    fn done(&mut self, want: usize) -> Vec<Done> {
        redeem(&mut self.cq, &mut [&mut self.a, &mut self.b], want)
    }

    fn one(&mut self) -> Done {
        self.done(1).pop().unwrap()
    }

    fn has(&self, caps: Caps) -> bool {
        self.ctx.caps().contains(caps)
    }

    /// Sends a message from `a` to `b` and waits for it: what was written before it is in place then, also on iWARP,
    /// where the completion of a write promises nothing.
    fn fence(&mut self) {
        let recv = self.slots(64, 1).pop().unwrap();
        self.b.post_recv(recv).unwrap();
        self.a.post_inline(b"fence", SIG).unwrap();
        for done in self.done(2) {
            assert!(done.status.is_ok(), "{}", done.status);
            assert!(done.op != Op::Recv || done.message() == b"fence");
        }
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn content(slot: &RemoteSlot, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    slot.copy_out(0, &mut out).unwrap();
    out
}

#[test]
fn writes_and_reads_of_every_size_move_every_byte() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let target = rig.remote(RemoteAccess::ReadWrite, 1 << 16);
    let mut sink = Some(rig.remote(RemoteAccess::ReadSink, 1 << 16));
    for (seed, len) in [0, 1, 8, 31, 32, 33, 4095, 4096, 4097, 65535, 65536].into_iter().enumerate()
    {
        let data = pattern(len, seed as u8);
        let slot = rig.slot(&data);
        rig.a.post(Request::write(slot, len, target.remote())).unwrap();
        let done = rig.one();
        assert!(
            done.status.is_ok() && done.op == Op::Write && done.byte_len == 0,
            "{len}: {done:?}"
        );
        assert!(done.slot.is_some() && done.payload.is_none());
        rig.fence();
        assert!(content(&target, len) == data, "written {len}");
        if len == 0 {
            let e =
                rig.a.post(Request::read(sink.take().unwrap(), 0, target.remote())).unwrap_err();
            assert_eq!(e.why, Why::Empty);
            sink = remote_of(e.into_payload());
            continue;
        }
        rig.a.post(Request::read(sink.take().unwrap(), len, target.remote())).unwrap();
        let done = rig.one();
        assert!(done.status.is_ok() && done.op == Op::Read, "{len}: {done:?}");
        sink = remote_of(done.payload);
        assert!(content(sink.as_ref().unwrap(), len) == data, "read {len}");
    }
    let inline = pattern(rig.a.max_inline(), 99);
    rig.a.post(Request::write_inline(&inline, target.remote())).unwrap();
    assert!(rig.one().status.is_ok());
    rig.fence();
    assert!(content(&target, inline.len()) == inline, "an inline write");
}

fn remote_of(payload: Option<Payload>) -> Option<RemoteSlot> {
    match payload.map(Payload::into_kind) {
        Some(PayloadKind::Remote(slot)) => Some(slot),
        other => panic!("a remote slot, not {other:?}"),
    }
}

/// A slot as the sink of a read: not on iWARP, where the peer's device writes it.
#[test]
fn a_slot_is_a_sink_where_the_transport_allows_it() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let mut source = rig.remote(RemoteAccess::Read, 64);
    source.copy_in(0, &pattern(64, 3)).unwrap();
    let slot = rig.slot(&[0; 64]);
    let posted = rig.a.post(Request::read(slot, 64, source.remote()));
    if rig.has(Caps::READ_SINK_REMOTE_WRITE) {
        let e = posted.unwrap_err();
        assert!(e.why == Why::WrongMemory && e.slot.is_some(), "{e}");
    } else {
        posted.unwrap();
        let done = rig.one();
        assert!(done.status.is_ok() && done.slot.unwrap()[..] == pattern(64, 3)[..]);
    }
}

#[test]
fn lists_gather_and_scatter() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let shared = rig.pd.register(pattern(100, 7).into()).unwrap().into_shared();
    for inline in [false, true] {
        let lens = if inline { [3, 5, 7] } else { [10, 3000, 77] };
        let total: usize = lens.iter().sum();
        let (mut out, mut into) = (SgList::new(), SgList::new());
        out.push(rig.slot(&pattern(lens[0], 1)), lens[0]).unwrap();
        out.push(rig.slot(&pattern(lens[1], 2)), lens[1]).unwrap();
        out.push(shared.slice(20, lens[2]).unwrap(), lens[2]).unwrap();
        for len in [lens[1], lens[2], lens[0]] {
            into.push(rig.slots(len, 1).pop().unwrap(), len).unwrap();
        }
        let want =
            [pattern(lens[0], 1), pattern(lens[1], 2), shared[20..20 + lens[2]].to_vec()].concat();
        rig.b.post_recv_list(into).unwrap();
        rig.a.post(Request::send_list(out)).unwrap();
        for done in rig.done(2) {
            assert!(done.status.is_ok(), "{}", done.status);
            let Some(PayloadKind::List(list)) = done.payload.map(Payload::into_kind) else {
                panic!("a list")
            };
            assert_eq!((list.len(), list.total_len()), (3, total as u64));
            if done.op == Op::Recv {
                assert_eq!(done.byte_len, total);
                let mut got = vec![0; total];
                list.copy_out(&mut got).unwrap();
                assert!(got == want, "inline {inline}");
            }
        }
    }
    let target = rig.remote(RemoteAccess::Write, 4096);
    let mut out = SgList::new();
    for seed in 0..3 {
        out.push(rig.slot(&pattern(500, seed)), 500).unwrap();
    }
    rig.a.post(Request::write_list(out, target.remote())).unwrap();
    assert!(rig.one().status.is_ok());
    rig.fence();
    assert!(content(&target, 1500) == [pattern(500, 0), pattern(500, 1), pattern(500, 2)].concat());
    let mut four = SgList::new();
    for _ in 0..4 {
        four.push(rig.slot(&[1; 8]), 8).unwrap();
    }
    let e = rig.a.post(Request::send_list(four)).unwrap_err();
    assert!(e.why == Why::TooManyPieces && e.payload.is_some());
}

/// siw reads into the first piece and drops the others without a word, so it is not asked.
#[test]
fn a_read_into_several_pieces_is_refused_where_only_one_is_filled() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let mut source = rig.remote(RemoteAccess::Read, 128);
    source.copy_in(0, &pattern(128, 5)).unwrap();
    let mut sinks = SgList::new();
    for _ in 0..2 {
        sinks.push(rig.remote(RemoteAccess::ReadSink, 64), 64).unwrap();
    }
    let posted = rig.a.post(Request::read_list(sinks, source.remote()));
    if rig.ctx.transport().is_iwarp() {
        let e = posted.unwrap_err();
        assert!(e.why == Why::TooManyPieces && e.payload.is_some(), "{e}");
        return;
    }
    posted.unwrap();
    let Some(PayloadKind::List(list)) = rig.one().payload.map(Payload::into_kind) else {
        panic!("a list")
    };
    let mut got = vec![0; 128];
    list.copy_out(&mut got).unwrap();
    assert!(got == pattern(128, 5));
}

#[test]
fn shared_memory_is_sent_many_times_at_once() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let shared = rig.pd.register(pattern(2000, 1).into()).unwrap().into_shared();
    let recvs = rig.slots(2048, 8);
    assert_eq!(rig.b.post_recv_batch(recvs).unwrap(), 8);
    for i in 0..8 {
        let slice = shared.slice(i * 100, 1000).unwrap();
        rig.a.post(Request::send(slice, 1000)).unwrap();
    }
    let mut at = 0;
    for done in rig.done(16) {
        assert!(done.status.is_ok());
        if done.op == Op::Recv {
            assert!(done.message() == &shared[at * 100..at * 100 + 1000]);
            at += 1;
        } else {
            assert!(matches!(done.payload.map(Payload::into_kind), Some(PayloadKind::Shared(_))));
        }
    }
    let slice = shared.slice(0, 8).unwrap();
    let e =
        rig.a.post(Request::read(slice, 8, RemoteRange { addr: 0, len: 8, rkey: 0 })).unwrap_err();
    assert!(e.why == Why::WrongMemory && e.payload.is_some(), "shared memory is never written");
}

#[test]
fn immediate_data_arrives_or_is_refused() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let target = rig.remote(RemoteAccess::Write, 64);
    if !rig.has(Caps::IMM) {
        let slot = rig.slot(b"x");
        let e = rig.a.post(Request::send(slot, 1).imm(1)).unwrap_err();
        assert!(e.why == Why::NotSupported && e.slot.is_some(), "{e}");
        let e = rig.a.post(Request::write_inline(b"x", target.remote()).imm(1)).unwrap_err();
        assert_eq!(e.why, Why::NotSupported);
        return;
    }
    let recvs = rig.slots(64, 2);
    rig.b.post_recv_batch(recvs).unwrap();
    let slot = rig.slot(b"with");
    rig.a.post(Request::send(slot, 4).imm(0x0102_0304)).unwrap();
    let slot = rig.slot(&pattern(64, 9));
    rig.a.post(Request::write(slot, 64, target.remote()).imm(u32::MAX)).unwrap();
    let mut seen = Vec::new();
    for done in rig.done(4) {
        assert!(done.status.is_ok(), "{}", done.status);
        if done.op.is_recv() {
            seen.push((done.op, done.imm(), done.message().to_vec()));
        }
    }
    let want = [
        (Op::Recv, Some(0x0102_0304), b"with".to_vec()),
        (Op::RecvWithImm, Some(u32::MAX), vec![]),
    ];
    assert_eq!(seen, want);
    assert!(content(&target, 64) == pattern(64, 9));
}

#[test]
fn atomics_count_or_are_refused() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let mut word = rig.remote(RemoteAccess::ReadWrite, 64);
    if !rig.has(Caps::ATOMICS) {
        let old = rig.remote(RemoteAccess::ReadSink, 8);
        let e = rig.a.post(Request::fetch_add(old, word.remote(), 1)).unwrap_err();
        assert!(e.why == Why::NotSupported && e.payload.is_some(), "{e}");
        return;
    }
    drop(word);
    let memory = OwnedMemory::zeroed(64).unwrap();
    let region = rig.pd.register_remote(memory, RemoteAccess::ReadWriteAtomic).unwrap();
    word = region.into_slots(64, 1).unwrap().pop().unwrap();
    word.store_u64(8, 40).unwrap();
    let at = word.remote().slice(8, 8).unwrap();
    let old = rig.slot(&[0; 8]);
    rig.a.post(Request::fetch_add(old, at, 2)).unwrap();
    let done = rig.one();
    assert!(done.status.is_ok() && done.op == Op::FetchAdd, "{done:?}");
    assert_eq!(done.slot.unwrap()[..8], 40u64.to_ne_bytes());
    assert_eq!(word.load_u64(8).unwrap(), 42);
    for (compare, swap, after) in [(1, 7, 42), (42, 7, 7)] {
        let before = word.load_u64(8).unwrap();
        let old = rig.remote(RemoteAccess::ReadSink, 8);
        rig.a.post(Request::compare_swap(old, at, compare, swap)).unwrap();
        let done = rig.one();
        assert!(done.status.is_ok() && done.op == Op::CompareSwap, "{done:?}");
        assert_eq!(remote_of(done.payload).unwrap().load_u64(0).unwrap(), before);
        assert_eq!(word.load_u64(8).unwrap(), after);
    }
    for (range, why) in [
        (RemoteRange { addr: at.addr + 4, ..at }, Why::Misaligned),
        (RemoteRange { len: 7, ..at }, Why::OutOfRange),
    ] {
        let old = rig.slot(&[0; 8]);
        let e = rig.a.post(Request::fetch_add(old, range, 1)).unwrap_err();
        assert!(e.why == why && e.slot.is_some(), "{e}");
    }
    assert_eq!(rig.a.state(), QpState::ReadyToSend, "nothing of that reached the device");
}

#[test]
fn a_batch_is_posted_in_order() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let target = rig.remote(RemoteAccess::Write, 4096);
    let recvs = rig.slots(64, 10);
    assert_eq!(rig.b.post_recv_batch(recvs).unwrap(), 10);
    let slots = rig.slots(64, 20);
    let mut requests = Vec::new();
    for (i, mut slot) in slots.into_iter().enumerate() {
        slot[..40].copy_from_slice(&pattern(40, i as u8));
        requests.push(match i % 2 {
            0 => Request::send(slot, 40),
            _ => Request::write(slot, 40, target.remote().slice(i as u64 * 100, 40).unwrap()),
        });
    }
    assert_eq!(rig.a.post_batch(requests).unwrap(), 20);
    let (mut received, mut sent) = (0, 0);
    for done in rig.done(30) {
        assert!(done.status.is_ok());
        if done.op == Op::Recv {
            assert!(done.message() == pattern(40, received * 2), "in order");
            received += 1;
        } else {
            assert_eq!(done.op, if sent % 2 == 0 { Op::Send } else { Op::Write });
            sent += 1;
        }
    }
    for i in (1..20).step_by(2) {
        let mut got = [0; 40];
        target.copy_out(i * 100, &mut got).unwrap();
        assert!(got[..] == pattern(40, i as u8)[..]);
    }
    // The third is refused: the first two are posted, the fourth is not taken.
    let mut slots = rig.slots(64, 4).into_iter();
    let mut requests = [40, 40, 65, 40]
        .map(|len| Request::write(slots.next().unwrap(), len, target.remote()))
        .into_iter();
    let e = rig.a.post_batch(&mut requests).unwrap_err();
    assert!(e.posted == 2 && e.error.why == Why::TooLong && e.error.slot.is_some(), "{e}");
    assert_eq!(requests.len(), 1);
    assert!(rig.done(2).iter().all(|d| d.status.is_ok()));
}

/// Unsignalled writes, reclaimed after a signalled one; large ones too, which siw would never report.
#[test]
fn unsignalled_writes_come_back_with_a_later_one() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let target = rig.remote(RemoteAccess::Write, 1 << 14);
    for round in 0..20 {
        for (i, len) in [100, 1 << 13, 200].into_iter().enumerate() {
            let slot = rig.slot(&pattern(len, round + i as u8));
            let at = target.remote().slice(i as u64 * 1000, len as u64).unwrap();
            rig.a.post(Request::write(slot, len, at).flags(SendFlags::UNSIGNALLED)).unwrap();
        }
        let slot = rig.slot(&pattern(50, 77));
        rig.a.post(Request::write(slot, 50, target.remote())).unwrap();
        let end = Instant::now() + LIMIT;
        let mut back = 0;
        while back < 4 {
            assert!(Instant::now() < end, "{back} of 4 came back");
            let mut wc = [Wc::empty()];
            if rig.cq.poll(&mut wc).unwrap() == 1 {
                let done = rig.a.complete(&mut wc[0]).unwrap();
                assert!(done.status.is_ok() && done.slot.is_some());
                back += 1;
            }
            while rig.a.reclaim().is_some() {
                back += 1;
            }
        }
        assert_eq!(rig.a.in_flight(), (0, 0));
    }
}

#[test]
fn raw_requests_give_their_token_back() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let region = rig.pd.register(pattern(300, 1).into()).unwrap();
    let target = rig.remote(RemoteAccess::Write, 300);
    let piece = |offset: usize, len: u32| RawSge {
        addr: region[offset..].as_ptr() as u64,
        len,
        lkey: region.lkey(),
    };
    let pieces = [piece(100, 100), piece(0, 100)];
    let write = RawRequest {
        verb: RawVerb::Write(target.remote()),
        pieces: &pieces,
        flags: SIG,
        imm: None,
    };
    // SAFETY: the region outlives the queue pairs' requests: each is waited for below.
    unsafe { rig.a.post_raw(&write, 0xabcdef).unwrap() };
    let done = rig.one();
    assert!(done.status.is_ok() && done.op == Op::Write);
    assert!(matches!(done.payload.map(Payload::into_kind), Some(PayloadKind::Token(0xabcdef))));
    rig.fence();
    assert!(content(&target, 200) == [&region[100..200], &region[..100]].concat());
    // SAFETY: none of these reaches the device.
    let refused = |rig: &mut Rig, r: RawRequest<'_>, token| unsafe { rig.a.post_raw(&r, token) };
    let short = RemoteRange { len: 199, ..target.remote() };
    let e = refused(&mut rig, RawRequest { verb: RawVerb::Write(short), ..write }, 1);
    assert_eq!(e.unwrap_err().why, Why::OutOfRange);
    let e = refused(
        &mut rig,
        RawRequest { verb: RawVerb::Read(target.remote()), pieces: &[], ..write },
        1,
    );
    assert_eq!(e.unwrap_err().why, Why::Empty);
    assert_eq!(refused(&mut rig, write, usize::MAX).unwrap_err().why, Why::WrongRequest);
}

/// What the peer did not allow fails on its device, ends the connection, and harms nothing here.
#[test]
fn foreign_memory_is_refused_by_the_peers_device() {
    let _one = one_at_a_time();
    for case in 0..3 {
        let mut rig = rig();
        let mut events = AsyncEvents::new(&rig.ctx).unwrap();
        let target = rig.remote(RemoteAccess::Read, 64);
        let range = match case {
            0 => RemoteRange { rkey: target.remote().rkey ^ 0x5500, ..target.remote() },
            1 => RemoteRange { addr: target.remote().addr + (1 << 20), ..target.remote() },
            _ => target.remote(),
        };
        let mut sink = rig.remote(RemoteAccess::ReadSink, 64);
        sink.copy_in(0, &[1; 64]).unwrap();
        let request = match case {
            2 => Request::write(sink, 64, range),
            _ => Request::read(sink, 64, range),
        };
        let recv = rig.slots(64, 1).pop().unwrap();
        rig.b.post_recv(recv).unwrap();
        rig.a.post(request).unwrap();
        let done = rig.one();
        // A write over TCP completes when it is sent; that the peer ends the connection, an event tells.
        if case == 2 && rig.ctx.transport().is_iwarp() {
            let serial = rig.b.serial();
            let end = Instant::now() + LIMIT;
            while !matches!(events.next(LIMIT).unwrap(), Some(AsyncEvent::Qp { serial: s, .. }) if s == serial)
            {
                assert!(Instant::now() < end, "no event of the peer's queue pair");
            }
            assert!(content(&target, 64) == [0; 64]);
            continue;
        }
        assert!(!done.status.is_ok(), "case {case}: {done:?}");
        if !rig.ctx.transport().is_iwarp() {
            assert_eq!(done.status, WcStatus::REM_ACCESS_ERR, "case {case}");
        }
        assert_eq!(done.byte_len, 0);
        assert!(content(&target, 64) == [0; 64]);
    }
}

#[test]
fn a_message_longer_than_the_receive_ends_the_connection() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let recv = rig.slots(64, 1).pop().unwrap();
    rig.b.post_recv(recv).unwrap();
    let slot = rig.slot(&pattern(100, 1));
    rig.a.post_send(slot, 100, SIG).unwrap();
    let iwarp = rig.ctx.transport().is_iwarp();
    // siw completes one side's request or both, as the timing of its closing goes; what it does not complete comes back
    // with the destruction.
    let done = rig.done(if iwarp { 1 } else { 2 });
    for done in &done {
        assert!(done.op == Op::Send || !done.status.is_ok(), "{done:?}");
        assert!(done.byte_len == 0 && done.slot.is_some());
    }
    if iwarp {
        let left = rig.a.close().unwrap().len() + rig.b.close().unwrap().len();
        assert_eq!(done.len() + left, 2);
        return;
    }
    assert_eq!(rig.b.state(), QpState::Error);
}

#[test]
fn memory_windows_open_and_close_or_are_refused() {
    let _one = one_at_a_time();
    let mut rig = rig();
    if !rig.has(Caps::MEMORY_WINDOWS) {
        let e = rig.pd.alloc_window(WindowKind::Type2).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        return;
    }
    for kind in [WindowKind::Type1, WindowKind::Type2] {
        let memory = OwnedMemory::zeroed(4096).unwrap();
        let region = rig.pd.register_remote(memory, RemoteAccess::Windows).unwrap();
        let window = rig.pd.alloc_window(kind).unwrap();
        assert_eq!(window.remote(), None);
        let (read, write) = (WindowAccess::READ, WindowAccess::WRITE);
        rig.b.post(Request::bind(window, &region, 1000, 100, read | write)).unwrap();
        let done = rig.one();
        assert!(done.status.is_ok() && done.op == Op::Bind, "{kind:?}: {done:?}");
        let Some(PayloadKind::Window(window)) = done.payload.map(Payload::into_kind) else {
            panic!("a window")
        };
        let range = window.remote().unwrap();
        assert_eq!((range.addr, range.len), (region.remote_addr() + 1000, 100));
        let slot = rig.slot(&pattern(100, 4));
        rig.a.post(Request::write(slot, 100, range)).unwrap();
        let done = rig.one();
        assert!(done.status.is_ok(), "{kind:?}: through the window: {done:?}");
        rig.fence();
        let mut got = [0; 102];
        region.copy_out(999, &mut got).unwrap();
        assert!(got[0] == 0 && got[1..101] == pattern(100, 4)[..] && got[101] == 0);
        if kind == WindowKind::Type2 {
            // The peer takes the right back with a send.
            let recv = rig.slots(64, 1).pop().unwrap();
            rig.b.post_recv(recv).unwrap();
            let slot = rig.slot(b"back");
            rig.a.post(Request::send(slot, 4).invalidate(range.rkey)).unwrap();
            for done in rig.done(2) {
                assert!(done.status.is_ok(), "{}", done.status);
                // rxe invalidates, and does not tell.
                assert!(done.invalidated().is_none_or(|key| key == range.rkey));
            }
        }
        drop(window);
        let slot = rig.slot(&[1; 100]);
        rig.a.post(Request::write(slot, 100, range)).unwrap();
        assert_eq!(rig.one().status, WcStatus::REM_ACCESS_ERR, "the right is gone");
        if kind == WindowKind::Type1 {
            rig = self::rig();
        }
    }
}

/// A window of type 2 belongs to the queue pair it was bound on, and may be dropped after it all the same.
#[test]
fn a_window_outlives_its_queue_pair() {
    let _one = one_at_a_time();
    let mut rig = rig();
    if !rig.has(Caps::MEMORY_WINDOWS) {
        return;
    }
    let memory = OwnedMemory::zeroed(4096).unwrap();
    let region = rig.pd.register_remote(memory, RemoteAccess::Windows).unwrap();
    let window = rig.pd.alloc_window(WindowKind::Type2).unwrap();
    rig.b.post(Request::bind(window, &region, 0, 100, WindowAccess::WRITE)).unwrap();
    let Some(PayloadKind::Window(window)) = rig.one().payload.map(Payload::into_kind) else {
        panic!("a window")
    };
    let start = Instant::now();
    assert!(rig.b.close().unwrap().is_empty());
    drop(window);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(region.deregister().unwrap().len(), 4096, "no window holds it");
}

/// Borrowed memory at both ends, one after the other: received into an array, and sent from it.
#[test]
fn borrowed_memory_is_received_and_sent() {
    let _one = one_at_a_time();
    let rig = rig();
    let sent = pattern(4096, 9);
    let mut memory = vec![0; 4096];
    let slot = rig.slot(&sent);
    let Rig { mut a, b, mut cq, pd, .. } = rig;
    let ((), end) = b
        .scope(&mut cq, &mut memory, 4096, LIMIT, |scope, mut pieces| {
            scope.post_recv(pieces.pop().unwrap()).unwrap();
            a.post_send(slot, 4096, SIG).unwrap();
            let done = scope.poll(LIMIT).unwrap().expect("it arrives");
            assert!(done.done.status.is_ok() && done.done.op == Op::Recv, "{done:?}");
            assert!(done.memory.unwrap()[..] == sent[..]);
        })
        .unwrap();
    assert!(memory == sent, "the bytes are the caller's again");
    let mut b = end.qp.expect("nothing is left with the device");
    let strays = end.strays.into_iter().map(|mut wc| a.complete(&mut wc)).filter(Option::is_some);
    if strays.count() == 0 {
        assert!(redeem(&mut cq, &mut [&mut a], 1)[0].status.is_ok());
    }
    b.post_recv(pd.slots(4096, 1).unwrap().pop().unwrap()).unwrap();
    let ((), end) = a
        .scope(&mut cq, &mut memory, 4096, LIMIT, |scope, mut pieces| {
            scope.post_send(pieces.pop().unwrap(), 4096, SIG).unwrap();
        })
        .unwrap();
    assert!(end.qp.is_some_and(|a| a.in_flight() == (0, 0)), "the scope has waited for the send");
    let heard = end.strays.into_iter().find_map(|mut wc| b.complete(&mut wc));
    let heard = heard.unwrap_or_else(|| redeem(&mut cq, &mut [&mut b], 1).remove(0));
    assert!(heard.status.is_ok() && heard.message() == &sent[..]);
}

/// Two queue pairs of one side receive from one queue.
#[test]
fn a_shared_receive_queue_serves_two_queue_pairs() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut events = AsyncEvents::new(&ctx).unwrap();
    let (cq, mut out) = (ctx.create_cq(256).unwrap(), ctx.create_cq(256).unwrap());
    let mut srq = pd.create_srq(16).unwrap();
    let cm = Cm::new(address());
    let mut group = PollGroup::new(cq);
    let mut ends = Vec::new();
    for _ in 0..2 {
        let mut a = pd.create_qp(&out.cq_ref(), &out.cq_ref(), &config()).unwrap();
        let into = group.cq_ref();
        let mut b = pd.create_qp_on_srq(&into, &into, &srq.srq_ref(), &config()).unwrap();
        let refused = b.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap_err();
        assert!(refused.why == Why::WrongKind && refused.slot.is_some());
        let link = cm.connect(&mut a, &mut b, |_, _| {});
        ends.push((a, group.adopt(b).map_err(|(_, e)| e).unwrap(), link));
    }
    assert_eq!(srq.post_recv_batch(pd.slots(64, 16).unwrap()).unwrap(), 16);
    let one_more = srq.post_recv(pd.slots(64, 1).unwrap().pop().unwrap()).unwrap_err();
    assert!(one_more.why == Why::Full && one_more.slot.is_some());
    srq.arm_limit(12).unwrap();
    assert_eq!(srq.arm_limit(0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let serial = group.adopt_srq(srq);
    for i in 0..8u8 {
        let (a, ..) = &mut ends[usize::from(i % 2)];
        a.post_inline(&[i; 20], SIG).unwrap();
        assert!(redeem(&mut out, &mut [a], 1)[0].status.is_ok());
    }
    let mut seen = Vec::new();
    support::spin(&mut group, |group| {
        while let Some(c) = group.poll().unwrap() {
            assert!(c.status.is_ok() && c.op == Op::Recv && c.message().len() == 20);
            let from = c.message()[0];
            assert_eq!(c.key, ends[usize::from(from % 2)].1, "the queue pair it came over");
            seen.push(from);
            group.srq_mut(serial).unwrap().post_recv(c.slot.unwrap()).unwrap();
        }
        seen.len() == 8
    });
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
    let limit = AsyncEvent::Srq { serial, what: SrqEvent::LimitReached };
    let end = Instant::now() + LIMIT;
    while events.next(LIMIT).unwrap() != Some(limit) {
        assert!(Instant::now() < end, "no limit event");
    }
    let srq = group.release_srq(serial).unwrap();
    let (srq, e) = srq.close().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Busy);
    drop((group, ends));
    assert_eq!(srq.unwrap().close().map_err(|(_, e)| e).unwrap().len(), 16, "every slot is back");
}

#[test]
fn datagrams_go_where_the_handle_says() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.create_cq(256).unwrap();
    let attr = InitAttr::default();
    let make = |cq: &CompletionQueue| pd.create_ud_qp(&cq.cq_ref(), &cq.cq_ref(), &config(), &attr);
    if ctx.transport().is_iwarp() {
        assert_eq!(make(&cq).unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let (mut a, mut b) = (make(&cq).unwrap(), make(&cq).unwrap());
    let own = ctx.roce_v2_gid(1, None).unwrap();
    let vector = AddressVector::roce(1, u8::try_from(own.index).unwrap(), own.gid);
    let ah = pd.create_ah(&vector).unwrap();
    for _ in 0..2 {
        b.post_recv(pd.slots(GRH_SIZE + 100, 1).unwrap().pop().unwrap()).unwrap();
    }
    let mut slot = pd.slots(100, 1).unwrap().pop().unwrap();
    slot.copy_from_slice(&pattern(100, 6));
    let e = a.post_send(slot, 100, SIG).unwrap_err();
    assert_eq!(e.why, Why::WrongKind, "a datagram without an address goes nowhere");
    let (to, key) = (b.qp_num(), attr.qkey);
    a.post(Request::send(e.slot.unwrap(), 100).to(&ah, to, key).imm(5)).unwrap();
    a.post(Request::send_inline(b"small").to(&ah, to, key)).unwrap();
    let mut messages = Vec::new();
    for done in redeem(&mut cq, &mut [&mut a, &mut b], 4) {
        assert!(done.status.is_ok(), "{}", done.status);
        if done.op == Op::Recv {
            assert_eq!(done.byte_len, GRH_SIZE + done.message().len());
            let origin = done.extra.origin().unwrap();
            assert!(origin.src_qp == a.qp_num() && origin.has_grh);
            messages.push((done.imm(), done.message().to_vec()));
            let back = pd.create_reply_ah(origin, 1, &done.slot.unwrap()).unwrap();
            b.post(Request::send_inline(b"reply").to(&back, origin.src_qp, key)).unwrap();
        }
    }
    assert_eq!(messages, [(Some(5), pattern(100, 6)), (None, b"small".to_vec())]);
    let other = ctx.alloc_pd().unwrap();
    let stranger = other.create_ah(&vector).unwrap();
    let e = a.post(Request::send_inline(b"x").to(&stranger, to, key)).unwrap_err();
    assert_eq!(e.why, Why::WrongDomain);
}

#[test]
fn what_does_not_fit_never_reaches_the_device() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let target = rig.remote(RemoteAccess::ReadWrite, 64);
    let range = target.remote();
    let other = rig.ctx.alloc_pd().unwrap();
    let slot = |rig: &Rig| rig.slot(&[1; 64]);
    let sink = |rig: &Rig| rig.remote(RemoteAccess::ReadSink, 64);
    let stranger = other.slots(64, 1).unwrap().pop().unwrap();
    let cases = [
        (Request::write(slot(&rig), 65, range), Why::OutOfRange),
        (Request::write(slot(&rig), 65, RemoteRange { len: 100, ..range }), Why::TooLong),
        (Request::send(slot(&rig), usize::MAX), Why::TooLong),
        (Request::read(sink(&rig), 64, RemoteRange { len: 63, ..range }), Why::OutOfRange),
        (Request::read(sink(&rig), 64, RemoteRange { addr: u64::MAX, ..range }), Why::OutOfRange),
        (Request::write(stranger, 8, range), Why::WrongDomain),
        (Request::read(sink(&rig), 8, range).flags(SendFlags::INLINE), Why::WrongRequest),
        (Request::read(sink(&rig), 8, range).imm(1), Why::WrongRequest),
        (Request::send(slot(&rig), 8).imm(1).invalidate(2), Why::WrongRequest),
        (Request::write(slot(&rig), 8, range).invalidate(2), Why::WrongRequest),
        (Request::send(slot(&rig), 8).to_srq(3), Why::WrongKind),
        (Request::send_list(SgList::new()), Why::Empty),
    ];
    for (i, (request, why)) in cases.into_iter().enumerate() {
        let e = rig.a.post(request).unwrap_err();
        assert_eq!(e.why, why, "case {i}");
        assert!(e.into_payload().is_some(), "case {i}: it comes back");
    }
    let too_long = vec![0; rig.a.max_inline() + 1];
    assert_eq!(rig.a.post(Request::send_inline(&too_long)).unwrap_err().why, Why::TooLong);
    assert_eq!(rig.a.in_flight(), (0, 0));
    rig.fence();
}
