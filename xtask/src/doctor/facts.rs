//! What a machine has: plain data, which [`judge`](super::judge::judge) looks at.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use crate::deps::{self, Group};
use crate::install::{self, OpenMpi};
use crate::ompi::Series;
use crate::{exec, paths};

const QUICK: Duration = Duration::from_secs(20);

/// Everything that a judgement needs.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) missing: Vec<Missing>,
    /// In a container modules are loaded, and limits set, outside.
    pub(super) container: bool,
    /// The modules: ib_core, ib_uverbs, rdma_ucm.
    pub(super) has_core: bool,
    pub(super) has_uverbs: bool,
    pub(super) has_ucm: bool,
    pub(super) devices: Vec<DeviceFacts>,
    /// Files of the kernel's interfaces that this process cannot open.
    pub(super) unreachable: Vec<String>,
    /// Bytes that may be locked; `None`: not known. `u64::MAX`: no limit.
    pub(super) memlock: Option<u64>,
    /// Whether the limit does not hold for this process.
    pub(super) locks_freely: bool,
    pub(super) nofile: Option<u64>,
    /// The first in the PATH comes first.
    pub(super) mpi: Vec<MpiFacts>,
    /// The packages of Open MPI here, and the versions that the BTL is built for.
    pub(super) mpi_packages: String,
    pub(super) supported: String,
}

/// Packages that are missing for a purpose.
pub(super) struct Missing {
    pub(super) purpose: String,
    pub(super) remedy: String,
}

/// A device, as the kernel tells of it.
#[derive(Default)]
pub(super) struct DeviceFacts {
    pub(super) name: String,
    pub(super) ports: Vec<PortFacts>,
    /// Whether verbs opened it; `None`: not tried.
    pub(super) opened: Option<bool>,
}

/// One port of a device.
#[derive(Default)]
pub(super) struct PortFacts {
    pub(super) number: String,
    pub(super) transport: &'static str,
    /// `4: ACTIVE`.
    pub(super) state: String,
    pub(super) netdev: Option<String>,
    /// With their prefixes.
    pub(super) addresses: Vec<String>,
}

/// An installation of Open MPI.
pub(super) struct MpiFacts {
    pub(super) version: String,
    pub(super) info: PathBuf,
    pub(super) supported: bool,
    pub(super) btl: Btl,
}

/// Whether an Open MPI has the component.
pub(super) enum Btl {
    /// And where; `None`: through mca_base_component_path.
    Found(Option<PathBuf>),
    /// A file that is there and is refused.
    NotLoaded(String),
    Missing,
    /// Open MPI does not answer.
    Unknown(String),
}

impl PortFacts {
    /// InfiniBand needs no IP address to work, and has none of its own.
    pub(super) fn is_infiniband(&self) -> bool {
        self.transport == "InfiniBand"
    }
}

impl Facts {
    /// Looks at this machine; builds nothing.
    pub(super) fn gather() -> Self {
        let text = read(Path::new("/proc/self/limits"));
        let mut devices: Vec<DeviceFacts> =
            entries("/sys/class/infiniband").iter().map(|dir| device(dir)).collect();
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        let mut facts = Self {
            missing: [Group::Build, Group::Guest].into_iter().filter_map(missing).collect(),
            container: in_container(),
            has_core: Path::new("/sys/class/infiniband").exists(),
            has_uverbs: Path::new("/sys/class/infiniband_verbs").exists(),
            has_ucm: Path::new("/sys/class/misc/rdma_cm").exists(),
            devices,
            unreachable: Vec::new(),
            memlock: limit(&text, "Max locked memory"),
            locks_freely: locks_freely(&read(Path::new("/proc/self/status"))),
            nofile: limit(&text, "Max open files"),
            mpi: open_mpi(),
            mpi_packages: deps::names(Group::Mpi),
            supported: Series::names(),
        };
        let mut files = vec![PathBuf::from("/dev/infiniband/rdma_cm")];
        files.extend(entries("/sys/class/infiniband_verbs").iter().filter_map(|dir| {
            let name = dir.file_name()?.to_string_lossy().into_owned();
            name.starts_with("uverbs").then(|| Path::new("/dev/infiniband").join(name))
        }));
        files.sort();
        let opens = |file: &PathBuf| fs::File::options().read(true).write(true).open(file).is_ok();
        let closed = files.iter().filter(|file| !opens(file));
        facts.unreachable = closed.map(|file| file.display().to_string()).collect();
        facts
    }
}

