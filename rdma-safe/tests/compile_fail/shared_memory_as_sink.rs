//! Memory that others read at the same time is never a sink, and the pieces of a list belong to it.
use rdma_safe::{MemoryRegion, QueuePair, Remote, RemoteSlot, SgList, SharedSlice, Slot};

fn sink(qp: &mut QueuePair, slice: SharedSlice) {
    let _ = qp.post_recv(slice); //~ E0308
}

fn changed(mut slice: SharedSlice) {
    slice[0] = 1; //~ E0594
}

fn remote(mut slot: RemoteSlot) -> u8 {
    slot[0] //~ E0608
}

fn twice(mut list: SgList, slot: Slot) -> u8 {
    let _ = list.push(slot, 1);
    slot[0] //~ E0382
}

fn cut(region: MemoryRegion<Remote>) -> usize {
    let _ = region.into_slots(64, 1);
    region.len() //~ E0382
}

fn main() {}
