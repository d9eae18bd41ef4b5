//! Calling cargo, and finding what it built.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::ompi::Series;
use crate::{exec, paths};

/// A build from nothing, on a slow machine.
pub(crate) const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Cargo in the workspace's root, free of what `cargo xtask` put into the environment.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let inherited = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in inherited
        .filter(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
    {
        command.env_remove(name);
    }
    command.current_dir(paths::root()).stdin(Stdio::null());
    command
}

/// The compiler.
pub(crate) fn rustc() -> OsString {
    env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

/// The target that the compiler builds for when none is named. Named, it keeps flags from build scripts and macros.
///
/// # Errors
/// The compiler does not say.
pub(crate) fn host() -> Result<String> {
    let text = exec::output(Command::new(rustc()).arg("-vV"), Duration::from_secs(60))?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.map(str::to_owned).context("`rustc -vV` names no host")
}

/// One file that a build made.
pub(crate) struct Artifact {
    /// Of the package: `rdma-cm`.
    pub(crate) package: String,
    /// Of the target: a test's, an example's or a library's name.
    pub(crate) name: String,
    /// `lib`, `bin`, `test`, `example`, `cdylib` …
    pub(crate) kind: String,
    pub(crate) path: PathBuf,
}

/// Runs a cargo command that builds and returns its programs and shared libraries.
///
/// # Errors
/// It does not build; the compiler's messages are in the error.
pub(crate) fn build(args: &[&str]) -> Result<Vec<Artifact>> {
    build_with(cargo(), args)
}

/// As [`build`], with a [`cargo`] that was given more environment.
///
/// # Errors
/// As there.
pub(crate) fn build_with(mut command: Command, args: &[&str]) -> Result<Vec<Artifact>> {
    command.args(args).arg("--message-format=json-render-diagnostics");
    let got = exec::capture(&mut command, BUILD_LIMIT)?;
    match got.code {
        0 => Ok(got.stdout.lines().flat_map(artifacts).collect()),
        124 => bail!("`cargo {}` did not end within {} s", args.join(" "), BUILD_LIMIT.as_secs()),
        _ => bail!("`cargo {}` failed:\n{}", args.join(" "), got.stderr.trim()),
    }
}

/// The artifacts that one line of cargo's JSON tells of.
fn artifacts(line: &str) -> Vec<Artifact> {
    let Ok(message) = serde_json::from_str::<Value>(line) else { return Vec::new() };
    if message["reason"] != "compiler-artifact" {
        return Vec::new();
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let manifest = text(&message["manifest_path"]);
    let folder = Path::new(&manifest)
        .parent()
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy().into_owned());
    let artifact = |path: &Value| Artifact {
        package: folder.clone().unwrap_or_default(),
        name: text(&message["target"]["name"]),
        kind: text(&message["target"]["kind"][0]),
        path: PathBuf::from(text(path)),
    };
    if message["executable"].is_string() {
        return vec![artifact(&message["executable"])];
    }
    let files = message["filenames"].as_array().into_iter().flatten();
    files
        .filter(|file| file.as_str().is_some_and(|file| file.ends_with(".so")))
        .map(artifact)
        .collect()
}

/// Builds the BTL for a series of Open MPI; returns the shared library. The next build for another
/// series overwrites it: copy it.
///
/// # Errors
/// It does not build.
pub(crate) fn build_btl(series: Series) -> Result<PathBuf> {
    build_btl_by(series, cargo, &[])
}

/// As [`build_btl`], with nothing of this machine's folders in the file, which is made in a target
/// folder of its own.
///
/// # Errors
/// As there.
pub(crate) fn build_btl_for_others(series: Series) -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| paths::home().map(|home| home.join(".cargo")));
    let renamed = [(Some(paths::root()), "rdma-safe"), (home, "cargo")];
    let flags: Vec<String> = renamed
        .iter()
        .filter_map(|(from, to)| {
            Some(format!("--remap-path-prefix={}={to}", from.as_ref()?.display()))
        })
        .collect();
    let cargo = || {
        let mut cargo = cargo();
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        cargo
    };
    let target = paths::target().join("for-others").display().to_string();
    build_btl_by(series, cargo, &["--target-dir", &target])
}

fn build_btl_by(series: Series, cargo: impl Fn() -> Command, more: &[&str]) -> Result<PathBuf> {
    let mut args = vec!["build", "--release", "--package", "btl-ompi"];
    args.extend(series.feature().into_iter().flat_map(|feature| ["--features", feature]));
    args.extend(more);
    let library = built_btl(cargo(), &args)?;
    if is_btl_for(&library, series)? {
        return Ok(library);
    }
    // Cargo gives the library one name whatever the features, and believes that the file of an earlier
    // build with these features is still that. Where it is not, it is made anew once it is gone.
    let name = library.file_name().unwrap_or_default();
    for file in [&library, &library.with_file_name("deps").join(name)] {
        if file.exists() {
            fs::remove_file(file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    let library = built_btl(cargo(), &args)?;
    if !is_btl_for(&library, series)? {
        bail!("{} does not say that it is {}", library.display(), series.mark());
    }
    Ok(library)
}

fn built_btl(cargo: Command, args: &[&str]) -> Result<PathBuf> {
    let library =
        build_with(cargo, args)?.into_iter().find(|artifact| artifact.name == "mca_btl_verbs");
    library
        .map(|artifact| artifact.path)
        .context("package btl-ompi built no shared library mca_btl_verbs")
}

/// Whether a file is the component for a series, with real devices.
///
/// # Errors
/// It cannot be read.
pub(crate) fn is_btl_for(file: &Path, series: Series) -> Result<bool> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    Ok(has(&series.mark()) && !has(TEST_TRANSPORT))
}

/// What only the component with the transport for tests has in it.
const TEST_TRANSPORT: &str = "fake0";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_shared_libraries_are_found() {
        let test = r#"{"reason":"compiler-artifact","manifest_path":"/w/rdma-cm/Cargo.toml",
            "target":{"kind":["test"],"name":"device"},"filenames":["/t/device-1"],"executable":"/t/device-1"}"#;
        let library = r#"{"reason":"compiler-artifact","manifest_path":"/w/btl-ompi/Cargo.toml",
            "target":{"kind":["cdylib","rlib"],"name":"mca_btl_verbs"},"filenames":["/t/x.rlib","/t/x.so"],"executable":null}"#;
        let found: Vec<Artifact> =
            [test, library, "{}", "no json"].into_iter().flat_map(artifacts).collect();
        let seen: Vec<_> =
            found.iter().map(|a| (a.package.as_str(), a.kind.as_str(), a.path.to_str())).collect();
        assert_eq!(
            seen,
            [("rdma-cm", "test", Some("/t/device-1")), ("btl-ompi", "cdylib", Some("/t/x.so"))]
        );
    }
}
