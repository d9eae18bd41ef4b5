//! Registrations of every kind, device memory and domains against the fake provider: what neither siw nor rxe can do
//! works here, and fails here as it does on hardware. No device needed.

mod fake;

use fake::Fake;
use fake::more::Registered;
use rdma_safe::*;
use std::sync::Mutex;

const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
const REMOTE_ATOMIC: u32 = 8;
const MW_BIND: u32 = 16;
const ZERO_BASED: u32 = 32;
const ON_DEMAND: u32 = 64;
const RELAXED: u32 = 1 << 20;

fn plain() -> Registration {
    Registration::new()
}

/// Memory that counts how often it is freed.
struct Counted(Box<[u8; 4096]>, std::sync::Arc<Mutex<u32>>);

// SAFETY: the box stays where it is until the value is dropped; nothing else uses it.
unsafe impl StableBuffer for Counted {
    fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *self.1.lock().unwrap() += 1;
    }
}

fn counted() -> (OwnedMemory, impl Fn() -> u32) {
    let freed = std::sync::Arc::new(Mutex::new(0));
    let memory = OwnedMemory::new(Counted(Box::new([0; 4096]), freed.clone()));
    (memory, move || *freed.lock().unwrap())
}

#[test]
fn flags_and_addresses_reach_the_provider() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let latest = || fake.state().more.registered.unwrap();
    let memory = || OwnedMemory::zeroed(4096).unwrap();

    let mr = pd
        .register_remote_with(memory(), RemoteAccess::ReadWriteAtomic, &plain().iova(0x5000_0000))
        .unwrap();
    let r = latest();
    assert_eq!((r.len, r.iova), (4096, 0x5000_0000));
    assert_eq!(r.access, LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC);
    assert_eq!(r.addr, mr.as_mut_ptr() as u64, "the memory is where it was");
    assert_eq!(mr.remote().addr, 0x5000_0000, "peers name it so");
    assert_eq!(mr.into_slots(64, 2).unwrap()[1].remote().addr, 0x5000_0040);

    let at = plain().iova(0).relaxed_ordering().on_demand().windows();
    let mr = pd.register_remote_with(memory(), RemoteAccess::Windows, &at).unwrap();
    assert_eq!(latest().access, LOCAL_WRITE | MW_BIND | ON_DEMAND | RELAXED);
    drop(mr);
    let how = plain().relaxed_ordering().iova(64);
    drop(pd.register_with(memory(), &how).unwrap().into_slots(64, 1).unwrap());
    assert_eq!(latest().access, LOCAL_WRITE | RELAXED);
    let e = pd.register_with(memory(), &plain().windows()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "a window would open local memory");
    drop(pd);
    assert!(fake.closes_on_drop());
}

/// What the device lacks is refused by name, before the kernel is asked.
#[test]
fn what_the_device_lacks_is_said() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let remote = |access, how: &Registration| {
        pd.register_remote_with(vec![0; 64].into(), access, how).unwrap_err()
    };
    for (e, word) in [
        (remote(RemoteAccess::ReadWriteAtomic, &plain()), "atomics"),
        (remote(RemoteAccess::Windows, &plain()), "memory windows"),
        (remote(RemoteAccess::Read, &plain().windows()), "memory windows"),
        (remote(RemoteAccess::Read, &plain().iova(4096)), "its own address only"),
        (remote(RemoteAccess::Read, &plain().on_demand()), "on-demand paging"),
    ] {
        assert_eq!((e.kind(), e.errno()), (ErrorKind::Unsupported, 0), "{e}");
        assert!(e.to_string().contains(word), "{e}");
    }
    fake.state().more.unsupported = true;
    let mut mr = pd.register(vec![0; 64].into()).unwrap();
    for e in [
        fake.ctx.alloc_thread_domain().map(drop).unwrap_err(),
        pd.parent_domain().map(drop).unwrap_err(),
        fake.ctx.alloc_device_memory(64, 0).map(drop).unwrap_err(),
        pd.register_dmabuf(std::io::stdin(), 0, 64, 0, Access::LOCAL_WRITE).map(drop).unwrap_err(),
        mr.advise(0, 64, Advice::Prefetch, true).unwrap_err(),
        mr.exchange_memory(vec![0; 64].into())
            .map_err(|(back, e)| back.map(|_| e))
            .unwrap_err()
            .unwrap(),
    ] {
        assert_eq!((e.kind(), e.errno()), (ErrorKind::Unsupported, libc::EOPNOTSUPP), "{e}");
    }
    mr[0] = 1; // still what it was
    assert_eq!(mr.deregister().unwrap()[0], 1);
    fake.check();
}

