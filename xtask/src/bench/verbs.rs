//! `cargo xtask bench verbs` and `bench core`: our ping-pong and streaming against perftest's, in a guest, in turns.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::pairs::{Calls, Kind as Measure, Limits, Run, Summary};
use super::verbs_report::{Report, Row};
use crate::deps::{self, Group};
use crate::guest::{Device, Job, Kind, Machine, Sink};
use crate::{cargo, paths, ui};

/// `cargo xtask bench verbs …` and `bench core …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Pairs of runs for each test, ours and perftest's
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Which soft devices
    #[arg(long, value_enum, default_value = "both")]
    device: Device,
    /// Only tests whose name contains this: send_lat, send_bw; of verbs also write_bw, read_bw
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Where tables and plot go [default: target/bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The kind of machine with soft devices [default: the first that works here]
    #[arg(long, value_enum)]
    guest: Option<Kind>,
}

/// One comparison.
struct Test {
    /// As perftest calls it, without `ib_`.
    name: &'static str,
    measure: Measure,
    /// Bytes of a message.
    size: u32,
    /// Messages of one run, on siw and on rxe, which is much slower.
    count: [u32; 2],
    /// Most requests in flight.
    depth: u32,
    /// Receives posted, likewise. On rxe as many as messages: one that finds none costs a fixed wait there, whoever sends it.
    receives: [u32; 2],
}

const SEND_LAT: Test = Test {
    name: "send_lat",
    measure: Measure::Latency,
    size: 8,
    count: [1000, 1000],
    depth: 1,
    receives: [512, 512],
};
const SEND_BW: Test = Test {
    name: "send_bw",
    measure: Measure::Bandwidth,
    size: 65536,
    count: [2000, 100],
    depth: 16,
    receives: [32, 100],
};
const TESTS: [Test; 4] = [
    SEND_LAT,
    SEND_BW,
    Test {
        name: "write_bw",
        measure: Measure::Bandwidth,
        size: 65536,
        count: [2000, 100],
        depth: 16,
        receives: [1, 1],
    },
    Test {
        name: "read_bw",
        measure: Measure::Bandwidth,
        size: 65536,
        count: [2000, 100],
        depth: 16,
        receives: [1, 1],
    },
];

/// What of ours is compared.
pub(super) struct Suite {
    /// Of the files with the results.
    name: &'static str,
    /// In `bench/`.
    program: &'static str,
    tests: &'static [Test],
    limits: Limits,
    /// Whether as many calls as perftest's are promised.
    calls: fn(Measure) -> bool,
}

/// Queue pairs of `rdma-safe`.
pub(super) const VERBS: Suite = Suite {
    name: "verbs",
    program: "bench-verbs",
    tests: &TESTS,
    limits: Limits { latency: 1.03, bandwidth: 0.97 },
    calls: |_| true,
};

/// The engine of `btl-core`. When it streams it tells credits, which perftest's does not do on every device.
pub(super) const CORE: Suite = Suite {
    name: "core",
    program: "bench-core",
    tests: &[SEND_LAT, SEND_BW],
    limits: Limits { latency: 1.05, bandwidth: 0.95 },
    calls: |measure| matches!(measure, Measure::Latency),
};

/// Messages of the run whose calls are counted; the other is twice as long.
const CALLS_COUNT: u32 = 300;
/// Pairs for one boot of the guest.
const BATCH: u32 = 10;
/// A run of either program, with its set-up, in the worst case.
const RUN_LIMIT: Duration = Duration::from_secs(130);

/// A device that is measured on.
struct Rail {
    device: Device,
    rdma: &'static str,
    addr: &'static str,
    /// In [`Test::count`].
    index: usize,
}

const RAILS: [Rail; 2] = [
    Rail { device: Device::Siw, rdma: "siw0", addr: "10.77.0.1", index: 0 },
    Rail { device: Device::Rxe, rdma: "rxe0", addr: "10.78.0.1", index: 1 },
];

