//! Exact counts of what a program executes, per operation: two runs of different length under callgrind, and their difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::exec;

const RUN_LIMIT: Duration = Duration::from_secs(300);
const ALLOCATIONS: [&str; 7] =
    ["malloc", "calloc", "realloc", "reallocarray", "posix_memalign", "aligned_alloc", "memalign"];
const LOCKS: [&str; 6] = [
    "pthread_mutex_lock",
    "pthread_mutex_trylock",
    "pthread_spin_lock",
    "pthread_spin_trylock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_wrlock",
];

/// What one operation takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) instructions: f64,
    /// Calls of malloc and its kind.
    pub(super) allocations: f64,
    /// Calls that take a lock of libpthread. Other locks are atomics.
    pub(super) locks: f64,
    /// Instructions with a lock prefix, and exchanges with memory, which lock without one.
    pub(super) atomics: f64,
}

/// One run.
#[derive(Debug, Default, PartialEq)]
struct Profile {
    instructions: u64,
    allocations: u64,
    locks: u64,
    /// How often the instruction at an address of an object file was executed.
    executed: BTreeMap<(String, u64), u64>,
}

/// Counts, and remembers where the atomic instructions of each object file are.
pub(super) struct Counter {
    library_path: PathBuf,
    scratch: PathBuf,
    atomics: BTreeMap<String, BTreeSet<u64>>,
    /// Set for the programs.
    env: Vec<(&'static str, &'static str)>,
    only: Option<Only>,
}

/// A part of what a program executes.
#[derive(Clone, Copy)]
struct Only {
    /// Of the functions with these names, and what they call.
    functions: &'static [&'static str],
    /// Without this library and what it calls, whose locks and atomics do not count either.
    without: &'static str,
}

impl Counter {
    /// Programs are run with `library_path` in front of all others; files go to `scratch`.
    pub(super) fn new(library_path: &Path, scratch: &Path) -> Self {
        Self {
            library_path: library_path.to_path_buf(),
            scratch: scratch.join("callgrind.out"),
            atomics: BTreeMap::new(),
            env: Vec::new(),
            only: None,
        }
    }

    /// The same for programs that get this environment, counting only what these functions and their callees execute outside the
    /// library `without`; all functions if none is named.
    pub(super) fn only(
        self,
        env: &[(&'static str, &'static str)],
        functions: &'static [&'static str],
        without: &'static str,
    ) -> Self {
        Self { env: env.to_vec(), only: Some(Only { functions, without }), ..self }
    }

    /// Counts per operation of what `command_line` gives for a number of operations: once for `count`, once for twice that.
    ///
    /// # Errors
    /// The program fails, or valgrind does.
    pub(super) fn per_operation(
        &mut self,
        count: u64,
        command_line: impl Fn(u64) -> Vec<String>,
    ) -> Result<Counts> {
        let line = command_line(count);
        let short = self.run(&line)?;
        let long = self.run(&command_line(2 * count))?;
        let mut atomics = 0;
        for ((object, address), times) in &long.executed {
            // What a library calls is not told from what the program calls, so of a part only the program's own count.
            if self.only.is_some() && line.first() != Some(object) {
                continue;
            }
            let before = short.executed.get(&(object.clone(), *address)).copied().unwrap_or(0);
            // Once per operation at least, or in the loop over queue pairs: what set-up does is the same in both.
            if *times > before && self.is_atomic(object, *address)? {
                atomics += times - before;
            }
        }
        let per = |short: u64, long: u64| {
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            let (more, count) = (long.max(short).sub(short) as f64, count as f64);
            more / count
        };
        Ok(Counts {
            instructions: per(short.instructions, long.instructions),
            allocations: per(short.allocations, long.allocations),
            locks: per(short.locks, long.locks),
            atomics: per(0, atomics),
        })
    }

    fn run(&self, line: &[String]) -> Result<Profile> {
        let only = self.only.unwrap_or(Only { functions: &[], without: "" });
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--dump-instr=yes", "--dump-line=no"])
            .args(["--compress-strings=no", "--compress-pos=no", "--quiet"])
            .arg(format!("--callgrind-out-file={}", self.scratch.display()))
            .args(only.functions.iter().map(|name| format!("--toggle-collect={name}")))
            .args(line)
            .env("LD_LIBRARY_PATH", &self.library_path)
            .envs(self.env.iter().copied());
        exec::output(&mut command, RUN_LIMIT)?;
        let text = fs::read_to_string(&self.scratch)
            .with_context(|| format!("valgrind wrote no {}", self.scratch.display()))?;
        profile(&text, only.without)
            .with_context(|| format!("cannot read {}", self.scratch.display()))
    }

    fn is_atomic(&mut self, object: &str, address: u64) -> Result<bool> {
        if !self.atomics.contains_key(object) {
            let found =
                if Path::new(object).is_file() { disassemble(object)? } else { BTreeSet::new() };
            self.atomics.insert(object.to_owned(), found);
        }
        Ok(self.atomics.get(object).is_some_and(|found| found.contains(&address)))
    }
}

/// A call, until the line with what it cost.
struct Call {
    /// From outside the library that does not count into it.
    leaves: bool,
}

