//! What xtask needs from the system, and getting it: with apt as root or through sudo, without a question; elsewhere the packages
//! are named and xtask stops.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::{exec, paths, ui};

const INSTALL_LIMIT: Duration = Duration::from_secs(1200);

/// Things needed for one purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Group {
    /// Building the crates: a linker and the libraries.
    Build,
    /// Comparing the bindings with the headers, or generating them.
    Headers,
    /// Running a guest with soft devices.
    Guest,
    /// Building the guest's kernel.
    Kernel,
    /// Building and running MPI programs.
    Mpi,
    /// Fetching Debian's packages and generating bindings.
    Bindgen,
    /// Counting instructions.
    Count,
    /// Building the crates that ours are compared with.
    Rivals,
    /// Comparing times and calls with perftest's.
    Perftest,
    /// Talking to other programs on rdma_cm.
    Interop,
    /// Building libFuzzer.
    Fuzz,
    /// Fetching an Open MPI of another Debian.
    Roots,
}

impl Group {
    /// Ends a sentence that begins with what is missing.
    pub(crate) fn purpose(self) -> &'static str {
        match self {
            Self::Build => "to build the crates",
            Self::Headers => "to compare the bindings with the headers",
            Self::Guest => "to run the guest and its RDMA devices",
            Self::Kernel => "to build the guest's kernel",
            Self::Mpi => "to build and run MPI programs",
            Self::Bindgen => "to generate bindings",
            Self::Count => "to count instructions",
            Self::Perftest => "to compare with perftest",
            Self::Roots => "to fetch another Open MPI",
            Self::Interop => "to talk to rping and ucmatose",
            Self::Fuzz => "to build the fuzzer",
            Self::Rivals => "to build the crates that these are compared with",
        }
    }
}

