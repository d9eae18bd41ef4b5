//! What must hold for any bytes that a peer published: for proptest here, and for the fuzzer in `btl-core/fuzz`.
use crate::modex::{decode, encode};

/// Panics if the reader does, if what it read cannot be written and read again, or if it gives out what no peer may say.
pub(crate) fn check(data: &[u8]) {
    let Ok(rails) = decode(data) else { return };
    let blob = encode(&rails).expect("what was read can be written");
    assert_eq!(decode(&blob).as_ref(), Ok(&rails));
    let addrs = rails.iter().flat_map(|rail| &rail.addrs);
    for addr in addrs {
        assert!(!addr.at.ip().is_loopback() && addr.at.port() != 0);
    }
}
