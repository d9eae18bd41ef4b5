//! The machine for tests and demos: one with soft iWARP (siw) and RoCE (rxe) devices.

mod job;
mod kernel;
mod native;
mod source;
mod uml;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Subcommand, ValueEnum};

pub(crate) use job::{Job, Outcome, Sink};
pub(crate) use source::{KEYRING, debian_mirror};

use crate::{exec, ui};

/// `cargo xtask guest …`.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Run a command there; its output and exit status come through (124: it ran too long, 125: the guest failed)
    Run(RunArgs),
    /// Open a shell there
    Shell(MachineArgs),
    /// Build the User-Mode Linux kernel if there is none yet, and print where it is
    Kernel(kernel::Args),
}

/// Which machine, and what is in it.
#[derive(clap::Args, Clone)]
pub(crate) struct MachineArgs {
    /// The kind of machine [default: the first that works here]
    #[arg(long, value_enum)]
    guest: Option<Kind>,
    /// Which soft devices: siw0 (iWARP) on v0, 10.77.0.1; rxe0 (RoCE) on w0, 10.78.0.1
    #[arg(long, value_enum, default_value = "both")]
    device: Device,
    /// Two hosts instead of one, joined by a cable: `hosta` (10.9.0.1; siwa or rxea), where the command runs, and `hostb`
    /// (10.9.0.2; siwb or rxeb). `on-host hostb CMD` runs something there, and is an rsh agent for mpirun
    #[arg(long)]
    two_hosts: bool,
    /// Processors of a uml guest [default: this machine's, at most 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=8))]
    cpus: Option<u32>,
    /// Memory of a uml guest in MiB
    #[arg(long, default_value_t = 3072, value_parser = clap::value_parser!(u32).range(128..))]
    mem: u32,
    /// A folder in which the guest's writes are real; elsewhere a uml guest changes nothing [repeatable]
    #[arg(long, value_name = "DIR")]
    rw: Vec<PathBuf>,
}

/// `guest run`.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    machine: MachineArgs,
    /// Seconds after which the command is ended
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Write the guest kernel's log here
    #[arg(long, value_name = "FILE")]
    klog: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// A kind of machine.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// This machine itself: needs root and the kernel modules siw and rdma_rxe
    Native,
    /// A User-Mode Linux kernel: an ordinary process of an ordinary user
    Uml,
    /// Not supported yet
    Qemu,
}

/// The soft devices of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Device {
    /// iWARP
    Siw,
    /// RoCE
    Rxe,
    /// One of each
    Both,
    /// Only the network devices
    None,
}

impl Device {
    /// Its name on the command line and in the guest's scripts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Siw => "siw",
            Self::Rxe => "rxe",
            Self::Both => "both",
            Self::None => "none",
        }
    }
}

/// The guest itself failed, not what ran in it.
#[derive(Debug)]
pub(crate) struct GuestFailed {
    why: String,
    /// Everything that the command and the kernel had said.
    pub(crate) said: String,
}

impl GuestFailed {
    fn new(why: impl Into<String>, said: impl Into<String>) -> Self {
        Self { why: why.into(), said: said.into() }
    }
}

impl std::fmt::Display for GuestFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the guest failed: {}", self.why)
    }
}

impl std::error::Error for GuestFailed {}

/// A machine that was found to work, or is believed to.
pub(crate) enum Machine {
    /// This one.
    Native,
    /// User-Mode Linux with this kernel.
    Uml(kernel::Kernel),
}

impl Machine {
    /// Takes the kind asked for, else the first of native and uml that works here; a missing kernel is built.
    ///
    /// # Errors
    /// The kind asked for does not work here, with the reason; or there is no kernel and none can be built.
    pub(crate) fn choose(kind: Option<Kind>, device: Device) -> Result<Self> {
        let uml = |why: &str| -> Result<Self> {
            let kernel = kernel::find_or_build()?;
            ui::say(&format!("guest: uml, {kernel}{why}"));
            Ok(Self::Uml(kernel))
        };
        // Without a choice of devices the command may want to make either.
        let devices = if kind.is_none() && device == Device::None { Device::Both } else { device };
        match (kind, native::usable(devices)) {
            (Some(Kind::Qemu), _) => {
                bail!("--guest qemu is not supported yet: use --guest uml or --guest native")
            }
            (Some(Kind::Uml), _) => uml(""),
            (Some(Kind::Native), Err(why)) => bail!("--guest native does not work here: {why}"),
            (Some(Kind::Native) | None, Ok(())) => {
                ui::say("guest: native, this machine itself");
                Ok(Self::Native)
            }
            (None, Err(why)) => uml(&format!(" (not native: {why})")),
        }
    }

