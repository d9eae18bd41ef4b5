//! The parts of `cargo xtask test`.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{
    Bench, Count, Part, asan, bad, dist, doctor, examples, full, fuzz, mpi, ompi, storm, tsan,
};
use crate::deps::{self, Group};
use crate::guest::{Device, Job, KERNEL_TROUBLE};
use crate::ompi::Series;
use crate::{cargo, exec, tidy};

/// All of them, in the order in which they run: what is quick and what everything else rests on first.
pub(crate) const ALL: &[Part] = &[
    part("tidy", "the rules of structure and style", tidy_rules),
    part("unit", "unit and integration tests that need no device", unit),
    part("doc", "the examples in the documentation", doc),
    part("docs", "the documentation without a warning, here and as docs.rs builds it", full::docs),
    part("readme", "the README's programs compile", full::readme),
    part("layout", "the raw bindings against the installed headers", layout),
    part(
        "btl",
        "the Open MPI component against its headers, and under mpirun without devices",
        btl,
    ),
    part("asan", "the three lower crates under AddressSanitizer and LeakSanitizer", asan::run),
    part("tsan", "the transport's threads under ThreadSanitizer", tsan::run),
    part("sim", "the shipped engine on simulated devices", sim),
    part("device-siw", "device tests on soft iWARP", |bench| device(bench, Device::Siw)),
    part("device-rxe", "device tests on soft RoCE", |bench| device(bench, Device::Rxe)),
    part("doctor", "what doctor says of machines on which something is wrong", doctor::run),
    part("examples-siw", "the example programs on soft iWARP", |bench| {
        examples::run(bench, Device::Siw)
    }),
    part("examples-rxe", "the example programs on soft RoCE", |bench| {
        examples::run(bench, Device::Rxe)
    }),
    part("storm-siw", "thousands of connects and messages on soft iWARP", |bench| {
        storm::run(bench, Device::Siw)
    }),
    part("storm-rxe", "thousands of connects and messages on soft RoCE", |bench| {
        storm::run(bench, Device::Rxe)
    }),
    mpi_part(
        "ompi",
        "the component against the headers of its Open MPI, and who refuses it",
        ompi::run,
    ),
    mpi_part("dist", "the archive for administrators, installed and removed", dist::run),
    mpi_part("mpi-siw", "MPI programs over the BTL on soft iWARP", |bench| {
        mpi::run(bench, Device::Siw)
    }),
    mpi_part("mpi-rxe", "MPI programs over the BTL on soft RoCE", |bench| {
        mpi::run(bench, Device::Rxe)
    }),
    mpi_part("bad-siw", "MPI where something is missing or wrong, on soft iWARP", |bench| {
        bad::run(bench, Device::Siw)
    }),
    mpi_part("bad-rxe", "MPI where something is missing or wrong, on soft RoCE", |bench| {
        bad::run(bench, Device::Rxe)
    }),
    Part { full: true, ..part("fuzz", "the fuzz targets, a minute each", fuzz::run) },
    part("ompi50", "a few MPI programs with Open MPI 5.0, which is fetched once", |bench| {
        ompi::brief(bench, Series::V50)
    }),
    Part {
        full: true,
        ..part("ompi60", "a few MPI programs with Open MPI 6.0, which is fetched once", |bench| {
            ompi::brief(bench, Series::V60)
        })
    },
    Part { full: true, ..part("publish", "the packages for crates.io", full::publish) },
    Part { full: true, ..part("features", "every set of features compiles", full::features) },
    Part { full: true, ..part("semver", "no break of compatibility unnoticed", full::semver) },
];

const fn part(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Bench) -> Result<Count>,
) -> Part {
    Part { name, about, full: false, any_ompi: false, run }
}

/// A part that runs with any Open MPI.
const fn mpi_part(
    name: &'static str,
    about: &'static str,
    run: fn(&mut Bench) -> Result<Count>,
) -> Part {
    Part { any_ompi: true, ..part(name, about, run) }
}

