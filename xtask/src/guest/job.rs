//! What to run in a guest, and the folder that tells the guest's scripts about it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Device;
use crate::exec::Drain;

/// How the names of the scripts' folders begin; the process id of xtask follows.
const FOLDER: &str = "rdma-guest-";

/// One command for a guest.
pub(crate) struct Job {
    pub(crate) device: Device,
    pub(crate) two_hosts: bool,
    /// Processors; a native run has those of the machine.
    pub(crate) cpus: u32,
    /// Memory in MiB; a native run has that of the machine.
    pub(crate) mem_mib: u32,
    /// After this time the command is ended, with exit status 124.
    pub(crate) limit: Duration,
    /// Absolute folders in which the guest's writes are real.
    pub(crate) rw: Vec<PathBuf>,
    /// Set in the command's environment, besides the environment of xtask.
    pub(crate) env: Vec<(String, String)>,
    /// The command's working folder.
    pub(crate) cwd: PathBuf,
    /// A folder with a Linux of its own in which the command runs, instead of all of this machine's
    /// files.
    pub(crate) root: Option<PathBuf>,
    /// Of this machine's files, the folders that are in `root` too, besides the working folder.
    pub(crate) shared: Vec<PathBuf>,
    pub(crate) command: Vec<OsString>,
    /// A shell on the terminal instead of the command.
    pub(crate) shell: bool,
}

/// Where a command's output goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sink {
    /// On to the stdout and stderr of xtask.
    Pass,
    /// Into [`Outcome`].
    Keep,
    /// The command has the terminal itself.
    Terminal,
}

/// What came of a job.
pub(crate) struct Outcome {
    /// The command's exit status, 124 for a time-out.
    pub(crate) code: i32,
    /// Its output, with [`Sink::Keep`].
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// What the guest's kernel logged meanwhile.
    pub(crate) klog: String,
}

impl Outcome {
    /// All of it, for a log.
    pub(crate) fn said(&self) -> String {
        said(&self.stdout, &self.stderr, &self.klog)
    }
}

/// What a command and its kernel said, for a log.
pub(super) fn said(stdout: &str, stderr: &str, klog: &str) -> String {
    format!("{stdout}\n{stderr}\n--- the kernel's log ---\n{klog}")
}

impl Job {
    /// A job in the current folder, with this machine's processors (at most 4) and 3 GiB of memory.
    ///
    /// # Errors
    /// There is no current folder.
    pub(crate) fn new(device: Device, command: Vec<OsString>, limit: Duration) -> Result<Self> {
        let cpus = thread::available_parallelism()
            .map_or(2, |n| u32::try_from(n.get()).unwrap_or(2))
            .clamp(1, 4);
        Ok(Self {
            device,
            two_hosts: false,
            cpus,
            mem_mib: 3072,
            limit,
            rw: Vec::new(),
            env: Vec::new(),
            cwd: std::env::current_dir().context("there is no current folder")?,
            root: None,
            shared: Vec::new(),
            command,
            shell: false,
        })
    }

    /// Writes the folder that the scripts read: `job`, `env`, `command`, the scripts themselves, `extra` lines for `job`.
    pub(super) fn prepare(&self, extra: &str) -> Result<tempfile::TempDir> {
        sweep();
        let dir = tempfile::Builder::new()
            .prefix(&format!("{FOLDER}{}-", std::process::id()))
            .tempdir()
            .context("no temporary folder")?;
        let scripts = [
            ("init", include_str!("init.sh")),
            ("start", include_str!("start.sh")),
            ("native", include_str!("native.sh")),
            ("devices", include_str!("devices.sh")),
            ("on-host", include_str!("on-host.sh")),
            ("enter-root", include_str!("enter-root.sh")),
        ];
        for (name, text) in scripts {
            fs::write(dir.path().join(name), text)?;
            fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o755))?;
        }
        let mut job = format!(
            "DEVICE={} TWO_HOSTS={} SHELL_MODE={} LIMIT={}\n{extra}\nCWD=",
            self.device.name(),
            i32::from(self.two_hosts),
            i32::from(self.shell),
            self.limit.as_secs(),
        )
        .into_bytes();
        quote(&mut job, self.cwd.as_os_str());
        job.extend_from_slice(b"\nROOT=");
        quote(&mut job, self.root.as_deref().unwrap_or(Path::new("")).as_os_str());
        for (name, folders) in [("RW", &self.rw), ("SHARED", &self.shared)] {
            job.extend_from_slice(format!("\n{name}=(").as_bytes());
            for folder in folders {
                quote(&mut job, folder.as_os_str());
                job.push(b' ');
            }
            job.extend_from_slice(b")");
        }
        job.push(b'\n');
        fs::write(dir.path().join("job"), job)?;
        fs::write(dir.path().join("env"), self.environment())?;
        let mut command = b"exec".to_vec();
        for word in &self.command {
            command.push(b' ');
            quote(&mut command, word);
        }
        command.push(b'\n');
        fs::write(dir.path().join("command"), command)?;
        // Root of a guest is this user on the host; a folder of mode 700 is enough.
        Ok(dir)
    }

    fn environment(&self) -> Vec<u8> {
        let own =
            self.env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let mut text = Vec::new();
        for (name, value) in std::env::vars_os().filter(|(name, _)| travels(name)).chain(own) {
            text.extend_from_slice(b"export ");
            text.extend_from_slice(name.as_bytes());
            text.push(b'=');
            quote(&mut text, &value);
            text.push(b'\n');
        }
        text
    }
}

