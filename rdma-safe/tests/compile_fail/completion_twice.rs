//! S7: a completion is a value of its own: it cannot be made, copied, or redeemed by value twice.
use rdma_safe::{Done, Wc};

fn made() -> Wc {
    Wc(rdma_sys::ibv_wc::default()) //~ E0423
}

fn copied(wc: &Wc) -> Wc {
    *wc //~ E0507
}

fn both(done: Done) -> (Option<rdma_safe::Slot>, Option<rdma_safe::Slot>) {
    (done.slot, done.slot) //~ E0382
}

fn main() {}
