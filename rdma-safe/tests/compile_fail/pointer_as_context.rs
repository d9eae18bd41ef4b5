//! S3: taking over a raw context is unsafe.
fn main() {
    let raw = 8 as *mut rdma_sys::ibv_context;
    let _ = rdma_safe::Context::from_raw(raw, &rdma_safe::seam::LIBIBVERBS); //~ E0133
}
