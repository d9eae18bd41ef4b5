use super::super::facts::Missing;
use super::*;

fn port(netdev: &str, state: &str, addresses: &[&str]) -> PortFacts {
    PortFacts {
        number: "1".to_owned(),
        transport: "iWARP",
        state: state.to_owned(),
        netdev: Some(netdev.to_owned()),
        addresses: addresses.iter().map(|a| (*a).to_owned()).collect(),
    }
}

fn good_port() -> PortFacts {
    port("eth1", "4: ACTIVE", &["10.77.0.1/24", "fe80::1/64"])
}

/// A machine on which everything works.
fn good() -> Facts {
    Facts {
        has_core: true,
        has_uverbs: true,
        has_ucm: true,
        devices: vec![DeviceFacts {
            name: "siw0".to_owned(),
            ports: vec![good_port()],
            opened: Some(true),
        }],
        memlock: Some(u64::MAX),
        nofile: Some(1024),
        mpi: vec![MpiFacts {
            version: "4.1.4".to_owned(),
            info: "/usr/bin/ompi_info".into(),
            supported: true,
            btl: Btl::Found(None),
        }],
        mpi_packages: "openmpi-bin".to_owned(),
        supported: "4.1".to_owned(),
        ..Facts::default()
    }
}

/// What is said of the machine after a change: one problem, `what → remedy`.
fn said(change: impl FnOnce(&mut Facts)) -> String {
    let mut facts = good();
    change(&mut facts);
    let found = judge(&facts);
    assert_eq!(found.len(), 1, "{found:?}");
    format!("{} → {}", found[0].what, found[0].remedy)
}

fn with_port(change: impl FnOnce(&mut PortFacts)) -> String {
    said(|facts| change(&mut facts.devices[0].ports[0]))
}

#[test]
fn a_good_machine_has_no_problem() {
    assert_eq!(judge(&good()), []);
    // The user who may lock all he likes, and a fabric that needs no IP address.
    let mut facts = good();
    (facts.memlock, facts.locks_freely) = (Some(65536), true);
    facts.devices[0].ports[0] = PortFacts {
        transport: "InfiniBand",
        state: "4: ACTIVE".to_owned(),
        ..PortFacts::default()
    };
    assert_eq!(judge(&facts), []);
}

#[test]
fn no_device() {
    assert_eq!(
        said(|facts| facts.devices.clear()),
        "this machine has no RDMA device, so MPI programs cannot use the BTL on it → load the driver of the RDMA card; \
         without a card: modprobe siw, rdma link add siw0 type siw netdev DEV; or use the guest: cargo xtask guest run -- CMD"
    );
}

#[test]
fn a_module_is_missing() {
    let none = |facts: &mut Facts| {
        facts.devices.clear();
        (facts.has_core, facts.has_uverbs, facts.has_ucm) = (false, false, false);
    };
    assert_eq!(
        said(none),
        "the kernel has no RDMA: its module ib_core is not loaded → modprobe -a ib_uverbs rdma_ucm and the driver of the \
         card; without a card: modprobe siw, rdma link add siw0 type siw netdev DEV; or use the guest: cargo xtask guest \
         run -- CMD"
    );
    assert_eq!(
        said(|facts| facts.has_uverbs = false),
        "no program can use the devices: the kernel's module ib_uverbs is not loaded → modprobe -a ib_uverbs"
    );
    assert_eq!(
        said(|facts| facts.has_ucm = false),
        "nothing can connect: the kernel's module rdma_ucm is not loaded → modprobe -a rdma_ucm"
    );
    assert_eq!(
        said(|facts| (facts.has_ucm, facts.container) = (false, true)),
        "nothing can connect: the kernel's module rdma_ucm is not loaded → on the host of this container: modprobe -a \
         rdma_ucm"
    );
}

#[test]
fn a_device_is_down() {
    assert_eq!(
        with_port(|port| port.state = "1: DOWN".to_owned()),
        "siw0 port 1 is 1: DOWN → ip link set eth1 up, and look at the cable"
    );
    assert_eq!(
        with_port(|port| {
            *port = PortFacts {
                number: "2".to_owned(),
                transport: "InfiniBand",
                state: "2: INIT".to_owned(),
                ..PortFacts::default()
            };
        }),
        "siw0 port 2 is 2: INIT → look at the cable, the switch and the subnet manager"
    );
}

#[test]
fn a_wrong_address() {
    assert_eq!(
        with_port(|port| port.addresses.clear()),
        "siw0 port 1 has no IP address, so no peer can connect to it → ip addr add ADDRESS/PREFIX dev eth1"
    );
    assert_eq!(
        with_port(|port| port.addresses = vec!["fe80::1/64".to_owned()]),
        "siw0 port 1 has only an address of this link or host (fe80::1/64), which the BTL does not give to peers → ip addr \
         add ADDRESS/PREFIX dev eth1"
    );
    assert_eq!(
        with_port(
            |port| port.addresses = vec!["169.254.1.2/16".to_owned(), "fe80::1/64".to_owned()]
        ),
        "siw0 port 1 has only addresses of this link or host (169.254.1.2/16, fe80::1/64), which the BTL does not give to \
         peers → ip addr add ADDRESS/PREFIX dev eth1"
    );
    assert_eq!(
        with_port(|port| port.netdev = Some("lo".to_owned())),
        "siw0 port 1 is on the loopback interface: no peer can connect to it → rdma link del it, and make it on the \
         interface of a network"
    );
    assert_eq!(
        with_port(|port| port.netdev = None),
        "siw0 port 1 has no network interface that this process can see → rdma link show: move the network interface here, \
         or use the namespace where it is"
    );
}

