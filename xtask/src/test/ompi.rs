//! The component and one Open MPI: its unit tests and bindings against the headers of that series, and
//! that the components of the other series are refused with one line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::parts::cargo_test_with;
use super::{Bench, Count, mpi};
use crate::demo::mpi::Programs;
use crate::guest::{Device, Outcome};
use crate::ompi::{Root, Series};
use crate::{cargo, deps, install};

const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(bench: &mut Bench) -> Result<Count> {
    let mut count = headers(bench)?;
    count += refused(bench)?;
    Ok(count)
}

/// All of it and a few programs on each device, with an Open MPI that is not the one of the run.
pub(super) fn brief(bench: &mut Bench, series: Series) -> Result<Count> {
    let before = std::mem::replace(&mut bench.ompi, series);
    let count = brief_of_own(bench);
    bench.ompi = before;
    count
}

fn brief_of_own(bench: &mut Bench) -> Result<Count> {
    let mut count = run(bench)?;
    for device in [Device::Siw, Device::Rxe] {
        count += mpi::run_brief(bench, device)?;
    }
    Ok(count)
}

/// The unit tests as built for the series, with the headers that its root has.
fn headers(bench: &Bench) -> Result<Count> {
    deps::ensure(&[deps::Group::Build, deps::Group::Mpi])?;
    let series = bench.ompi;
    let mut features = vec!["fake-transport"];
    features.extend(series.feature());
    let features = features.join(",");
    let args = [
        "--package",
        "btl-ompi",
        "--no-default-features",
        "--features",
        &features,
        "--lib",
        "--quiet",
    ];
    let mut command = cargo::cargo();
    if let Some(root) = Root::get(series)? {
        let dirs =
            std::env::join_paths(root.header_dirs()).context("a folder's name has a colon")?;
        command.env("OMPI_HEADERS", dirs);
    }
    cargo_test_with(bench, command, &args)
}

/// Open MPI with the component of each other series in its way: one line that names both, and the job
/// ends, since it was told to use nothing else.
fn refused(bench: &mut Bench) -> Result<Count> {
    let mut count = Count::default();
    let own = bench.ompi;
    let programs = Programs::build(own)?;
    for other in Series::ALL.into_iter().filter(|other| *other != own) {
        let dir: PathBuf = programs.dir().join(format!("of-{}", other.name()));
        install::place(&cargo::build_btl(other)?, &dir)?;
        let mut job = programs.job(Device::None, 1, "ring", &[], "self,verbs")?;
        job.limit = LIMIT;
        programs.take_component_from(&mut job, &dir);
        let name = format!("Open MPI {} with the component of {}", own.name(), other.name());
        let outcome = bench.in_guest(&name, &job)?;
        count.case(&name, one_line(&outcome, other, &programs.version));
    }
    Ok(count)
}

fn one_line(outcome: &Outcome, built_for: Series, version: &str) -> Result<(), String> {
    let text = format!("{}\n{}", outcome.stdout, outcome.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("btl:verbs:")).collect();
    let right = |line: &&str| {
        line.contains(&built_for.mark()) && line.contains(&format!("this is Open MPI {version}"))
    };
    match (outcome.code, lines.as_slice()) {
        (0 | 124, _) => Err(format!("the job ended with status {}", outcome.code)),
        (_, [line]) if right(line) => Ok(()),
        (code, lines) => Err(format!("status {code}, and it said {lines:?}")),
    }
}
