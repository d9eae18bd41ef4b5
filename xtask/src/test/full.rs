//! Parts about the crates as others will see them: documentation, README, packages, features, compatibility.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Bench, Count};
use crate::deps::{self, Group};
use crate::{cargo, exec, paths, ui};

/// What goes to crates.io, in the order in which one needs the other.
const PUBLISHED: &[&str] = &["rdma-safe-sys", "rdma-safe", "rdma-cm", "btl-core"];
/// Largest package worth waiting for, compressed.
const PACKAGE_MAX_KIB: f64 = 256.0;
const LIMIT: Duration = Duration::from_secs(1800);

fn published(command: &mut Command) -> &mut Command {
    command.args(PUBLISHED.iter().flat_map(|name| ["--package", name]))
}

/// Runs a command as one case; what it printed is kept.
fn case(bench: &Bench, count: &mut Count, name: &str, command: &mut Command) -> Result<String> {
    let got = exec::capture(command, LIMIT)?;
    let text = format!("{}\n{}", got.stdout, got.stderr);
    bench.log(name, &text);
    let tail = || {
        let lines: Vec<&str> = text.trim().lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    };
    let result = match got.code {
        0 => Ok(()),
        124 => Err(format!("`{}` did not end within {} s", exec::line(command), LIMIT.as_secs())),
        _ => Err(format!("`{}` failed:\n{}", exec::line(command), tail())),
    };
    count.case(name, result);
    Ok(text)
}

/// The documentation, here and as docs.rs builds it: all features, no libraries, warnings are errors.
pub(super) fn docs(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let mut count = Count::default();
    let target = paths::target().join("docs-rs");
    for (name, docs_rs) in [("cargo doc", false), ("as docs.rs does", true)] {
        let mut command = cargo::cargo();
        published(command.args(["doc", "--no-deps"])).env("RUSTDOCFLAGS", "-D warnings");
        if docs_rs {
            // The build script takes this for a machine without the libraries.
            command.env("DOCS_RS", "1").arg("--target-dir").arg(&target);
            command.env("RUSTDOCFLAGS", "-D warnings --cfg docsrs");
        }
        case(bench, &mut count, name, &mut command)?;
    }
    Ok(count)
}

/// Names a block of the README uses and the text around it explains.
const README_PREAMBLE: &str = "
    let limit = std::time::Duration::from_secs(5);
    let now = || 0u64;
    let mut qp: rdma_safe::QueuePair = missing();
    let mut slots: Vec<rdma_safe::Slot> = missing();
";

/// The Rust blocks of the READMEs compile.
pub(super) fn readme(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let mut blocks = Vec::new();
    for name in [
        "README.md",
        "rdma-sys/README.md",
        "rdma-safe/README.md",
        "rdma-cm/README.md",
        "btl-core/README.md",
    ] {
        let text = fs::read_to_string(paths::root().join(name))
            .with_context(|| format!("cannot read {name}"))?;
        let found = rust_blocks(&text);
        if found.is_empty() {
            bail!("{name} has no block marked ```rust");
        }
        blocks.extend(found);
    }
    let dir = paths::target().join("readme-check");
    fs::create_dir_all(dir.join("src")).context("cannot make a folder below target")?;
    fs::write(dir.join("Cargo.toml"), readme_manifest())?;
    fs::write(dir.join("src/lib.rs"), readme_source(&blocks))?;
    let mut command = cargo::cargo();
    command.args(["check", "--quiet", "--manifest-path"]).arg(dir.join("Cargo.toml"));
    command.arg("--target-dir").arg(paths::target());
    let mut count = Count::default();
    case(bench, &mut count, "READMEs", &mut command)?;
    if count.failed == 0 {
        count.passed = blocks.len() as u64;
    }
    Ok(count)
}

fn readme_manifest() -> String {
    let mut text = "[package]\nname = \"readme-check\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n"
        .to_owned();
    let crates =
        [("rdma-sys", "rdma-safe-sys"), ("rdma-safe", ""), ("rdma-cm", ""), ("btl-core", "")];
    for (name, package) in crates {
        let path = paths::root().join(name);
        let package = match package {
            "" => String::new(),
            package => format!("package = \"{package}\", "),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name} = {{ {package}path = {path:?} }}");
    }
    text
}

fn readme_source(blocks: &[String]) -> String {
    let mut text = "#![allow(unused, unreachable_code)]\n".to_owned();
    text += "fn missing<T>() -> T { loop { std::hint::spin_loop() } }\n";
    for (i, block) in blocks.iter().enumerate() {
        let _ = writeln!(
            text,
            "fn block_{i}() -> Result<(), Box<dyn std::error::Error>> {{{README_PREAMBLE}{block}\nOk(()) }}"
        );
    }
    text
}

/// What stands between "```rust…" and "```".
fn rust_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```rust") {
            let block = lines.by_ref().take_while(|line| !line.starts_with("```"));
            // rustdoc hides lines that begin so.
            let block: Vec<&str> =
                block.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

