//! The guest as a User-Mode Linux process: needs no root, no KVM and no disk image.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::job::{self, Job, Outcome, Pumps, Sink};
use super::kernel::Kernel;
use super::{GuestFailed, outer_limit, tail};
use crate::{exec, paths, ui};

/// A guest whose command has ended and whose output has left powers off in a moment, but for one fault of its kernel:
/// `kill_off_processes` (arch/um/kernel/reboot.c) kills and reaps the host processes behind the guest's, and a task that is
/// scheduled after that waits for ever for its own (the futex wait of arch/um/os-Linux/skas/process.c: SIGCHLD finds
/// nothing to reap, so nobody wakes it). Nothing is lost with such a guest.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(5);

/// Boots `kernel`, runs `job` in it, and waits until it has gone.
pub(super) fn run(kernel: &Kernel, job: &Job, sink: Sink) -> Result<Outcome> {
    let size = if sink == Sink::Terminal { terminal_size() } else { String::new() };
    let dir = job.prepare(&format!("SIZE='{size}'"))?;
    let work = job::plain(dir.path())?;
    // The console tty0 is the kernel's log, on stdout. tty1 and tty2 get descriptors of their own: the kernel changes their modes.
    let redirect =
        r#"exec 3>&1 4>&2 >"$RDMA_GUEST_WORK/log" 2>&1; exec setpriv --pdeathsig KILL -- "$@""#;
    let input = if sink == Sink::Terminal { "fd:0" } else { "null" };
    let mut command = Command::new("sh");
    command
        .args(["-c", redirect, "sh"])
        .arg(&kernel.path)
        .args([
            format!("mem={}M", job.mem_mib),
            format!("ncpus={}", job.cpus),
            format!("init={work}/init"),
            format!("uml_dir={work}/"),
        ])
        .args(["seccomp=auto", "rootfstype=hostfs", "rootflags=/", "ro", "loglevel=7", "panic=1"])
        .args(["con=null", "con0=null,fd:1", &format!("con1={input},fd:3"), "con2=null,fd:4"])
        .env("RDMA_GUEST_WORK", &work)
        .stdin(Stdio::null());
    place_memory(&mut command, job.mem_mib)?;
    let ended = if sink == Sink::Terminal {
        let (ended, said) = on_terminal(&mut command)?;
        (Some(ended), said)
    } else {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = exec::spawn(&mut command)?;
        let pumps = Pumps::start(&mut child, sink);
        let over = dir.path().join("over");
        let ended =
            exec::wait_over(&mut child, outer_limit(job.limit), POWER_OFF_LIMIT, || over.exists());
        (ended?, pumps.finish())
    };
    let mut log = fs::read(dir.path().join("log"))
        .map(|log| String::from_utf8_lossy(&log).into_owned())
        .unwrap_or_default();
    let (ended, [stdout, stderr]) = ended;
    if ended.is_none() {
        let what = format!(
            "the guest had not powered off {} s after its command had ended, and was killed",
            POWER_OFF_LIMIT.as_secs()
        );
        ui::say(&what);
        log.push_str(&format!("xtask: {what}\n"));
    }
    if matches!(ended, Some(exec::Ended::TimedOut)) {
        let limit = outer_limit(job.limit).as_secs();
        let last = tail(&log, 20);
        let why =
            format!("it did not end within {limit} s and was killed; its kernel's words:\n{last}");
        return Err(GuestFailed::new(why, job::said(&stdout, &stderr, &log)).into());
    }
    let code = job::read_result(dir.path(), &log)
        .map_err(|why| GuestFailed::new(why, job::said(&stdout, &stderr, &log)))?;
    Ok(Outcome { code, stdout, stderr, klog: log })
}

/// The guest's memory is a file, best in memory itself: /dev/shm, unless that is too small for it or
/// refuses code (containers).
fn place_memory(command: &mut Command, mem_mib: u32) -> Result<()> {
    let need = u64::from(mem_mib) << 20;
    for name in ["TMPDIR", "TMP", "TEMP"] {
        command.env_remove(name);
    }
    let fits = statvfs("/dev/shm").is_ok_and(|fs| {
        fs.f_bavail.saturating_mul(fs.f_frsize) >= need
            && !fs.f_flag.contains(StatVfsMountFlags::NOEXEC)
    });
    if !fits {
        command.env("TMPDIR", paths::cache()?);
    }
    Ok(())
}

/// A run that has the terminal: in our process group, else it could not read from it.
fn on_terminal(command: &mut Command) -> Result<(exec::Ended, [String; 2])> {
    let modes = exec::output(Command::new("stty").arg("-g").stdin(Stdio::inherit()), super::QUICK);
    let mut child = command.stdin(Stdio::inherit()).spawn().context("cannot run sh")?;
    let ended = exec::wait(&mut child, Duration::MAX);
    // The guest's kernel set the terminal to raw.
    let mut restore = Command::new("stty");
    match &modes {
        Ok(modes) => restore.arg(modes.trim()),
        Err(_) => restore.arg("sane"),
    };
    let _ = restore.stdin(Stdio::inherit()).stderr(Stdio::null()).status();
    Ok((ended?, Default::default()))
}

/// `ROWS COLUMNS` of the terminal, or nothing.
fn terminal_size() -> String {
    let size =
        Command::new("stty").arg("size").stdin(Stdio::inherit()).stderr(Stdio::null()).output();
    size.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default()
}
