//! The loops of `cargo xtask bench instructions` on this workspace's crates: raw requests, [`QueuePair::complete`], [`PollGroup`].
//!
//! [`QueuePair::complete`]: rdma_safe::QueuePair::complete
//! [`PollGroup`]: rdma_safe::PollGroup
//!
//! Usage: `bench-loops raw|complete|group send|recv|window16|qps1000|empty COUNT`. `bench/c/loops.c` has the same in C, and
//! `bench/rivals` on other crates; a change of what is measured is a change in all of them.

mod complete;
mod group;
mod raw;
mod rig;

use std::error::Error;
use std::process::ExitCode;

/// Posts of one window.
const WINDOW: usize = 16;
/// Queue pairs of `qps1000`.
const QPS: usize = 1000;
/// Entries of each queue.
const DEPTH: u32 = 64;
/// Bytes of a slot.
const SIZE: usize = 64;
/// Bytes of a message.
const MESSAGE: usize = 8;

type Outcome = Result<(), Box<dyn Error>>;

/// Ends the program where a loop meets what cannot be: C's `abort()`.
#[cold]
#[inline(never)]
fn broken() -> ! {
    std::process::abort()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [variant, scenario, count] = args.as_slice() else {
        eprintln!("usage: bench-loops VARIANT SCENARIO COUNT");
        return ExitCode::from(2);
    };
    let Ok(count) = count.parse() else {
        eprintln!("bench-loops: {count} is no number");
        return ExitCode::from(2);
    };
    let run = match variant.as_str() {
        "raw" => raw::run,
        "complete" => complete::run,
        "group" => group::run,
        _ => {
            eprintln!("bench-loops: there is no {variant}");
            return ExitCode::from(2);
        }
    };
    match run(scenario, count) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-loops: {error}");
            ExitCode::FAILURE
        }
    }
}

/// For a scenario that a variant does not know.
fn unknown(scenario: &str) -> Outcome {
    Err(format!("there is no {scenario}").into())
}