/// Everything from missing packages to the plot.
pub(super) fn run(args: &Args, suite: &Suite) -> Result<ExitCode> {
    deps::ensure(&[Group::Build, Group::Guest, Group::Perftest])?;
    ui::say("building the programs");
    let bench = Bench::new(args, suite)?;
    let mut report = Report::new(suite.name, suite.limits);
    for rail in RAILS.iter().filter(|rail| [rail.device, Device::Both].contains(&args.device)) {
        let wanted = |t: &&Test| args.only.as_ref().is_none_or(|o| t.name.contains(o.as_str()));
        for test in suite.tests.iter().filter(wanted) {
            let calls_count = (suite.calls)(test.measure);
            report.add(Row { calls_count, ..bench.compare(rail, test, args.pairs)? });
        }
    }
    if report.is_empty() {
        bail!("no test has {:?} in its name", args.only.as_deref().unwrap_or_default());
    }
    println!("\n{}\n", report.table());
    let dir = args.out.clone().unwrap_or_else(|| paths::target().join("bench"));
    let written = report.write(&dir);
    println!(
        "{}",
        written.with_context(|| format!("cannot write to {}", dir.display()))?.join("\n")
    );
    let judged = report.judge();
    for (what, _) in judged.iter().filter(|(_, met)| !met) {
        println!("FAILED: {what}");
    }
    let met = judged.iter().filter(|(_, met)| *met).count();
    println!("bench: {met} passed, {} failed", judged.len() - met);
    Ok(if met == judged.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Bench {
    machine: Machine,
    program: PathBuf,
    script: PathBuf,
}

impl Bench {
    fn new(args: &Args, suite: &Suite) -> Result<Self> {
        let built = cargo::build(&["build", "--release", "--package", "rdma-bench"])?;
        let program = built.into_iter().find(|artifact| artifact.name == suite.program);
        let program = program.with_context(|| format!("cargo built no {}", suite.program))?.path;
        let dir = paths::target().join("bench");
        let script = dir.join("pairs.sh");
        fs::create_dir_all(&dir)
            .and_then(|()| fs::write(&script, include_str!("pairs.sh")))
            .with_context(|| format!("cannot write {}", script.display()))?;
        Ok(Self { machine: Machine::choose(args.guest, args.device)?, program, script })
    }

    /// One row of the table.
    fn compare(&self, rail: &Rail, test: &Test, pairs: u32) -> Result<Row> {
        let what = format!("{} {}", rail.device.name(), test.name);
        let calls = Calls::read(&self.script(rail, test, &["calls"])?)
            .with_context(|| format!("{what}: counting calls"))?;
        let mut progress = ui::Progress::new(&what, pairs.into());
        let (mut runs, mut tries) = (Vec::new(), 0);
        while runs.len() < pairs as usize {
            let batch = BATCH.min(pairs - u32::try_from(runs.len()).unwrap_or(pairs));
            tries += batch;
            if tries > 3 * pairs + BATCH {
                bail!("{what}: of {tries} pairs only {} gave results", runs.len());
            }
            let output = self.script(rail, test, &["times", &batch.to_string()])?;
            for run in Run::read_all(&output, test.measure).with_context(|| what.clone())? {
                runs.push(run);
                progress.step();
            }
        }
        progress.finish();
        let lost = tries as usize - runs.len();
        Ok(Row {
            device: rail.device.name(),
            test: test.name,
            size: test.size,
            summary: Summary::of(&runs, test.measure),
            runs,
            calls,
            calls_count: false,
            lost,
        })
    }

    /// Runs the script in the guest; what it prints.
    fn script(&self, rail: &Rail, test: &Test, mode: &[&str]) -> Result<String> {
        let counting = mode.first() == Some(&"calls");
        let count = if counting { CALLS_COUNT } else { test.count[rail.index] };
        let receives = test.receives[rail.index];
        let receives = if counting && receives > 64 { receives.max(2 * count) } else { receives };
        let program: &Path = &self.program;
        let mut command: Vec<OsString> = vec!["bash".into(), self.script.clone().into()];
        command.extend([rail.rdma, rail.addr].map(OsString::from));
        command.push(program.into());
        command.push(test.name.into());
        command.extend([test.size, count, test.depth, receives].map(|n| n.to_string().into()));
        command.extend(mode.iter().map(OsString::from));
        let runs = mode.get(1).and_then(|n| n.parse().ok()).unwrap_or(6) * 2;
        let job = Job::new(rail.device, command, RUN_LIMIT * runs)?;
        let outcome = self.machine.run(&job, Sink::Keep)?;
        match outcome.code {
            0 => Ok(outcome.stdout),
            code => bail!("the guest's script ended with {code}: {}", outcome.stderr.trim()),
        }
    }
}