/// How to see that a thing is there.
enum Probe {
    Program(&'static str),
    /// A header below /usr/include.
    Header(&'static str),
    /// A file by this name or beginning in a folder for libraries.
    Library(&'static str),
}

/// One thing and the packages that bring it: Debian and Ubuntu, Fedora and RHEL, SUSE, Arch.
struct Need {
    group: Group,
    probe: Probe,
    packages: [&'static str; 4],
}

const fn need(group: Group, probe: Probe, packages: [&'static str; 4]) -> Need {
    Need { group, probe, packages }
}

use Probe::{Header, Library, Program};

const NEEDS: &[Need] = &[
    need(Group::Build, Program("cc"), ["gcc", "gcc", "gcc", "gcc"]),
    need(Group::Build, Header("stdio.h"), ["libc6-dev", "glibc-devel", "glibc-devel", "glibc"]),
    need(
        Group::Build,
        Library("libibverbs.so"),
        ["libibverbs-dev", "rdma-core-devel", "rdma-core-devel", "rdma-core"],
    ),
    need(
        Group::Build,
        Library("librdmacm.so"),
        ["librdmacm-dev", "rdma-core-devel", "rdma-core-devel", "rdma-core"],
    ),
    need(Group::Headers, Program("cc"), ["gcc", "gcc", "gcc", "gcc"]),
    need(
        Group::Headers,
        Program("pkg-config"),
        ["pkg-config", "pkgconf-pkg-config", "pkg-config", "pkgconf"],
    ),
    need(
        Group::Headers,
        Header("infiniband/verbs.h"),
        ["libibverbs-dev", "rdma-core-devel", "rdma-core-devel", "rdma-core"],
    ),
    need(
        Group::Headers,
        Header("rdma/rdma_cma.h"),
        ["librdmacm-dev", "rdma-core-devel", "rdma-core-devel", "rdma-core"],
    ),
    need(Group::Guest, Program("bash"), ["bash", "bash", "bash", "bash"]),
    need(
        Group::Guest,
        Program("setpriv"),
        ["util-linux", "util-linux", "util-linux", "util-linux"],
    ),
    need(Group::Guest, Program("rdma"), ["iproute2", "iproute", "iproute2", "iproute2"]),
    need(Group::Guest, Program("tc"), ["iproute2", "iproute-tc", "iproute2", "iproute2"]),
    need(
        Group::Guest,
        Library("libibverbs/libsiw-rdmav"),
        ["ibverbs-providers", "libibverbs", "libibverbs1", "rdma-core"],
    ),
    need(
        Group::Guest,
        Library("libibverbs/librxe-rdmav"),
        ["ibverbs-providers", "libibverbs", "libibverbs1", "rdma-core"],
    ),
    need(
        Group::Guest,
        Library("librdmacm.so.1"),
        ["librdmacm1", "librdmacm", "librdmacm1", "rdma-core"],
    ),
    need(Group::Kernel, Program("make"), ["make", "make", "make", "make"]),
    need(Group::Kernel, Program("gcc"), ["gcc", "gcc", "gcc", "gcc"]),
    need(Group::Kernel, Header("stdio.h"), ["libc6-dev", "glibc-devel", "glibc-devel", "glibc"]),
    need(Group::Kernel, Program("ld"), ["binutils", "binutils", "binutils", "binutils"]),
    need(Group::Kernel, Program("flex"), ["flex", "flex", "flex", "flex"]),
    need(Group::Kernel, Program("bison"), ["bison", "bison", "bison", "bison"]),
    need(Group::Kernel, Program("bc"), ["bc", "bc", "bc", "bc"]),
    need(Group::Kernel, Program("perl"), ["perl", "perl", "perl", "perl"]),
    need(Group::Kernel, Program("tar"), ["tar", "tar", "tar", "tar"]),
    need(Group::Kernel, Program("xz"), ["xz-utils", "xz", "xz", "xz"]),
    need(
        Group::Mpi,
        Program("mpicc"),
        ["libopenmpi-dev", "openmpi-devel", "openmpi4-devel", "openmpi"],
    ),
    need(Group::Mpi, Program("mpirun"), ["openmpi-bin", "openmpi", "openmpi4", "openmpi"]),
    need(Group::Mpi, Program("ompi_info"), ["openmpi-bin", "openmpi", "openmpi4", "openmpi"]),
    need(
        Group::Bindgen,
        Library("libclang"),
        ["libclang-dev", "clang-devel", "clang-devel", "clang"],
    ),
    need(Group::Count, Program("valgrind"), ["valgrind", "valgrind", "valgrind", "valgrind"]),
    need(Group::Count, Program("objdump"), ["binutils", "binutils", "binutils", "binutils"]),
    need(Group::Perftest, Program("ib_send_lat"), ["perftest", "perftest", "perftest", "perftest"]),
    need(Group::Perftest, Program("strace"), ["strace", "strace", "strace", "strace"]),
    need(
        Group::Interop,
        Program("rping"),
        ["rdmacm-utils", "librdmacm-utils", "librdmacm-utils", "rdma-core"],
    ),
    need(
        Group::Interop,
        Program("ucmatose"),
        ["rdmacm-utils", "librdmacm-utils", "librdmacm-utils", "rdma-core"],
    ),
    need(Group::Fuzz, Program("c++"), ["g++", "gcc-c++", "gcc-c++", "gcc"]),
    need(
        Group::Roots,
        Program("mmdebstrap"),
        ["mmdebstrap", "mmdebstrap", "mmdebstrap", "mmdebstrap"],
    ),
    need(Group::Rivals, Program("cmake"), ["cmake", "cmake", "cmake", "cmake"]),
    need(
        Group::Rivals,
        Library("libclang"),
        ["libclang-dev", "clang-devel", "clang-devel", "clang"],
    ),
];

/// Sees that everything of `groups` is there; what is not is installed if that can be done without a question.
///
/// # Errors
/// Something is missing and cannot be installed from here; the message has the command that does it.
pub(crate) fn ensure(groups: &[Group]) -> Result<()> {
    let lacking = missing(groups);
    if lacking.is_empty() {
        return Ok(());
    }
    let distro = Distro::here();
    let command = distro.command(&lacking);
    for group in groups {
        let of_group: Vec<&&Need> = lacking.iter().filter(|need| need.group == *group).collect();
        if !of_group.is_empty() {
            ui::say(&format!(
                "missing {}: {}",
                group.purpose(),
                distro.packages(of_group.into_iter().copied()).join(" ")
            ));
        }
    }
    if distro != Distro::Debian || paths::program("apt-get").is_none() {
        bail!("install what is missing, then run this again:\n    {command}");
    }
    let Some(prefix) = privilege() else {
        bail!(
            "install what is missing (xtask is not root, and sudo would ask for a password), then run this again:\n    {command}"
        );
    };
    ui::say(&format!("installing it: {command}"));
    let packages = distro.packages(lacking.iter().copied());
    if apt(prefix, &["install", "--yes", "--no-install-recommends"], &packages).is_err() {
        ui::say("apt does not know all of them; reading the lists of packages anew");
        apt(prefix, &["update"], &[])?;
        apt(prefix, &["install", "--yes", "--no-install-recommends"], &packages)?;
    }
    match missing(groups).as_slice() {
        [] => Ok(()),
        still => bail!(
            "these were installed and are still not found: {}",
            distro.packages(still.iter().copied()).join(" ")
        ),
    }
}

/// What of `groups` is not there, as names of packages; for `doctor`.
pub(crate) fn missing_packages(group: Group) -> Vec<&'static str> {
    Distro::here().packages(missing(&[group]).into_iter())
}

/// All packages of a group, whether they are there or not.
pub(crate) fn names(group: Group) -> String {
    Distro::here().packages(NEEDS.iter().filter(|need| need.group == group)).join(" ")
}

/// The command that installs what of `groups` is missing.
pub(crate) fn remedy(groups: &[Group]) -> String {
    Distro::here().command(&missing(groups))
}

fn missing(groups: &[Group]) -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| groups.contains(&need.group) && !need.probe.found()).collect()
}

fn apt(prefix: &[&str], verb: &[&str], packages: &[&str]) -> Result<()> {
    let words: Vec<&str> = prefix
        .iter()
        .copied()
        .chain(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"])
        .collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["-o", "DPkg::Lock::Timeout=300"]).args(verb).args(packages);
    exec::output(&mut command, INSTALL_LIMIT).map(drop)
}

/// What makes a command root's, or `None` if that takes a password.
fn privilege() -> Option<&'static [&'static str]> {
    if rustix::process::geteuid().is_root() {
        return Some(&[]);
    }
    let sudo = paths::program("sudo").is_some()
        && exec::capture(Command::new("sudo").args(["-n", "true"]), Duration::from_secs(10))
            .is_ok_and(|got| got.code == 0);
    sudo.then_some(&["sudo", "-n"])
}

impl Probe {
    fn found(&self) -> bool {
        match self {
            Program(name) => paths::program(name).is_some() || in_openmpi_folder(name),
            Header(name) => found_below("/usr/include", name),
            Library(name) => {
                ["/usr/lib", "/usr/lib64", "/lib"].iter().any(|dir| found_below(dir, name))
            }
        }
    }
}

/// `dir/name*`, or the same in a folder of `dir` (Debian's multiarch), or below an `llvm-N/lib` in it.
fn found_below(dir: &str, name: &str) -> bool {
    let dir = Path::new(dir);
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut folders = vec![dir.to_path_buf(), dir.join(multiarch)];
    let llvm = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    folders.extend(
        llvm.filter(|path| path.to_string_lossy().contains("/llvm-")).map(|path| path.join("lib")),
    );
    folders.iter().any(|folder| {
        let file = folder.join(name);
        let (Some(parent), Some(stem)) = (file.parent(), file.file_name()) else { return false };
        let names =
            fs::read_dir(parent).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().starts_with(&*stem.to_string_lossy()))
    })
}

