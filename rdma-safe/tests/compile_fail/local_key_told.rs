//! Memory registered for local use has no key to tell a peer, so no peer can change what is borrowed.
use rdma_safe::{Local, MemoryRegion};

fn key(region: &MemoryRegion<Local>) -> u32 {
    region.rkey() //~ E0599
}

fn main() {}