fn missing(group: Group) -> Option<Missing> {
    let lacks = !deps::missing_packages(group).is_empty();
    lacks.then(|| Missing { purpose: group.purpose().to_owned(), remedy: deps::remedy(&[group]) })
}

/// What the kernel tells of a device.
fn device(dir: &Path) -> DeviceFacts {
    let node = read(&dir.join("node_type"));
    let mut ports = entries(dir.join("ports"));
    ports.sort();
    let port = |dir: &PathBuf| {
        let netdev = entries(dir.join("gid_attrs/ndevs"))
            .iter()
            .map(|file| read(file))
            .find(|name| !name.is_empty());
        PortFacts {
            number: name_of(dir),
            transport: match (node.as_str(), read(&dir.join("link_layer")).as_str()) {
                (node, _) if node.contains("RNIC") => "iWARP",
                (_, "Ethernet") => "RoCE",
                (_, "InfiniBand") => "InfiniBand",
                _ => "unknown transport",
            },
            state: read(&dir.join("state")),
            addresses: netdev.as_deref().map(addresses).unwrap_or_default(),
            netdev,
        }
    };
    DeviceFacts { name: name_of(dir), ports: ports.iter().map(port).collect(), opened: None }
}

fn addresses(netdev: &str) -> Vec<String> {
    let mut ip = Command::new("ip");
    let text = exec::output(ip.args(["-brief", "address", "show", "dev", netdev]), QUICK);
    text.unwrap_or_default().split_whitespace().skip(2).map(str::to_owned).collect()
}

/// Podman and Docker leave a file, systemd a variable of the first process.
fn in_container() -> bool {
    ["/.dockerenv", "/run/.containerenv"].iter().any(|file| Path::new(file).exists())
        || env::var_os("container").is_some()
}

/// The soft limit of one line of /proc/self/limits.
fn limit(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if value == "unlimited" { Some(u64::MAX) } else { value.parse().ok() }
}

/// Whether the process has CAP_IPC_LOCK, so that the limit does not hold (but for siw of Linux 6.1).
fn locks_freely(status: &str) -> bool {
    const IPC_LOCK: u64 = 1 << 14;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & IPC_LOCK != 0)
}

fn open_mpi() -> Vec<MpiFacts> {
    let mut found: Vec<PathBuf> = Vec::new();
    let path = env::var_os("PATH").unwrap_or_default();
    let known = ["/usr/lib64/openmpi/bin", "/usr/lib64/mpi/gcc/openmpi4/bin", "/opt/openmpi/bin"]
        .map(PathBuf::from);
    for file in env::split_paths(&path).chain(known).map(|dir| dir.join("ompi_info")) {
        if paths::is_executable(&file)
            && !found.iter().any(|have| fs::canonicalize(have).ok() == fs::canonicalize(&file).ok())
        {
            found.push(file);
        }
    }
    found.into_iter().map(one_open_mpi).collect()
}

fn one_open_mpi(info: PathBuf) -> MpiFacts {
    match OpenMpi::at(info.clone()) {
        Ok(mpi) => {
            let supported = mpi.series().is_some();
            let btl = if supported { btl(&mpi) } else { Btl::Missing };
            MpiFacts { version: mpi.version, info, supported, btl }
        }
        Err(error) => {
            let version = format!("({})", info.display());
            MpiFacts { version, info, supported: true, btl: Btl::Unknown(format!("{error:#}")) }
        }
    }
}

fn btl(mpi: &OpenMpi) -> Btl {
    let places = [install::user_folder().ok(), mpi.component_folder().ok()];
    let file =
        places.into_iter().flatten().map(|dir| dir.join(install::FILE)).find(|file| file.exists());
    match (file, mpi.finds_btl(None)) {
        (_, Err(error)) => Btl::Unknown(format!("{error:#}")),
        (file, Ok(true)) => Btl::Found(file),
        (Some(file), Ok(false)) => Btl::NotLoaded(file.display().to_string()),
        (None, Ok(false)) => Btl::Missing,
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
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
    fn the_right_to_lock_is_a_capability() {
        assert!(locks_freely("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!locks_freely("CapEff:\t000001ffffffbfff\n") && !locks_freely(""));
    }
}
