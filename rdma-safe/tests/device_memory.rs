//! Registrations of every kind on devices: what siw and rxe can do is used by a peer, what they cannot is refused in
//! words that help. The peer's requests are posted raw, so these tests depend on the regions alone.

mod support;

use rdma_safe::*;
use rdma_sys::*;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use support::cm::{Cm, Link};
use support::under_test::open;
use support::{LIMIT, address};

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connected pair, of which `a` plays the peer.
struct Rig {
    a: QueuePair,
    _b: QueuePair,
    _link: Link,
    _cm: Cm,
    cq: CompletionQueue,
    pd: ProtectionDomain,
    ctx: Context,
}

fn rig() -> Rig {
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.create_cq(64).unwrap();
    let config = QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::default() };
    let mut a = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config).unwrap();
    let mut b = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &config).unwrap();
    let cm = Cm::new(address());
    let _link = cm.connect(&mut a, &mut b, |_, _| {});
    Rig { a, _b: b, _link, _cm: cm, cq, pd, ctx }
}

impl Rig {
    fn is_siw(&self) -> bool {
        self.ctx.transport().is_iwarp()
    }

    /// One RDMA request of the peer, from or to its `local` memory; its status.
    fn rdma(
        &mut self,
        opcode: ibv_wr_opcode,
        local: &MemoryRegion<Remote>,
        at: RemoteRange,
    ) -> u32 {
        let mut sge =
            ibv_sge { addr: local.remote_addr(), length: at.len as u32, lkey: local.lkey() };
        let mut wr = ibv_send_wr {
            wr_id: 1,
            sg_list: &mut sge,
            num_sge: 1,
            opcode,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..ibv_send_wr::default()
        };
        wr.wr.rdma.remote_addr = at.addr;
        wr.wr.rdma.rkey = at.rkey;
        if opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD {
            wr.wr.atomic.remote_addr = at.addr;
            wr.wr.atomic.rkey = at.rkey;
            wr.wr.atomic.compare_add = 5;
        }
        let mut bad = null_mut();
        // SAFETY: a connected queue pair and a complete request, whose memory outlives its completion below.
        assert_eq!(unsafe { ibv_post_send(self.a.as_raw(), &mut wr, &mut bad) }, 0);
        let end = Instant::now() + LIMIT;
        loop {
            let mut wc = ibv_wc::default();
            // SAFETY: a live queue and room for one completion.
            match unsafe { ibv_poll_cq(self.cq.as_raw(), 1, &mut wc) } {
                1 if wc.wr_id == 1 => return wc.status.0,
                _ => assert!(Instant::now() < end, "no completion in time"),
            }
            std::thread::yield_now();
        }
    }

    fn write(&mut self, data: &[u8], to: RemoteRange) -> u32 {
        let local = self.pd.register_remote(data.to_vec().into(), RemoteAccess::Read).unwrap();
        let to = RemoteRange { len: data.len() as u64, ..to };
        self.rdma(ibv_wr_opcode::IBV_WR_RDMA_WRITE, &local, to)
    }

    /// What the peer reads.
    fn read(&mut self, from: RemoteRange) -> Vec<u8> {
        let memory = OwnedMemory::zeroed(from.len as usize).unwrap();
        let local = self.pd.register_remote(memory, RemoteAccess::ReadSink).unwrap();
        assert_eq!(self.rdma(ibv_wr_opcode::IBV_WR_RDMA_READ, &local, from), 0);
        local.deregister().unwrap().to_vec()
    }
}

/// 33 bytes: more than goes inline.
const TEXT: &[u8; 33] = b"written by a peer, seen by it all";

