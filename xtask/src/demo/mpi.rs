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
use crate::ompi::{Root, Series};
use crate::{cargo, exec, paths};

/// Sources of the programs.
const SOURCES: &str = "btl-ompi/tests/mpi";
/// Sources of those that need MPI 4.
const SOURCES_MPI4: &str = "btl-ompi/tests/mpi/mpi4";
/// Open MPI's parameter for where components are.
const COMPONENT_PATH: &str = "mca_base_component_path";
const COMPILE_LIMIT: Duration = Duration::from_secs(120);
/// For one job, unless the caller says otherwise.
const JOB_LIMIT: Duration = Duration::from_secs(180);

/// What is ready to run.
pub(crate) struct Programs {
    dir: PathBuf,
    mpirun: PathBuf,
    series: Series,
    root: Option<Root>,
    /// `4.1.4`.
    pub(crate) version: String,
}

impl Programs {
    /// Builds all of it for the Open MPI of a series into `target/mpi-SERIES`.
    ///
    /// # Errors
    /// No Open MPI of this series, or something does not build.
    pub(crate) fn build(series: Series) -> Result<Self> {
        deps::ensure(&[Group::Build])?;
        let dir = paths::target().join(format!("mpi-{}", series.name()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let root = Root::get(series)?;
        let (mpirun, version) = match &root {
            Some(root) => (PathBuf::from("/usr/bin/mpirun"), root.version()?),
            None => {
                deps::ensure(&[Group::Mpi])?;
                let mpi = OpenMpi::here_of(series)?;
                (mpi.tool("mpirun")?, mpi.version)
            }
        };
        let programs = Self { dir, mpirun, series, root, version };
        install::place(&cargo::build_btl(series)?, &programs.dir)?;
        programs.compile(SOURCES)?;
        if series != Series::V41 {
            programs.compile(SOURCES_MPI4)?;
        }
        Ok(programs)
    }

    /// Compiles every program of a folder.
    fn compile(&self, folder: &str) -> Result<()> {
        let sources = paths::root().join(folder);
        let entries = fs::read_dir(&sources)
            .with_context(|| format!("no MPI programs in {}", sources.display()))?;
        for source in entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|e| e == "c"))
        {
            let program = self.dir.join(source.file_stem().unwrap_or_default());
            let mut compile = match &self.root {
                Some(root) => root.compiler(&source, &program),
                None => {
                    let mut mpicc = Command::new(OpenMpi::here_of(self.series)?.tool("mpicc")?);
                    mpicc.args(["-O2", "-Wall", "-pthread", "-o"]).arg(&program).arg(&source);
                    mpicc
                }
            };
            exec::output(&mut compile, COMPILE_LIMIT)?;
        }
        Ok(())
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
        command.extend(["--mca", COMPONENT_PATH].map(Into::into));
        command.push(self.series.search_path(&self.dir).into());
        command.push(self.dir.join(program).into());
        command.extend(args.iter().map(Into::into));
        let mut job = Job::new(device, command, JOB_LIMIT)?;
        job.cwd.clone_from(&self.dir);
        self.place(&mut job);
        Ok(job)
    }

    /// Makes a job run on two hosts, half of the ranks on each.
    pub(crate) fn across(&self, job: &mut Job, ranks: u32) {
        let half = ranks / 2;
        let hosts = format!("hosta:{},hostb:{half}", ranks - half);
        let mut place = vec!["-H", &hosts];
        match self.series {
            // The launchers' own messages. Since 5.0 they find their way.
            Series::V41 => place.extend(["--mca", "oob_tcp_if_include", "10.9.0.0/24"]),
            // Where more ranks than processors are allowed, the first host would get all.
            Series::V50 | Series::V60 => place.extend(["--map-by", "node:oversubscribe"]),
        }
        let place: Vec<OsString> = place.into_iter().map(OsString::from).collect();
        job.command.splice(1..1, place);
        job.two_hosts = true;
    }

    /// Makes a job run where this Open MPI is.
    pub(crate) fn place(&self, job: &mut Job) {
        job.root = self.root.as_ref().map(|root| root.dir().to_path_buf());
        if job.root.is_some() {
            job.shared.push(self.dir.clone());
        }
    }

    /// Makes a job take the component in another folder.
    pub(crate) fn take_component_from(&self, job: &mut Job, dir: &Path) {
        let name = job.command.iter().position(|word| word == COMPONENT_PATH);
        if let Some(value) = name.and_then(|at| job.command.get_mut(at + 1)) {
            *value = self.series.search_path(dir).into();
        }
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
    let script = job.cwd.join("probe.sh");
    fs::write(&script, include_str!("probe.sh"))
        .with_context(|| format!("cannot write {}", script.display()))?;
    let mut command: Vec<OsString> =
        vec!["bash".into(), script.into(), name.into(), interval.into()];
    command.append(&mut job.command);
    job.command = command;
    Ok(())
}