/// Packages that must have device tests: one that lost them is noticed.
const WITH_DEVICE_TESTS: &[&str] = &["rdma-safe", "rdma-cm"];
/// The feature that builds them, and that their test targets require.
const DEVICE_FEATURE: &str = "device-tests";
/// The package that has device tests with a rule switched off, and the feature that has the switches.
const WITH_SABOTAGE: &[&str] = &["btl-core"];
const SABOTAGE_FEATURE: &str = "sabotage";
/// The packages that have device tests in a tokio runtime, and the feature that they need.
const WITH_TOKIO: &[&str] = &["rdma-safe", "rdma-cm"];
const TOKIO_FEATURE: &str = "tokio";
const TOKIO_FEATURES: &str = "rdma-safe/tokio,rdma-cm/tokio";
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
    cargo_test_with(bench, cargo::cargo(), args)
}

/// As [`cargo_test`], with a cargo that was given more environment.
pub(super) fn cargo_test_with(bench: &Bench, mut command: Command, args: &[&str]) -> Result<Count> {
    command.arg("test").args(args);
    let got = exec::capture(&mut command, UNIT_LIMIT)?;
    bench.log("cargo", &format!("{}\n{}", got.stdout, got.stderr));
    let count = Count::of_libtest("cargo test", got.code, &got.stdout);
    if got.code != 0 && count.passed == 0 {
        bail!("`{}` failed:\n{}", exec::line(&command), got.stderr.trim());
    }
    Ok(count)
}

/// As shipped first; then with the switches that break the rules, which the simulator turns on for the whole build.
fn unit(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let tests = ["--lib", "--bins", "--tests", "--no-fail-fast", "--quiet"];
    let shipped = ["--workspace", "--exclude", "rdma-safe-sys", "--exclude", "btl-sim"];
    let broken = ["--package", "btl-core", "--no-default-features", "--features", "sabotage"];
    let awaited = ["--package", "rdma-safe", "--package", "rdma-cm", "--features", TOKIO_FEATURES];
    let mut count = cargo_test(bench, &[&shipped[..], &tests[..]].concat())?;
    count += cargo_test(bench, &[&awaited[..], &tests[..]].concat())?;
    count += cargo_test(bench, &[&broken[..], &tests[..]].concat())?;
    count += cargo_test(bench, &[&["--package", "btl-sim"][..], &tests[..]].concat())?;
    Ok(count)
}

fn doc(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let features = ["--features", TOKIO_FEATURES];
    cargo_test(bench, &[&["--workspace", "--doc", "--no-fail-fast"], &features[..]].concat())
}

fn layout(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build, Group::Headers])?;
    cargo_test(bench, &["--package", "rdma-safe-sys", "--lib", "--tests", "--no-fail-fast"])
}

/// The component with lanes over UNIX sockets in place of devices, loaded by the Open MPI that is installed.
fn btl(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build, Group::Mpi])?;
    let package = ["--package", "btl-ompi", "--no-default-features", "--quiet", "--lib"];
    let installed = ["--features", "fake-transport", "--tests", "--no-fail-fast"];
    let mut count = cargo_test(bench, &[&package[..], &installed[..]].concat())?;
    // Sizes and offsets of the other series are asserted by the compiler. Their headers are not here.
    for series in Series::ALL.into_iter().filter_map(Series::feature) {
        let features = format!("fake-transport,{series}");
        let other = ["--features", &features, "--", "--skip", HEADER_TEST];
        count += cargo_test(bench, &[&package[..], &other[..]].concat())?;
    }
    Ok(count)
}

/// The test that compares the component's bindings with headers.
const HEADER_TEST: &str = "bindings_match_the_headers";

/// Runs of the simulator per device model: more than 20,000 in all.
const SIM_SEEDS: &str = "4200";

/// The same with several devices a process.
const RAILS_SEEDS: &str = "1000";

/// Many seeds with the rules on; then each rule off, which must be noticed, with controls. Each ends with a line
/// `N passed, M failed`.
fn sim(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let mut count = simulate(bench, &["--seeds", SIM_SEEDS])?;
    count += simulate(bench, &["--mutants", "--seeds", "500"])?;
    count += simulate(bench, &["--rails", "--seeds", RAILS_SEEDS])?;
    count += simulate(bench, &["--rails", "--mutants"])?;
    Ok(count)
}

