//! `cargo xtask test`: every test there is, in parts; the last line is `N passed, M failed`.

mod asan;
mod bad;
mod count;
mod dist;
mod doctor;
mod examples;
mod full;
mod fuzz;
mod mpi;
mod ompi;
mod parts;
mod storm;
mod tsan;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub(crate) use count::Count;

use crate::guest::{Device, GuestFailed, Job, Kind, Machine, Outcome, Sink};
use crate::ompi::Series;
use crate::{exec, paths, ui};

/// `cargo xtask test …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these parts [repeatable]
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Name the parts and end
    #[arg(long)]
    list: bool,
    /// 10,000 connects and 1,000,000 messages where it is a tenth otherwise
    #[arg(long)]
    soak: bool,
    /// Also what is only needed before a release: packages, sets of features, compatibility
    #[arg(long)]
    full: bool,
    /// The Open MPI of the parts that run MPI programs. With another one than this machine's, only
    /// these run, unless --only says otherwise; it is fetched once from the Debian that has it
    #[arg(long, value_enum, value_name = "SERIES")]
    ompi: Option<Series>,
    /// The kind of machine with soft devices [default: the first that works here]
    #[arg(long, value_enum)]
    guest: Option<Kind>,
}

/// One part of the tests. To add one, write a function and a line in [`parts::ALL`].
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Only with `--full`, or when named.
    pub(crate) full: bool,
    /// Runs with any Open MPI: `--ompi`.
    pub(crate) any_ompi: bool,
    pub(crate) run: fn(&mut Bench) -> Result<Count>,
}

/// What parts share.
pub(crate) struct Bench {
    kind: Option<Kind>,
    machine: Option<Machine>,
    logs: PathBuf,
    /// The Open MPI to run: `--ompi`.
    pub(crate) ompi: Series,
    /// The long way: `--soak`.
    pub(crate) soak: bool,
    part: &'static str,
}

impl Bench {
    /// The machine with soft devices: chosen at first use.
    pub(crate) fn machine(&mut self) -> Result<&Machine> {
        if self.machine.is_none() {
            crate::deps::ensure(&[crate::deps::Group::Guest])?;
            self.machine = Some(Machine::choose(self.kind, Device::Both)?);
        }
        self.machine.as_ref().context("no machine")
    }

    /// Runs a job in the guest and keeps what it and the kernel said under `name`.
    pub(crate) fn in_guest(&mut self, name: &str, job: &Job) -> Result<Outcome> {
        let ran = self.machine()?.run(job, Sink::Keep);
        match &ran {
            Ok(outcome) => self.log(name, &outcome.said()),
            Err(error) => {
                if let Some(failed) = error.downcast_ref::<GuestFailed>() {
                    self.log(name, &failed.said);
                }
            }
        }
        ran.with_context(|| name.to_owned())
    }

    /// Keeps a program's output as `target/xtask-test/PART-NAME.log`, for whoever looks into a failure.
    pub(crate) fn log(&self, name: &str, text: &str) {
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
        let file = self.logs.join(format!("{}-{name}.log", self.part));
        if let Err(error) = fs::write(&file, text) {
            ui::say(&format!("cannot write {}: {error}", file.display()));
        }
    }
}

/// The names of all parts.
pub(crate) fn part_names() -> impl Iterator<Item = &'static str> {
    parts::ALL.iter().map(|part| part.name)
}

/// Runs the parts; a part that could not run counts as one failure.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        for part in parts::ALL {
            let full = if part.full { " (with --full)" } else { "" };
            println!("{:14} {}{full}", part.name, part.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let known = |name: &&String| parts::ALL.iter().any(|part| part.name == name.as_str());
    if let Some(name) = args.only.iter().find(|name| !known(name)) {
        bail!("there is no part {name}: `cargo xtask test --list` names them");
    }
    let chosen: Vec<&Part> = parts::ALL
        .iter()
        .filter(|part| match args.only.as_slice() {
            [] if args.ompi.is_some() => part.any_ompi,
            [] => args.full || !part.full,
            names => names.iter().any(|name| name == part.name),
        })
        .collect();
    let logs = paths::target().join("xtask-test");
    fs::create_dir_all(&logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let ompi = args.ompi.unwrap_or(Series::V41);
    let mut bench =
        Bench { kind: args.guest, machine: None, logs, ompi, soak: args.soak, part: "" };
    let mut rows = Vec::new();
    for (at, part) in chosen.iter().enumerate() {
        let head = format!("[{}/{}] {}", at + 1, chosen.len(), part.name);
        ui::say(&format!("{head}: {}", part.about));
        bench.part = part.name;
        let start = Instant::now();
        let count = match (part.run)(&mut bench) {
            Ok(count) => count,
            Err(error) if exec::interrupted() => return Err(error),
            Err(error) => {
                let mut count = Count::default();
                count.fail(format!("could not run: {error:#}"));
                count
            }
        };
        for note in &count.notes {
            ui::say(&format!("{head}: FAILED: {note}"));
        }
        let time = start.elapsed();
        ui::say(&format!(
            "{head}: {} passed, {} failed, {}",
            count.passed,
            count.failed,
            ui::seconds(time)
        ));
        rows.push((part.name, count, time));
    }
    Ok(summary(&rows, &bench))
}

fn summary(rows: &[(&str, Count, Duration)], bench: &Bench) -> ExitCode {
    let mut table = comfy_table::Table::new();
    table
        .load_style(comfy_table::presets::NOTHING)
        .set_header(["part", "passed", "failed", "time"]);
    for (name, count, time) in rows {
        table.add_row([
            (*name).to_owned(),
            count.passed.to_string(),
            count.failed.to_string(),
            ui::seconds(*time),
        ]);
    }
    println!("{table}");
    let passed: u64 = rows.iter().map(|(_, count, _)| count.passed).sum();
    let failed: u64 = rows.iter().map(|(_, count, _)| count.failed).sum();
    if failed > 0 {
        println!("What the programs printed is in {}", bench.logs.display());
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
