//! `cargo xtask bindings`: generates the raw bindings from the installed headers again.

use std::process::ExitCode;

use anyhow::Result;

use crate::deps::{self, Group};
use crate::{cargo, exec, ui};

/// Writes `rdma-sys/src/bindings.rs` anew.
pub(crate) fn run() -> Result<ExitCode> {
    deps::ensure(&[Group::Headers, Group::Bindgen])?;
    let mut build = cargo::cargo();
    build
        .args(["build", "--package", "rdma-safe-sys", "--features", "bindgen"])
        .env("RDMA_SYS_WRITE_BINDINGS", "1");
    exec::run(&mut build, cargo::BUILD_LIMIT)?;
    ui::say(
        "the bindings are those of the installed headers now: look at `git diff rdma-sys` and run `cargo xtask test`",
    );
    Ok(ExitCode::SUCCESS)
}
