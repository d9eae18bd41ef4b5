//! `cargo xtask doctor`: what this machine has for RDMA and MPI; each problem with its remedy. Changes nothing but cargo's target
//! folder.
//!
//! What only verbs can tell comes from a helper program, `rdma-cm/examples/devinfo.rs`, built here if the libraries are there. It
//! prints one line per device: fields separated by tabs, each `key=value`, `name` among them. Keys are shown as they come.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Result;

use crate::deps::{self, Group};
use crate::install::{self, OpenMpi};
use crate::{cargo, exec, guest, paths};

const QUICK: Duration = Duration::from_secs(20);
/// Less locked memory than this is not enough for one MPI process with a few peers.
const MEMLOCK_WANTED: u64 = 64 << 20;
const NOFILE_WANTED: u64 = 1024;

/// `cargo xtask doctor …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only what holds for each device and who says so; with ini files in Open MPI's syntax, the last having the last word
    #[arg(long, value_name = "FILE", num_args = 0..)]
    device_params: Option<Vec<PathBuf>>,
}

/// What was found wrong, and the remedy.
#[derive(Default)]
struct Problems(Vec<(String, String)>);

impl Problems {
    fn add(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.0.push((what.into(), remedy.into()));
    }
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
    let mut problems = Problems::default();
    packages(&mut problems);
    devices(&mut problems);
    limits(&mut problems);
    open_mpi(&mut problems);
    println!("Guest for demo and tests\n  {}\n", guest::forecast());
    if problems.0.is_empty() {
        println!("No problems.");
    } else {
        println!("Problems");
        for (what, remedy) in &problems.0 {
            println!("  {what}\n      remedy: {remedy}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn packages(problems: &mut Problems) {
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
        if !missing.is_empty() && matches!(group, Group::Build | Group::Guest | Group::Mpi) {
            problems
                .add(format!("something is missing {}", group.purpose()), deps::remedy(&[group]));
        }
    }
    println!();
}

fn devices(problems: &mut Problems) {
    println!("RDMA devices");
    let mut names: Vec<PathBuf> = entries("/sys/class/infiniband");
    names.sort();
    if names.is_empty() {
        println!("  none");
        problems.add(
            "this machine has no RDMA device, so MPI programs cannot use the BTL on it",
            "load the driver of the RDMA card, or use soft devices: cargo xtask guest run -- CMD",
        );
    }
    let told = if names.is_empty() { Ok(BTreeMap::new()) } else { ask_verbs() };
    for device in &names {
        let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for line in describe(device, problems) {
            println!("  {name}: {line}");
        }
        if let Ok(told) = &told {
            match told.get(&name) {
                Some(fields) => {
                    fields.iter().for_each(|(key, value)| println!("    {key}: {value}"))
                }
                None => problems.add(
                    format!("{name} cannot be opened through verbs"),
                    "install ibverbs-providers (or rdma-core)",
                ),
            }
        }
    }
    if let Err(why) = told {
        println!("  (capabilities are not shown: {why:#})");
    }
    if !names.is_empty() && !Path::new("/dev/infiniband/rdma_cm").exists() {
        problems.add(
            "there is no /dev/infiniband/rdma_cm, so nothing can connect",
            "modprobe rdma_ucm",
        );
    }
    println!();
}

/// What the kernel tells of a device: a line for each port.
fn describe(device: &Path, problems: &mut Problems) -> Vec<String> {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let node = read(&device.join("node_type"));
    let mut ports = entries(device.join("ports"));
    ports.sort();
    let mut lines = Vec::new();
    for port in ports {
        let transport = match (node.as_str(), read(&port.join("link_layer")).as_str()) {
            (node, _) if node.contains("RNIC") => "iWARP",
            (_, "Ethernet") => "RoCE",
            (_, "InfiniBand") => "InfiniBand",
            _ => "unknown transport",
        };
        let netdev = entries(port.join("gid_attrs/ndevs"))
            .iter()
            .map(|file| read(file))
            .find(|name| !name.is_empty());
        let state = read(&port.join("state"));
        let number = port.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (netdev, address) = match &netdev {
            Some(netdev) => (netdev.as_str(), addresses(netdev)),
            None => ("no network device", String::new()),
        };
        if !state.contains("ACTIVE") {
            problems.add(
                format!("{name} port {number} is {state}"),
                format!("ip link set {netdev} up, and look at the cable"),
            );
        }
        if address.is_empty() && transport != "InfiniBand" {
            problems.add(
                format!("{name} port {number} has no IP address, so no peer can connect to it"),
                format!("ip addr add ADDRESS/PREFIX dev {netdev}"),
            );
        }
        lines.push(format!("port {number}, {transport}, {state}, {netdev} {address}"));
    }
    lines
}

fn addresses(netdev: &str) -> String {
    let Ok(text) =
        exec::output(Command::new("ip").args(["-brief", "address", "show", "dev", netdev]), QUICK)
    else {
        return String::new();
    };
    text.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
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

fn limits(problems: &mut Problems) {
    println!("Limits of this shell");
    let text = read(Path::new("/proc/self/limits"));
    let memlock = limit(&text, "Max locked memory");
    let nofile = limit(&text, "Max open files");
    let show = |value: Option<u64>, unit: u64, name: &str| match value {
        Some(u64::MAX) => "unlimited".to_owned(),
        Some(value) => format!("{} {name}", value / unit),
        None => "unknown".to_owned(),
    };
    println!("  locked memory: {}", show(memlock, 1024, "KiB"));
    println!("  open files: {}\n", show(nofile, 1, ""));
    if memlock.is_some_and(|bytes| bytes < MEMLOCK_WANTED) && !rustix::process::geteuid().is_root()
    {
        problems.add(
            "the limit on locked memory is too small for registered memory",
            "`ulimit -l unlimited`, for all in /etc/security/limits.conf: `* - memlock unlimited`; a batch system has its own setting",
        );
    }
    if nofile.is_some_and(|files| files < NOFILE_WANTED) {
        problems.add(
            "the limit on open files is small: each connection takes some",
            format!("`ulimit -n {NOFILE_WANTED}` or more"),
        );
    }
}

/// The soft limit of one line of /proc/self/limits.
fn limit(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if value == "unlimited" { Some(u64::MAX) } else { value.parse().ok() }
}

fn open_mpi(problems: &mut Problems) {
    println!("Open MPI");
    let mut found: Vec<PathBuf> = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known = ["/usr/lib64/openmpi/bin", "/usr/lib64/mpi/gcc/openmpi4/bin", "/opt/openmpi/bin"]
        .map(PathBuf::from);
    for file in std::env::split_paths(&path).chain(known).map(|dir| dir.join("ompi_info")) {
        if paths::is_executable(&file)
            && !found.iter().any(|have| fs::canonicalize(have).ok() == fs::canonicalize(&file).ok())
        {
            found.push(file);
        }
    }
    if found.is_empty() {
        println!("  none");
    }
    for (at, info) in found.into_iter().enumerate() {
        match OpenMpi::at(info.clone()) {
            Ok(mpi) => one_open_mpi(&mpi, at == 0, problems),
            Err(error) => problems.add(
                format!("{} does not work: {error:#}", info.display()),
                "install Open MPI again",
            ),
        }
    }
    println!();
}

fn one_open_mpi(mpi: &OpenMpi, first: bool, problems: &mut Problems) {
    let first_words = if first { ", the first in the PATH" } else { "" };
    let support = if mpi.supported() { "supported" } else { "not supported" };
    println!("  {} ({}{first_words}): {support}", mpi.version, mpi.info.display());
    if !mpi.supported() {
        if first {
            problems.add(
                format!("the BTL is not built for Open MPI {}", mpi.version),
                "put an Open MPI 4.1 first in the PATH",
            );
        }
        return;
    }
    let places = [install::user_folder().ok(), mpi.component_folder().ok()];
    let file =
        places.into_iter().flatten().map(|dir| dir.join(install::FILE)).find(|file| file.exists());
    match (file, mpi.finds_btl(None)) {
        (Some(file), Ok(true)) => println!("    the BTL is installed: {}", file.display()),
        (None, Ok(true)) => println!("    the BTL is installed (through mca_base_component_path)"),
        (Some(file), _) => {
            problems.add(
                format!("Open MPI {} does not load {}", mpi.version, file.display()),
                "cargo xtask install-btl",
            );
        }
        (None, _) => {
            println!("    the BTL is not installed: `cargo xtask install-btl` does it");
        }
    }
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

fn entries(dir: impl AsRef<Path>) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_in_bytes() {
        let text = "Max locked memory         65536                8388608              bytes     \n\
            Max open files            unlimited            unlimited            files     \n";
        assert_eq!(limit(text, "Max locked memory"), Some(65536));
        assert_eq!(limit(text, "Max open files"), Some(u64::MAX));
        assert_eq!(limit(text, "Max cows"), None);
    }

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
