//! A folder with the programs of the Debian suite that has a series of Open MPI: made once by
//! mmdebstrap from the packages, without running any of their scripts, and kept in the cache. A guest
//! runs MPI programs in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::Series;
use crate::deps::{self, Group};
use crate::guest::{KEYRING, debian_mirror};
use crate::{exec, paths, turn, ui};

/// What a run needs: Open MPI, the devices' providers, and what the guest's scripts call.
const PACKAGES: &str = "base-files,bash,coreutils,dash,findutils,gawk,grep,hostname,ibverbs-providers,iproute2,librdmacm1,\
    openmpi-bin,procps,sed,util-linux";
/// Only unpacked, without what they depend on (compilers, mostly): headers.
const HEADERS: &str = "libopenmpi-dev libpmix-dev libhwloc-dev libevent-dev";
/// Names that the packages' scripts would make.
const LINKS: &[(&str, &str)] =
    &[("mpirun", "mpirun.openmpi"), ("mpiexec", "mpiexec.openmpi"), ("awk", "gawk")];
/// Not needed to run anything.
const PRUNE: &[&str] = &[
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/lib/apt",
    "var/cache/apt",
];
/// Packages of about 85 MiB, and then unpacking 300.
const LIMIT: Duration = Duration::from_secs(1800);
/// The most that is needed while it is made, in bytes.
const ROOM: u64 = 2 << 30;

/// Such a folder.
pub(crate) struct Root {
    dir: PathBuf,
    series: Series,
}

impl Root {
    /// The root of a series; made if there is none yet. `None` for the series whose Debian is the
    /// machine's own.
    ///
    /// # Errors
    /// It cannot be made here; what to do is in the message.
    pub(crate) fn get(series: Series) -> Result<Option<Self>> {
        let Some(suite) = series.suite() else { return Ok(None) };
        let folder = paths::cache()?.join("roots");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let root = Self { dir: folder.join(format!("{suite}-{}", recipe())), series };
        if !root.dir.is_dir() {
            let _turn = turn::take(&folder, "fetches another Open MPI", LIMIT)?;
            if !root.dir.is_dir() {
                root.make(&folder, suite)?;
            }
        }
        let version = root.version()?;
        if Series::of(&version) != Some(series) {
            bail!(
                "Debian {suite} has Open MPI {version} and not {} any more: remove {} for another try",
                series.name(),
                root.dir.display()
            );
        }
        Ok(Some(root))
    }

