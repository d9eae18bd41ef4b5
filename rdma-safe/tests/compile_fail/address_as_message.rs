//! R1: numbers are not memory.
use rdma_safe::{QueuePair, SendFlags};

fn number(qp: &mut QueuePair) {
    let _ = qp.post_send(0x10, 64, SendFlags::INLINE); //~ E0308
}

fn element(qp: &mut QueuePair) {
    let _ = qp.post_recv(rdma_sys::ibv_sge { addr: 0x10, length: 64, lkey: 0 }); //~ E0308
}

fn main() {}
