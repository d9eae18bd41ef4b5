//! The device under test: `RDMA_TEST_DEVICE` names it.

use rdma_safe::{Context, Device};

pub(crate) fn var(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("set {name}: these tests need an RDMA device"))
}

/// Opens it.
pub(crate) fn open() -> Context {
    let name = var("RDMA_TEST_DEVICE");
    Device::by_name(&name).and_then(|d| d.open()).unwrap_or_else(|e| panic!("{e}"))
}
