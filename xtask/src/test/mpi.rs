//! MPI programs over the BTL, in the guest.

use std::time::Duration;

use anyhow::Result;

use super::parts::{clean, test_device};
use super::{Bench, Count};
use crate::demo::mpi::{Programs, probe};
use crate::guest::{Device, KERNEL_TROUBLE, Outcome};

/// One run of a program.
struct Case {
    program: &'static str,
    args: &'static [&'static str],
    ranks: u32,
    /// In seconds.
    limit: u64,
}

const CASES: &[Case] = &[
    Case { program: "ring", args: &[], ranks: 4, limit: 180 },
    Case { program: "allreduce", args: &[], ranks: 4, limit: 180 },
    Case { program: "pingpong", args: &[], ranks: 2, limit: 180 },
    Case { program: "stress", args: &[], ranks: 2, limit: 300 },
    Case { program: "threads", args: &[], ranks: 2, limit: 300 },
    Case { program: "spawn", args: &[], ranks: 2, limit: 120 },
    Case { program: "compute", args: &["--seconds", "60"], ranks: 2, limit: 180 },
];

/// Of two hosts joined by a cable: what differs is the path, not the program.
const ACROSS: &[Case] = &[
    Case { program: "ring", args: &[], ranks: 4, limit: 180 },
    Case { program: "stress", args: &[], ranks: 2, limit: 300 },
];

/// Arguments of `stress` with `--soak`.
const SOAK: &[&str] = &["--messages", "1000000"];

/// What a connection that broke leaves in the log, besides what is trouble anyway.
pub(super) const BROKEN: &[&str] = &["TERMINATE", "terminate"];

/// Builds the BTL and the programs, and runs each of them on `device`: in one host and across two.
pub(super) fn run(bench: &mut Bench, device: Device) -> Result<Count> {
    let programs = Programs::build()?;
    let mut count = Count::default();
    for (across, case) in
        CASES.iter().map(|case| (false, case)).chain(ACROSS.iter().map(|case| (true, case)))
    {
        let soak = bench.soak && case.program == "stress";
        let args = if soak { SOAK } else { case.args };
        let mut job = programs.job(device, case.ranks, case.program, args, "self,verbs")?;
        job.limit = Duration::from_secs(if soak { 3600 } else { case.limit });
        let place = if across { "across two hosts" } else { "on one host" };
        if across {
            programs.across(&mut job, case.ranks);
        }
        probe(&mut job, test_device(device).0, "0")?;
        let name = format!("{} {place} with {}", case.program, device.name());
        let outcome = bench.in_guest(&name, &job)?;
        count.case(&name, verdict(case, &outcome));
        let log = clean(&outcome.klog, KERNEL_TROUBLE);
        count.case(&format!("{name}: the kernel's log"), log.and(clean(&outcome.klog, BROKEN)));
        if device == Device::Rxe {
            count.case(
                &format!("{name}: every receive was posted in time"),
                never_unready(&outcome),
            );
        }
    }
    Ok(count)
}

fn verdict(case: &Case, outcome: &Outcome) -> Result<(), String> {
    match outcome.code {
        0 if outcome.stdout.contains(&format!("OK {}", case.program)) => Ok(()),
        0 => Err("ended without its line OK".to_owned()),
        124 => Err("did not end in time".to_owned()),
        code => Err(format!("ended with status {code}: {}", telling(&outcome.stderr))),
    }
}

/// rxe counts receivers that were not ready; with credits there is never any. (On siw such a
/// receiver ends the connection, and so the program.)
pub(super) fn never_unready(outcome: &Outcome) -> Result<(), String> {
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix("@rnr "));
    match line.and_then(|number| number.trim().parse::<u64>().ok()) {
        Some(0) => Ok(()),
        Some(n) => Err(format!("{n} receiver-not-ready errors on the device's counters")),
        None => Err("the probe told no counter of receiver-not-ready errors".to_owned()),
    }
}

/// The line of a job's words that tells most: the program's own, else the last.
pub(super) fn telling(text: &str) -> &str {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines()
        .find(|line| line.contains("FAILED"))
        .or_else(|| lines().next_back())
        .unwrap_or("it said nothing")
}
