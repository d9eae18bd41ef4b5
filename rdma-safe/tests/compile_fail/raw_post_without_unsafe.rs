//! R1: posting memory by number is the caller's promise.
use rdma_safe::{QueuePair, RawRequest, RawSge, RawVerb, SendFlags};

fn number(qp: &mut QueuePair) {
    let pieces = [RawSge { addr: 0x10, len: 64, lkey: 0 }];
    let flags = SendFlags::empty();
    let request = RawRequest { verb: RawVerb::Send, pieces: &pieces, flags, imm: None };
    let _ = qp.post_raw(&request, 1); //~ E0133
    let _ = qp.post_recv_raw(&pieces, 1); //~ E0133
}

fn main() {}
