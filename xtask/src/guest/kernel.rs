//! The User-Mode Linux kernel: named by the user, cached, or built.

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::{first_line, source};
use crate::{deps, exec, paths, turn, ui};

/// The kernel's configuration, on top of `allnoconfig`.
const FRAGMENT: &str = include_str!("kernel.config");
/// What `make` prints for this configuration of Linux 7.2, in lines; only the progress bar depends on it.
const BUILD_LINES: u64 = 1420;
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// `guest kernel`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build from this kernel source (7.0 or newer) instead of Debian's newest
    #[arg(long, value_name = "TARBALL|DIR")]
    source: Option<PathBuf>,
    /// Build even if there is one already
    #[arg(long)]
    force: bool,
}

/// A kernel that answered to `--version`.
pub(crate) struct Kernel {
    pub(crate) path: PathBuf,
    version: String,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Linux {} ({})", self.version, self.path.display())
    }
}

/// Carries out `guest kernel`.
pub(crate) fn run(args: &Args) -> Result<Kernel> {
    if args.force || args.source.is_some() {
        return build(args.source.as_deref(), true);
    }
    find_or_build()
}

/// The kernel that `RDMA_GUEST_KERNEL` names, else a cached one, else a new one from Debian's newest source.
///
/// # Errors
/// As [`find`], or the build failed.
pub(crate) fn find_or_build() -> Result<Kernel> {
    match find()? {
        Some(kernel) => Ok(kernel),
        None => build(None, false),
    }
}

/// The kernel that `RDMA_GUEST_KERNEL` names, else a cached one of this configuration.
///
/// # Errors
/// The variable is set but names no User-Mode Linux kernel that this user can run.
pub(crate) fn find() -> Result<Option<Kernel>> {
    if let Some(path) =
        env::var_os("RDMA_GUEST_KERNEL").filter(|path| !path.is_empty()).map(PathBuf::from)
    {
        let kernel = named(&path).with_context(|| {
            format!(
                "RDMA_GUEST_KERNEL={} (unset it to have a kernel built, or name another)",
                path.display()
            )
        })?;
        return Ok(Some(kernel));
    }
    let Ok(entries) = fs::read_dir(folder()?) else { return Ok(None) };
    let suffix = format!("-{}", config_hash());
    let cached = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(&suffix));
    Ok(cached.filter_map(|path| named(&path).ok()).max_by_key(|kernel| numbers(&kernel.version)))
}

fn named(path: &Path) -> Result<Kernel> {
    let path = fs::canonicalize(path).context("cannot be read")?;
    if !path.is_file() {
        bail!("is not a file");
    }
    if !paths::is_executable(&path) {
        bail!("is not executable by this user");
    }
    let version = first_line(Command::new(&path).arg("--version"));
    match version.filter(|version| version.starts_with(|c: char| c.is_ascii_digit())) {
        Some(version) if numbers(&version) >= source::OLDEST => Ok(Kernel { path, version }),
        Some(version) => bail!("is Linux {version}; 7.0 or newer is needed"),
        None => bail!("is not a User-Mode Linux kernel (`--version` prints no version)"),
    }
}