/// Removes the folders of runs whose xtask was killed.
fn sweep() {
    for path in
        fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten().map(|entry| entry.path())
    {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(FOLDER)
            .and_then(|rest| rest.split('-').next())
            .and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            // Another user's folder stays.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Whether a variable of xtask's environment makes sense in a guest: not what cargo set for xtask, what bash keeps for itself, or
/// what names things that are not there.
fn travels(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let local = [
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "TMPDIR",
        "TMP",
        "TEMP",
        "HOSTNAME",
        "BASHOPTS",
        "SHELLOPTS",
        "UID",
        "EUID",
        "PPID",
    ];
    is_name
        && !local.contains(&name)
        && !["CARGO_PKG_", "CARGO_MANIFEST_", "BASH_", "XDG_RUNTIME"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// As one word of a shell script.
fn quote(text: &mut Vec<u8>, word: &OsStr) {
    text.push(b'\'');
    for &byte in word.as_bytes() {
        match byte {
            b'\'' => text.extend_from_slice(b"'\\''"),
            _ => text.push(byte),
        }
    }
    text.push(b'\'');
}

/// An existing folder as an absolute path that a guest can mount.
pub(super) fn writable_folder(dir: &Path) -> Result<PathBuf> {
    let path = dir.canonicalize().with_context(|| format!("--rw {}", dir.display()))?;
    if !path.is_dir() {
        bail!("--rw {}: not a folder", dir.display());
    }
    if path.as_os_str().as_bytes().contains(&b',') {
        bail!("--rw {}: a path with a comma cannot be mounted", dir.display());
    }
    Ok(path)
}

/// Carries a child's stdout and stderr where a sink says, until the child closes them.
pub(super) struct Pumps(Option<[Drain; 2]>);

impl Pumps {
    pub(super) fn start(child: &mut Child, sink: Sink) -> Self {
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
            return Self(None);
        };
        let pass = sink == Sink::Pass;
        let out = Drain::start(out, pass.then(io::stdout));
        Self(Some([out, Drain::start(err, pass.then(io::stderr))]))
    }

    /// What was kept of stdout and stderr.
    pub(super) fn finish(self) -> [String; 2] {
        let text = |drain: Drain| String::from_utf8_lossy(&drain.finish()).into_owned();
        self.0.map_or_else(Default::default, |pumps| pumps.map(text))
    }
}

/// Reads what the scripts left: the exit status, else why there is none.
pub(super) fn read_result(dir: &Path, log: &str) -> Result<i32, String> {
    if let Ok(why) = fs::read_to_string(dir.join("error")) {
        return Err(why.trim().to_owned());
    }
    match fs::read_to_string(dir.join("status")).ok().and_then(|text| text.trim().parse().ok()) {
        Some(code) => Ok(code),
        None => {
            Err(format!("it ended without a result; its kernel's words:\n{}", super::tail(log, 20)))
        }
    }
}

/// For messages: the path as a string that a kernel's command line can carry.
pub(super) fn plain(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) if !text.contains([' ', ',', '"']) => Ok(text.to_owned()),
        _ => bail!(
            "the temporary folder {} has a space, comma or quote in its name: set TMPDIR to another one",
            path.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn a_quoted_word_comes_through_the_shell_unchanged() {
        let nasty = OsString::from_vec(b"a'b \"$HOME\" `x` \\ \n\t\xff*".to_vec());
        let mut script = b"printf %s ".to_vec();
        quote(&mut script, &nasty);
        let out = std::process::Command::new("sh")
            .arg("-c")
            .arg(OsString::from_vec(script))
            .output()
            .expect("sh runs");
        assert_eq!(out.stdout, nasty.as_bytes());
    }

    #[test]
    fn only_usable_names_travel() {
        assert!(travels(OsStr::new("OMPI_MCA_btl")));
        assert!(!travels(OsStr::new("BASH_FUNC_x%%")));
        assert!(!travels(OsStr::new("SHELLOPTS")));
        assert!(!travels(OsStr::new("CARGO_PKG_NAME")));
    }
}