#[test]
fn a_peer_uses_a_region_and_its_memory_comes_back() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let memory = OwnedMemory::zeroed(4096).unwrap();
    let mr = rig.pd.register_remote(memory, RemoteAccess::ReadWrite).unwrap();
    mr.copy_in(0, b"read by a peer").unwrap();
    assert_eq!(rig.read(mr.remote().slice(0, 14).unwrap()), b"read by a peer");
    assert_eq!(rig.write(TEXT, mr.remote().slice(100, 33).unwrap()), 0);
    // On iWARP the write's completion says nothing about the peer: what it reads afterwards does.
    assert_eq!(rig.read(mr.remote().slice(100, 33).unwrap()), TEXT);
    let gone = mr.remote();
    let memory = mr.deregister().unwrap();
    assert_eq!(memory[100..133], TEXT[..]);
    // The key is worth nothing now: refused by the device, and only the connection suffers.
    let sink = rig.pd.register_remote(vec![0; 8].into(), RemoteAccess::ReadSink).unwrap();
    let stale = RemoteRange { len: 8, ..gone };
    assert_ne!(rig.rdma(ibv_wr_opcode::IBV_WR_RDMA_READ, &sink, stale), 0);
}

#[test]
fn a_region_at_an_address_of_choice() {
    const AT: u64 = 0x7777_0000_0000;
    let _one = one_at_a_time();
    let mut rig = rig();
    let how = Registration::new().iova(AT);
    let memory = OwnedMemory::zeroed(8192).unwrap();
    let made = rig.pd.register_remote_with(memory, RemoteAccess::ReadWrite, &how);
    if rig.is_siw() {
        let e = made.unwrap_err();
        assert_eq!((e.kind(), e.errno()), (ErrorKind::Unsupported, 0));
        assert!(e.to_string().contains("siw0 knows memory by its own address only"), "{e}");
        return;
    }
    let mr = made.unwrap();
    assert_eq!(mr.remote().addr, AT);
    assert_eq!(rig.write(TEXT, mr.remote().slice(5000, 33).unwrap()), 0);
    assert_eq!(rig.read(mr.remote().slice(5000, 33).unwrap()), TEXT);
    let mut seen = [0; 33];
    mr.copy_out(5000, &mut seen).unwrap();
    assert_eq!(&seen, TEXT);
}

#[test]
fn memory_on_demand() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let how = Registration::new().on_demand();
    let memory = OwnedMemory::zeroed(1 << 16).unwrap();
    let made = rig.pd.register_remote_with(memory, RemoteAccess::ReadWrite, &how);
    if !rig.ctx.attr_ex().unwrap().odp.supported {
        assert!(rig.is_siw(), "rxe can since Linux 6.15");
        let e = made.unwrap_err();
        assert_eq!((e.kind(), e.errno()), (ErrorKind::Unsupported, 0));
        assert!(e.to_string().contains("has no on-demand paging; register pinned"), "{e}");
        return;
    }
    let mr = made.unwrap();
    // Nothing of it has been touched by anybody yet.
    assert_eq!(rig.write(TEXT, mr.remote().slice(0x8000, 33).unwrap()), 0);
    assert_eq!(rig.read(mr.remote().slice(0x8000, 33).unwrap()), TEXT);
    let e = mr.advise(0, 4096, Advice::Prefetch, true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "rdma-core 44's librxe takes none: {e}");
    assert_eq!(mr.deregister().unwrap()[0x8000..0x8021], TEXT[..]);
}

#[test]
fn relaxed_ordering_is_taken_or_ignored() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let how = Registration::new().relaxed_ordering();
    let memory = OwnedMemory::zeroed(4096).unwrap();
    let mr = rig.pd.register_remote_with(memory, RemoteAccess::ReadWrite, &how).unwrap();
    assert_eq!(rig.write(TEXT, mr.remote()), 0);
    assert_eq!(rig.read(mr.remote().slice(0, 33).unwrap()), TEXT);
    let mut slots =
        rig.pd.register_with(vec![0; 128].into(), &how).unwrap().into_slots(64, 2).unwrap();
    slots[1][0] = 1;
}

