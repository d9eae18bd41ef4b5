//! `cargo xtask doctor`: what this machine has for RDMA and MPI; each problem with its remedy. Changes nothing but cargo's target
//! folder.
//!
//! What is there is gathered in `doctor/facts.rs`; what is wrong with it is decided in `doctor/judge.rs`. What only verbs can
//! tell comes from a helper program, `rdma-cm/examples/devinfo.rs`, built here if the libraries are there. It prints one line
//! per device: fields separated by tabs, each `key=value`, `name` among them. Keys are shown as they come.

mod facts;
mod judge;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Result;

use crate::deps::{self, Group};
use crate::{cargo, exec, guest};
use facts::{Btl, Facts};

/// `cargo xtask doctor …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only what holds for each device and who says so; with ini files in Open MPI's syntax, the last having the last word
    #[arg(long, value_name = "FILE", num_args = 0..)]
    device_params: Option<Vec<PathBuf>>,
    /// Build nothing: without what only verbs can tell of the devices, and without a look at the guest
    #[arg(long, conflicts_with = "device_params")]
    no_build: bool,
}

/// Prints everything. The exit status is 0 also with problems: they may not matter to the reader.
///
/// # Errors
/// The program that asks the devices cannot be built, or a file cannot be read.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(files) = &args.device_params {
        deps::ensure(&[Group::Build])?;
        let mut command = helper("btl-core", "device_params")?;
        print!("{}", exec::output(command.args(files), Duration::from_secs(60))?);
        return Ok(ExitCode::SUCCESS);
    }
    let mut facts = Facts::gather();
    packages();
    devices(&mut facts, args.no_build);
    limits(&facts);
    open_mpi(&facts);
    if !args.no_build {
        println!("Guest for demo and tests\n  {}\n", guest::forecast());
    }
    let problems = judge::judge(&facts);
    if problems.is_empty() {
        println!("No problems.");
    } else {
        println!("Problems");
        for problem in &problems {
            println!("  {}\n      remedy: {}", problem.what, problem.remedy);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn packages() {
    println!("Packages");
    for group in
        [Group::Build, Group::Guest, Group::Mpi, Group::Kernel, Group::Headers, Group::Bindgen]
    {
        let missing = deps::missing_packages(group);
        let state = if missing.is_empty() {
            "there".to_owned()
        } else {
            format!("missing: {}", missing.join(" "))
        };
        println!("  {}: {state}", group.purpose());
    }
    println!();
}

fn devices(facts: &mut Facts, no_build: bool) {
    println!("RDMA devices");
    if facts.devices.is_empty() {
        println!("  none");
    }
    let told = if facts.devices.is_empty() || no_build { Ok(BTreeMap::new()) } else { ask_verbs() };
    for device in &mut facts.devices {
        for port in &device.ports {
            let netdev = port.netdev.as_deref().unwrap_or("no network device");
            println!(
                "  {}: port {}, {}, {}, {netdev} {}",
                device.name,
                port.number,
                port.transport,
                port.state,
                port.addresses.join(" ")
            );
        }
        if let (Ok(told), false) = (&told, no_build) {
            let fields = told.get(&device.name);
            device.opened = Some(fields.is_some());
            for (key, value) in fields.into_iter().flatten() {
                println!("    {key}: {value}");
            }
        }
    }
    if let Err(why) = told {
        println!("  (capabilities are not shown: {why:#})");
    }
    println!();
}

type Told = BTreeMap<String, Vec<(String, String)>>;

/// What the helper program tells, by device.
fn ask_verbs() -> Result<Told> {
    let lacking = deps::missing_packages(Group::Build);
    if !lacking.is_empty() {
        anyhow::bail!("the helper that asks for them needs {}", lacking.join(" "));
    }
    let mut command = helper("rdma-cm", "devinfo")?;
    Ok(parse_told(&exec::output(&mut command, Duration::from_secs(60))?))
}

/// An example that asks the devices, built here.
fn helper(package: &str, name: &str) -> Result<Command> {
    let built = cargo::build(&["build", "--package", package, "--example", name])?;
    match built.into_iter().find(|artifact| artifact.name == name) {
        Some(artifact) => Ok(Command::new(artifact.path)),
        None => anyhow::bail!("{package} built no example {name}"),
    }
}

fn parse_told(text: &str) -> Told {
    let fields = |line: &str| -> Vec<(String, String)> {
        line.split('\t')
            .filter_map(|field| field.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    let device = |fields: Vec<(String, String)>| {
        let (names, others): (Vec<_>, Vec<_>) =
            fields.into_iter().partition(|(key, _)| key == "name");
        names.into_iter().next().map(|(_, name)| (name, others))
    };
    text.lines().map(fields).filter_map(device).collect()
}

fn limits(facts: &Facts) {
    println!("Limits of this shell");
    let show = |value: Option<u64>, unit: u64, name: &str| match value {
        Some(u64::MAX) => "unlimited".to_owned(),
        Some(value) => format!("{} {name}", value / unit),
        None => "unknown".to_owned(),
    };
    let freely = if facts.locks_freely { " (does not hold: CAP_IPC_LOCK)" } else { "" };
    println!("  locked memory: {}{freely}", show(facts.memlock, 1024, "KiB"));
    println!("  open files: {}\n", show(facts.nofile, 1, ""));
}

fn open_mpi(facts: &Facts) {
    println!("Open MPI");
    if facts.mpi.is_empty() {
        println!("  none");
    }
    for (at, mpi) in facts.mpi.iter().enumerate() {
        let first = if at == 0 { ", the first in the PATH" } else { "" };
        let support = if mpi.supported { "supported" } else { "not supported" };
        println!("  {} ({}{first}): {support}", mpi.version, mpi.info.display());
        match &mpi.btl {
            Btl::Found(Some(file)) => println!("    the BTL is installed: {}", file.display()),
            Btl::Found(None) => {
                println!("    the BTL is installed (through mca_base_component_path)");
            }
            Btl::Missing if mpi.supported => println!("    the BTL is not installed"),
            _ => {}
        }
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_helper_are_taken_by_device() {
        let told = parse_told(
            "name=siw0\tcaps=SRQ,INLINE\tloopback=yes (quirk table)\nnonsense\nname=rxe0\tcaps=\n",
        );
        assert_eq!(
            told["siw0"],
            [("caps".into(), "SRQ,INLINE".into()), ("loopback".into(), "yes (quirk table)".into())]
        );
        assert_eq!(told.len(), 2);
    }
}
