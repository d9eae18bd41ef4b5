//! Small crates that the tests make and build as a user's would be.

#![allow(dead_code)] // each test uses its part

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// An empty folder of this name below cargo's folder for test files.
pub(crate) fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).expect("remove the last run's folder");
    }
    fs::create_dir_all(&dir).expect("create the test's folder");
    dir
}

/// Writes a program crate that depends on this package as `dependency` says (the part after the `=`).
pub(crate) fn program(dir: &Path, dependency: &str, main: &str) {
    fs::create_dir_all(dir.join("src")).expect("create src");
    let manifest = format!(
        "[package]\nname = \"user\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [dependencies]\nrdma-sys = {dependency}\n"
    );
    fs::write(dir.join("Cargo.toml"), manifest).expect("write Cargo.toml");
    fs::write(dir.join("src/main.rs"), main).expect("write main.rs");
}

/// The dependency on this package by its path.
pub(crate) fn by_path() -> String {
    format!("{{ package = \"rdma-safe-sys\", path = {:?} }}", env!("CARGO_MANIFEST_DIR"))
}

/// cargo, offline, with nothing of this test run's own settings.
pub(crate) fn cargo(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(args)
        .arg("--offline")
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", dir.join("target"));
    for name in
        ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "DOCS_RS", "RUSTC_WRAPPER"]
    {
        command.env_remove(name);
    }
    command
}

/// Runs the command; its output is in the panic if it fails.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().expect("start the command");
    assert!(output.status.success(), "{command:?} failed\n{}", text(&output));
    output
}

/// Both outputs as text.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}
