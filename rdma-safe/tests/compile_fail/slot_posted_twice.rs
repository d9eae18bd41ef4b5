//! The same memory cannot be posted twice.
use rdma_safe::{QueuePair, SendFlags, Slot};

fn twice(a: &mut QueuePair, b: &mut QueuePair, slot: Slot) {
    let _ = a.post_send(slot, 1, SendFlags::empty());
    let _ = b.post_recv(slot); //~ E0382
}

fn copied(slot: &Slot) -> Slot {
    slot.clone() //~ E0308
}

fn main() {}
