//! The transport of `btl-core` as a whole: for `cargo xtask bench instructions` over the fake libraries, for `cargo xtask bench core`
//! over a device, and for `cargo xtask test --only tsan` with many threads over the fake ones.
//!
//! Usage:
//! - `bench-core flood|pingpong|empty|burst COUNT`: both ends in this process, over the fake libibverbs and librdmacm.
//! - `bench-core threads COUNT`: engines on threads of their own, likewise.
//! - `bench-core send_lat|send_bw server|client ADDR:PORT SIZE ITERATIONS DEPTH RECEIVES`: one end, over a device. The client prints one
//!   line with the result. `bench-core clock` prints the frequency of the clock that is used.
#![deny(unsafe_code)]

#[path = "../clock.rs"]
mod clock;
mod device;
mod fabric;
mod loops;
#[path = "../spec.rs"]
mod spec;
mod threads;

use std::error::Error;
use std::process::ExitCode;

use btl_core::Engine;
use btl_core::verbs::{VerbsCm, VerbsPort};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;
/// The engine on verbs.
type Core = Engine<VerbsPort, VerbsCm>;

/// Who may connect to each other here.
const JOB: u64 = 0x00b3_7c40_73c0_4e00;

fn run(args: &[String]) -> Outcome {
    let (test, rest) = args.split_first().ok_or("no test is named")?;
    match (test.as_str(), rest) {
        ("send_lat" | "send_bw", rest) => device::run(test, &spec::Spec::read(rest)?),
        ("clock", []) => {
            println!("cycles_per_us {:.3}", clock::per_microsecond());
            Ok(())
        }
        ("threads", [count]) => threads::run(count.parse()?),
        (test, [count]) => loops::run(test, count.parse()?),
        _ => Err("usage: bench-core TEST COUNT".into()),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-core: {error}");
            ExitCode::FAILURE
        }
    }
}
