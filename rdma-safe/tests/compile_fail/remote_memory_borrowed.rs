//! I5: memory a peer can write has no bytes to borrow.
use rdma_safe::{MemoryRegion, Remote};

fn shared(region: &MemoryRegion<Remote>) -> u8 {
    region[0] //~ E0608
}

fn whole(region: &MemoryRegion<Remote>) -> &[u8] {
    region //~ E0308
}

fn main() {}
