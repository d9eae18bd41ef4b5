//! `cargo xtask demo`: unmodified MPI programs over iWARP and over RoCE through the BTL, with proof of the transport and figures.

pub(crate) mod mpi;
mod proof;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::guest::{Device, Kind, Machine, Outcome, Sink};
use crate::test::Count;
use crate::{deps, exec, paths, ui};
use mpi::Programs;
use report::{Report, Series};

/// `cargo xtask demo …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where table and plot go [default: target/demo]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The kind of machine with soft devices [default: the first that works here]
    #[arg(long, value_enum)]
    guest: Option<Kind>,
}

/// One transport that the ping-pong is measured on.
struct Rail {
    /// In tables and plots.
    name: &'static str,
    device: Device,
    /// The RDMA device in the guest.
    rdma: &'static str,
}

const RAILS: &[Rail] = &[
    Rail { name: "siw (iWARP)", device: Device::Siw, rdma: "siw0" },
    Rail { name: "rxe (RoCE)", device: Device::Rxe, rdma: "rxe0" },
];

/// Everything from missing packages to the plot.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    deps::ensure(&[deps::Group::Build, deps::Group::Guest, deps::Group::Mpi])?;
    ui::say("building the BTL and the MPI programs");
    let programs = Programs::build()?;
    ui::say(&format!(
        "Open MPI {}, component and programs in {}",
        programs.version,
        programs.dir().display()
    ));
    let machine = Machine::choose(args.guest, Device::Both)?;
    let mut count = Count::default();
    let mut report = Report::default();
    for rail in RAILS {
        step(
            &mut count,
            &format!("{}: ring of 4 ranks, 0 B to 4 MiB, every byte checked", rail.name),
            || {
                let outcome = run_program(&programs, &machine, rail, 4, "ring", "self,verbs")?;
                proof::check(rail.device, &outcome.stdout)
            },
        )?;
        step(
            &mut count,
            &format!("{}: allreduce of 4 ranks, every result checked", rail.name),
            || {
                run_program(&programs, &machine, rail, 4, "allreduce", "self,verbs")
                    .map(|_| String::new())
            },
        )?;
        step(
            &mut count,
            &format!("{}: ping-pong, 0 B to 4 MiB, every byte checked", rail.name),
            || {
                let outcome = run_program(&programs, &machine, rail, 2, "pingpong", "self,verbs")?;
                report.add(Series::read(rail.name, &outcome.stdout)?);
                Ok(String::new())
            },
        )?;
    }
    step(
        &mut count,
        "TCP, for comparison: the same ping-pong over Open MPI's own btl tcp",
        || {
            let rail = Rail { name: "btl tcp", device: Device::None, rdma: "none" };
            let outcome = run_program(&programs, &machine, &rail, 2, "pingpong", "self,tcp")?;
            report.add(Series::read(rail.name, &outcome.stdout)?);
            Ok(String::new())
        },
    )?;
    let dir = args.out.clone().unwrap_or_else(|| paths::target().join("demo"));
    if !report.is_empty() {
        println!("\n{}\n", report.table());
        let written = report
            .write(&dir)
            .with_context(|| format!("cannot write the results to {}", dir.display()))?;
        println!("{}", written.join("\n"));
    }
    for note in &count.notes {
        println!("FAILED: {note}");
    }
    println!("demo: {} passed, {} failed", count.passed, count.failed);
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One step of the demo, said before and after. What it returns is said too.
fn step(count: &mut Count, what: &str, run: impl FnOnce() -> Result<String>) -> Result<()> {
    ui::say(what);
    match run() {
        Ok(remark) => {
            if !remark.is_empty() {
                println!("{remark}");
            }
            count.case(what, Ok(()));
        }
        Err(error) if exec::interrupted() => return Err(error),
        Err(error) => {
            ui::say(&format!("FAILED: {error:#}"));
            count.case(what, Err(format!("{error:#}")));
        }
    }
    Ok(())
}

/// Runs one program to its line `OK`, with the probe around it.
fn run_program(
    programs: &Programs,
    machine: &Machine,
    rail: &Rail,
    ranks: u32,
    program: &str,
    btl: &str,
) -> Result<Outcome> {
    let mut job = programs.job(rail.device, ranks, program, &[], btl)?;
    programs.probe(&mut job, rail.rdma)?;
    let outcome = machine.run(&job, Sink::Keep)?;
    let ok = outcome.stdout.lines().any(|line| line.starts_with(&format!("OK {program}")));
    if outcome.code == 0 && ok {
        return Ok(outcome);
    }
    let how = match outcome.code {
        124 => format!("did not end within {} s", job.limit.as_secs()),
        0 => "ended without its line OK".to_owned(),
        code => format!("ended with status {code}"),
    };
    anyhow::bail!("{program} {how}; it said:\n{}\n{}", outcome.stdout.trim(), outcome.stderr.trim())
}
