//! What is wrong with a machine, and the remedy: a function of what was found, so that every case is a test.

use super::facts::{Btl, DeviceFacts, Facts, MpiFacts, PortFacts};

/// Less locked memory than this is not enough for one MPI process with a few peers.
const MEMLOCK_WANTED: u64 = 64 << 20;
const NOFILE_WANTED: u64 = 1024;

/// What was found wrong, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) remedy: String,
}

fn problem(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem { what: what.into(), remedy: remedy.into() }
}

/// Everything that is wrong, in the order in which it should be mended.
pub(super) fn judge(facts: &Facts) -> Vec<Problem> {
    let mut found: Vec<Problem> = facts
        .missing
        .iter()
        .map(|missing| {
            problem(format!("something is missing {}", missing.purpose), missing.remedy.clone())
        })
        .collect();
    found.extend(modules(facts));
    found.extend(facts.devices.iter().flat_map(|device| of_device(device, facts)));
    found.extend(limits(facts));
    found.extend(mpi(facts));
    found
}

/// `modprobe`, where that can be done.
fn load(facts: &Facts, modules: &str) -> String {
    match facts.container {
        true => format!("on the host of this container: modprobe -a {modules}"),
        false => format!("modprobe -a {modules}"),
    }
}

/// The kernel's side, and the files through which it is reached.
fn modules(facts: &Facts) -> Vec<Problem> {
    let soft =
        "rdma link add siw0 type siw netdev DEV; or use the guest: cargo xtask guest run -- CMD";
    if !facts.has_core {
        return vec![problem(
            "the kernel has no RDMA: its module ib_core is not loaded",
            format!(
                "{} and the driver of the card; without a card: modprobe siw, {soft}",
                load(facts, "ib_uverbs rdma_ucm")
            ),
        )];
    }
    if facts.devices.is_empty() {
        return vec![problem(
            "this machine has no RDMA device, so MPI programs cannot use the BTL on it",
            format!("load the driver of the RDMA card; without a card: modprobe siw, {soft}"),
        )];
    }
    let mut found = Vec::new();
    if !facts.has_uverbs {
        found.push(problem(
            "no program can use the devices: the kernel's module ib_uverbs is not loaded",
            load(facts, "ib_uverbs"),
        ));
    }
    if !facts.has_ucm {
        found.push(problem(
            "nothing can connect: the kernel's module rdma_ucm is not loaded",
            load(facts, "rdma_ucm"),
        ));
    }
    if facts.has_uverbs && facts.has_ucm {
        found.extend(device_files(facts));
    }
    found
}

/// The kernel has everything; can this process reach it?
fn device_files(facts: &Facts) -> Option<Problem> {
    match (&facts.unreachable[..], facts.container) {
        ([], _) => None,
        (files, true) => Some(problem(
            format!("this container has no {}", files.join(", ")),
            "start it with --device=/dev/infiniband --network=host --ulimit memlock=-1 (docker, podman)",
        )),
        (files, false) => Some(problem(
            format!("this user cannot open {}", files.join(", ")),
            "udev makes these files, readable and writable for all (rdma-core's rules): look at `ls -l /dev/infiniband`",
        )),
    }
}

fn of_device(device: &DeviceFacts, facts: &Facts) -> Vec<Problem> {
    let mut found = Vec::new();
    if device.opened == Some(false) {
        found.push(problem(
            format!("{} cannot be opened through verbs", device.name),
            "install ibverbs-providers (or rdma-core)",
        ));
    }
    found.extend(device.ports.iter().flat_map(|port| of_port(&device.name, port, facts)));
    found
}

