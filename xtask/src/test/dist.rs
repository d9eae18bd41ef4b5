//! The archive for administrators: twice the same, complete, and installed and removed in the guest.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Bench, Count};
use crate::demo::mpi::Programs;
use crate::guest::{Device, Job};
use crate::{cargo, dist, exec, install};

const LIMIT: Duration = Duration::from_secs(240);
/// Cases of the script in the guest.
const CASES: usize = 9;
/// What an archive has in it.
const FILES: &[&str] = &[
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README",
    "install",
    "mca-btl-verbs-device-params.ini",
    install::FILE,
];

pub(super) fn run(bench: &mut Bench) -> Result<Count> {
    let mut count = Count::default();
    let series = bench.ompi;
    let programs = Programs::build(series)?;
    let library = cargo::build_btl(series)?;
    let out = programs.dir().join("dist");
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot remove {}", out.display()))?;
    }
    let first = dist::pack(series, &library, &out)?;
    let second = dist::pack(series, &library, &out.join("again"))?;
    let same = fs::read(&first)? == fs::read(&second)?;
    count.case(
        "the same component packs to the same bytes",
        if same { Ok(()) } else { Err("they differ".to_owned()) },
    );
    exec::output(
        Command::new("tar").arg("--extract").arg("--file").arg(&first).arg("--directory").arg(&out),
        LIMIT,
    )?;
    let dir = out.join(dist::name_of(series));
    count.case("the archive is complete", complete(&dir, series)?);

    let ring = programs.dir().join("ring");
    fs::write(dir.join("dist.sh"), include_str!("dist.sh"))?;
    let words = ["bash", "dist.sh", series.name()].map(Into::into);
    let command = words.into_iter().chain([ring.into_os_string()]).collect();
    let mut job = Job::new(Device::Siw, command, LIMIT)?;
    job.cwd.clone_from(&dir);
    programs.place(&mut job);
    let outcome = bench.in_guest("install", &job)?;
    let lines = outcome.stdout.lines();
    let cases: Vec<&str> =
        lines.filter(|line| line.starts_with("ok ") || line.starts_with("FAILED ")).collect();
    for line in &cases {
        match line.strip_prefix("ok ") {
            Some(name) => count.case(name, Ok(())),
            None => count.fail((*line).to_owned()),
        }
    }
    if cases.len() != CASES {
        count.fail(format!("{} cases of {CASES} were run", cases.len()));
    }
    Ok(count)
}

fn complete(dir: &Path, series: crate::ompi::Series) -> Result<Result<(), String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names != FILES {
        return Ok(Err(format!("it has {names:?}")));
    }
    Ok(match cargo::is_btl_for(&dir.join(install::FILE), series)? {
        true => Ok(()),
        false => Err(format!("its component is not {}", series.mark())),
    })
}
