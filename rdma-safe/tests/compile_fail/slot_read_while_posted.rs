//! R5: what the device has cannot be read or written.
use rdma_safe::{QueuePair, Slot};

fn after(qp: &mut QueuePair, slot: Slot) -> u8 {
    let _ = qp.post_recv(slot);
    slot[0] //~ E0382
}

fn during(qp: &mut QueuePair, slot: Slot) -> u8 {
    let bytes = &slot[..];
    let _ = qp.post_recv(slot); //~ E0505
    bytes[0]
}

fn main() {}
