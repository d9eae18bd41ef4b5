//! Running programs: every wait has a limit, and an interrupt ends what runs.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
const POLL: Duration = Duration::from_millis(10);
/// Between the polite signal and the other one.
const GRACE: Duration = Duration::from_secs(3);

/// From here on SIGINT, SIGTERM and SIGHUP end what runs and then xtask itself, in order.
pub(crate) fn catch_signals() {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        // Registration fails only for forbidden signals; without it the default action applies, which also ends xtask.
        let _ = signal_hook::flag::register(signal, Arc::clone(flag));
    }
}

/// Whether a signal asked xtask to stop.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// How a program ended.
pub(crate) enum Ended {
    /// By itself.
    Status(ExitStatus),
    /// Killed, because it ran longer than its limit.
    TimedOut,
}

impl Ended {
    /// As a shell would tell it; 124 for a time-out, like timeout(1).
    pub(crate) fn code(&self) -> i32 {
        match self {
            Self::Status(status) => {
                status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
            }
            Self::TimedOut => 124,
        }
    }
}

/// Starts `command` as the leader of a process group of its own, so that it can be ended with all its children.
pub(crate) fn spawn(command: &mut Command) -> Result<Child> {
    command.process_group(0);
    command
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))
}

/// Waits for a child made by [`spawn`], at most `limit`.
///
/// # Errors
/// xtask was interrupted; the child's group has been ended then.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<Ended> {
    Ok(wait_over(child, limit, Duration::MAX, || false)?.unwrap_or(Ended::TimedOut))
}

/// Waits as [`wait`] does, and only `grace` longer once `over` says that the child has done its work. `None`: it was
/// killed after that.
///
/// # Errors
/// As [`wait`].
pub(crate) fn wait_over(
    child: &mut Child,
    limit: Duration,
    grace: Duration,
    over: impl Fn() -> bool,
) -> Result<Option<Ended>> {
    let start = Instant::now();
    let mut over_since: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child process")? {
            return Ok(Some(Ended::Status(status)));
        }
        if interrupted() {
            end(child);
            bail!("interrupted");
        }
        if start.elapsed() >= limit {
            end(child);
            return Ok(Some(Ended::TimedOut));
        }
        if over_since.is_some_and(|since| since.elapsed() >= grace) {
            end(child);
            return Ok(None);
        }
        if over_since.is_none() && over() {
            over_since = Some(Instant::now());
        }
        thread::sleep(POLL);
    }
}

/// Ends a child made by [`spawn`] and its group.
pub(crate) fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    for signal in [Signal::TERM, Signal::KILL] {
        if let Some(group) = group {
            // Fails only when nothing of the group is left.
            let _ = kill_process_group(group, signal);
        }
        let start = Instant::now();
        while start.elapsed() < GRACE {
            if !matches!(child.try_wait(), Ok(None)) {
                break;
            }
            thread::sleep(POLL);
        }
    }
}

/// Runs `command` with its output on ours.
///
/// # Errors
/// It cannot be started, ends with another status than 0, runs longer than `limit`, or xtask is interrupted.
pub(crate) fn run(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = spawn(command.stdin(Stdio::null()))?;
    check(command, &wait(&mut child, limit)?, limit, "")
}