    /// Where it is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn libraries(&self) -> PathBuf {
        self.dir.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH))
    }

    /// Open MPI's version, `5.0.7`.
    ///
    /// # Errors
    /// There is none in it.
    pub(crate) fn version(&self) -> Result<String> {
        let file = self.libraries().join("openmpi/include/mpi.h");
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let number = |name: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix("#define ")?.strip_prefix(name));
            line.map(|rest| rest.trim().to_owned())
                .with_context(|| format!("{} has no {name}", file.display()))
        };
        let parts =
            ["OMPI_MAJOR_VERSION", "OMPI_MINOR_VERSION", "OMPI_RELEASE_VERSION"].map(number);
        let [major, minor, release] = parts;
        Ok(format!("{}.{}.{}", major?, minor?, release?))
    }

    /// Folders with the headers that Open MPI's own headers need.
    pub(crate) fn header_dirs(&self) -> Vec<PathBuf> {
        let libraries = self.libraries();
        vec![
            libraries.join("openmpi/include"),
            libraries.join("pmix2/include"),
            self.dir.join("usr/include"),
        ]
    }

    /// Compiles an MPI program that runs in this root, with this machine's compiler.
    pub(crate) fn compiler(&self, source: &Path, program: &Path) -> Command {
        let openmpi = self.libraries().join("openmpi");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-pthread", "-I"]).arg(openmpi.join("include"));
        cc.arg(source).arg("-o").arg(program);
        // The library's own needs are met where the program runs; the C library there is newer.
        cc.arg("-L").arg(openmpi.join("lib")).arg("-lmpi");
        if self.series == Series::V60 {
            cc.arg("-lopen_mpi");
        }
        cc.arg("-Wl,--allow-shlib-undefined");
        cc.arg("-Wl,--unresolved-symbols=ignore-in-shared-libs");
        cc
    }

    fn make(&self, folder: &Path, suite: &str) -> Result<()> {
        let room = rustix::fs::statvfs(folder)
            .map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
        if room < ROOM {
            bail!(
                "{} has {} MiB free and {} are needed; set XDG_CACHE_HOME to another disk",
                folder.display(),
                room >> 20,
                ROOM >> 20
            );
        }
        deps::ensure(&[Group::Roots])?;
        let mirror = debian_mirror().with_context(|| {
            format!("Open MPI {} is fetched from Debian {suite}", self.series.name())
        })?;
        ui::say(&format!(
            "fetching Open MPI {} from Debian {suite}, once; about 90 MiB",
            self.series.name()
        ));
        let start = Instant::now();
        // What was downloaded before an interruption is not downloaded again.
        let packages = folder.join(format!("packages-{suite}"));
        fs::create_dir_all(packages.join("partial"))?;
        let new = folder.join(format!("new-{suite}"));
        if new.exists() {
            fs::remove_dir_all(&new).with_context(|| format!("cannot remove {}", new.display()))?;
        }
        let source = format!("deb [signed-by={KEYRING}] {mirror} {suite} main");
        exec::output(&mut mmdebstrap(suite, &packages, &new, &source), LIMIT)
            .with_context(|| format!("cannot make a folder with Debian {suite}; try again"))?;
        tidy_up(&new)?;
        fs::rename(&new, &self.dir)
            .with_context(|| format!("cannot put it at {}", self.dir.display()))?;
        // Only a cache of what is unpacked now.
        let _ = fs::remove_dir_all(&packages);
        ui::say(&format!("made {} in {}", self.dir.display(), ui::seconds(start.elapsed())));
        Ok(())
    }
}

/// Of all that decides what is in a root.
fn recipe() -> String {
    let digest = Sha256::digest(format!("{PACKAGES}\n{HEADERS}\n{LINKS:?}\n{PRUNE:?}"));
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Unpacks the packages into `new`; downloads go to `packages` and stay there.
fn mmdebstrap(suite: &str, packages: &Path, new: &Path, source: &str) -> Command {
    let mut command = Command::new("mmdebstrap");
    // "chrootless" is what an ordinary user can do too; in the variant "extract" no script of a
    // package runs.
    command.args(["--mode=chrootless", "--variant=extract", "--format=directory"]);
    command.args(["--skip=download/empty,cleanup,essential/unlink,check/chrootless"]);
    for option in [
        r#"APT::Install-Recommends "false""#,
        r#"Acquire::Languages "none""#,
        r#"Acquire::Retries "3""#,
        // A mirror may lag; its signature is checked all the same.
        r#"Acquire::Check-Valid-Until "false""#,
        r#"APT::Sandbox::User "root""#,
    ] {
        command.arg(format!("--aptopt={option}"));
    }
    command.env("RDMA_SAFE_PACKAGES", packages).env("RDMA_SAFE_HEADERS", HEADERS);
    command.arg(concat!("--setup-hook=", include_str!("prepare.sh")));
    command.arg(concat!("--extract-hook=", include_str!("headers.sh")));
    command.arg(format!("--include={PACKAGES}")).arg(suite).arg(new).arg(source);
    command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Makes the links that scripts would have made, and removes what only takes room.
fn tidy_up(new: &Path) -> Result<()> {
    for (link, target) in LINKS {
        let link = new.join("usr/bin").join(link);
        if !link.exists() {
            symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))?;
        }
    }
    if !new.join("bin/sh").exists() {
        symlink("dash", new.join("usr/bin/sh")).context("cannot make sh")?;
    }
    for path in PRUNE.iter().map(|path| new.join(path)).filter(|path| path.exists()) {
        fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}