#[test]
fn memory_comes_back_from_a_registration() {
    let _leaks = fake::chaos::LeaksOnPurpose::new();
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let (memory, freed) = counted();
    let mut mr = pd.register(memory).unwrap();
    mr[7] = 7;
    let mut memory = mr.deregister().unwrap();
    assert_eq!((memory[7], memory.len(), freed()), (7, 4096, 0));
    memory[8] = 8;
    let mr = pd.register_remote(memory, RemoteAccess::ReadWrite).unwrap();
    mr.copy_in(9, &[9, 10]).unwrap();
    fake.state().faults.dereg_fails = true;
    assert_eq!(mr.deregister().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(freed(), 0, "leaked: a peer may still write it");
    fake.state().faults.dereg_fails = false;
    let (memory, freed) = counted();
    drop(pd.register(memory).unwrap().deregister().unwrap());
    assert_eq!(freed(), 1);
}

#[test]
fn a_registration_is_changed_in_place() {
    let fake = Fake::open_infiniband();
    let (pd, other) = (fake.ctx.alloc_pd().unwrap(), fake.ctx.alloc_pd().unwrap());
    let (first, first_freed) = counted();
    let mut mr = pd.register_remote(first, RemoteAccess::Read).unwrap();
    let key = mr.rkey();
    let (second, second_freed) = counted();
    let back = mr.exchange_memory(second).unwrap();
    assert_eq!((first_freed(), second_freed()), (0, 0));
    drop(back);
    assert_eq!(first_freed(), 1, "the caller's again");
    assert_ne!(mr.rkey(), key, "the fake gives a new one, as hardware may");
    assert_eq!(mr.remote_addr(), mr.as_mut_ptr() as u64);

    let e = mr.change_access(RemoteAccess::Write, &plain().iova(4096)).unwrap_err();
    assert_eq!((e.kind(), e.errno()), (ErrorKind::InvalidArgument, 0), "{e}");
    mr.change_access(RemoteAccess::ReadWrite, &plain()).unwrap();
    let want = LOCAL_WRITE | REMOTE_READ | REMOTE_WRITE;
    assert_eq!(fake.state().more.registered.unwrap().access, want);

    mr.move_to(&other).unwrap();
    drop(pd);
    assert_eq!(fake.state().alive().3, 1, "the old domain is free");
    drop(other);
    assert_eq!(fake.state().alive().3, 1, "the new one is held");
    drop(mr);
    assert_eq!((second_freed(), fake.state().alive()), (1, (0, 0, 0, 0)));

    let stranger = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut mr = pd.register(vec![0; 64].into()).unwrap();
    let e = mr.move_to(&stranger.ctx.alloc_pd().unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongContext);
    assert_eq!(mr.exchange_memory(Vec::new().into()).unwrap_err().1.errno(), 0, "empty");
    let (mr, e) = mr.into_remote(RemoteAccess::Read, &plain().iova(4096)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    let mr = mr.unwrap();
    let mr = mr.into_remote(RemoteAccess::Read, &plain()).map_err(|(_, e)| e).unwrap();
    assert_eq!(fake.state().more.registered.unwrap().access, LOCAL_WRITE | REMOTE_READ);
    mr.copy_in(0, &[1]).unwrap();
    drop((mr, pd));
    assert!(fake.closes_on_drop());
}

/// After a change that failed half way the device may know either memory, so both stay until it knows neither.
#[test]
fn a_change_that_fails_frees_nothing_too_early() {
    let _leaks = fake::chaos::LeaksOnPurpose::new();
    const INPUT: i32 = -1;
    const DO_FORK_OLD: i32 = -3;
    const CMD: i32 = -4;
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let (first, first_freed) = counted();
    let mut mr = pd.register(first).unwrap();

    fake.state().more.rereg_returns = INPUT;
    let (memory, freed) = counted();
    let (back, e) = mr.exchange_memory(memory).unwrap_err();
    assert_eq!((e.errno(), first_freed(), freed()), (libc::EIO, 0, 0));
    drop(back.expect("refused before anything happened"));
    assert_eq!(freed(), 1);

    fake.state().more.rereg_returns = CMD;
    let (memory, freed) = counted();
    let (back, e) = mr.exchange_memory(memory).unwrap_err();
    assert!(back.is_none(), "it may be with the device");
    assert!(e.to_string().contains("register the memory anew"), "{e}");
    assert_eq!((first_freed(), freed()), (0, 0));
    let e = mr.move_to(&fake.ctx.alloc_pd().unwrap()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DeviceGone);
    let (region, _) = mr.into_remote(RemoteAccess::Read, &plain()).unwrap_err();
    assert!(region.is_none(), "it may be half open, and is gone");
    assert_eq!((first_freed(), freed()), (1, 1), "after the deregistration");

    let (memory, freed) = counted();
    let mut mr = pd.register(vec![0; 64].into()).unwrap();
    fake.state().more.rereg_returns = DO_FORK_OLD;
    mr.exchange_memory(memory).map_err(|(_, e)| e).expect("made; only the marking for fork failed");
    drop(mr);
    assert_eq!(freed(), 1);
}

#[test]
fn foreign_memory_is_registered_and_never_touched() {
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mut memory = vec![5u8; 100];
    let start = memory.as_mut_ptr();
    // SAFETY: the memory outlives the region, and is not referenced meanwhile.
    let mr = unsafe {
        pd.register_foreign(start, 100, Access::REMOTE_WRITE | Access::REMOTE_READ, &plain())
    }
    .unwrap();
    let r = fake.state().more.registered;
    assert!(r.is_none(), "the plain call: {r:?}");
    assert_eq!((mr.len(), mr.remote().addr), (100, start as u64));
    assert!(mr.lkey() != 0 && mr.rkey() == mr.remote().rkey);
    mr.deregister().unwrap();
    assert_eq!(memory, [5; 100]);
    // SAFETY: a length of 0 names no memory.
    let e = unsafe { pd.register_foreign(start, 0, Access::empty(), &plain()) }.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_dmabuf_is_registered_by_descriptor() {
    use std::os::fd::AsRawFd;
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let fd = std::fs::File::open("/dev/null").unwrap();
    let access = Access::REMOTE_WRITE;
    let mr = pd.register_dmabuf(&fd, 4096, 100, 0x7000, access).unwrap();
    let want = Registered {
        addr: 4096,
        len: 100,
        iova: 0x7000,
        access: LOCAL_WRITE | REMOTE_WRITE,
        fd: fd.as_raw_fd(),
    };
    assert_eq!(fake.state().more.registered, Some(want));
    assert_eq!(mr.remote(), RemoteRange { addr: 0x7000, len: 100, rkey: mr.rkey() });
    drop((mr, pd));
    assert!(fake.closes_on_drop());
}

#[test]
fn advice_names_a_range_of_the_region() {
    const FLUSH: u32 = 1;
    let fake = Fake::open_infiniband();
    let pd = fake.ctx.alloc_pd().unwrap();
    let how = plain().on_demand().iova(0x10_0000);
    let mr = pd.register_remote_with(vec![0; 4096].into(), RemoteAccess::Read, &how).unwrap();
    mr.advise(16, 32, Advice::PrefetchWrite, true).unwrap();
    assert_eq!(fake.state().more.advised, Some((1, FLUSH, 0x10_0010, 32, mr.lkey())));
    mr.advise(0, 4096, Advice::PrefetchNoFault, false).unwrap();
    assert_eq!(fake.state().more.advised, Some((2, 0, 0x10_0000, 4096, mr.lkey())));
    let e = mr.advise(4000, 97, Advice::Prefetch, true).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn device_memory_is_copied_and_registered() {
    let _leaks = fake::chaos::LeaksOnPurpose::new();
    let fake = Fake::open_infiniband();
    let dm = fake.ctx.alloc_device_memory(256, 6).unwrap();
    dm.copy_in(10, &[1, 2, 3]).unwrap();
    let mut out = [9; 5];
    dm.copy_out(9, &mut out).unwrap();
    assert_eq!((out, dm.len()), ([0, 1, 2, 3, 0], 256));
    for e in [
        dm.copy_in(254, &[0; 3]).unwrap_err(),
        dm.copy_out(u64::MAX, &mut out).unwrap_err(),
        fake.ctx.alloc_device_memory(0, 0).unwrap_err(),
    ] {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    }
    let pd = fake.ctx.alloc_pd().unwrap();
    let mr = pd.register_device_memory(&dm, 64, 128, Access::REMOTE_READ).unwrap();
    let r = fake.state().more.registered.unwrap();
    assert_eq!((r.addr, r.len, r.access), (64, 128, REMOTE_READ | ZERO_BASED));
    assert_eq!(mr.remote().addr, 0, "counted from the region's start");
    assert!(pd.register_device_memory(&dm, 200, 57, Access::empty()).is_err());
    let other = Fake::open_infiniband();
    let e = other.ctx.alloc_pd().unwrap().register_device_memory(&dm, 0, 1, Access::empty());
    assert_eq!(e.unwrap_err().kind(), ErrorKind::WrongContext);
    // The region holds the memory, and the memory the context.
    drop(dm);
    assert_eq!(fake.state().more.alive().0, 1);
    drop((mr, pd));
    assert_eq!(fake.state().more.alive().0, 0);
    // One whose free fails keeps the context open.
    let dm = fake.ctx.alloc_device_memory(8, 0).unwrap();
    fake.state().more.frees_fail = true;
    drop(dm);
    assert!(!fake.closes_on_drop());
}

/// A parent domain is another handle to the same protection.
#[test]
fn parent_domains_stand_on_what_they_are_made_over() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let td = fake.ctx.alloc_thread_domain().unwrap();
    let parent = pd.parent_domain().unwrap();
    // SAFETY: everything here is used by this thread alone.
    let lockless = unsafe { parent.parent_domain_of_thread(&td) }.unwrap();
    let cq = fake.ctx.create_cq(128).unwrap();
    let mut qp = lockless.create_qp(&cq.cq_ref(), &cq.cq_ref(), &QpConfig::default()).unwrap();
    let alive = || {
        let s = fake.state();
        (s.alive().3, s.more.alive().2)
    };
    assert_eq!(alive(), (3, 1));
    drop((pd, td, lockless));
    assert_eq!(alive(), (3, 1), "held by the pair");
    // A slot of one handle is at home in the other.
    let slot = parent.slots(64, 1).unwrap().pop().unwrap();
    qp.mark_connected().unwrap();
    qp.post_recv(slot).unwrap();
    drop(parent);
    assert_eq!(fake.state().alive().3, 2, "the middle one was over the first, not under the last");
    drop(qp);
    assert_eq!(alive(), (0, 0));
    let other = Fake::open_infiniband();
    let td = other.ctx.alloc_thread_domain().unwrap();
    // SAFETY: as above.
    let e = unsafe { fake.ctx.alloc_pd().unwrap().parent_domain_of_thread(&td) }.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongContext);
    drop(cq);
    assert!(fake.closes_on_drop());
}

/// Threads share a region: bytes by copy, words as atomics.
#[test]
fn a_remote_region_is_shared_between_threads() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let mr = pd.register_remote(OwnedMemory::zeroed(64).unwrap(), RemoteAccess::ReadWrite).unwrap();
    let mr = &mr;
    std::thread::scope(|s| {
        for t in 0..4usize {
            s.spawn(move || {
                for n in 0..1000u32 {
                    mr.fetch_add_u64(0, 1).unwrap();
                    mr.copy_in(9 + t, &[n as u8]).unwrap();
                    let mut seen = [0];
                    mr.copy_out(9 + t, &mut seen).unwrap();
                    assert_eq!(seen[0], n as u8);
                }
            });
        }
    });
    assert_eq!(mr.load_u64(0).unwrap(), 4000);
    assert_eq!(mr.compare_exchange_u64(0, 1, 7).unwrap(), 4000, "not it");
    assert_eq!(mr.compare_exchange_u64(0, 4000, 7).unwrap(), 4000);
    mr.store_u64(56, u64::MAX).unwrap();
    assert_eq!((mr.load_u64(0).unwrap(), mr.fetch_add_u64(56, 2).unwrap()), (7, u64::MAX));
    assert_eq!(mr.load_u64(56).unwrap(), 1, "wrapped");
    for (offset, word) in [(57, "outside"), (4, "multiple of 8"), (usize::MAX, "outside")] {
        let e = mr.load_u64(offset).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.to_string().contains(word), "{e}");
    }
}
