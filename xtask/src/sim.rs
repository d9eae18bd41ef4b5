//! `cargo xtask sim`: builds and runs the simulator.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::deps::{self, Group};
use crate::{cargo, exec};

/// `cargo xtask sim …`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds after which the simulator is ended
    #[arg(long, default_value_t = 3600)]
    timeout: u64,
    /// The simulator's own arguments; `--help` among them lists these
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs it with its output on ours; its exit status is ours.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    deps::ensure(&[Group::Build])?;
    let mut command = cargo::cargo();
    command.args(["run", "--quiet", "--release", "--package", "btl-sim", "--"]).args(&args.args);
    let limit = Duration::from_secs(args.timeout);
    let ended = exec::wait(&mut exec::spawn(&mut command)?, limit)?;
    Ok(ExitCode::from(u8::try_from(ended.code()).unwrap_or(1)))
}