fn of_port(device: &str, port: &PortFacts, facts: &Facts) -> Vec<Problem> {
    let mut found = Vec::new();
    let name = format!("{device} port {}", port.number);
    let netdev = port.netdev.as_deref();
    if !port.state.contains("ACTIVE") {
        found.push(problem(
            format!("{name} is {}", port.state),
            match netdev {
                Some(netdev) => format!("ip link set {netdev} up, and look at the cable"),
                None => "look at the cable, the switch and the subnet manager".to_owned(),
            },
        ));
    }
    if port.is_infiniband() {
        return found;
    }
    let Some(netdev) = netdev else {
        let remedy = match facts.container {
            true => "start the container with --network=host",
            false => {
                "rdma link show: move the network interface here, or use the namespace where it is"
            }
        };
        found.push(problem(
            format!("{name} has no network interface that this process can see"),
            remedy,
        ));
        return found;
    };
    found.extend(address(&name, netdev, &port.addresses));
    found
}

/// Whether some peer could connect to one of the addresses.
fn address(port: &str, netdev: &str, addresses: &[String]) -> Option<Problem> {
    let add = format!("ip addr add ADDRESS/PREFIX dev {netdev}");
    if netdev == "lo" {
        return Some(problem(
            format!("{port} is on the loopback interface: no peer can connect to it"),
            "rdma link del it, and make it on the interface of a network",
        ));
    }
    if addresses.is_empty() {
        return Some(problem(
            format!("{port} has no IP address, so no peer can connect to it"),
            add,
        ));
    }
    let local = |address: &&String| {
        address.starts_with("fe80:")
            || address.starts_with("169.254.")
            || address.starts_with("127.")
    };
    addresses.iter().all(|address| local(&address)).then(|| {
        let (have, one) = (addresses.join(", "), if addresses.len() == 1 { "an address" } else { "addresses" });
        problem(
            format!("{port} has only {one} of this link or host ({have}), which the BTL does not give to peers"),
            add,
        )
    })
}

fn limits(facts: &Facts) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some(bytes) =
        facts.memlock.filter(|bytes| *bytes < MEMLOCK_WANTED && !facts.locks_freely)
    {
        let forever = match facts.container {
            true => "start the container with --ulimit memlock=-1",
            false => {
                "for all in /etc/security/limits.conf: `* - memlock unlimited`; a batch system has its own setting"
            }
        };
        found.push(problem(
            format!(
                "locked memory is limited to {} KiB, too little for registered memory",
                bytes / 1024
            ),
            format!("`ulimit -l unlimited`, {forever}"),
        ));
    }
    if let Some(files) = facts.nofile.filter(|files| *files < NOFILE_WANTED) {
        found.push(problem(
            format!("open files are limited to {files}, and each connection takes some"),
            format!("`ulimit -n {NOFILE_WANTED}` or more"),
        ));
    }
    found
}

fn mpi(facts: &Facts) -> Vec<Problem> {
    let Some(first) = facts.mpi.first() else {
        return vec![problem(
            "there is no Open MPI (no ompi_info in the PATH)",
            format!(
                "install it ({}), or `module load` it; Rust programs do not need it",
                facts.mpi_packages
            ),
        )];
    };
    let mut found = Vec::new();
    if !first.supported {
        found.push(problem(
            format!("the BTL is not built for Open MPI {}, the first in the PATH", first.version),
            format!("put one of these first in the PATH: {}", facts.supported),
        ));
    }
    found.extend(facts.mpi.iter().filter(|mpi| mpi.supported).filter_map(of_btl));
    found
}

fn of_btl(mpi: &MpiFacts) -> Option<Problem> {
    match &mpi.btl {
        Btl::Found(_) => None,
        Btl::NotLoaded(file) => Some(problem(
            format!("Open MPI {} does not load {file}", mpi.version),
            "build it for this Open MPI: cargo xtask install-btl",
        )),
        Btl::Missing => Some(problem(
            format!("Open MPI {} does not find the BTL: there is no mca_btl_verbs.so", mpi.version),
            "cargo xtask install-btl (on every node)",
        )),
        Btl::Unknown(why) => Some(problem(
            format!("Open MPI {} does not work: {why}", mpi.version),
            "install Open MPI again",
        )),
    }
}

#[cfg(test)]
#[path = "judge_test.rs"]
mod tests;
