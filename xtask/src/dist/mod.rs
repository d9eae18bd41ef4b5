//! `cargo xtask dist`: for each series of Open MPI an archive with the component, for the administrator
//! of a site.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::deps::{self, Group};
use crate::ompi::Series;
use crate::{cargo, exec, install, paths, ui};

const LIMIT: Duration = Duration::from_secs(120);
/// Values for devices, as they are built into the component.
const PARAMS: &str = "btl-ompi/mca-btl-verbs-device-params.ini";
/// Taken over as they are.
const COPIED: &[&str] = &[PARAMS, "LICENSE-MIT", "LICENSE-APACHE"];

/// `cargo xtask dist …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For this series of Open MPI [repeatable; default: all]
    #[arg(long, value_enum, value_name = "SERIES")]
    ompi: Vec<Series>,
    /// The folder to put the archives in [default: target/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Builds and packs, and prints the archives' names with their checksums.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    deps::ensure(&[Group::Build])?;
    let wanted = if args.ompi.is_empty() { Series::ALL.to_vec() } else { args.ompi.clone() };
    let out = args.out.clone().unwrap_or_else(|| paths::target().join("dist"));
    for series in wanted {
        ui::say(&format!("building the BTL for Open MPI {}", series.name()));
        let library = cargo::build_btl_for_others(series)?;
        let archive = pack(series, &library, &out)?;
        let sum = exec::output(Command::new("sha256sum").arg(&archive), LIMIT)?;
        print!("{sum}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Packs a component with all that belongs to it into `out`; returns the archive. The same component
/// gives the same archive, byte for byte, of the same commit.
///
/// # Errors
/// A file is missing or cannot be written.
pub(crate) fn pack(series: Series, library: &Path, out: &Path) -> Result<PathBuf> {
    let name = name_of(series);
    let stage = tempfile::tempdir().context("no temporary folder")?;
    let dir = stage.path().join(&name);
    fs::create_dir_all(&dir)?;
    let component = dir.join(install::FILE);
    let mut strip = Command::new("strip");
    strip
        .args(["--strip-unneeded", "--remove-section=.comment", "-o"])
        .arg(&component)
        .arg(library);
    exec::output(&mut strip, LIMIT)?;
    for path in COPIED {
        let from = paths::root().join(path);
        let to = dir.join(from.file_name().unwrap_or_default());
        fs::copy(&from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    for (file, text, mode) in [
        ("README", filled(include_str!("README.txt"), series, "DIR")?, 0o644),
        ("install", filled(include_str!("install.sh"), series, "$folder")?, 0o755),
    ] {
        let path = dir.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    fs::set_permissions(&component, fs::Permissions::from_mode(0o644))?;
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let archive = out.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&archive).arg("--directory").arg(stage.path());
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"]);
    tar.args(["--mode=u+rw,go+r,go-w", "--use-compress-program=gzip --no-name --best"]);
    tar.arg(format!("--mtime=@{}", commit_time()?)).arg(&name);
    exec::output(&mut tar, LIMIT)?;
    Ok(archive)
}

/// The name of an archive without its ending, and of the folder in it.
pub(crate) fn name_of(series: Series) -> String {
    format!(
        "mca-btl-verbs-{}-openmpi-{}-{}",
        env!("CARGO_PKG_VERSION"),
        series.name(),
        env::consts::ARCH
    )
}

/// Seconds since 1970 that all files carry: those of the commit, or what `SOURCE_DATE_EPOCH` says.
fn commit_time() -> Result<u64> {
    if let Ok(epoch) = env::var("SOURCE_DATE_EPOCH") {
        return epoch.parse().context("SOURCE_DATE_EPOCH is no number");
    }
    let mut git = Command::new("git");
    git.current_dir(paths::root()).args(["log", "-1", "--format=%ct"]);
    let text = exec::output(&mut git, LIMIT).context("set SOURCE_DATE_EPOCH outside of git")?;
    text.trim().parse().context("git log printed no time")
}

/// A template with what belongs to the series; `folder` stands for where the component is.
fn filled(text: &str, series: Series, folder: &str) -> Result<String> {
    let old = series == Series::V41;
    let elsewhere = match series.launcher_hides_folders() {
        true => format!("--mca mca_base_component_path {folder} "),
        false => String::new(),
    };
    let note = match series.launcher_hides_folders() {
        true => {
            "\nDIR is the folder that the component was installed into: programs that the mpirun of this series starts look\n\
             for components only where they are told. PMIx then says that the file \"has bad prefix\", which is harmless.\n\n"
        }
        false => "\n",
    };
    let mut text = text.to_owned();
    for (name, value) in [
        ("@SERIES@", series.name()),
        ("@VERSION@", env!("CARGO_PKG_VERSION")),
        ("@ARCH@", env::consts::ARCH),
        ("@GLIBC@", &glibc()?),
        ("@SHOW@", if old { "1" } else { "all" }),
        ("@SM@", series.shared_memory()),
        ("@OSC@", if old { "--mca osc ^ucx " } else { "" }),
        ("@ELSEWHERE@", &*elsewhere),
        ("@NOTE@\n", note),
    ] {
        text = text.replace(name, value);
    }
    match text.lines().find(|line| line.contains('@')) {
        Some(line) => bail!("a place was not filled: {line}"),
        None => Ok(text),
    }
}

/// `2.36`.
fn glibc() -> Result<String> {
    let text = exec::output(Command::new("getconf").arg("GNU_LIBC_VERSION"), LIMIT)?;
    Ok(text.trim().trim_start_matches("glibc ").to_owned())
}
