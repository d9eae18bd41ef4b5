//! Builds the stage for jobs under the installed Open MPI and runs them.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Seconds one job may take.
const LIMIT: &str = "120";

/// The plug-in under its real name, and the compiled programs.
pub struct Stage {
    pub dir: PathBuf,
}

static STAGE: OnceLock<Stage> = OnceLock::new();

pub fn stage() -> &'static Stage {
    STAGE.get_or_init(|| {
        let exe = std::env::current_exe().unwrap_or_else(|e| panic!("no path of this test: {e}"));
        let deps = exe.parent().unwrap_or_else(|| panic!("{} is in no folder", exe.display()));
        let dir = deps.join("mpirun-stage");
        std::fs::create_dir_all(&dir)
            .unwrap_or_else(|e| panic!("cannot create {}: {e}", dir.display()));
        let built = deps.join("libmca_btl_verbs.so");
        let bytes = std::fs::read(&built).unwrap_or_default();
        let has = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
        assert!(
            has(b"fake0") && has(b"built for Open MPI 4.1.x"),
            "{} is of a build with other features: remove it",
            built.display()
        );
        std::fs::copy(&built, dir.join("mca_btl_verbs.so"))
            .unwrap_or_else(|e| panic!("cannot copy {}: {e}", built.display()));
        Stage { dir }
    })
}

/// Compiles a program of `tests/mpi`, once: another test may be running it.
pub fn program(name: &str) -> PathBuf {
    static COMPILED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mpi").join(format!("{name}.c"));
    let target = stage().dir.join(name);
    if compiled.iter().any(|done| done == name) {
        return target;
    }
    let out = Command::new("mpicc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(&source)
        .arg("-o")
        .arg(&target)
        .output()
        .unwrap_or_else(|e| panic!("cannot run mpicc: {e}; install it (Debian: libopenmpi-dev)"));
    assert!(
        out.status.success(),
        "mpicc {}: {}",
        source.display(),
        String::from_utf8_lossy(&out.stderr)
    );
    compiled.push(name.to_owned());
    target
}

/// What a job did.
pub struct Job {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a job over this component alone.
pub fn mpirun(ranks: u32, parameters: &[(&str, &str)], program: &Path, arguments: &[&str]) -> Job {
    over("self,verbs", ranks, parameters, program, arguments)
}

/// Runs a job over the BTLs of a list.
pub fn over(
    btl: &str,
    ranks: u32,
    parameters: &[(&str, &str)],
    program: &Path,
    arguments: &[&str],
) -> Job {
    let mut command = Command::new("timeout");
    command.args([
        "-k",
        "5",
        LIMIT,
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        &ranks.to_string(),
    ]);
    let path = format!("SYSTEM_DEFAULT:{}", stage().dir.display());
    let fixed = [("mca_base_component_path", path.as_str()), ("pml", "ob1"), ("btl", btl)];
    for (name, value) in fixed.iter().chain(parameters) {
        // The test transport is told by the environment how to behave.
        match name.starts_with("BTL_VERBS_FAKE") {
            true => command.args(["-x", &format!("{name}={value}")]),
            false => command.args(["--mca", name, value]),
        };
    }
    let out = command
        .arg(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|e| panic!("cannot run mpirun: {e}; install it (Debian: openmpi-bin)"));
    Job {
        code: out.status.code(),
        stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
    }
}

/// Runs a program that must succeed, say so once, and have used this component for all its
/// messages.
pub fn succeeds(ranks: u32, parameters: &[(&str, &str)], name: &str, arguments: &[&str]) -> Job {
    let program = program(name);
    let mut parameters = parameters.to_vec();
    parameters.push(("btl_verbs_report", "1"));
    let job = mpirun(ranks, &parameters, &program, arguments);
    let told = format!("{name} {arguments:?}: exit {:?}\n{}\n{}", job.code, job.stdout, job.stderr);
    assert_eq!(job.code, Some(0), "{told}");
    let ok = format!("OK {name} ");
    assert_eq!(job.stdout.lines().filter(|line| line.starts_with(&ok)).count(), 1, "{told}");
    let reports = job
        .stderr
        .lines()
        .filter(|line| line.contains("btl:verbs: fake0:1") && line.contains("sent "));
    let processes = if name == "spawn" { 2 * ranks } else { ranks };
    assert_eq!(
        reports.count(),
        processes as usize,
        "every process reports what it carried\n{told}"
    );
    assert!(!job.stderr.contains("did not close in order"), "{told}");
    job
}

impl Job {
    /// The sum over all processes of the number that stands behind `word` in their reports.
    pub fn carried(&self, word: &str) -> u64 {
        let numbers = self.stderr.lines().filter_map(|line| {
            let (_, report) = line.split_once("btl:verbs: fake0:1")?;
            let (_, number) = report.split_once(word)?;
            number.split([' ', ',']).next()?.parse::<u64>().ok()
        });
        numbers.sum()
    }

    /// All that it said.
    pub fn told(&self) -> String {
        format!("exit {:?}\n{}\n{}", self.code, self.stdout, self.stderr)
    }

    /// What the component said.
    pub fn said(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.contains("btl:verbs: ")).collect()
    }

    /// Panics unless the job failed, in time, and some line of the component has all these words.
    pub fn fails_with(&self, words: &[&str]) {
        assert!(self.code.is_some_and(|code| code != 0 && code != 124), "{}", self.told());
        let has = |line: &&str| words.iter().all(|word| line.contains(word));
        assert!(self.said().iter().any(has), "no line has all of {words:?}\n{}", self.told());
    }
}

/// A program that sets variables by rank (shell lines that may use `$RANK`) and then becomes its arguments.
pub fn by_rank(name: &str, lines: &str) -> PathBuf {
    let script = stage().dir.join(format!("{name}.sh"));
    let text = format!("#!/bin/sh\nRANK=$OMPI_COMM_WORLD_RANK\n{lines}\nexec \"$@\"\n");
    std::fs::write(&script, text)
        .unwrap_or_else(|e| panic!("cannot write {}: {e}", script.display()));
    script
}

/// Runs a program under such a script.
pub fn scripted(
    btl: &str,
    ranks: u32,
    parameters: &[(&str, &str)],
    script: &Path,
    name: &str,
    arguments: &[&str],
) -> Job {
    let program = program(name).display().to_string();
    let script = script.display().to_string();
    let mut all = vec![script.as_str(), program.as_str()];
    all.extend(arguments);
    over(btl, ranks, parameters, Path::new("sh"), &all)
}
