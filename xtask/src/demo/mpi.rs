//! The BTL and the MPI test programs, built here and run in the guest.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::deps::{self, Group};
use crate::guest::{Device, Job};
use crate::install::{self, OpenMpi};
use crate::{cargo, exec, paths};

/// Sources of the programs.
const SOURCES: &str = "btl-ompi/tests/mpi";
const COMPILE_LIMIT: Duration = Duration::from_secs(120);
/// For one job, unless the caller says otherwise.
const JOB_LIMIT: Duration = Duration::from_secs(180);

/// What is ready to run.
pub(crate) struct Programs {
    dir: PathBuf,
    mpirun: PathBuf,
    /// `4.1.4`.
    pub(crate) version: String,
}

impl Programs {
    /// Builds all of it into `target/mpi`.
    ///
    /// # Errors
    /// No supported Open MPI, or something does not build.
    pub(crate) fn build() -> Result<Self> {
        deps::ensure(&[Group::Build, Group::Mpi])?;
        let mpi = OpenMpi::supported_here()?;
        let tool = |name: &str| {
            let beside = mpi.info.with_file_name(name);
            if beside.exists() {
                Ok(beside)
            } else {
                paths::program(name).with_context(|| format!("there is no {name}"))
            }
        };
        let dir = paths::target().join("mpi");
        install::place(&cargo::build_btl()?, &dir)?;
        let sources = paths::root().join(SOURCES);
        let entries = fs::read_dir(&sources)
            .with_context(|| format!("no MPI programs in {}", sources.display()))?;
        for source in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "c"))
        {
            let program = dir.join(source.file_stem().unwrap_or_default());
            let mut compile = Command::new(tool("mpicc")?);
            compile.args(["-O2", "-Wall", "-o"]).arg(&program).arg(&source);
            exec::output(&mut compile, COMPILE_LIMIT)?;
        }
        Ok(Self { dir, mpirun: tool("mpirun")?, version: mpi.version })
    }

    /// A job that runs `program` over the BTLs `btl` (a list as Open MPI takes it) and nothing else.
    ///
    /// # Errors
    /// There is no current folder.
    pub(crate) fn job(
        &self,
        device: Device,
        ranks: u32,
        program: &str,
        args: &[&str],
        btl: &str,
    ) -> Result<Job> {
        let mut command: Vec<OsString> = vec![self.mpirun.clone().into()];
        command.extend(
            [
                "-np",
                &ranks.to_string(),
                "--mca",
                "pml",
                "ob1",
                "--mca",
                "osc",
                "^ucx",
                "--mca",
                "btl",
                btl,
            ]
            .map(Into::into),
        );
        command.extend(["--mca", "mca_base_component_path"].map(Into::into));
        command.push(install::search_path(&self.dir).into());
        command.push(self.dir.join(program).into());
        command.extend(args.iter().map(Into::into));
        let mut job = Job::new(device, command, JOB_LIMIT)?;
        job.cwd.clone_from(&self.dir);
        Ok(job)
    }

    /// Makes a job run on two hosts, half of the ranks on each.
    pub(crate) fn across(&self, job: &mut Job, ranks: u32) {
        let half = ranks / 2;
        let hosts = format!("hosta:{},hostb:{half}", ranks - half);
        let place =
            ["-H", &hosts, "--mca", "oob_tcp_if_include", "10.9.0.0/24"].map(OsString::from);
        job.command.splice(1..1, place);
        job.two_hosts = true;
    }

    /// The folder with the component and the programs.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Makes a job run under `probe.sh`, which watches RDMA device `name` meanwhile, every `interval`
/// seconds ("0": only before and after).
///
/// # Errors
/// The script cannot be written.
pub(crate) fn probe(job: &mut Job, name: &str, interval: &str) -> Result<()> {
    let dir = paths::target().join("mpi");
    let script = dir.join("probe.sh");
    fs::create_dir_all(&dir)
        .and_then(|()| fs::write(&script, include_str!("probe.sh")))
        .with_context(|| format!("cannot write {}", script.display()))?;
    let mut command: Vec<OsString> =
        vec!["bash".into(), script.into(), name.into(), interval.into()];
    command.append(&mut job.command);
    job.command = command;
    Ok(())
}
