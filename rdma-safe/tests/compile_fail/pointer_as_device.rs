//! I1: a device is never made from a pointer.
fn main() {
    let pointer = 8 as *mut rdma_sys::ibv_device;
    let device = rdma_safe::Device::from(&pointer); //~ E0308
    println!("{}", device.name());
}
