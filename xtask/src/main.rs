//! Runs the demo, the tests and the guest: `cargo xtask --help`.
//!
//! One file per verb. It builds and runs with nothing installed but Rust; what else a verb needs it installs or names.
#![forbid(unsafe_code)]

mod bench;
mod bindings;
mod cargo;
mod demo;
mod deps;
mod dist;
mod doctor;
mod exec;
mod guest;
mod install;
mod ompi;
mod paths;
mod plot;
mod sim;
mod test;
mod tidy;
mod turn;
mod ui;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run MPI programs over iWARP and RoCE through the BTL, prove it, and measure it
    Demo(demo::Args),
    /// Run every test: unit, doc, layout, simulator, devices, MPI
    Test(test::Args),
    /// Measure what the crates cost, against C and against other crates
    #[command(subcommand)]
    Bench(bench::Verb),
    /// Run the simulator; everything behind `--` goes to it
    Sim(sim::Args),
    /// Run something on a machine with soft iWARP and RoCE devices
    #[command(subcommand)]
    Guest(guest::Verb),
    /// Build mca_btl_verbs.so and put it where Open MPI finds it
    InstallBtl(install::Args),
    /// Pack the BTL for administrators: an archive for each series of Open MPI
    Dist(dist::Args),
    /// Generate the raw bindings from the installed headers again
    Bindings,
    /// Check the rules of structure and style, and that what lists of rules name exists
    Tidy(tidy::Args),
    /// Tell what this machine has for RDMA and MPI, and how to get what it lacks
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    exec::catch_signals();
    let done = match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Test(args) => test::run(&args),
        Verb::Bench(verb) => bench::run(&verb),
        Verb::Sim(args) => sim::run(&args),
        Verb::Guest(verb) => guest::run_verb(verb),
        Verb::InstallBtl(args) => install::run(&args),
        Verb::Dist(args) => dist::run(&args),
        Verb::Bindings => bindings::run(),
        Verb::Tidy(args) => tidy::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(_) if exec::interrupted() => {
            ui::say("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            ui::error(&error);
            // `guest run` passes on its command's exit status: 125 is the guest's own.
            ExitCode::from(if error.is::<guest::GuestFailed>() { 125 } else { 1 })
        }
    }
}
