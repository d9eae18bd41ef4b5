//! MPI programs over the BTL, in the guest.

use std::time::Duration;

use anyhow::Result;

use super::parts::{KERNEL_TROUBLE, clean};
use super::{Bench, Count};
use crate::demo::mpi::Programs;
use crate::guest::{Device, Sink};

/// One run of a program.
struct Case {
    program: &'static str,
    args: &'static [&'static str],
    ranks: u32,
    limit: u64,
}

const CASES: &[Case] = &[
    Case { program: "ring", args: &[], ranks: 4, limit: 180 },
    Case { program: "allreduce", args: &[], ranks: 4, limit: 180 },
    Case { program: "pingpong", args: &[], ranks: 2, limit: 180 },
    Case { program: "stress", args: &[], ranks: 2, limit: 300 },
    Case { program: "compute", args: &["--seconds", "20"], ranks: 2, limit: 120 },
];

/// What a connection that broke leaves in siw's log, besides what is trouble anyway.
const BROKEN: &[&str] = &["TERMINATE", "terminate"];

/// Builds the BTL and the programs, and runs each of them on `device`.
pub(super) fn run(bench: &mut Bench, device: Device) -> Result<Count> {
    let programs = Programs::build()?;
    let mut count = Count::default();
    for case in CASES {
        let mut job = programs.job(device, case.ranks, case.program, case.args, "self,verbs")?;
        job.limit = Duration::from_secs(case.limit);
        let outcome = bench.machine()?.run(&job, Sink::Keep)?;
        let log =
            format!("{}\n{}\n--- kernel log ---\n{}", outcome.stdout, outcome.stderr, outcome.klog);
        bench.log(case.program, &log);
        let name = format!("{} on {}", case.program, device.name());
        let result = match outcome.code {
            0 if outcome.stdout.contains(&format!("OK {}", case.program)) => Ok(()),
            0 => Err("ended without its line OK".to_owned()),
            124 => Err(format!("did not end within {} s", case.limit)),
            code => Err(format!("ended with status {code}: {}", last_line(&outcome.stderr))),
        };
        count.case(&name, result);
        count.case(
            &name,
            clean(&outcome.klog, KERNEL_TROUBLE).and_then(|()| clean(&outcome.klog, BROKEN)),
        );
    }
    Ok(count)
}

fn last_line(text: &str) -> &str {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("---"));
    lines
        .into_iter()
        .find(|line| line.contains("FAILED"))
        .or_else(|| text.lines().rev().find(|line| !line.trim().is_empty()))
        .unwrap_or("")
}
