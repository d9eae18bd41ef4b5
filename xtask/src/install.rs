//! `cargo xtask install-btl`: builds the BTL and puts it where Open MPI finds it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::deps::{self, Group};
use crate::ompi::Series;
use crate::{cargo, exec, paths, ui};

/// The file Open MPI looks for; cargo's own name for the library would be ignored.
pub(crate) const FILE: &str = "mca_btl_verbs.so";
const QUICK: Duration = Duration::from_secs(60);

/// `cargo xtask install-btl …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to put it in [default: ~/.openmpi/components]
    #[arg(long, value_name = "DIR", conflicts_with = "system")]
    dir: Option<PathBuf>,
    /// Into Open MPI's own folder, for all users (needs the right to write there)
    #[arg(long)]
    system: bool,
}

/// An installation of Open MPI.
pub(crate) struct OpenMpi {
    /// Its `ompi_info`.
    pub(crate) info: PathBuf,
    /// `4.1.4`.
    pub(crate) version: String,
}

impl OpenMpi {
    /// Its series; `None` if there is no component for it.
    pub(crate) fn series(&self) -> Option<Series> {
        Series::of(&self.version)
    }

    /// One of its programs: beside `ompi_info`, else in the PATH.
    ///
    /// # Errors
    /// There is no such program.
    pub(crate) fn tool(&self, name: &str) -> Result<PathBuf> {
        let beside = self.info.with_file_name(name);
        if beside.exists() {
            return Ok(beside);
        }
        paths::program(name).with_context(|| format!("there is no {name}"))
    }

    /// Asks `ompi_info`.
    ///
    /// # Errors
    /// It does not run or answers something else than a version.
    pub(crate) fn at(info: PathBuf) -> Result<Self> {
        let text = exec::output(Command::new(&info).arg("--version"), QUICK)?;
        let version = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix('v'))
            .unwrap_or_default()
            .to_owned();
        if version.is_empty() {
            bail!("{} tells no version", info.display());
        }
        Ok(Self { info, version })
    }

    /// The one in the PATH, which `mpirun` and `mpicc` belong to.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn here() -> Result<Self> {
        let info = paths::program("ompi_info").context(
            "no Open MPI in the PATH (no ompi_info); Fedora and SUSE need `module load mpi/openmpi-x86_64` or the like first",
        )?;
        Self::at(info)
    }

    /// The one in the PATH, and its series.
    ///
    /// # Errors
    /// There is none, or there is no component for it.
    pub(crate) fn supported_here() -> Result<(Self, Series)> {
        let mpi = Self::here()?;
        match mpi.series() {
            Some(series) => Ok((mpi, series)),
            None => bail!(
                "Open MPI {} ({}) is not supported: there is a {FILE} for {}; put one of these first in the PATH",
                mpi.version,
                mpi.info.display(),
                Series::names()
            ),
        }
    }

    /// The one in the PATH, if it is of this series.
    ///
    /// # Errors
    /// There is none, or it is of another series.
    pub(crate) fn here_of(series: Series) -> Result<Self> {
        let mpi = Self::here()?;
        if mpi.series() != Some(series) {
            bail!(
                "Open MPI {} is needed, and {} is {}; put the other one first in the PATH",
                series.name(),
                mpi.info.display(),
                mpi.version
            );
        }
        Ok(mpi)
    }

    /// Where its own components are.
    pub(crate) fn component_folder(&self) -> Result<PathBuf> {
        let text = exec::output(
            Command::new(&self.info).args(["--path", "pkglibdir", "--parsable"]),
            QUICK,
        )?;
        let folder = text
            .lines()
            .find_map(|line| line.strip_prefix("path:pkglibdir:"))
            .map(|folder| folder.trim().to_owned());
        folder.map(PathBuf::from).context("ompi_info does not tell where Open MPI's components are")
    }

    /// Whether it finds the component `verbs`, looking in `extra` too.
    pub(crate) fn finds_btl(&self, extra: Option<&Path>) -> Result<bool> {
        let series = self.series().unwrap_or(Series::V41);
        let mut info = Command::new(&self.info);
        info.args(["--param", "btl", "verbs", "--level", "9", "--parsable"]);
        let show = if series == Series::V41 { "1" } else { "all" };
        info.env("OMPI_MCA_mca_base_component_show_load_errors", show);
        if let Some(dir) = extra {
            info.env("OMPI_MCA_mca_base_component_path", series.search_path(dir));
        }
        let got = exec::capture(&mut info, QUICK)?;
        if got.stdout.lines().any(|line| line.starts_with("mca:btl:verbs:")) {
            return Ok(true);
        }
        let said: Vec<&str> = got
            .stderr
            .lines()
            .chain(got.stdout.lines())
            .filter(|line| line.contains("btl_verbs"))
            .collect();
        if !said.is_empty() {
            ui::say(&format!("Open MPI says: {}", said.join(" ")));
        }
        Ok(false)
    }
}

/// Builds, copies, and asks Open MPI whether it sees it.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    deps::ensure(&[Group::Build, Group::Mpi])?;
    let (mpi, series) = OpenMpi::supported_here()?;
    ui::say(&format!("building the BTL for Open MPI {}", series.name()));
    let library = cargo::build_btl(series)?;
    let (dir, known) = match &args.dir {
        Some(dir) => (std::path::absolute(dir)?, false),
        None if args.system => (mpi.component_folder()?, true),
        None => (user_folder()?, true),
    };
    place(&library, &dir)?;
    let path = dir.join(FILE);
    if !mpi.finds_btl((!known).then_some(&*dir))? {
        bail!("{} is there, but Open MPI {} does not load it", path.display(), mpi.version);
    }
    println!("Installed {} for Open MPI {}. Run MPI programs with", path.display(), mpi.version);
    println!("    {} …", command_line(series, (!known).then_some(&*dir), &dir));
    println!(
        "(`self,{},verbs` lets processes of one node use shared memory).",
        series.shared_memory()
    );
    println!("Every node needs the file. To remove it: rm {}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// How to run programs over the component in `dir`, which is `elsewhere` if Open MPI does not look
/// there by itself.
fn command_line(series: Series, elsewhere: Option<&Path>, dir: &Path) -> String {
    let mut words = vec!["mpirun".to_owned()];
    if elsewhere.is_some() || series.launcher_hides_folders() {
        words.push(format!("--mca mca_base_component_path {}", series.search_path(dir)));
    }
    words.push("--mca pml ob1".to_owned());
    if series == Series::V41 {
        words.push("--mca osc ^ucx".to_owned());
    }
    words.push("--mca btl self,verbs".to_owned());
    words.join(" ")
}

/// Where Open MPI looks for a user's own components.
pub(crate) fn user_folder() -> Result<PathBuf> {
    Ok(paths::home()
        .context("no home folder (HOME is not set): say where to put it with --dir")?
        .join(".openmpi/components"))
}

/// Puts `library` into `dir` under the name Open MPI looks for; at no time is there half a file.
pub(crate) fn place(library: &Path, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let new = dir.join(format!(".{FILE}.new"));
    let put = fs::copy(library, &new).and_then(|_| fs::rename(&new, dir.join(FILE)));
    put.with_context(|| {
        format!("cannot write {} (with --system, run it as root)", dir.join(FILE).display())
    })
}