/// What a program printed, and how it ended.
pub(crate) struct Captured {
    /// Its exit status, 124 for a time-out.
    pub(crate) code: i32,
    /// All of it, with what is not UTF-8 replaced.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `command` and keeps its output.
///
/// # Errors
/// It cannot be started, or xtask is interrupted. Exit status and time-out are in the result.
pub(crate) fn capture(command: &mut Command, limit: Duration) -> Result<Captured> {
    let mut child =
        spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let out = child.stdout.take().map(|out| Drain::start(out, None::<std::io::Sink>));
    let err = child.stderr.take().map(|err| Drain::start(err, None::<std::io::Sink>));
    let code = wait(&mut child, limit)?.code();
    let text = |drain: Option<Drain>| {
        String::from_utf8_lossy(&drain.map(Drain::finish).unwrap_or_default()).into_owned()
    };
    Ok(Captured { code, stdout: text(out), stderr: text(err) })
}

/// Reads a pipe to its end on a thread, and keeps or passes on what comes.
pub(crate) struct Drain {
    kept: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

/// A pipe ends when the last process that has it ends, which may be a daemon that the child left behind.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

impl Drain {
    /// Begins; what comes goes to `to`, if given, else it is kept.
    pub(crate) fn start(
        mut from: impl Read + Send + 'static,
        mut to: Option<impl Write + Send + 'static>,
    ) -> Self {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let store = Arc::clone(&kept);
        let thread = thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                match &mut to {
                    // A reader that went away is no reason to stop the command.
                    Some(to) => drop(to.write_all(&buffer[..n]).and_then(|()| to.flush())),
                    None => lock(&store).extend_from_slice(&buffer[..n]),
                }
            }
        });
        Self { kept, thread }
    }

    /// What was kept. Called when the child has ended: waits for the end of the pipe, but not for ever.
    pub(crate) fn finish(self) -> Vec<u8> {
        let start = Instant::now();
        while !self.thread.is_finished() && start.elapsed() < DRAIN_LIMIT {
            thread::sleep(POLL);
        }
        std::mem::take(&mut lock(&self.kept))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs `command` and returns what it printed on stdout.
///
/// # Errors
/// As [`run`]; the message ends with what it printed on stderr.
pub(crate) fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let got = capture(command, limit)?;
    let ended = if got.code == 124 {
        Ended::TimedOut
    } else {
        Ended::Status(ExitStatus::from_raw(got.code << 8))
    };
    check(command, &ended, limit, &got.stderr)?;
    Ok(got.stdout)
}

fn check(command: &Command, ended: &Ended, limit: Duration, stderr: &str) -> Result<()> {
    let name = line(command);
    let said =
        if stderr.trim().is_empty() { String::new() } else { format!(": {}", stderr.trim()) };
    match ended {
        Ended::Status(status) if status.success() => Ok(()),
        Ended::Status(status) => bail!("`{name}` ended with {status}{said}"),
        Ended::TimedOut => {
            bail!("`{name}` was ended after {} s without result{said}", limit.as_secs())
        }
    }
}

/// The command line, for messages: what is long loses its middle.
pub(crate) fn line(command: &Command) -> String {
    const LONG: usize = 160;
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    let length: usize = words.iter().map(|word| word.len() + 1).sum();
    match words.as_slice() {
        [first, .., last] if length > LONG => format!("{first} … {last}"),
        words => words.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_too_long_is_ended_with_its_children() {
        let start = Instant::now();
        let mut sleeper = Command::new("sh");
        sleeper.args(["-c", "echo begun; sleep 60 & wait"]);
        let got = capture(&mut sleeper, Duration::from_millis(300)).expect("sh runs");
        assert_eq!((got.code, got.stdout.as_str()), (124, "begun\n"));
        assert!(start.elapsed() < Duration::from_secs(9), "{:?}", start.elapsed());
    }

    #[test]
    fn a_program_that_is_over_and_does_not_end_is_killed_after_its_grace() {
        let start = Instant::now();
        let grace = Duration::from_millis(100);
        let limit = Duration::from_secs(60);
        let mut stays = spawn(Command::new("sleep").arg("60")).expect("sleep runs");
        assert!(wait_over(&mut stays, limit, grace, || true).expect("no signal").is_none());
        assert!(start.elapsed() >= grace && start.elapsed() < Duration::from_secs(9));
        let mut ends = spawn(&mut Command::new("true")).expect("true runs");
        let ended = wait_over(&mut ends, limit, limit, || true).expect("no signal");
        assert_eq!(ended.map(|ended| ended.code()), Some(0));
    }

    #[test]
    fn an_error_tells_the_command_and_what_it_said() {
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo why >&2; exit 3"]);
        let error =
            output(&mut failing, Duration::from_secs(10)).expect_err("it fails").to_string();
        assert!(error.contains("exit status: 3") && error.contains("why"), "{error}");
    }
}
