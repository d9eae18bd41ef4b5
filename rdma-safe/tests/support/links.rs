//! Taking the device under test away and putting it back. Needs root and iproute2, as the test machine has.

#![allow(dead_code)] // each test binary uses its part

use super::under_test::{open, var};
use rdma_safe::devices;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// Starts iproute2's `rdma`.
pub(crate) fn rdma(args: &[&str]) -> Child {
    let mut c = Command::new("rdma");
    c.args(args).stdout(Stdio::piped()).spawn().expect("iproute2's `rdma` is installed")
}

/// Waits for a command within a limit, and returns what it printed.
pub(crate) fn finish(mut child: Child) -> String {
    let end = Instant::now() + LIMIT;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "`rdma` hangs: something still has the device open");
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// Runs iproute2's `ip`, which must succeed.
pub(crate) fn ip(args: &[&str]) {
    let status = Command::new("ip").args(args).status().expect("iproute2's `ip` is installed");
    assert!(status.success(), "ip {args:?}");
}

/// The device under test, as `rdma link add` makes it.
pub(crate) struct SoftDevice {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) netdev: String,
}

impl SoftDevice {
    pub(crate) fn under_test() -> SoftDevice {
        let name = var("RDMA_TEST_DEVICE");
        let kind = if open().transport().is_iwarp() { "siw" } else { "rxe" };
        let link = finish(rdma(&["link", "show", &format!("{name}/1")]));
        let mut words = link.split_whitespace().skip_while(|w| *w != "netdev");
        let netdev = words.nth(1).expect("the device has a netdev").to_owned();
        SoftDevice { name, kind, netdev }
    }

    /// Begins the removal and waits until the name is gone: the command itself waits for the last context.
    pub(crate) fn begin_removal(&self) -> Child {
        let removal = rdma(&["link", "del", &self.name]);
        let end = Instant::now() + LIMIT;
        while devices().unwrap().iter().any(|d| d.name() == self.name) {
            assert!(Instant::now() < end, "the device keeps its name");
            std::thread::sleep(Duration::from_millis(5));
        }
        removal
    }

    /// Puts it back.
    pub(crate) fn add(&self) {
        let args = ["link", "add", &self.name, "type", self.kind, "netdev", &self.netdev];
        finish(rdma(&args));
        drop(open().alloc_pd().unwrap());
    }
}
