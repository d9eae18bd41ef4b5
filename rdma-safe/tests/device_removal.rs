//! The device is removed under its users. Alone in its process, and it puts the device back.
//!
//! siw and rxe cannot take a device from those who have it open: `rdma link del` waits until the last context is closed,
//! and no asynchronous event tells (only the connection manager does). So what can be tested on them is that everything
//! still ends in order, and that nothing is left that keeps the device. A destroy that fails with EIO, as on hardware,
//! is tested with the fake provider. Needs root and iproute2's `rdma`, as the test machine has.

mod support;

use rdma_safe::*;
use support::links::{SoftDevice, finish};
use support::under_test::open;

#[test]
fn letting_go_lets_the_device_go() {
    let device = SoftDevice::under_test();
    let listed = Device::by_name(&device.name).unwrap();
    let ctx = open();
    let pd = ctx.alloc_pd().unwrap();
    let channel = ctx.completion_channel().unwrap();
    let cq = ctx.create_cq_with(128, &channel).unwrap();
    let slots = pd.slots(4096, 4).unwrap();
    let qp = pd.create_qp(&cq.cq_ref(), &cq.cq_ref(), &QpConfig::default()).unwrap();
    let events = AsyncEvents::new(&ctx).unwrap();
    let memory = OwnedMemory::zeroed(4096).unwrap();
    let region = pd.register_remote(memory, RemoteAccess::ReadWrite).unwrap();
    let shared = pd.register(vec![7; 4096].into()).unwrap().into_shared();
    let choice = GidChoice::new(&ctx, 1, None).unwrap();
    let extended = ctx.create_cq_ex(16, WcFields::empty(), None).ok();
    assert_eq!(extended.is_some(), device.kind == "rxe");

    let mut removal = device.begin_removal();
    assert!(removal.try_wait().unwrap().is_none(), "it waits for the last context");
    let e = listed.open().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoDevice, "{e}");
    assert!(e.to_string().contains("the device was removed"), "{e}");
    assert!(qp.close().unwrap().is_empty());
    // Memory is still ours, and comes back.
    region.copy_in(5, b"late").unwrap();
    assert_eq!(region.deregister().unwrap()[5..9], *b"late");
    assert_eq!(shared.try_unshare().unwrap().deregister().unwrap()[..], [7; 4096]);
    drop((events, slots, cq, channel, pd, ctx));
    assert!(removal.try_wait().unwrap().is_none(), "a choice of a GID holds the context as well");
    drop((choice, extended));
    finish(removal);

    device.add();
}