/// Reads callgrind's file (valgrind manual, "Callgrind Format Specification"), uncompressed, positions by instruction. What the library
/// `without` executes, with its callees, does not count, nor what it allocates and locks; none if empty.
fn profile(text: &str, without: &str) -> Result<Profile> {
    let mut profile = Profile::default();
    let (mut object, mut callee, mut call) = (String::new(), String::new(), None);
    let mut callee_object = None;
    let mut excluded = 0;
    let is_out = |object: &str| !without.is_empty() && object.ends_with(without);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name.to_owned();
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee_object = Some(name.to_owned());
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = name.split(['@', '\'']).next().unwrap_or_default().to_owned();
        } else if let Some(rest) = line.strip_prefix("calls=") {
            let calls: u64 = rest.split_whitespace().next().unwrap_or_default().parse()?;
            let calls = if is_out(&object) { 0 } else { calls };
            profile.allocations += if ALLOCATIONS.contains(&callee.as_str()) { calls } else { 0 };
            profile.locks += if LOCKS.contains(&callee.as_str()) { calls } else { 0 };
            // Without a `cob=` the callee is in the caller's object.
            let to = callee_object.take();
            let leaves = !is_out(&object) && to.as_deref().is_some_and(is_out);
            call = Some(Call { leaves });
        } else if let Some(rest) = line.strip_prefix("0x") {
            let mut words = rest.split_whitespace();
            let (Some(address), Some(cost)) = (words.next(), words.next()) else { continue };
            let cost: u64 = cost.parse()?;
            // The line after `calls=` has what the callee cost.
            match call.take() {
                Some(Call { leaves: true }) => excluded += cost,
                Some(_) => {}
                None => {
                    let address = u64::from_str_radix(address, 16)?;
                    profile.instructions += cost;
                    *profile.executed.entry((object.clone(), address)).or_default() += cost;
                }
            }
        }
    }
    profile.instructions = profile.instructions.saturating_sub(excluded);
    if profile.instructions == 0 {
        bail!("it has no costs");
    }
    Ok(profile)
}

/// Addresses of an object file's atomic read-modify-writes.
fn disassemble(object: &str) -> Result<BTreeSet<u64>> {
    let mut command = Command::new("objdump");
    command.args(["--disassemble", "--no-show-raw-insn", "--wide", object]);
    Ok(atomics(&exec::output(&mut command, RUN_LIMIT)?))
}

fn atomics(listing: &str) -> BTreeSet<u64> {
    let atomic = |line: &str| {
        let (address, code) = line.split_once(":\t")?;
        let code = code.trim_start();
        // An exchange of two registers is none.
        let exchange = code.starts_with("xchg") && code.contains('(');
        let prefixed = code.split_whitespace().next() == Some("lock");
        (exchange || prefixed).then(|| u64::from_str_radix(address.trim(), 16).ok())?
    };
    listing.lines().filter_map(atomic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read() {
        let text = "positions: instr\nevents: Ir\nsummary: 9\n\nob=/lib/a.so\nfn=f\n0x10 3\ncob=/lib/c.so\n\
             cfi=x\ncfn=malloc@@GLIBC_2\ncalls=2 0x99\n0x14 50\n0x14 2\ncfn=pthread_mutex_lock'2\ncalls=1 0x1\n0x18 7\n\
             ob=/lib/b.so\nfn=g\n0x10 4\n0x10 1\n";
        let got = profile(text, "").expect("a profile");
        assert_eq!((got.instructions, got.allocations, got.locks), (10, 2, 1));
        let at = |object: &str, address| got.executed.get(&(object.to_owned(), address)).copied();
        assert_eq!((at("/lib/a.so", 0x14), at("/lib/b.so", 0x10)), (Some(2), Some(5)));
        assert!(profile("positions: instr\n", "").is_err());
    }

    #[test]
    fn a_library_with_its_callees_can_be_left_out() {
        let text = "positions: instr\nob=/bin/p\nfn=f\n0x10 3\ncob=/x/libfake.so.1\ncfn=post\ncalls=2 0x99\n0x14 50\n0x14 2\n\
             ob=/x/libfake.so.1\nfn=post\n0x99 30\ncob=/lib/c.so\ncfn=pthread_mutex_lock\ncalls=2 0x5\n0x9a 20\n\
             ob=/lib/c.so\nfn=pthread_mutex_lock\n0x5 20\n";
        let got = profile(text, "libfake.so.1").expect("a profile");
        assert_eq!((got.instructions, got.locks), (5, 0));
        let whole = profile(text, "").expect("a profile");
        assert_eq!((whole.instructions, whole.locks), (55, 2));
    }

    #[test]
    fn atomics_are_told_from_moves() {
        let listing = "\n0000000000001139 <main>:\n    1139:\tlock cmpxchg %rdx,(%rdi)\n    113e:\txchg   %eax,(%rdi)\n\
             \x20   1140:\txchg   %ax,%ax\n    1142:\tmov    %eax,(%rdi)\n    1150:\tlock xadd %rax,0x8(%rbx)\n";
        assert_eq!(atomics(listing), BTreeSet::from([0x1139, 0x113e, 0x1150]));
    }
}
