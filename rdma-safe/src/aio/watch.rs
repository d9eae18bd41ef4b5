//! Watching a descriptor in a tokio runtime.

use crate::error::{Error, ErrorKind, Result};
use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Watches a duplicate of `fd`, so that it makes no difference which of the two is closed first.
///
/// # Errors
/// [`ErrorKind::WrongState`] outside of a runtime; else the errno of fcntl(2) or epoll_ctl(2).
///
/// # Panics
/// In a runtime that was built without `enable_io`, as everything of tokio's that waits for input.
pub(super) fn watch(fd: BorrowedFd<'_>) -> Result<AsyncFd<OwnedFd>> {
    const OP: &str = "watching a descriptor";
    if Handle::try_current().is_err() {
        return Err(Error::refused(OP, ErrorKind::WrongState, "call it inside a tokio runtime"));
    }
    let errno = |e: std::io::Error| Error::os(OP, e.raw_os_error().unwrap_or(libc::EIO));
    let own = fd.try_clone_to_owned().map_err(errno)?;
    // SAFETY: an owned descriptor is open, always the same, and closed by the AsyncFd itself, after it is done with it.
    unsafe { AsyncFd::register_with_interest(own, Interest::READABLE) }.map_err(|e| errno(e.into()))
}

/// The runtime watches nothing any more.
pub(super) fn shut_down() -> Error {
    Error::refused("waiting", ErrorKind::WrongState, "the tokio runtime is being shut down")
}
