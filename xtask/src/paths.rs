//! Where things are.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    // At run time: the folder may have moved since the build. `cargo xtask` sets it.
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or(here.clone(), Path::to_path_buf)
}

/// Cargo's target folder, as cargo itself finds it.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// This project's folder in the user's cache; made if missing.
///
/// # Errors
/// Neither XDG_CACHE_HOME nor HOME is set, or the folder cannot be made.
pub(crate) fn cache() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .filter(|dir| Path::new(dir).is_absolute())
        .map(PathBuf::from)
        .or_else(|| home().map(|home| home.join(".cache")))
        .context("no folder for the cache: set HOME or XDG_CACHE_HOME")?;
    let dir = base.join("rdma-safe");
    std::fs::create_dir_all(&dir)
        .with_context(|| format!("cannot make the cache folder {}", dir.display()))?;
    Ok(dir)
}

/// The user's home folder, if told.
pub(crate) fn home() -> Option<PathBuf> {
    env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// The file of a program, looked up as a shell does, and in the system folders an ordinary user's PATH may lack.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

/// A regular file that this user may execute.
pub(crate) fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}
