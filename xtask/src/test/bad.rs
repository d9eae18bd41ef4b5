//! MPI programs where something is missing or wrong: one clear message, a status that tells, and no hang.

use std::time::Duration;

use anyhow::Result;

use super::parts::test_device;
use super::{Bench, Count};
use crate::demo::mpi::Programs;
use crate::guest::{Device, Outcome};

const LIMIT: Duration = Duration::from_secs(60);

struct Case {
    what: &'static str,
    /// Shell words before the job, `exec "$@"` among them; `DEV` and `NETDEV` stand for the devices.
    script: &'static str,
    /// With the RDMA device, or without any.
    device: bool,
    /// What the component has to say.
    says: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        what: "no device",
        script: r#"exec "$@""#,
        device: false,
        says: &["no RDMA device", "rdma link add"],
    },
    Case {
        what: "the link is down",
        script: r#"ip link set NETDEV down; exec "$@""#,
        device: true,
        says: &["DEV is down", "ip link set NETDEV up"],
    },
    Case {
        what: "no address",
        script: r#"ip addr flush dev NETDEV; exec "$@""#,
        device: true,
        says: &["DEV has no address", "ip addr add"],
    },
    Case {
        what: "64 KiB of locked memory",
        script: r#"ulimit -l 64; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock "$@""#,
        device: true,
        says: &["RLIMIT_MEMLOCK is 64 KiB", "ulimit -l unlimited"],
    },
    Case {
        what: "a device that is not there",
        script: r#"export OMPI_MCA_btl_verbs_if_include=nosuch0; exec "$@""#,
        device: true,
        says: &["no RDMA device \"nosuch0\"", "there are: DEV"],
    },
    Case {
        what: "a device that is said not to loop back",
        script: r#"export OMPI_MCA_btl_verbs_loopback=DEV=no; exec "$@""#,
        device: true,
        says: &["DEV lacks the flag LOOPBACK", "btl_verbs_loopback DEV=yes"],
    },
    Case {
        what: "lanes in a syntax of their own",
        script: r#"export OMPI_MCA_btl_verbs_receive_queues=P,12288,16:Q,65536; exec "$@""#,
        device: true,
        says: &["entry 2", "Q,65536", "P,12288,16:P,65536,4"],
    },
    Case {
        what: "a parameter that is no number",
        script: r#"export OMPI_MCA_btl_verbs_cq_size=many; exec "$@""#,
        device: true,
        says: &["btl_verbs_cq_size", "not a number"],
    },
    Case {
        what: "a parameter out of range",
        script: r#"export OMPI_MCA_btl_verbs_cq_size=1; exec "$@""#,
        device: true,
        says: &["cq_size", "256..4194304"],
    },
];

pub(super) fn run(bench: &mut Bench, device: Device) -> Result<Count> {
    let programs = Programs::build(bench.ompi)?;
    let (name, _) = test_device(device);
    let netdev = if device == Device::Rxe { "w0" } else { "v0" };
    let fill = |text: &str| text.replace("NETDEV", netdev).replace("DEV", name);
    let mut count = Count::default();
    for case in CASES {
        let on = if case.device { device } else { Device::None };
        let mut job = programs.job(on, 2, "ring", &[], "self,verbs")?;
        let mut command = vec!["bash".into(), "-c".into(), fill(case.script).into(), "bash".into()];
        command.append(&mut job.command);
        job.command = command;
        job.limit = LIMIT;
        let outcome = bench.in_guest(&format!("{} on {name}", case.what), &job)?;
        let says: Vec<String> = case.says.iter().map(|text| fill(text)).collect();
        count.case(case.what, verdict(&says, &outcome));
    }
    Ok(count)
}

fn verdict(says: &[String], outcome: &Outcome) -> Result<(), String> {
    let text = format!("{}\n{}", outcome.stdout, outcome.stderr);
    let line = text
        .lines()
        .find(|line| line.contains("verbs:") && says.iter().all(|word| line.contains(word)));
    match (outcome.code, line) {
        (0, _) => Err("the job ended with status 0".to_owned()),
        (124, _) => Err("the job hung".to_owned()),
        (_, Some(_)) => Ok(()),
        (code, None) => Err(format!("status {code}, and no line has all of {says:?}")),
    }
}
