//! The kernel's source: from a file or folder the user names, or Debian's newest package, fetched by apt into a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::kernel::numbers;
use crate::{exec, paths, ui};

/// rxe in a network namespace, and SMP in User-Mode Linux.
pub(super) const OLDEST: (u32, u32, u32) = (7, 0, 0);
const FETCH_LIMIT: Duration = Duration::from_secs(900);
/// The most that is needed for source, objects and package, in bytes.
const ROOM: u64 = 3 << 30;
/// Debian's suite that always has the newest kernel.
const SUITE: &str = "sid";
/// Debian's keys.
pub(crate) const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Parts of the source that a User-Mode Linux build never reads; their Kconfig files stay.
const LEAVE_OUT: [&str; 4] = [
    "*/drivers/gpu/*.[ch]",
    "*/Documentation/*.rst",
    "*/Documentation/devicetree/*",
    "*/boot/dts/*",
];

/// An unpacked kernel source.
pub(super) struct Source {
    pub(super) dir: PathBuf,
    pub(super) version: String,
}

/// Takes `from`, else a `linux-source` package; unpacks into `scratch`.
///
/// # Errors
/// Nothing usable was found or reached; what to do is in the message.
pub(super) fn get(from: Option<&Path>, scratch: &Path) -> Result<Source> {
    let room =
        rustix::fs::statvfs(scratch).map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    if room < ROOM {
        bail!(
            "{} has {} MiB free and {} are needed; set XDG_CACHE_HOME to another disk",
            scratch.display(),
            room >> 20,
            ROOM >> 20
        );
    }
    let dir = match from {
        Some(dir) if dir.is_dir() => dir.canonicalize()?,
        Some(file) if file.is_file() => unpack(file, scratch)?,
        Some(path) => bail!("--source {}: no such file or folder", path.display()),
        None => match installed() {
            Some(tarball) => unpack(&tarball, scratch)?,
            None => unpack(&fetch(scratch)?, scratch)?,
        },
    };
    let version = version_of(&dir)?;
    if numbers(&version) < OLDEST {
        bail!("the kernel source is Linux {version}; 7.0 or newer is needed");
    }
    Ok(Source { dir, version })
}

fn version_of(dir: &Path) -> Result<String> {
    let makefile = fs::read_to_string(dir.join("Makefile"))
        .with_context(|| format!("{} is no kernel source", dir.display()))?;
    let value = |name: &str| {
        let line = makefile.lines().find(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('='))
        });
        line.and_then(|line| line.split('=').nth(1))
            .map(|value| value.trim().to_owned())
            .unwrap_or_default()
    };
    let version = [value("VERSION"), value("PATCHLEVEL"), value("SUBLEVEL")].join(".");
    if version.len() < 5 || !dir.join("arch/um").is_dir() {
        bail!("{} is no kernel source with User-Mode Linux", dir.display());
    }
    Ok(version)
}

/// A source package that is installed already.
fn installed() -> Option<PathBuf> {
    let tarballs = fs::read_dir("/usr/src").ok()?.flatten().map(|entry| entry.path());
    let version = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix("linux-source-")?;
        name.contains(".tar").then(|| numbers(name))
    };
    tarballs.filter(|path| version(path) >= Some(OLDEST)).max_by_key(version)
}

fn unpack(tarball: &Path, scratch: &Path) -> Result<PathBuf> {
    ui::say(&format!("unpacking {}", tarball.display()));
    let dir = scratch.join("source");
    fs::create_dir_all(&dir)?;
    let mut tar = Command::new("tar");
    tar.arg("--extract")
        .arg("--file")
        .arg(tarball)
        .arg("--directory")
        .arg(&dir)
        .arg("--strip-components=1")
        .arg("--wildcards");
    tar.args(LEAVE_OUT.map(|pattern| format!("--exclude={pattern}")));
    exec::output(&mut tar, FETCH_LIMIT).context("cannot unpack the kernel source")?;
    Ok(dir)
}

/// Downloads the newest `linux-source` package and returns the tarball in it.
fn fetch(scratch: &Path) -> Result<PathBuf> {
    if paths::program("apt-get").is_none() {
        bail!(
            "without apt, give a kernel source (Linux 7.0 or newer): cargo xtask guest kernel --source TARBALL|DIR"
        );
    }
    // What this machine's own sources offer is enough if it is new enough.
    let (apt, package) = match newest(&Apt::system())? {
        Some(package) => (Apt::system(), package),
        None => {
            let apt = Apt::private(&scratch.join("apt"))?;
            exec::output(apt.command("apt-get").arg("update"), FETCH_LIMIT)
                .context("cannot read Debian's list of packages")?;
            let package = newest(&apt)?.with_context(|| {
                format!("Debian {SUITE} has no linux-source package of 7.0 or newer: give one with --source TARBALL|DIR")
            })?;
            (apt, package)
        }
    };
    ui::say(&format!("fetching Debian's package {package}"));
    let mut download = apt.command("apt-get");
    download.args(["download", &package]).current_dir(scratch);
    exec::output(&mut download, FETCH_LIMIT).with_context(|| format!("cannot fetch {package}"))?;
    let deb = find_in(scratch, ".deb").context("apt-get download left no package")?;
    let inside = scratch.join("package");
    exec::output(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(&inside), FETCH_LIMIT)?;
    fs::remove_file(&deb)?;
    find_in(&inside.join("usr/src"), ".tar.xz")
        .with_context(|| format!("{package} has no kernel source in it"))
}

