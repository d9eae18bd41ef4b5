//! The parts of `cargo xtask test`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Bench, Count, Part, mpi, storm};
use crate::deps::{self, Group};
use crate::guest::{Device, Job};
use crate::{cargo, exec, tidy};

/// All of them, in the order in which they run: what is quick and what everything else rests on first.
pub(crate) const ALL: &[Part] = &[
    Part { name: "tidy", about: "the rules of structure and style", run: tidy_rules },
    Part { name: "unit", about: "unit and integration tests that need no device", run: unit },
    Part { name: "doc", about: "the examples in the documentation", run: doc },
    Part { name: "layout", about: "the raw bindings against the installed headers", run: layout },
    Part { name: "sim", about: "the shipped engine on simulated devices", run: sim },
    Part {
        name: "device-siw",
        about: "device tests on soft iWARP",
        run: |bench| device(bench, Device::Siw),
    },
    Part {
        name: "device-rxe",
        about: "device tests on soft RoCE",
        run: |bench| device(bench, Device::Rxe),
    },
    Part {
        name: "storm-siw",
        about: "thousands of connects and messages on soft iWARP",
        run: |bench| storm::run(bench, Device::Siw),
    },
    Part {
        name: "storm-rxe",
        about: "thousands of connects and messages on soft RoCE",
        run: |bench| storm::run(bench, Device::Rxe),
    },
    Part {
        name: "mpi-siw",
        about: "MPI programs over the BTL on soft iWARP",
        run: |bench| mpi::run(bench, Device::Siw),
    },
    Part {
        name: "mpi-rxe",
        about: "MPI programs over the BTL on soft RoCE",
        run: |bench| mpi::run(bench, Device::Rxe),
    },
];

/// Packages that must have device tests: one that lost them is noticed.
const WITH_DEVICE_TESTS: &[&str] = &["rdma-safe", "rdma-cm"];
/// The feature that builds them, and that their test targets require.
const DEVICE_FEATURE: &str = "device-tests";
const UNIT_LIMIT: Duration = Duration::from_secs(1800);
const DEVICE_LIMIT: Duration = Duration::from_secs(600);

fn tidy_rules(_: &mut Bench) -> Result<Count> {
    let mut count = Count::default();
    for (rule, found) in tidy::check()? {
        let why = if found.is_empty() { Ok(()) } else { Err(found.join("; ")) };
        count.case(rule, why);
    }
    Ok(count)
}

/// `cargo test` with these arguments, counted.
fn cargo_test(bench: &Bench, args: &[&str]) -> Result<Count> {
    let mut command = cargo::cargo();
    command.arg("test").args(args);
    let got = exec::capture(&mut command, UNIT_LIMIT)?;
    bench.log("cargo", &format!("{}\n{}", got.stdout, got.stderr));
    let count = Count::of_libtest("cargo test", got.code, &got.stdout);
    if got.code != 0 && count.passed == 0 {
        bail!("`{}` failed:\n{}", exec::line(&command), got.stderr.trim());
    }
    Ok(count)
}

fn unit(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    cargo_test(
        bench,
        &[
            "--workspace",
            "--exclude",
            "rdma-safe-sys",
            "--lib",
            "--bins",
            "--tests",
            "--no-fail-fast",
        ],
    )
}

fn doc(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    cargo_test(bench, &["--workspace", "--doc", "--no-fail-fast"])
}

fn layout(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build, Group::Headers])?;
    cargo_test(bench, &["--package", "rdma-safe-sys", "--lib", "--tests", "--no-fail-fast"])
}

/// The simulator's own default run; it ends with a line `N passed, M failed`.
fn sim(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let mut command = cargo::cargo();
    command.args(["run", "--quiet", "--release", "--package", "btl-sim"]);
    let got = exec::capture(&mut command, UNIT_LIMIT)?;
    bench.log("sim", &format!("{}\n{}", got.stdout, got.stderr));
    let Some(last) = got.stdout.lines().rev().find(|line| line.contains(" passed, ")) else {
        bail!(
            "the simulator (status {}) ended without a line `N passed, M failed`:\n{}",
            got.code,
            got.stderr.trim()
        );
    };
    let mut count =
        Count { passed: super::count::number_before(last, " passed"), ..Count::default() };
    let failed = super::count::number_before(last, " failed");
    if failed > 0 || got.code != 0 {
        count.failed = failed.max(1);
        count.notes.push(format!("the simulator said: {last} (status {})", got.code));
    }
    Ok(count)
}

