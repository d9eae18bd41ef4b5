//! A closed queue pair is gone.
use rdma_safe::{QueuePair, Wc};

fn after(mut qp: QueuePair, wc: &mut Wc) {
    let _ = qp.close();
    let _ = qp.complete(wc); //~ E0382
}

fn main() {}
