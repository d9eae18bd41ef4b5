//! The fuzz targets of `btl-core/fuzz`, each for a while: a crash is a failure, and the input that does it is kept.
//!
//! What `cargo fuzz` would do, without it: the instrumentation is a flag of LLVM that the stable compiler passes on, and libFuzzer
//! comes with the crate libfuzzer-sys, which needs a C++ compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Bench, Count};
use crate::deps::{self, Group};
use crate::{cargo, exec, paths};

const TARGETS: [&str; 2] = ["wire", "engine"];
/// Each target runs for so long.
const SECONDS: u64 = 60;
/// Longest input, in bytes.
const LONGEST: u32 = 1500;
/// Longest run of one input, in seconds.
const HANG: u32 = 20;
const BUILD_LIMIT: Duration = Duration::from_secs(1200);

/// As cargo-fuzz has it, without a sanitizer: there is no unsafe code here.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
                     -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing";

/// Every target for [`SECONDS`].
pub(super) fn run(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build, Group::Fuzz])?;
    let folder = paths::root().join("btl-core/fuzz");
    let programs = build(&folder)?;
    let mut count = Count::default();
    for target in TARGETS {
        let result = fuzz(bench, &folder, &programs, target)?;
        count.case(&format!("fuzzing {target} for {SECONDS} s"), result);
    }
    Ok(count)
}

/// Builds all targets; the folder they are in.
fn build(folder: &Path) -> Result<PathBuf> {
    let target = paths::target().join("fuzz");
    let host = cargo::host()?;
    let mut command = cargo::cargo();
    command.args(["build", "--release", "--locked", "--target", &host, "--manifest-path"]);
    command.arg(folder.join("Cargo.toml")).arg("--target-dir").arg(&target);
    command.env("RUSTFLAGS", FLAGS);
    let got = exec::capture(&mut command, BUILD_LIMIT)?;
    if got.code != 0 {
        bail!("`{}` failed:\n{}", exec::line(&command), got.stderr.trim());
    }
    Ok(target.join(host).join("release"))
}

fn fuzz(bench: &Bench, folder: &Path, programs: &Path, target: &str) -> Result<Result<(), String>> {
    // What is found goes there; what the repository has is only read.
    let found = paths::target().join("fuzz/corpus").join(target);
    let crashes = paths::target().join("fuzz/artifacts").join(target);
    for dir in [&found, &crashes] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let mut command = Command::new(programs.join(target));
    command
        .arg(&found)
        .arg(folder.join("corpus").join(target))
        .arg(format!("-max_total_time={SECONDS}"))
        .arg(format!("-max_len={LONGEST}"))
        .arg(format!("-timeout={HANG}"))
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .args(["-print_final_stats=1", "-verbosity=0"]);
    let got = exec::capture(&mut command, Duration::from_secs(SECONDS * 3))?;
    bench.log(target, &format!("{}\n{}", got.stdout, got.stderr));
    let runs = got
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    Ok(match (got.code, runs) {
        (0, Some(runs)) if runs > 0 => Ok(()),
        (0, _) => Err("the fuzzer ran no input".to_owned()),
        (code, _) => {
            let said: Vec<&str> = got.stderr.lines().filter(|line| !line.is_empty()).collect();
            let tail = said[said.len().saturating_sub(30)..].join("\n");
            Err(format!("status {code}, the input is in {}:\n{tail}", crashes.display()))
        }
    })
}