/// What peers may do is what was asked for, and no more.
#[test]
fn access_is_what_was_asked_for() {
    let _one = one_at_a_time();
    let memory = || OwnedMemory::zeroed(64).unwrap();
    let mut one = rig();
    let readable = one.pd.register_remote(memory(), RemoteAccess::Read).unwrap();
    one.write(TEXT, readable.remote());
    // siw tells the writer nothing; but the memory does not change, and the connection ends.
    assert_eq!(readable.deregister().unwrap()[..], [0; 64]);
    let mut two = rig();
    let writable = two.pd.register_remote(memory(), RemoteAccess::Write).unwrap();
    let sink = two.pd.register_remote(memory(), RemoteAccess::ReadSink).unwrap();
    let status = two.rdma(ibv_wr_opcode::IBV_WR_RDMA_READ, &sink, writable.remote());
    // siw's read responses check no right (siw_qp_sq_proc_tx): whoever has a key of a domain can read what it names.
    assert!(status != 0 || two.is_siw());
    let windows = two.pd.register_remote(memory(), RemoteAccess::Windows);
    if two.is_siw() {
        assert_eq!(windows.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let windows = windows.unwrap();
    let mut three = rig();
    let sink = three.pd.register_remote(memory(), RemoteAccess::ReadSink).unwrap();
    let closed = windows.remote();
    assert_ne!(three.rdma(ibv_wr_opcode::IBV_WR_RDMA_READ, &sink, closed), 0);
}

/// The peer's count and ours are one, where the device has atomics at all. (rxe's are atomic with the processor's.)
#[test]
fn a_peer_counts_in_a_word() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let made =
        rig.pd.register_remote(OwnedMemory::zeroed(64).unwrap(), RemoteAccess::ReadWriteAtomic);
    if rig.is_siw() {
        let e = made.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unsupported);
        assert!(e.to_string().contains("siw0 has no remote atomics"), "{e}");
        return;
    }
    let mr = made.unwrap();
    mr.store_u64(8, 100).unwrap();
    let sink =
        rig.pd.register_remote(OwnedMemory::zeroed(8).unwrap(), RemoteAccess::ReadSink).unwrap();
    let word = mr.remote().slice(8, 8).unwrap();
    let opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
    for round in 0..10 {
        assert_eq!(rig.rdma(opcode, &sink, word), 0);
        assert_eq!(sink.load_u64(0).unwrap(), 100 + round * 6, "what it was");
        assert_eq!(mr.fetch_add_u64(8, 1).unwrap(), 105 + round * 6);
    }
    assert_eq!((mr.load_u64(0).unwrap(), mr.load_u64(8).unwrap()), (0, 160));
}

#[test]
fn foreign_memory_serves_a_peer() {
    let _one = one_at_a_time();
    let mut rig = rig();
    let mut memory = vec![0u8; 4096];
    let start = memory.as_mut_ptr();
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    // SAFETY: the memory outlives the region, and is not referenced before its end.
    let mr = unsafe { rig.pd.register_foreign(start, 4096, access, &Registration::new()) }.unwrap();
    assert_eq!(rig.write(TEXT, mr.remote().slice(64, 33).unwrap()), 0);
    assert_eq!(rig.read(mr.remote().slice(64, 33).unwrap()), TEXT);
    mr.deregister().unwrap();
    assert_eq!(memory[64..97], TEXT[..]);
}

/// Neither device has these; what one is told says so, and nothing else is disturbed.
#[test]
fn what_soft_devices_lack_is_unsupported() {
    let _one = one_at_a_time();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let mut mr = pd.register(vec![7; 4096].into()).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for (what, e) in [
        ("thread domain", ctx.alloc_thread_domain().map(drop).unwrap_err()),
        ("parent domain", pd.parent_domain().map(drop).unwrap_err()),
        ("device memory", ctx.alloc_device_memory(64, 0).map(drop).unwrap_err()),
        ("dmabuf", pd.register_dmabuf(&file, 0, 64, 0, Access::LOCAL_WRITE).map(drop).unwrap_err()),
        ("advice", mr.advise(0, 64, Advice::Prefetch, true).unwrap_err()),
        (
            "other memory",
            mr.exchange_memory(vec![0; 64].into()).map_err(|(_, e)| e).map(drop).unwrap_err(),
        ),
        ("other domain", mr.move_to(&pd).unwrap_err()),
    ] {
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{what}: {e}");
    }
    let (mr, e) = mr.into_remote(RemoteAccess::Read, &Registration::new()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(mr.unwrap().deregister().unwrap().iter().all(|b| *b == 7));
}
