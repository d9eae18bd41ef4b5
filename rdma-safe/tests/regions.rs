//! Regions that are shared, or that peers may use, without any traffic.

mod fake;

use fake::Fake;
use rdma_safe::*;

fn remote(fake: &Fake, len: usize) -> MemoryRegion<Remote> {
    let pd = fake.ctx.alloc_pd().unwrap();
    let memory = OwnedMemory::zeroed(len).unwrap();
    pd.register_remote(memory, RemoteAccess::ReadWrite).unwrap()
}

#[test]
fn remote_slots_are_parts_of_their_region() {
    let fake = Fake::open();
    let region = remote(&fake, 256);
    let whole = region.remote();
    assert_eq!((whole.addr, whole.len, whole.rkey), (region.remote_addr(), 256, region.rkey()));
    let slots = region.into_slots(100, 2).unwrap();
    let ranges: Vec<_> = slots.iter().map(RemoteSlot::remote).collect();
    assert_eq!(ranges, [whole.slice(0, 100).unwrap(), whole.slice(128, 100).unwrap()]);
    let mut slots = slots.into_iter();
    drop(slots.next());
    assert_eq!(fake.state().alive().2, 1, "the other slot keeps the registration");
    drop(slots);
    assert_eq!(fake.state().alive().2, 0);
    for (size, count) in [(0, 1), (1, 0), (257, 1), (100, 3), (usize::MAX, 2)] {
        let e = remote(&fake, 256).into_slots(size, count).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{count} of {size}");
    }
    assert_eq!(fake.state().alive().2, 0);
    fake.check();
}

#[test]
fn a_remote_slot_is_copied_and_read_by_words() {
    let fake = Fake::open();
    let mut slot = remote(&fake, 64).into_slots(64, 1).unwrap().pop().unwrap();
    slot.copy_in(3, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap();
    let mut out = [0xff; 12];
    slot.copy_out(2, &mut out).unwrap();
    assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0]);
    assert_eq!(slot.load_u64(8).unwrap(), u64::from_ne_bytes([6, 7, 8, 9, 10, 0, 0, 0]));
    slot.store_u64(56, u64::MAX).unwrap();
    assert_eq!(slot.load_u64(56).unwrap(), u64::MAX);
    for refused in [
        slot.copy_in(64, &[1]).unwrap_err(),
        slot.copy_in(usize::MAX, &[1]).unwrap_err(),
        slot.copy_out(60, &mut out).unwrap_err(),
        slot.load_u64(57).unwrap_err(),
        slot.load_u64(4).unwrap_err(),
        slot.store_u64(usize::MAX, 0).unwrap_err(),
    ] {
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    }
    slot.copy_in(64, &[]).unwrap();
}

#[test]
fn a_shared_region_lives_as_long_as_its_last_slice() {
    let fake = Fake::open();
    let pd = fake.ctx.alloc_pd().unwrap();
    let region = pd.register(OwnedMemory::from((0..100u8).collect::<Vec<_>>())).unwrap();
    let shared = region.into_shared();
    let slice = shared.slice(10, 5).unwrap();
    let twin = slice.clone();
    assert_eq!((&slice[..], &twin[..]), (&shared[10..15], &[10, 11, 12, 13, 14][..]));
    for (offset, len) in [(0, 0), (100, 1), (96, 5), (usize::MAX, 1)] {
        let e = shared.slice(offset, len).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{len} at {offset}");
    }
    let shared = shared.try_unshare().unwrap_err();
    drop((shared, slice));
    assert_eq!(twin[0], 10);
    let shared = twin.region().clone();
    drop(twin);
    assert_eq!(shared.try_unshare().unwrap().len(), 100);
    assert_eq!(fake.state().alive().2, 0);
    fake.check();
}
