//! `cargo xtask bench`: what the crates cost. The programs that are measured are in `bench/`.

mod callgrind;
mod engine;
mod instructions;
mod pairs;
mod programs;
mod verbs;
mod verbs_report;

use std::process::ExitCode;

use anyhow::Result;

pub(crate) use programs::fake_libraries;

/// `cargo xtask bench …`.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Count instructions, allocations, locks and atomics per message under callgrind, without hardware
    Instructions(instructions::Args),
    /// Compare ping-pong and streaming over soft iWARP and RoCE with perftest's, in turns
    Verbs(verbs::Args),
    /// The same for the transport of btl-core as a whole
    Core(verbs::Args),
}

/// Measures, and says which targets are met.
pub(crate) fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::Instructions(args) => instructions::run(args),
        Verb::Verbs(args) => verbs::run(args, &verbs::VERBS),
        Verb::Core(args) => verbs::run(args, &verbs::CORE),
    }
}
