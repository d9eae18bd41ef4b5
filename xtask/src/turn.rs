//! Several xtasks at a time take turns at what is made once and kept in the cache.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

use crate::{exec, ui};

/// Waits until no other xtask has `folder`; the turn lasts while the returned file is open, and ends
/// with the process however that ends. `doing` says what it takes a turn for: "builds the kernel".
///
/// # Errors
/// The turn did not come within `limit`, or xtask was interrupted.
pub(crate) fn take(folder: &Path, doing: &str, limit: Duration) -> Result<File> {
    let lock = File::create(folder.join("lock"))
        .with_context(|| format!("cannot make a lock in {}", folder.display()))?;
    let start = Instant::now();
    let mut said = false;
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        if !said {
            ui::say(&format!("waiting for another xtask that {doing}"));
            said = true;
        }
        if start.elapsed() > limit || exec::interrupted() {
            bail!("waited {} for another xtask that {doing}", ui::seconds(start.elapsed()));
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(lock)
}
