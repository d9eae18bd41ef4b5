//! Ping-pong and streaming over a real device, as perftest's ib_send_lat, ib_send_bw, ib_write_bw and ib_read_bw do it with `-R`:
//! for `cargo xtask bench verbs`, which runs both in turns.
//!
//! Usage: `bench-verbs TEST server|client ADDR:PORT SIZE ITERATIONS DEPTH RECEIVES`. The client prints one line with the result.
//! `bench-verbs clock` prints the frequency of the clock that is used.
#![deny(unsafe_code)]

#[path = "../clock.rs"]
mod clock;
mod lat;
mod onesided;
mod peer;
#[path = "../spec.rs"]
mod spec;
mod stream;

use std::error::Error;
use std::process::ExitCode;

use spec::Spec;

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn run(args: &[String]) -> Outcome {
    let (test, rest) = args.split_first().ok_or("no test is named")?;
    if test == "clock" {
        println!("cycles_per_us {:.3}", clock::per_microsecond());
        return Ok(());
    }
    let spec = Spec::read(rest)?;
    match test.as_str() {
        "send_lat" => lat::run(&spec),
        "send_bw" => stream::run(&spec),
        "write_bw" => onesided::run(&spec, onesided::Way::Write),
        "read_bw" => onesided::run(&spec, onesided::Way::Read),
        other => Err(format!("there is no test {other}").into()),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-verbs: {error}");
            ExitCode::FAILURE
        }
    }
}
