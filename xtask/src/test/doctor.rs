//! `cargo xtask doctor` in the guest, on machines on which something is wrong. What it makes of which facts is unit-tested;
//! this tests that it finds the facts.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{Bench, Count};
use crate::guest::{Device, Job};

const LIMIT: Duration = Duration::from_secs(60);

struct Case {
    what: &'static str,
    device: Device,
    /// Shell words before `exec "$@"`.
    script: &'static str,
    says: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        what: "nothing wrong with the devices",
        device: Device::Both,
        script: "",
        says: &[
            "siw0: port 1, iWARP, 4: ACTIVE, v0 10.77.0.1/24",
            "rxe0: port 1, RoCE, 4: ACTIVE, w0 10.78.0.1/24",
        ],
    },
    Case {
        what: "no device",
        device: Device::None,
        script: "",
        says: &["this machine has no RDMA device", "remedy: load the driver of the RDMA card"],
    },
    Case {
        what: "devices down",
        device: Device::Both,
        script: "ip link set v0 down; ip link set w0 down",
        says: &[
            "siw0 port 1 is 1: DOWN",
            "remedy: ip link set v0 up, and look at the cable",
            "rxe0 port 1 is 1: DOWN",
            "remedy: ip link set w0 up, and look at the cable",
        ],
    },
    Case {
        what: "no address, and a link-local one only",
        device: Device::Both,
        script: "ip addr flush dev v0; ip -4 addr flush dev w0",
        says: &[
            "siw0 port 1 has no IP address, so no peer can connect to it",
            "remedy: ip addr add ADDRESS/PREFIX dev v0",
            "rxe0 port 1 has only an address of this link or host (fe80::",
            "remedy: ip addr add ADDRESS/PREFIX dev w0",
        ],
    },
    Case {
        what: "little locked memory",
        device: Device::Siw,
        script: r#"ulimit -l 64; set -- setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$@""#,
        says: &[
            "locked memory is limited to 64 KiB, too little for registered memory",
            "remedy: `ulimit -l unlimited`",
        ],
    },
    Case {
        what: "a container without /dev/infiniband",
        device: Device::Siw,
        script: "export container=podman; mount -t tmpfs none /dev/infiniband",
        says: &[
            "this container has no /dev/infiniband/rdma_cm, /dev/infiniband/uverbs0",
            "remedy: start it with --device=/dev/infiniband --network=host --ulimit memlock=-1",
        ],
    },
    Case {
        what: "no Open MPI",
        device: Device::Siw,
        script: "mkdir /tmp/bin; for p in bash ip; do ln -s $(command -v $p) /tmp/bin/; done; export PATH=/tmp/bin",
        says: &["there is no Open MPI (no ompi_info in the PATH)", "remedy: install it ("],
    },
];

/// Runs each case on a machine of its own.
pub(super) fn run(bench: &mut Bench) -> Result<Count> {
    let program = std::env::current_exe().context("xtask does not know its own file")?;
    let mut count = Count::default();
    for case in CASES {
        let script = format!("{}\nexec \"$@\"", case.script);
        let mut command = vec!["bash".into(), "-c".into(), script.into(), "bash".into()];
        command.extend([program.clone().into_os_string(), "doctor".into(), "--no-build".into()]);
        let job = Job::new(case.device, command, LIMIT)?;
        let outcome = bench.in_guest(case.what, &job)?;
        let silent: Vec<_> =
            case.says.iter().filter(|text| !outcome.stdout.contains(**text)).collect();
        count.case(
            case.what,
            match (outcome.code, silent.is_empty()) {
                (0, true) => Ok(()),
                (0, false) => Err(format!("it does not say {silent:?}")),
                (code, _) => Err(format!("status {code}: {}", outcome.stderr.trim())),
            },
        );
    }
    Ok(count)
}
