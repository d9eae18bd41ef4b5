//! Nothing that owns something of the device can be made of its parts or copied.
use rdma_safe::{CompletionQueue, MemoryRegion, PollGroup, QpKey, QueuePair, Remote};

fn copied<T: Clone>() {}

fn main() {
    copied::<QueuePair>(); //~ E0277
    copied::<CompletionQueue>(); //~ E0277
    copied::<MemoryRegion<Remote>>(); //~ E0277
    copied::<PollGroup>(); //~ E0277
    let _ = QpKey(7); //~ E0423
}
