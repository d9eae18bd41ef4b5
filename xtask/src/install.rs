//! `cargo xtask install-btl`: builds the BTL and puts it where Open MPI finds it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::deps::{self, Group};
use crate::{cargo, exec, paths, ui};

/// The file Open MPI looks for; cargo's own name for the library would be ignored.
pub(crate) const FILE: &str = "mca_btl_verbs.so";
/// The versions of Open MPI the component is built for.
const SUPPORTED: &str = "4.1.";
const QUICK: Duration = Duration::from_secs(60);

/// The versions of Open MPI the component is built for, for people.
pub(crate) fn supported_names() -> String {
    SUPPORTED.trim_end_matches('.').to_owned()
}

/// `cargo xtask install-btl …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder to put it in [default: ~/.openmpi/components, where Open MPI looks by itself]
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
    /// Whether the component is built for it.
    pub(crate) fn supported(&self) -> bool {
        self.version.starts_with(SUPPORTED)
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

    /// The one in the PATH, if the component is built for it.
    ///
    /// # Errors
    /// There is none, or it is of another version.
    pub(crate) fn supported_here() -> Result<Self> {
        let mpi = Self::here()?;
        if !mpi.supported() {
            bail!(
                "Open MPI {} ({}) is not supported: {FILE} is built for {SUPPORTED}x; put an Open MPI {SUPPORTED}x first in the PATH",
                mpi.version,
                mpi.info.display()
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
        let mut info = Command::new(&self.info);
        info.args(["--param", "btl", "verbs", "--level", "9", "--parsable"]);
        info.env("OMPI_MCA_mca_base_component_show_load_errors", "1");
        if let Some(dir) = extra {
            info.env("OMPI_MCA_mca_base_component_path", search_path(dir));
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

/// The value of `mca_base_component_path` that adds `dir`. It comes first, so that the component in
/// it is taken before an installed one; and a folder that cannot be opened ends Open MPI's search,
/// which the user's own (it may not exist) would do to what stands behind it.
pub(crate) fn search_path(dir: &Path) -> String {
    format!("{}:SYSTEM_DEFAULT:USER_DEFAULT", dir.display())
}

/// Builds, copies, and asks Open MPI whether it sees it.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    deps::ensure(&[Group::Build, Group::Mpi])?;
    let mpi = OpenMpi::supported_here()?;
    ui::say("building the BTL");
    let library = cargo::build_btl()?;
    let (dir, told) = match &args.dir {
        Some(dir) => (std::path::absolute(dir)?, false),
        None if args.system => (mpi.component_folder()?, true),
        None => (user_folder()?, true),
    };
    place(&library, &dir)?;
    let path = dir.join(FILE);
    if !mpi.finds_btl((!told).then_some(&*dir))? {
        bail!("{} is there, but Open MPI {} does not load it", path.display(), mpi.version);
    }
    println!("Installed {} for Open MPI {}. Run MPI programs with", path.display(), mpi.version);
    let extra = if told {
        String::new()
    } else {
        format!("--mca mca_base_component_path {} ", search_path(&dir))
    };
    println!("    mpirun {extra}--mca pml ob1 --mca osc ^ucx --mca btl self,verbs …");
    println!("(`self,vader,verbs` lets processes of one node use shared memory).");
    println!("Every node needs the file. To remove it: rm {}", path.display());
    Ok(ExitCode::SUCCESS)
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