#[test]
fn little_locked_memory() {
    assert_eq!(
        said(|facts| facts.memlock = Some(65536)),
        "locked memory is limited to 64 KiB, too little for registered memory → `ulimit -l unlimited`, for all in \
         /etc/security/limits.conf: `* - memlock unlimited`; a batch system has its own setting"
    );
    assert_eq!(
        said(|facts| (facts.memlock, facts.container) = (Some(65536), true)),
        "locked memory is limited to 64 KiB, too little for registered memory → `ulimit -l unlimited`, start the container \
         with --ulimit memlock=-1"
    );
}

#[test]
fn few_open_files() {
    assert_eq!(
        said(|facts| facts.nofile = Some(256)),
        "open files are limited to 256, and each connection takes some → `ulimit -n 1024` or more"
    );
}

#[test]
fn no_open_mpi() {
    assert_eq!(
        said(|facts| facts.mpi.clear()),
        "there is no Open MPI (no ompi_info in the PATH) → install it (openmpi-bin), or `module load` it; Rust programs do \
         not need it"
    );
}

#[test]
fn a_wrong_open_mpi() {
    let wrong = |facts: &mut Facts| {
        (facts.mpi[0].version, facts.mpi[0].supported) = ("3.1.6".to_owned(), false);
    };
    assert_eq!(
        said(wrong),
        "the BTL is not built for Open MPI 3.1.6, the first in the PATH → put one of these first in the PATH: 4.1"
    );
    // One behind a good one does not matter.
    let mut facts = good();
    facts.mpi.push(MpiFacts {
        version: "3.1.6".to_owned(),
        info: "/opt/ompi_info".into(),
        supported: false,
        btl: Btl::Missing,
    });
    assert_eq!(judge(&facts), []);
    assert_eq!(
        said(|facts| facts.mpi[0].btl = Btl::Unknown("it has no libmpi".to_owned())),
        "Open MPI 4.1.4 does not work: it has no libmpi → install Open MPI again"
    );
}

#[test]
fn the_btl_is_not_found() {
    assert_eq!(
        said(|facts| facts.mpi[0].btl = Btl::Missing),
        "Open MPI 4.1.4 does not find the BTL: there is no mca_btl_verbs.so → cargo xtask install-btl (on every node)"
    );
    assert_eq!(
        said(|facts| facts.mpi[0].btl = Btl::NotLoaded("/x/mca_btl_verbs.so".to_owned())),
        "Open MPI 4.1.4 does not load /x/mca_btl_verbs.so → build it for this Open MPI: cargo xtask install-btl"
    );
}

#[test]
fn a_container_without_the_device_files() {
    let files = || vec!["/dev/infiniband/rdma_cm".to_owned(), "/dev/infiniband/uverbs0".to_owned()];
    assert_eq!(
        said(|facts| (facts.unreachable, facts.container) = (files(), true)),
        "this container has no /dev/infiniband/rdma_cm, /dev/infiniband/uverbs0 → start it with --device=/dev/infiniband \
         --network=host --ulimit memlock=-1 (docker, podman)"
    );
    assert_eq!(
        said(|facts| facts.unreachable = files()),
        "this user cannot open /dev/infiniband/rdma_cm, /dev/infiniband/uverbs0 → udev makes these files, readable and \
         writable for all (rdma-core's rules): look at `ls -l /dev/infiniband`"
    );
    assert_eq!(
        said(|facts| {
            facts.container = true;
            facts.devices[0].ports[0].netdev = None;
        }),
        "siw0 port 1 has no network interface that this process can see → start the container with --network=host"
    );
}

#[test]
fn a_driver_or_a_package_is_missing() {
    assert_eq!(
        said(|facts| facts.devices[0].opened = Some(false)),
        "siw0 cannot be opened through verbs → install ibverbs-providers (or rdma-core)"
    );
    let missing = || Missing {
        purpose: "to build the crates".to_owned(),
        remedy: "apt-get install gcc".to_owned(),
    };
    assert_eq!(
        said(|facts| facts.missing = vec![missing()]),
        "something is missing to build the crates → apt-get install gcc"
    );
}

#[test]
fn several_problems_come_in_the_order_in_which_they_are_mended() {
    let mut facts = good();
    facts.has_ucm = false;
    facts.memlock = Some(0);
    facts.mpi.clear();
    let words: Vec<String> = judge(&facts).into_iter().map(|problem| problem.what).collect();
    assert_eq!(words.len(), 3);
    assert!(
        words[0].contains("rdma_ucm")
            && words[1].contains("locked")
            && words[2].contains("Open MPI")
    );
}