/// `cargo publish --dry-run` of all, in order; each is small and carries its licence.
pub(super) fn publish(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let mut count = Count::default();
    let mut command = cargo::cargo();
    // What is not committed yet is packed too: this tests the packages, not the tidiness of a working copy.
    published(command.args(["publish", "--dry-run", "--allow-dirty"]));
    command.env("CARGO_HOME", fresh_home()?);
    let text = case(bench, &mut count, "cargo publish --dry-run", &mut command)?;
    let sizes: Vec<f64> = text.lines().filter_map(packed_kib).collect();
    count.case(
        "every package was made",
        match sizes.len() == PUBLISHED.len() {
            true => Ok(()),
            false => Err(format!("{} packages of {}", sizes.len(), PUBLISHED.len())),
        },
    );
    for (name, kib) in PUBLISHED.iter().zip(&sizes) {
        ui::say(&format!("{name}: {kib} KiB compressed"));
        count.case(
            name,
            match *kib <= PACKAGE_MAX_KIB {
                true => Ok(()),
                false => Err(format!("{kib} KiB is more than {PACKAGE_MAX_KIB}")),
            },
        );
    }
    for name in PUBLISHED {
        let mut command = cargo::cargo();
        command.args(["package", "--list", "--allow-dirty", "--package", name]);
        let list = exec::output(&mut command, LIMIT)?;
        for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
            count.case(
                &format!("{name} has {file}"),
                match list.lines().any(|l| l == file) {
                    true => Ok(()),
                    false => Err("is not in the package".to_owned()),
                },
            );
        }
    }
    Ok(count)
}

/// A cargo home without what it unpacked before. Cargo keeps unpacked packages by name and version, those it has just made
/// too, so the second run of a version would be checked against the first one's sources.
fn fresh_home() -> Result<PathBuf> {
    let home = paths::target().join("publish-home");
    if home.exists() {
        fs::remove_dir_all(&home).with_context(|| format!("cannot remove {}", home.display()))?;
    }
    fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let usual = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let usual = usual.or_else(|| paths::home().map(|home| home.join(".cargo")));
    for name in ["config.toml", "config"] {
        let Some(file) = usual.as_ref().map(|dir| dir.join(name)).filter(|file| file.is_file())
        else {
            continue;
        };
        fs::copy(&file, home.join(name))
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    Ok(home)
}

/// 61.9 of `Packaged 19 files, 457.6KiB (61.9KiB compressed)`.
fn packed_kib(line: &str) -> Option<f64> {
    let (_, rest) = line.split_once("Packaged ")?.1.split_once('(')?;
    let size = rest.split_once(" compressed)")?.0;
    match size.split_once("MiB") {
        Some((number, _)) => number.parse::<f64>().ok().map(|n| n * 1024.0),
        None => size.strip_suffix("KiB").unwrap_or(size).parse().ok(),
    }
}

/// Every set of features compiles, and so does the oldest Rust that the crates claim.
pub(super) fn features(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build, Group::Headers, Group::Bindgen])?;
    let hack = tool("cargo-hack")?;
    let mut count = Count::default();
    let mut command = with_tool(&hack, "hack");
    published(command.args(["check", "--feature-powerset", "--no-dev-deps", "--quiet"]));
    case(bench, &mut count, "every set of features", &mut command)?;
    Ok(count)
}

/// `cargo semver-checks` against the last released version, or against itself before there is one, which shows that
/// the crates can be checked.
pub(super) fn semver(bench: &mut Bench) -> Result<Count> {
    deps::ensure(&[Group::Build])?;
    let checks = tool("cargo-semver-checks")?;
    let mut git = Command::new("git");
    git.current_dir(paths::root()).args(["describe", "--tags", "--abbrev=0", "--match=v*"]);
    let tag = exec::capture(&mut git, LIMIT)?;
    let base = match tag.code {
        0 => tag.stdout.trim().to_owned(),
        _ => "HEAD".to_owned(),
    };
    ui::say(&format!("comparing with {base}"));
    let mut count = Count::default();
    for name in PUBLISHED {
        let mut command = with_tool(&checks, "semver-checks");
        command.args(["--baseline-rev", &base, "--default-features", "--package", name]);
        case(bench, &mut count, &format!("{name} against {base}"), &mut command)?;
    }
    Ok(count)
}

/// A subcommand of cargo's, run as cargo runs it.
fn with_tool(program: &PathBuf, subcommand: &str) -> Command {
    let mut command = Command::new(program);
    let clean = cargo::cargo();
    command.current_dir(paths::root()).arg(subcommand);
    for (name, value) in clean.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// A program from crates.io: from the PATH, or built once into the cache.
fn tool(name: &str) -> Result<PathBuf> {
    if let Some(found) = paths::program(name) {
        return Ok(found);
    }
    let root = paths::cache()?.join("tools");
    let file = root.join("bin").join(name);
    if !file.exists() {
        ui::say(&format!("building {name} from crates.io, once; this takes some minutes"));
        let mut command = cargo::cargo();
        command.args(["install", "--locked", "--quiet", "--root"]).arg(&root).arg(name);
        exec::output(&mut command, LIMIT).with_context(|| format!("cannot build {name}"))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_rust_are_found() {
        let text =
            "a\n```rust,no_run\nlet a = 1;\nlet b = 2;\n```\n```\nno\n```\n```rust\nc();\n```\n";
        assert_eq!(rust_blocks(text), ["let a = 1;\nlet b = 2;", "c();"]);
        assert!(rust_blocks("```sh\nls\n```").is_empty());
    }

    #[test]
    fn sizes_are_read() {
        let line = "    Packaged 19 files, 457.6KiB (61.9KiB compressed)";
        assert_eq!(packed_kib(line), Some(61.9));
        assert_eq!(packed_kib("Packaged 2 files, 9.0MiB (1.5MiB compressed)"), Some(1536.0));
        assert_eq!(packed_kib("Packaging x v0.1.0"), None);
    }
}