/// `7.2.13` → (7, 2, 13).
pub(super) fn numbers(version: &str) -> (u32, u32, u32) {
    let mut parts =
        version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

fn folder() -> Result<PathBuf> {
    let dir = paths::cache()?.join("guest");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// Of all that decides what is built, but the source.
fn config_hash() -> String {
    let digest = Sha256::digest(format!("{}\n{FRAGMENT}", env::consts::ARCH));
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

/// Builds a kernel into the cache. Several at a time take turns; `force` says whether a kernel that another one has built
/// meanwhile will not do.
fn build(from: Option<&Path>, force: bool) -> Result<Kernel> {
    if env::consts::ARCH != "x86_64" {
        bail!(
            "User-Mode Linux runs on x86_64 only, this machine is {}; use --guest native",
            env::consts::ARCH
        );
    }
    let folder = folder()?;
    let _turn = turn::take(&folder, "builds the kernel", BUILD_LIMIT)?;
    if !force && let Some(kernel) = find()? {
        return Ok(kernel);
    }
    ui::say("the guest's kernel is built once and then kept, in some minutes");
    deps::ensure(&[deps::Group::Kernel])?;
    let start = Instant::now();
    let scratch = tempfile::Builder::new()
        .prefix("build-")
        .tempdir_in(&folder)
        .context("no folder to build in")?;
    let source = source::get(from, scratch.path())?;
    let built = compile(&source, &scratch.path().join("out"))?;
    let path = folder.join(format!("linux-{}-{}", source.version, config_hash()));
    fs::set_permissions(&built, fs::Permissions::from_mode(0o755))?;
    fs::rename(&built, &path)
        .with_context(|| format!("cannot put the kernel at {}", path.display()))?;
    let kernel = named(&path).context("the kernel that was built does not run here")?;
    ui::say(&format!("built {kernel} in {}", ui::seconds(start.elapsed())));
    Ok(kernel)
}

/// Configures and compiles; returns the stripped kernel.
fn compile(source: &source::Source, out: &Path) -> Result<PathBuf> {
    fs::create_dir_all(out)?;
    let fragment = out.join("fragment");
    fs::write(&fragment, FRAGMENT)?;
    let make = || {
        let mut make = Command::new("make");
        for name in [
            "MAKEFLAGS",
            "MFLAGS",
            "CROSS_COMPILE",
            "KBUILD_OUTPUT",
            "KCONFIG_CONFIG",
            "ARCH",
            "CC",
            "CFLAGS",
            "LDFLAGS",
        ] {
            make.env_remove(name);
        }
        make.args(["--directory"])
            .arg(&source.dir)
            .arg(format!("O={}", out.display()))
            .arg("ARCH=um");
        make.env("KBUILD_BUILD_USER", "xtask").env("KBUILD_BUILD_HOST", "guest").env("LC_ALL", "C");
        make.stdin(Stdio::null());
        make
    };
    let mut configure = make();
    configure
        .arg("--silent")
        .arg(format!("KCONFIG_ALLCONFIG={}", fragment.display()))
        .arg("allnoconfig");
    exec::output(&mut configure, BUILD_LIMIT).context("cannot configure the kernel")?;
    check_config(
        &fs::read_to_string(out.join(".config")).context("the kernel has no configuration")?,
    )?;
    let jobs = thread::available_parallelism().map_or(2, std::num::NonZero::get);
    follow(make().arg(format!("--jobs={jobs}")).arg("linux"), &out.join("log"))?;
    let stripped = out.join("linux.stripped");
    let strip = Command::new("strip").arg("-o").arg(&stripped).arg(out.join("linux")).status();
    if !strip.is_ok_and(|status| status.success()) {
        fs::copy(out.join("linux"), &stripped).context("the build left no kernel")?;
    }
    Ok(stripped)
}

/// Kconfig drops silently what it does not know or what lacks something.
fn check_config(config: &str) -> Result<()> {
    let missing: Vec<&str> = FRAGMENT
        .lines()
        .filter(|line| line.starts_with("CONFIG_") && !config.lines().any(|have| have == *line))
        .collect();
    if !missing.is_empty() {
        bail!(
            "this kernel source does not take these options: {}; give another one with --source",
            missing.join(" ")
        );
    }
    Ok(())
}

/// Runs `make` with a progress bar for its lines; its output goes to `log`.
fn follow(make: &mut Command, log: &Path) -> Result<()> {
    let errors = File::create(log).context("no build log")?;
    let mut child = exec::spawn(make.stdout(Stdio::piped()).stderr(errors))?;
    let lines = child.stdout.take();
    let counter = thread::spawn(move || {
        let mut progress = ui::Progress::new("building the guest's kernel", BUILD_LINES);
        for line in lines.into_iter().flat_map(|out| BufReader::new(out).lines()) {
            if line.is_ok_and(|line| line.starts_with("  ")) {
                progress.step();
            }
        }
        progress.finish()
    });
    let ended = exec::wait(&mut child, BUILD_LIMIT)?;
    // The counter ends when make closes its output.
    let _ = counter.join();
    match ended {
        exec::Ended::Status(status) if status.success() => Ok(()),
        exec::Ended::TimedOut => {
            bail!("the kernel build did not end within {}", ui::seconds(BUILD_LIMIT))
        }
        exec::Ended::Status(status) => {
            bail!(
                "the kernel build failed ({status}):\n{}",
                super::tail(&fs::read_to_string(log).unwrap_or_default(), 20)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("7.10.1") > numbers("7.9.13"));
        assert!(numbers("6.12") < source::OLDEST);
        assert_eq!(numbers("7.2"), (7, 2, 0));
    }

    #[test]
    fn a_dropped_option_is_noticed() {
        assert!(check_config(FRAGMENT).is_ok());
        let error =
            check_config(&FRAGMENT.replace("CONFIG_RDMA_SIW=y", "# off")).expect_err("siw is gone");
        assert!(error.to_string().contains("CONFIG_RDMA_SIW=y"));
    }
}
