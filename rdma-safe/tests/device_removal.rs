//! The device is removed under its users. Alone in its process, and it puts the device back.
//!
//! siw and rxe cannot take a device from those who have it open: `rdma link del` waits until the last context is closed,
//! and no asynchronous event tells (only the connection manager does). So what can be tested on them is that everything
//! still ends in order, and that nothing is left that keeps the device. A destroy that fails with EIO, as on hardware,
//! is tested with the fake provider. Needs root and iproute2's `rdma`, as the test machine has.

#[path = "support/under_test.rs"]
mod under_test;

use rdma_safe::*;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use under_test::{open, var};

fn rdma(args: &[&str]) -> Child {
    let mut c = Command::new("rdma");
    c.args(args).stdout(Stdio::piped()).spawn().expect("iproute2's `rdma` is installed")
}

/// Waits for a command within a limit, and returns what it printed.
fn finish(mut child: Child) -> String {
    let end = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "`rdma` hangs: something still has the device open");
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// The word after `key`.
fn word_after(text: &str, key: &str) -> Option<String> {
    let mut words = text.split_whitespace().skip_while(|w| *w != key);
    words.nth(1).map(str::to_owned)
}

#[test]
fn letting_go_lets_the_device_go() {
    let name = var("RDMA_TEST_DEVICE");
    let ctx = open();
    let kind = if ctx.transport().is_iwarp() { "siw" } else { "rxe" };
    let link = finish(rdma(&["link", "show", &format!("{name}/1")]));
    let netdev = word_after(&link, "netdev").expect("the device has a netdev");
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
    assert_eq!(extended.is_some(), kind == "rxe");

    let mut removal = rdma(&["link", "del", &name]);
    let gone = Instant::now() + Duration::from_secs(20);
    // The name disappears while the command still waits for us.
    while devices().unwrap().iter().any(|d| d.name() == name) && Instant::now() < gone {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(removal.try_wait().unwrap().is_none(), "it waits for the last context");
    assert!(qp.close().unwrap().is_empty());
    // Memory is still ours, and comes back.
    region.copy_in(5, b"late").unwrap();
    assert_eq!(region.deregister().unwrap()[5..9], *b"late");
    assert_eq!(shared.try_unshare().unwrap().deregister().unwrap()[..], [7; 4096]);
    drop((events, slots, cq, channel, pd, ctx));
    assert!(removal.try_wait().unwrap().is_none(), "a choice of a GID holds the context as well");
    drop((choice, extended));
    finish(removal);

    finish(rdma(&["link", "add", &name, "type", kind, "netdev", &netdev]));
    drop(open().alloc_pd().unwrap());
}