/// Name and address of the soft device that tests are told to use.
pub(super) fn test_device(device: Device) -> (&'static str, &'static str) {
    match device {
        Device::Rxe => ("rxe0", "10.78.0.1"),
        _ => ("siw0", "10.77.0.1"),
    }
}

/// Builds the device tests here and runs each test program in the guest.
fn device(bench: &mut Bench, device: Device) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    bench.machine()?;
    let mut count = Count::default();
    for package in device_packages()? {
        let features = format!("{package}/{DEVICE_FEATURE}");
        let built = cargo::build(&[
            "test",
            "--no-run",
            "--package",
            &package,
            "--features",
            &features,
            "--tests",
        ])?;
        let programs: Vec<_> = built
            .iter()
            .filter(|artifact| artifact.kind == "test" && artifact.package == package)
            .collect();
        if programs.is_empty() {
            count.fail(format!("{package}: has the feature {DEVICE_FEATURE} and no test program"));
        }
        for program in programs.into_iter().filter(|program| needs_device(&package, &program.name))
        {
            let (name, address) = test_device(device);
            let command = vec![program.path.clone().into_os_string(), "--test-threads=1".into()];
            let mut job = Job::new(device, command, DEVICE_LIMIT)?;
            job.cwd = crate::paths::root().join(&package);
            job.env = vec![
                ("RDMA_TEST_DEVICE".to_owned(), name.to_owned()),
                ("RDMA_TEST_ADDR".to_owned(), address.to_owned()),
                ("RUST_BACKTRACE".to_owned(), "1".to_owned()),
            ];
            let what = format!("{package}/{} on {name}", program.name);
            let outcome = bench.in_guest(&what, &job)?;
            count += Count::of_libtest(&what, outcome.code, &outcome.stdout);
            count.case(&what, clean(&outcome.klog, KERNEL_TROUBLE));
        }
    }
    Ok(count)
}

/// What no test may cause in a kernel.
pub(super) const KERNEL_TROUBLE: &[&str] =
    &["WARNING:", "BUG:", "Oops", "blocked for more than", "Kernel panic", "soft lockup"];

/// Whether a kernel log has none of `words`.
pub(super) fn clean(klog: &str, words: &[&str]) -> Result<(), String> {
    let lines: Vec<&str> =
        klog.lines().filter(|line| words.iter().any(|word| line.contains(word))).collect();
    match lines.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(format!(
            "{} suspicious lines in the kernel's log, the first: {}",
            lines.len(),
            first.trim()
        )),
    }
}

fn metadata() -> Result<Value> {
    let mut command: Command = cargo::cargo();
    command.args(["metadata", "--no-deps", "--format-version=1"]);
    let text = exec::output(&mut command, Duration::from_secs(60))?;
    serde_json::from_str(&text).context("cargo metadata is no JSON")
}

/// The packages with the feature `device-tests`.
fn device_packages() -> Result<Vec<String>> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let with = packages.iter().filter(|package| package["features"].get(DEVICE_FEATURE).is_some());
    let mut names: Vec<String> =
        with.filter_map(|package| package["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    match WITH_DEVICE_TESTS.iter().find(|name| !names.iter().any(|have| have == *name)) {
        Some(name) => bail!("package {name} has no feature {DEVICE_FEATURE}"),
        None => Ok(names),
    }
}

/// Whether a test target is one of those that need a device; the others ran in part `unit`.
fn needs_device(package: &str, target: &str) -> bool {
    let Ok(metadata) = metadata() else { return true };
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages
        .filter(|p| p["name"] == package)
        .flat_map(|p| p["targets"].as_array().into_iter().flatten());
    targets.filter(|t| t["name"] == target).any(|t| {
        t["required-features"]
            .as_array()
            .is_some_and(|features| features.iter().any(|feature| feature == DEVICE_FEATURE))
    })
}