fn simulate(bench: &Bench, args: &[&str]) -> Result<Count> {
    let mut command = cargo::cargo();
    command.args(["run", "--quiet", "--release", "--package", "btl-sim", "--"]).args(args);
    let got = exec::capture(&mut command, UNIT_LIMIT)?;
    bench.log(args[0], &format!("{}\n{}", got.stdout, got.stderr));
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
    deps::ensure(&[Group::Build, Group::Interop])?;
    bench.machine()?;
    let mut count = Count::default();
    for package in device_packages()? {
        let mut programs = device_programs(&package, DEVICE_FEATURE)?;
        if programs.is_empty() {
            count.fail(format!("{package}: has the feature {DEVICE_FEATURE} and no test program"));
        }
        let with = [(WITH_SABOTAGE, SABOTAGE_FEATURE), (WITH_TOKIO, TOKIO_FEATURE)];
        for (_, more) in with.iter().filter(|(names, _)| names.contains(&&*package)) {
            let features = format!("{DEVICE_FEATURE},{more}");
            let found = device_programs(&package, &features)?;
            if found.is_empty() {
                count.fail(format!("{package}: no test program with the features {features}"));
            }
            programs.extend(found);
        }
        for program in programs {
            if let Some(device) = device_for(&program.name, device) {
                count += device_program(bench, &package, &program, device)?;
            }
        }
    }
    Ok(count)
}

/// The device a test program runs on in the part for `device`; `None`: it runs in the part for the other one only.
fn device_for(program: &str, device: Device) -> Option<Device> {
    match program {
        // Speaks iWARP's wire protocol itself.
        "mpa" => (device == Device::Siw).then_some(device),
        // Tells what is said where there is none.
        "no_device" => (device == Device::Siw).then_some(Device::None),
        // Needs both kinds at once.
        "device_rails" => (device == Device::Siw).then_some(Device::Both),
        _ => Some(device),
    }
}

/// The test programs of a package that need exactly these features (separated by commas).
fn device_programs(package: &str, features: &str) -> Result<Vec<cargo::Artifact>> {
    let args = ["test", "--no-run", "--package", package, "--features", features, "--tests"];
    let mut wanted: Vec<&str> = features.split(',').collect();
    wanted.sort_unstable();
    let built = cargo::build(&args)?;
    let metadata = metadata()?;
    Ok(built
        .into_iter()
        .filter(|artifact| artifact.kind == "test" && artifact.package == package)
        .filter(|artifact| required_features(&metadata, package, &artifact.name) == wanted)
        .collect())
}

fn device_program(
    bench: &mut Bench,
    package: &str,
    program: &cargo::Artifact,
    device: Device,
) -> Result<Count> {
    let (name, address) = test_device(device);
    let command = vec![program.path.clone().into_os_string(), "--test-threads=1".into()];
    let mut job = Job::new(device, command, DEVICE_LIMIT)?;
    job.cwd = crate::paths::root().join(package);
    job.env = vec![
        ("RDMA_TEST_DEVICE".to_owned(), name.to_owned()),
        ("RDMA_TEST_ADDR".to_owned(), address.to_owned()),
        ("RUST_BACKTRACE".to_owned(), "1".to_owned()),
    ];
    let what = format!("{package}/{} on {name}", program.name);
    let outcome = bench.in_guest(&what, &job)?;
    let mut count = Count::of_libtest(&what, outcome.code, &outcome.stdout);
    count.case(&what, clean(&outcome.klog, KERNEL_TROUBLE));
    Ok(count)
}

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

/// The features without which a test target is not built, sorted.
fn required_features(metadata: &Value, package: &str, target: &str) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages
        .filter(|p| p["name"] == package)
        .flat_map(|p| p["targets"].as_array().into_iter().flatten());
    let features = targets
        .filter(|t| t["name"] == target)
        .flat_map(|t| t["required-features"].as_array().into_iter().flatten());
    let mut names: Vec<String> = features.filter_map(|f| f.as_str().map(str::to_owned)).collect();
    names.sort();
    names
}