fn find_in(dir: &Path, ending: &str) -> Option<PathBuf> {
    fs::read_dir(dir)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with(ending))
}

/// The name of the newest `linux-source-X.Y` that is new enough.
fn newest(apt: &Apt) -> Result<Option<String>> {
    let names =
        exec::output(apt.command("apt-cache").args(["pkgnames", "linux-source-"]), FETCH_LIMIT)?;
    let version = |name: &&str| {
        let version = name.strip_prefix("linux-source-")?;
        version.chars().all(|c| c.is_ascii_digit() || c == '.').then(|| numbers(version))
    };
    Ok(names
        .lines()
        .filter(|name| version(name) >= Some(OLDEST))
        .max_by_key(version)
        .map(str::to_owned))
}

/// How to call apt: with the machine's own lists, or with private ones that leave no trace in the system.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn system() -> Self {
        Self { options: Vec::new() }
    }

    /// Lists of [`SUITE`] from the mirror this machine uses, checked with Debian's keys, in `dir`.
    fn private(dir: &Path) -> Result<Self> {
        let mirror = debian_mirror().context(
            "the kernel source cannot be fetched: give one (Linux 7.0 or newer) with \
             `cargo xtask guest kernel --source TARBALL|DIR`",
        )?;
        for sub in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub))?;
        }
        let list = dir.join("sources.list");
        fs::write(&list, format!("deb [signed-by={KEYRING}] {mirror} {SUITE} main\n"))?;
        let dir = dir.display();
        let mut options = vec![
            format!("Dir::Etc::sourcelist={}", list.display()),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            format!("Dir::State={dir}/state"),
            "Dir::State::status=/dev/null".to_owned(),
            format!("Dir::Cache={dir}/cache"),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        if rustix::process::geteuid().is_root() {
            // The user that apt drops to cannot enter root's cache folder.
            options.push("APT::Sandbox::User=root".to_owned());
        }
        Ok(Self { options })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(self.options.iter().flat_map(|option| ["-o", option])).env("LC_ALL", "C");
        command
    }
}

/// The Debian archive that this machine's apt sources name, if what comes from it can be checked.
///
/// # Errors
/// There is none, or Debian's keys are missing.
pub(crate) fn debian_mirror() -> Result<String> {
    let mut targets = Command::new("apt-get");
    targets.args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(RELEASE) $(COMPONENT)",
        "Created-By: Packages",
    ]);
    let text = exec::output(&mut targets, super::QUICK)
        .context("cannot read this machine's apt sources")?;
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap_or_default()
            .trim_matches('"')
    };
    let mirror =
        (field("ID=") == "debian").then(|| mirror_in(&text, field("VERSION_CODENAME="))).flatten();
    let mirror = mirror.context("this machine's apt sources name no Debian archive")?;
    if !Path::new(KEYRING).exists() {
        bail!(
            "{KEYRING} is missing, so packages could not be checked: install debian-archive-keyring"
        );
    }
    Ok(mirror)
}

/// Of lines `URI RELEASE COMPONENT`, the URI of the archive proper: component main of the system's own release (or one of the
/// names every Debian archive has), not of its security or updates part.
fn mirror_in(targets: &str, codename: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (uri, release, component) = (words.next()?, words.next()?, words.next()?);
        let own = [codename, "stable", "testing", "unstable", SUITE].contains(&release);
        (own && component == "main").then(|| uri.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_proper_is_found_among_others() {
        let targets = "https://other.example/x nodistro main\n\
            http://deb.example/debian-security/ bookworm-security main\n\
            http://deb.example/debian/ bookworm-updates main\n\
            http://deb.example/debian/ bookworm contrib\n\
            http://deb.example/debian/ bookworm main\n";
        assert_eq!(mirror_in(targets, "bookworm").as_deref(), Some("http://deb.example/debian/"));
        assert_eq!(mirror_in("http://deb.example/debian/ bookworm-updates main", "bookworm"), None);
        assert_eq!(
            mirror_in("http://deb.example/debian/ sid main", "").as_deref(),
            Some("http://deb.example/debian/")
        );
    }
}