    /// Runs one job to its end.
    ///
    /// # Errors
    /// [`GuestFailed`], or xtask was interrupted. How the job's command ended is in the outcome.
    pub(crate) fn run(&self, job: &Job, sink: Sink) -> Result<Outcome> {
        match self {
            Self::Native => native::run(job, sink),
            Self::Uml(kernel) => uml::run(kernel, job, sink),
        }
    }
}

/// What would be chosen, for `doctor`: builds nothing.
pub(crate) fn forecast() -> String {
    match native::usable(Device::Both) {
        Ok(()) => "native: this machine itself".to_owned(),
        Err(why) => match kernel::find() {
            Ok(Some(kernel)) => format!("uml: {kernel} (not native: {why})"),
            Ok(None) => {
                format!("uml: its kernel would be built first, in some minutes (not native: {why})")
            }
            Err(error) => format!("none: {error:#}"),
        },
    }
}

/// Carries out `cargo xtask guest …`.
pub(crate) fn run_verb(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Kernel(args) => {
            println!("{}", kernel::run(&args)?.path.display());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Run(args) => {
            let limit = Duration::from_secs(args.timeout);
            let job = args.machine.job(args.command, limit)?;
            let outcome = args.machine.start()?.run(&job, Sink::Pass)?;
            if let Some(file) = &args.klog {
                std::fs::write(file, &outcome.klog)
                    .with_context(|| format!("cannot write {}", file.display()))?;
            }
            if outcome.code == 124 {
                ui::say(&format!("the command was ended after {} s (--timeout)", args.timeout));
            }
            Ok(ExitCode::from(u8::try_from(outcome.code).unwrap_or(1)))
        }
        Verb::Shell(machine) => {
            let mut job = machine.job(Vec::new(), Duration::MAX)?;
            job.shell = true;
            let outcome = machine.start()?.run(&job, Sink::Terminal)?;
            Ok(ExitCode::from(u8::try_from(outcome.code).unwrap_or(1)))
        }
    }
}

impl MachineArgs {
    fn start(&self) -> Result<Machine> {
        crate::deps::ensure(&[crate::deps::Group::Guest])?;
        Machine::choose(self.guest, self.device)
    }

    fn job(&self, command: Vec<OsString>, limit: Duration) -> Result<Job> {
        let mut job = Job::new(self.device, command, limit)?;
        job.two_hosts = self.two_hosts;
        job.cpus = self.cpus.unwrap_or(job.cpus);
        job.mem_mib = self.mem;
        for dir in &self.rw {
            job.rw.push(job::writable_folder(dir)?);
        }
        Ok(job)
    }
}

/// What shows in a kernel's log that it is in trouble, whatever ran on it.
pub(crate) const KERNEL_TROUBLE: &[&str] = &[
    "WARNING:",
    "BUG:",
    "Oops",
    "blocked for more than",
    "Kernel panic",
    "soft lockup",
    "detected stall",
    "kthread starved",
    "timer wakeup didn't happen",
];

/// The lines of a kernel's log that tell most, for messages: those from its first trouble on, and the last.
fn tail(log: &str, lines: usize) -> String {
    let all: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = all.len().saturating_sub(lines);
    let trouble = all.iter().position(|line| KERNEL_TROUBLE.iter().any(|word| line.contains(word)));
    let Some(first) = trouble.filter(|first| *first < last) else {
        return all[last..].join("\n");
    };
    let upto = (first + lines).min(all.len());
    let last = all.len().saturating_sub(lines / 4).max(upto);
    let mut told = all[first..upto].to_vec();
    if last > upto {
        told.push("…");
    }
    told.extend(&all[last..]);
    told.join("\n")
}

/// Host limit of a job: its own and what start and end may take.
fn outer_limit(limit: Duration) -> Duration {
    limit.saturating_add(Duration::from_secs(60))
}

/// How long `exec` waits for small helpers.
const QUICK: Duration = Duration::from_secs(20);

/// The first line that `command` prints, if it succeeds.
fn first_line(command: &mut std::process::Command) -> Option<String> {
    let text = exec::output(command, QUICK).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::tail;

    #[test]
    fn a_message_begins_at_the_first_trouble_of_a_kernel_and_has_its_end() {
        let quiet: Vec<String> = (0..50).map(|n| format!("line {n}")).collect();
        assert_eq!(tail(&quiet.join("\n"), 20), quiet[30..].join("\n"));
        let mut sick = quiet;
        sick[10] = "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:".to_owned();
        let told = tail(&sick.join("\n"), 20);
        let told: Vec<&str> = told.lines().collect();
        assert_eq!(told.len(), 26);
        assert_eq!((told[0], told[19], told[20]), (sick[10].as_str(), "line 29", "…"));
        assert_eq!((told[21], told[25]), ("line 45", "line 49"));
        sick[40] = "BUG: later".to_owned();
        assert_eq!(tail(&sick[35..].join("\n"), 20), sick[35..].join("\n"));
    }
}
