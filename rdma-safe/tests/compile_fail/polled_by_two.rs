//! Only one thread polls a queue, and only one redeems from a queue pair.
use rdma_safe::{CompletionQueue, QueuePair, Wc};

fn poll(cq: &CompletionQueue, out: &mut [Wc]) {
    let _ = cq.poll(out); //~ E0596
}

fn redeem(qp: &QueuePair, wc: &mut Wc) {
    let _ = qp.complete(wc); //~ E0596
}

fn main() {}
