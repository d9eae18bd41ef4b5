//! The tests of the three lower crates under AddressSanitizer and LeakSanitizer.
//!
//! Both are part of the stable toolchain's runtime libraries; only the flag is unstable, so RUSTC_BOOTSTRAP allows it. No
//! nightly, no LLVM and no valgrind are needed.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Bench, Count};
use crate::deps::{self, Group};
use crate::{cargo, exec, paths};

/// The two functions let a test say that it leaks on purpose; it looks them up by name.
const FLAGS: &str = "-Zsanitizer=address -Clink-arg=-Wl,--export-dynamic-symbol=__lsan_disable \
                     -Clink-arg=-Wl,--export-dynamic-symbol=__lsan_enable";
const LIMIT: Duration = Duration::from_secs(1800);

/// Packages and what of them runs here. `layout` compares with C headers and runs nothing of ours.
const TESTS: &[&[&str]] = &[
    &["--package", "rdma-safe", "--package", "rdma-cm", "--lib", "--tests"],
    &["--package", "rdma-safe-sys", "--lib", "--test", "inline"],
];
/// Compiles programs and runs nothing of ours.
const SKIP: &str = "unsound_programs_do_not_compile";

/// Programs that the sanitizers must report: else the rest proves nothing.
const CONTROLS: &[(&str, &str, &str)] = &[
    ("heap-use-after-free", "reads freed memory", USES_FREED_MEMORY),
    ("detected memory leaks", "leaks", LEAKS),
];
const USES_FREED_MEMORY: &str = concat!(
    "fn main() { let p = std::hint::black_box(Box::new(7u8).as_ref() as *const u8);",
    "println!(\"{}\", unsafe { p.read_volatile() }) }"
);
const LEAKS: &str = concat!(
    "fn main() { let leak = || std::mem::forget(std::hint::black_box(vec![7u8; 64]));",
    "std::thread::spawn(leak).join().unwrap(); }"
);

/// The controls, then the tests.
pub(super) fn run(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let target = cargo::host()?;
    let mut count = Count::default();
    for (report, what, program) in CONTROLS {
        count.case(&format!("a program that {what} is reported"), control(report, program)?);
    }
    for (at, tests) in TESTS.iter().enumerate() {
        let mut command = cargo::cargo();
        command.args(["test", "--target", &target, "--no-fail-fast", "--quiet"]).args(*tests);
        command.args(["--", "--skip", SKIP]);
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS);
        command.env("ASAN_OPTIONS", "detect_leaks=1:detect_stack_use_after_return=1");
        let got = exec::capture(&mut command, LIMIT)?;
        bench.log(&at.to_string(), &format!("{}\n{}", got.stdout, got.stderr));
        let what = format!("{} under AddressSanitizer", tests.join(" "));
        let mut part = Count::of_libtest(&what, got.code, &got.stdout);
        for line in got.stderr.lines().filter(|line| line.contains("Sanitizer: ")) {
            part.fail(format!("{what}: {}", line.trim()));
        }
        if got.code != 0 && part.passed == 0 {
            bail!("`{}` failed:\n{}", exec::line(&command), got.stderr.trim());
        }
        count += part;
    }
    Ok(count)
}

fn control(report: &str, program: &str) -> Result<Result<(), String>> {
    let folder = paths::target().join("asan");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (source, binary) = (folder.join("control.rs"), folder.join("control"));
    fs::write(&source, program)?;
    let mut compile = Command::new(cargo::rustc());
    compile.env("RUSTC_BOOTSTRAP", "1").args(FLAGS.split_whitespace()).arg("--edition=2024");
    compile.args([source.as_os_str(), OsStr::new("-o"), binary.as_os_str()]);
    exec::output(&mut compile, Duration::from_secs(120))?;
    let mut run = Command::new(&binary);
    run.env("ASAN_OPTIONS", "detect_leaks=1");
    let got = exec::capture(&mut run, Duration::from_secs(60))?;
    Ok(match got.code != 0 && got.stderr.contains(report) {
        true => Ok(()),
        false => Err(format!("no report `{report}`, status {}: {}", got.code, got.stderr.trim())),
    })
}
