//! What is said on a machine without RDMA: run with `--features device-tests` where there is no device. Fails where there
//! is one.
use rdma_cm::{Error, EventChannel, all_addresses};

#[test]
fn a_machine_without_rdma_is_told_what_it_lacks() {
    let error = EventChannel::new().map(drop).expect_err("a machine without RDMA");
    assert!(matches!(error, Error::NoRdma { .. }), "{error:?}");
    let text = error.to_string();
    for word in ["rdma_ucm", "siw", "rdma_rxe"] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    assert_eq!(all_addresses().unwrap(), []);
    let unknown = rdma_cm::LoopbackPolicy::new().loopback("siw0");
    assert_eq!(unknown.0, rdma_safe::LoopbackSupport::Unknown, "{}", unknown.1);
    // A loopback address is refused here too, and there is no device to name.
    let refused = rdma_cm::check_dial("127.0.0.1".parse().unwrap()).unwrap_err().to_string();
    assert!(refused.contains("No RDMA device"), "{refused}");
}
