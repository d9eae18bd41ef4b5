//! R2: memory that is only borrowed cannot be registered: forgetting the guard would end the borrow under the device.
use rdma_safe::ProtectionDomain;

fn slice(pd: &ProtectionDomain) {
    let mut buffer = [0u8; 64];
    let _ = pd.register((&mut buffer[..]).into()); //~ E0277
}

fn main() {}
