//! Network interfaces, addresses and soft devices that a test makes, and that are gone when it ends.
#![allow(dead_code)] // Each test binary uses a part of it.

use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use super::{device, open};

/// The kind of the test device, as `rdma link add` calls it.
pub(crate) fn kind() -> &'static str {
    if open().transport().is_iwarp() { "siw" } else { "rxe" }
}

/// The network interface under the test device.
pub(crate) fn netdev() -> String {
    let own = rdma_cm::device_addresses(&device()).unwrap();
    own.first().expect("the device has an address").netdev.clone()
}

fn tool(name: &str, args: &[&str]) -> Result<(), String> {
    let done = Command::new(name).args(args).output().map_err(|e| format!("{name}: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{name} {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr)))
}

/// Runs `ip`, which must succeed.
pub(crate) fn ip_tool(args: &[&str]) {
    tool("ip", args).unwrap_or_else(|e| panic!("{e}; these tests run as root"));
}

/// Runs `rdma`, which must succeed.
pub(crate) fn rdma_tool(args: &[&str]) {
    tool("rdma", args).unwrap_or_else(|e| panic!("{e}; these tests run as root"));
}

/// What takes a change of the network back when dropped.
pub(crate) struct Undo {
    tool: &'static str,
    args: Vec<String>,
}

impl Undo {
    fn new(name: &'static str, make: &[&str], undo: &[&str]) -> Self {
        tool(name, make).unwrap_or_else(|e| panic!("{e}; these tests run as root"));
        Self { tool: name, args: undo.iter().map(|&arg| arg.to_owned()).collect() }
    }

    /// Runs `ip` with `make` now and with `undo` later.
    pub(crate) fn ip(make: &[&str], undo: &[&str]) -> Self {
        Self::new("ip", make, undo)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // A device that this process still uses is gone only after it; see `alone`.
        let done =
            Command::new(self.tool).args(&self.args).spawn().map(|mut c| ended(&mut c, PATIENCE));
        // A test may have done it itself.
        if !matches!(done, Ok(Some(_))) {
            eprintln!("{} {}: {done:?}", self.tool, self.args.join(" "));
        }
    }
}

/// How long a change of the network may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits for the end of a process; `None` when it is still there after `limit`.
pub(crate) fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        match child.try_wait().expect("a child can be waited for") {
            None if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            status => return status,
        }
    }
}

/// Set in a process that [`alone`] started.
const ALONE: &str = "RDMA_TEST_ALONE";

/// Runs a test in a process of its own, with these environment variables, and tells what it said and whether it passed;
/// `None` in that process, which has to do the work.
///
/// librdmacm keeps every device open that it has ever used, until the process ends, and a soft device is only gone when
/// nobody has it open; the environment is read once in a process.
pub(crate) fn alone(test: &str, vars: &[(&str, &str)]) -> Option<(bool, String)> {
    if is_alone() {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").envs(vars.iter().copied());
    let done = command.output().expect("this program runs");
    let said = [done.stdout, done.stderr].concat();
    Some((done.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

/// A soft device of the kind of the test device, on an interface.
pub(crate) fn soft_device(name: &str, netdev: &str) -> Undo {
    let make = ["link", "add", name, "type", kind(), "netdev", netdev];
    let undo = Undo::new("rdma", &make, &["link", "delete", name]);
    // The kernel makes its files a moment later.
    let end = Instant::now() + Duration::from_secs(5);
    while rdma_safe::Device::by_name(name).and_then(|d| d.open()).is_err() {
        assert!(Instant::now() < end, "{name} does not come up");
        std::thread::sleep(Duration::from_millis(10));
    }
    undo
}

/// Whether this process is one that [`alone`] started.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// A cable with a soft device of the kind of the test device at one end, for a test to do with as it likes.
pub(crate) struct Cable {
    /// The device.
    pub(crate) device: String,
    _device: Undo,
    _link: Undo,
}

impl Cable {
    /// The interface under the device.
    pub(crate) const NETDEV: &'static str = "lt0";
    /// The address of that interface, with the length of its prefix.
    pub(crate) const CIDR: &'static str = "10.79.1.1/24";

    /// The address, with a port.
    pub(crate) fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 79, 1, 1], port))
    }

    /// Lays it and waits until rdma_cm finds the device by its address.
    pub(crate) fn lay() -> Self {
        let pair = ["link", "add", Self::NETDEV, "type", "veth", "peer", "name", "lt1"];
        let link = Undo::ip(&pair, &["link", "delete", Self::NETDEV]);
        ip_tool(&["addr", "add", Self::CIDR, "dev", Self::NETDEV]);
        ip_tool(&["link", "set", Self::NETDEV, "up"]);
        ip_tool(&["link", "set", "lt1", "up"]);
        let device = Self::device();
        let undo = soft_device(&device, Self::NETDEV);
        Self::wait_ready();
        Self { device, _device: undo, _link: link }
    }

    /// The name of the device.
    pub(crate) fn device() -> String {
        format!("{}lt", kind())
    }

    /// Waits until the port is active and the device has its address.
    pub(crate) fn wait_ready() {
        let folder = format!("/sys/class/infiniband/{}/ports/1", Self::device());
        let end = Instant::now() + PATIENCE;
        let ready = || {
            let read = |file: &str| std::fs::read_to_string(format!("{folder}/{file}"));
            let gids = std::fs::read_dir(format!("{folder}/gids")).into_iter().flatten().flatten();
            let mut gids = gids.filter_map(|gid| std::fs::read_to_string(gid.path()).ok());
            // Soft iWARP has the MAC there, soft RoCE its addresses.
            let address = |gid: String| match kind() {
                "siw" => !gid.starts_with("0000:0000:0000:0000:0000:"),
                _ => gid.contains(":ffff:0a4f:0101"),
            };
            read("state").is_ok_and(|state| state.contains("ACTIVE")) && gids.any(address)
        };
        while !ready() {
            assert!(Instant::now() < end, "{} does not become active", Self::device());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
