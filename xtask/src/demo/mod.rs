//! `cargo xtask demo`: unmodified MPI programs over iWARP and over RoCE through the BTL, with proof of the transport and figures.

pub(crate) mod mpi;
mod proof;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

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
    /// The BTLs that Open MPI may use.
    btl: &'static str,
}

const RAILS: &[Rail] = &[
    Rail { name: "siw (iWARP)", device: Device::Siw, rdma: "siw0", btl: "self,verbs" },
    Rail { name: "rxe (RoCE)", device: Device::Rxe, rdma: "rxe0", btl: "self,verbs" },
];
/// What there is without the BTL.
const TCP: Rail = Rail { name: "btl tcp", device: Device::None, rdma: "", btl: "self,tcp" };

/// Everything from missing packages to the plot.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    deps::ensure(&[deps::Group::Build, deps::Group::Guest, deps::Group::Mpi])?;
    ui::say("building the BTL and the MPI programs");
    let (_, series) = crate::install::OpenMpi::supported_here()?;
    let programs = Programs::build(series)?;
    let folder = programs.dir().display().to_string();
    ui::say(&format!("Open MPI {}, component and programs in {folder}", programs.version));
    let machine = Machine::choose(args.guest, Device::Both)?;
    let mut demo = Demo { programs, machine, count: Count::default(), report: Report::default() };
    for rail in RAILS {
        demo.show(rail)?;
    }
    demo.step("btl tcp, for comparison: the same ping-pong over Open MPI's own TCP", |demo| {
        demo.measure(&TCP)
    })?;
    let dir = args.out.clone().unwrap_or_else(|| paths::target().join("demo"));
    demo.tell(&dir)
}

struct Demo {
    programs: Programs,
    machine: Machine,
    count: Count,
    report: Report,
}

impl Demo {
    /// All that is shown on one device.
    fn show(&mut self, rail: &'static Rail) -> Result<()> {
        let name = rail.name;
        let mut watched = None;
        self.step(&format!("{name}: ring of 4 ranks, 0 B to 4 MiB, every byte checked"), |demo| {
            watched = Some(demo.run_program(rail, 4, "ring", true)?.stdout);
            Ok(String::new())
        })?;
        self.step(&format!("{name}: the ring's bytes went over the device"), |_| {
            proof::check(rail.device, &watched.context("the ring did not end well")?)
        })?;
        self.step(&format!("{name}: allreduce of 4 ranks, every result checked"), |demo| {
            demo.run_program(rail, 4, "allreduce", false).map(|_| String::new())
        })?;
        self.step(&format!("{name}: ping-pong, 0 B to 4 MiB, every byte checked"), |demo| {
            demo.measure(rail)
        })
    }

    fn measure(&mut self, rail: &Rail) -> Result<String> {
        let outcome = self.run_program(rail, 2, "pingpong", false)?;
        self.report.add(Series::read(rail.name, &outcome.stdout)?);
        Ok(String::new())
    }

    /// One step, said before it is taken. What it returns is said too.
    fn step(&mut self, what: &str, run: impl FnOnce(&mut Self) -> Result<String>) -> Result<()> {
        ui::say(what);
        match run(self) {
            Ok(remark) => {
                if !remark.is_empty() {
                    ui::say(&format!("    {remark}"));
                }
                self.count.case(what, Ok(()));
            }
            Err(error) if exec::interrupted() => return Err(error),
            Err(error) => {
                ui::say(&format!("    FAILED: {error:#}"));
                self.count.case(what, Err(format!("{error:#}")));
            }
        }
        Ok(())
    }

    /// Runs one program to its line `OK`; with the probe around it if it is to be watched, which
    /// takes time from it.
    fn run_program(
        &self,
        rail: &Rail,
        ranks: u32,
        program: &str,
        watched: bool,
    ) -> Result<Outcome> {
        let mut job = self.programs.job(rail.device, ranks, program, &[], rail.btl)?;
        if watched {
            mpi::probe(&mut job, rail.rdma, "0.05")?;
        }
        let outcome = self.machine.run(&job, Sink::Keep)?;
        let ok = outcome.stdout.lines().any(|line| line.starts_with(&format!("OK {program}")));
        if outcome.code == 0 && ok {
            return Ok(outcome);
        }
        let how = match outcome.code {
            124 => format!("did not end within {} s", job.limit.as_secs()),
            0 => "ended without its line OK".to_owned(),
            code => format!("ended with status {code}"),
        };
        bail!("{program} {how}; it said:\n{}\n{}", outcome.stdout.trim(), outcome.stderr.trim())
    }

    /// The figures and the result.
    fn tell(&self, dir: &Path) -> Result<ExitCode> {
        if !self.report.is_empty() {
            println!("\n{}\n", self.report.table());
            let written = self.report.write(dir);
            let written = written
                .with_context(|| format!("cannot write the results to {}", dir.display()))?;
            println!("{}", written.join("\n"));
        }
        for note in &self.count.notes {
            println!("FAILED: {}", note.lines().next().unwrap_or_default());
        }
        println!("demo: {} passed, {} failed", self.count.passed, self.count.failed);
        Ok(if self.count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