/// Fedora and SUSE keep Open MPI out of the PATH until a module is loaded.
fn in_openmpi_folder(name: &str) -> bool {
    ["/usr/lib64/openmpi/bin", "/usr/lib64/mpi/gcc/openmpi4/bin"]
        .iter()
        .any(|dir| Path::new(dir).join(name).exists())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Distro {
    Debian,
    Fedora,
    Suse,
    Arch,
    Unknown,
}

impl Distro {
    fn here() -> Self {
        Self::of(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    fn of(os_release: &str) -> Self {
        let value =
            |line: &str| line.split_once('=').map(|(_, value)| value.trim_matches('"').to_owned());
        let ids = os_release
            .lines()
            .filter(|line| line.starts_with("ID=") || line.starts_with("ID_LIKE="));
        for id in ids
            .filter_map(value)
            .flat_map(|ids| ids.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        {
            match id.as_str() {
                "debian" | "ubuntu" => return Self::Debian,
                "fedora" | "rhel" | "centos" => return Self::Fedora,
                "suse" | "opensuse" | "sles" | "opensuse-tumbleweed" | "opensuse-leap" => {
                    return Self::Suse;
                }
                "arch" => return Self::Arch,
                _ => {}
            }
        }
        Self::Unknown
    }

    fn packages<'a>(self, needs: impl Iterator<Item = &'a Need>) -> Vec<&'static str> {
        let column = match self {
            Self::Debian | Self::Unknown => 0,
            Self::Fedora => 1,
            Self::Suse => 2,
            Self::Arch => 3,
        };
        let mut packages: Vec<&'static str> = needs.map(|need| need.packages[column]).collect();
        packages.sort_unstable();
        packages.dedup();
        packages
    }

    fn command(self, needs: &[&'static Need]) -> String {
        let install = match self {
            Self::Debian => "apt-get install --no-install-recommends",
            Self::Fedora => "dnf install",
            Self::Suse => "zypper install",
            Self::Arch => "pacman -S",
            Self::Unknown => "install with your package manager what Debian calls:",
        };
        format!("{install} {}", self.packages(needs.iter().copied()).join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_told_by_their_names() {
        assert!(Distro::of("NAME=x\nID=debian\n") == Distro::Debian);
        assert!(Distro::of("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n") == Distro::Debian);
        assert!(Distro::of("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n") == Distro::Fedora);
        assert!(Distro::of("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n") == Distro::Suse);
        assert!(Distro::of("ID=arch\n") == Distro::Arch);
        assert!(Distro::of("") == Distro::Unknown);
    }

    #[test]
    fn a_package_is_named_once() {
        let needs = NEEDS.iter().filter(|need| need.group == Group::Build);
        assert_eq!(Distro::Fedora.packages(needs), ["gcc", "glibc-devel", "rdma-core-devel"]);
    }
}
