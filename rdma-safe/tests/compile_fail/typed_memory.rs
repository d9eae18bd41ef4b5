//! I3: registered memory is bytes; nothing that has a validity of its own can be in it.
fn registered(pd: &rdma_safe::ProtectionDomain) {
    let texts: Vec<&'static str> = vec![""];
    let _ = pd.register(texts.into()); //~ E0277
}

fn received(slot: &rdma_safe::Slot) -> bool {
    slot[0] //~ E0308
}

fn main() {}
