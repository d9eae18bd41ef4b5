//! The driver of `btl-core` on verbs under ThreadSanitizer: engines on threads of their own, with their connection managers' threads
//! and dialers, over the fake libibverbs and librdmacm, so that no kernel module and no guest is needed. (Threads of a User-Mode
//! Linux never run at the same time, and no race shows there.)

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Bench, Count};
use crate::deps::{self, Group};
use crate::{bench, cargo, exec, paths};

/// `tsan` makes the driver's locks and waits such that the sanitizer sees them: see [`SUPPRESSIONS`].
const FLAGS: &str = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg tsan";
/// Messages of each engine to each other one, in each round.
const MESSAGES: &str = "400";
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
const RUN_LIMIT: Duration = Duration::from_secs(300);
const REPORT: &str = "WARNING: ThreadSanitizer";

/// The standard library is not instrumented (its source is no part of a stable toolchain), so order that is made in there is not
/// seen: an `Arc` is given up with a fence; a `OnceLock` is filled, and a contended `Mutex` taken, out of line. The last two are
/// named where the crates below use them; the driver itself spins instead (`btl-core/src/verbs/handover.rs`), and so do
/// the programs here.
const SUPPRESSIONS: &str = "race:alloc::sync::Arc*drop_slow\nrace:rdma_cm::loopback::overrides\nrace:rdma_cm::interrupt\n\
                            race:rdma_safe::cq::CqInner*book\n";

/// Programs that the sanitizer must report, and one that it must not: else the rest proves nothing.
const RACES: &str = concat!(
    "static mut N: u64 = 0;",
    "fn main() { let up = || for _ in 0..1000 { unsafe { N = std::hint::black_box(N) + 1 } };",
    "let t = std::thread::spawn(up); up(); t.join().unwrap(); println!(\"{}\", unsafe { N }) }"
);
const LOCKS: &str = concat!(
    "use std::sync::{Arc, Mutex}; fn main() { let n = Arc::new(Mutex::new(0u64));",
    "let up = { let n = n.clone(); move || for _ in 0..1000 { loop {",
    "if let Ok(mut n) = n.try_lock() { *n += 1; break } std::thread::yield_now() } } };",
    "let t = std::thread::spawn(up.clone()); up(); t.join().unwrap(); println!(\"{}\", n.lock().unwrap()) }"
);

/// The controls, then the engines.
pub(super) fn run(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build, Group::Headers])?;
    let folder = paths::target().join("tsan");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let suppressions = folder.join("suppressions");
    fs::write(&suppressions, SUPPRESSIONS)?;
    let mut count = Count::default();
    count.case("a program with a race is reported", control(&folder, RACES, true)?);
    count.case("a program that locks is not", control(&folder, LOCKS, false)?);
    let fake = bench::fake_libraries()?;
    let program = build()?;
    let mut command = Command::new(program);
    command.args(["threads", MESSAGES]).env("LD_LIBRARY_PATH", &fake).env("FAKE_FABRIC", "1");
    command.env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
    let got = exec::capture(&mut command, RUN_LIMIT)?;
    bench.log("threads", &format!("{}\n{}", got.stdout, got.stderr));
    let reports = got.stderr.matches(REPORT).count();
    let result = match (got.code, reports) {
        (0, 0) => Ok(()),
        (_, 0) => Err(format!("status {}: {}", got.code, got.stderr.trim())),
        _ => Err(format!("{reports} races, the first:\n{}", first_report(&got.stderr))),
    };
    count.case("engines, connection managers and dialers have no race", result);
    Ok(count)
}

fn build() -> Result<std::path::PathBuf> {
    let host = cargo::host()?;
    let target = paths::target().join("tsan");
    let mut command = cargo::cargo();
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS);
    let dir = target.display().to_string();
    let args = ["build", "--package", "rdma-bench", "--bin", "bench-core", "--target", &host];
    let built = cargo::build_with(command, &[&args[..], &["--target-dir", &dir]].concat())?;
    let program = built.into_iter().find(|artifact| artifact.name == "bench-core");
    Ok(program.context("cargo built no bench-core")?.path)
}

fn first_report(text: &str) -> String {
    let lines = text.lines().skip_while(|line| !line.contains(REPORT));
    lines.take(60).collect::<Vec<_>>().join("\n")
}

/// Compiles and runs a program; whether it is reported as it should be.
fn control(folder: &Path, program: &str, reported: bool) -> Result<Result<(), String>> {
    let (source, binary) = (folder.join("control.rs"), folder.join("control"));
    fs::write(&source, program)?;
    let mut compile = Command::new(cargo::rustc());
    compile.env("RUSTC_BOOTSTRAP", "1").args(FLAGS.split_whitespace()).arg("--edition=2021");
    compile.arg("-Astatic_mut_refs").arg(&source).arg("-o").arg(&binary);
    exec::output(&mut compile, BUILD_LIMIT)?;
    let got = exec::capture(&mut Command::new(&binary), Duration::from_secs(60))?;
    if got.code == 127 {
        bail!("the control does not run: {}", got.stderr.trim());
    }
    Ok(match got.stderr.contains(REPORT) == reported {
        true => Ok(()),
        false => Err(format!("status {}: {}", got.code, got.stderr.trim())),
    })
}
