//! Builds what is measured: the fake libibverbs, the loops in C, on our crates, and on other crates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{self, Artifact, BUILD_LIMIT};
use crate::{exec, paths};

/// A way to send and receive, and the program that does it.
pub(super) struct Variant {
    /// In tables, CSV and plots.
    pub(super) name: &'static str,
    /// Most instructions over plain C, for ours.
    pub(super) target: Option<f64>,
    program: PathBuf,
    /// What the program wants before scenario and count.
    first: Option<&'static str>,
}

impl Variant {
    pub(super) fn command_line(&self, scenario: &str, count: u64) -> Vec<String> {
        let mut line = vec![self.program.display().to_string()];
        line.extend(self.first.map(str::to_owned));
        line.extend([scenario.to_owned(), count.to_string()]);
        line
    }

    /// Whether it is one of ours that must not allocate, lock or use atomics.
    pub(super) fn is_ours(&self) -> bool {
        self.target.is_some()
    }
}

/// Everything for the instruction counts.
pub(super) struct Programs {
    /// The folder with the fake libibverbs.so.1 and librdmacm.so.1.
    pub(super) fake: PathBuf,
    pub(super) variants: Vec<Variant>,
    /// The transport over them.
    pub(super) core: PathBuf,
}

impl Programs {
    /// # Errors
    /// Something does not build.
    pub(super) fn build(rivals: bool) -> Result<Self> {
        let dir = paths::target().join("bench");
        let fake = fake_libraries()?;
        let c = c_loops(&dir)?;
        let built = cargo::build(&["build", "--release", "--package", "rdma-bench"])?;
        let ours = program(&built, "bench-loops")?;
        let core = program(&built, "bench-core")?;
        let of = |name, target, program: &Path, first| Variant {
            name,
            target,
            program: program.to_path_buf(),
            first,
        };
        let mut variants = vec![
            of("C, plain", None, &c, Some("plain")),
            of("C, table in flight", None, &c, Some("table")),
            of("rdma-sys, raw", Some(6.0), &ours, Some("raw")),
            of("qp.complete", Some(48.0), &ours, Some("complete")),
            of("PollGroup", Some(78.0), &ours, Some("group")),
        ];
        if rivals {
            for (name, folder) in [
                ("ibverbs 0.9.2", "ibverbs"),
                ("sideway 0.4.3", "sideway"),
                ("rdma-io 0.0.2", "rdma-io"),
            ] {
                variants.push(of(name, None, &rival(folder, &dir)?, None));
            }
        }
        Ok(Self { fake, variants, core })
    }
}

fn program(built: &[Artifact], name: &str) -> Result<PathBuf> {
    let found = built.iter().find(|artifact| artifact.name == name);
    found
        .map(|artifact| artifact.path.clone())
        .with_context(|| format!("cargo built no program {name}"))
}

const C_FLAGS: [&str; 4] = ["-std=gnu11", "-O2", "-Wall", "-Wextra"];

/// The fake libraries, for `LD_LIBRARY_PATH`: builds them into `target/bench/fake` and returns that.
///
/// # Errors
/// They do not build.
pub(crate) fn fake_libraries() -> Result<PathBuf> {
    let into = paths::target().join("bench/fake");
    fs::create_dir_all(&into).with_context(|| format!("cannot make {}", into.display()))?;
    let source = paths::root().join("bench/fake");
    for (soname, map, files) in [
        ("libibverbs.so.1", "versions.map", &["fake.c", "fabric.c", "missing.c"][..]),
        ("librdmacm.so.1", "cm.map", &["cm.c", "cm_missing.c"][..]),
    ] {
        let mut library = Command::new("cc");
        library
            .args(C_FLAGS)
            .args(["-fPIC", "-shared", "-pthread", &format!("-Wl,-soname,{soname}"), "-o"])
            .arg(into.join(soname))
            .arg(format!("-Wl,--version-script={}", source.join(map).display()))
            .args(files.iter().map(|file| source.join(file)));
        if soname.starts_with("librdmacm") {
            library.arg(into.join("libibverbs.so.1"));
        }
        exec::output(&mut library, BUILD_LIMIT)?;
    }
    Ok(into)
}

/// The loops in C.
fn c_loops(dir: &Path) -> Result<PathBuf> {
    let loops = dir.join("loops-c");
    let source = paths::root().join("bench/c/loops.c");
    let mut command = Command::new("cc");
    command.args(C_FLAGS).arg("-o").arg(&loops).arg(source).arg("-libverbs");
    exec::output(&mut command, BUILD_LIMIT)?;
    Ok(loops)
}

/// The loops on another crate.
fn rival(folder: &str, dir: &Path) -> Result<PathBuf> {
    let manifest = paths::root().join("bench/rivals/Cargo.toml").display().to_string();
    let target = dir.join("rivals").display().to_string();
    let package = format!("loops-{folder}");
    let mut command = cargo::cargo();
    if folder == "ibverbs" {
        // ibverbs-sys compiles the whole of a rdma-core that it brings, only for the headers that this leaves behind. bindgen
        // takes the installed ones where those are missing, so the step is left out.
        command.env("CMAKE", "true");
    }
    let args = ["build", "--release", "--locked", "--manifest-path", &manifest, "--target-dir"];
    let built =
        cargo::build_with(command, &[&args[..], &[&target, "--package", &package]].concat())?;
    program(&built, &package)
}
