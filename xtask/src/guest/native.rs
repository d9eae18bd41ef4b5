//! The guest that is no guest: soft devices on this machine itself, by root, removed at the end.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::job::{self, Job, Outcome, Pumps, Sink};
use super::{Device, GuestFailed, outer_limit};
use crate::{exec, paths};

/// Soft devices work inside a network namespace from this kernel on (rxe's sockets are in the first one before).
const NAMESPACES_SINCE: u32 = 7;

/// Whether `device` can be made here, else why not. Changes nothing.
pub(super) fn usable(device: Device) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("not root".to_owned());
    }
    let modules: &[(&str, &str)] = match device {
        Device::Siw => &[("siw", "CONFIG_RDMA_SIW")],
        Device::Rxe => &[("rdma_rxe", "CONFIG_RDMA_RXE")],
        Device::Both => &[("siw", "CONFIG_RDMA_SIW"), ("rdma_rxe", "CONFIG_RDMA_RXE")],
        Device::None => &[],
    };
    for (module, option) in modules {
        if !available(module) {
            return Err(format!("this kernel has no module {module} ({option})"));
        }
    }
    Ok(())
}

/// Loaded or built in, or modprobe would find it.
fn available(module: &str) -> bool {
    let dry_run = || {
        exec::capture(Command::new("modprobe").args(["--dry-run", "--quiet", module]), super::QUICK)
    };
    Path::new("/sys/module").join(module).exists()
        || (paths::program("modprobe").is_some() && dry_run().is_ok_and(|got| got.code == 0))
}

/// Makes the devices, runs `job`, removes them.
pub(super) fn run(job: &Job, sink: Sink) -> Result<Outcome> {
    let own_net = kernel_major().is_some_and(|major| major >= NAMESPACES_SINCE);
    let mark = format!("rdma-safe guest run {}", std::process::id());
    let dir = job.prepare(&format!("MARK='{mark}'"))?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "unshare", "--mount", "--uts"]);
    if own_net {
        command.arg("--net");
    }
    command.args(["--", "bash"]).arg(dir.path().join("native")).arg(dir.path());
    for module in ["siw", "rdma_rxe"] {
        // What is missing shows when its device is made.
        let _ = exec::capture(Command::new("modprobe").args(["--quiet", module]), super::QUICK);
    }
    let (ended, [stdout, stderr]) = if sink == Sink::Terminal {
        let mut child = command.spawn().context("cannot run setpriv")?;
        (exec::wait(&mut child, Duration::MAX)?, Default::default())
    } else {
        let mut child = exec::spawn(
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()),
        )?;
        let pumps = Pumps::start(&mut child, sink);
        (exec::wait(&mut child, outer_limit(job.limit))?, pumps.finish())
    };
    if matches!(ended, exec::Ended::TimedOut) {
        let why = "the run on this machine did not end in time and was killed";
        return Err(GuestFailed::new(why, format!("{stdout}\n{stderr}")).into());
    }
    let klog = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    let code = job::read_result(dir.path(), &stderr)
        .map_err(|why| GuestFailed::new(why, job::said(&stdout, &stderr, &klog)))?;
    Ok(Outcome { code, stdout, stderr, klog })
}

fn kernel_major() -> Option<u32> {
    fs::read_to_string("/proc/sys/kernel/osrelease").ok()?.split('.').next()?.parse().ok()
}
