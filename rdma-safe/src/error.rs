//! One error type for everything off the message path: what failed, with which errno, and what to do about it.
//!
//! Posting has its own small [`PostError`](crate::PostError), because it must carry the slot back and must not allocate.

use std::borrow::Cow;
use std::fmt;

/// Result of every call off the message path.
pub type Result<T> = std::result::Result<T, Error>;

/// What sort of failure an [`Error`] is, for code that wants to branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No RDMA device, or none of that name.
    NoDevice,
    /// The device file may not be opened (EACCES, EPERM).
    PermissionDenied,
    /// Registering or allocating failed with ENOMEM; the hint names RLIMIT_MEMLOCK where it is the likely cause.
    OutOfMemory,
    /// A queue pair does not fit into the completion queue's remaining depth.
    CqDepth,
    /// A size or count is zero or above what the device or this crate can do.
    InvalidArgument,
    /// The call does not fit the queue pair's state.
    WrongState,
    /// Two objects belong to different contexts or protection domains.
    WrongContext,
    /// The device is gone or in a fatal state (EIO, ENODEV).
    DeviceGone,
    /// The device, provider or kernel does not offer this (EOPNOTSUPP, ENOSYS).
    Unsupported,
    /// Something still uses the object, or it was already taken (EBUSY).
    Busy,
    /// Any other errno.
    Other,
}

impl ErrorKind {
    fn of(errno: i32) -> ErrorKind {
        match errno {
            libc::EACCES | libc::EPERM => ErrorKind::PermissionDenied,
            libc::ENOMEM => ErrorKind::OutOfMemory,
            libc::EINVAL => ErrorKind::InvalidArgument,
            libc::EIO | libc::ENODEV => ErrorKind::DeviceGone,
            libc::EOPNOTSUPP | libc::ENOSYS => ErrorKind::Unsupported,
            libc::EBUSY => ErrorKind::Busy,
            _ => ErrorKind::Other,
        }
    }
}

const GONE: &str =
    "the device was removed or has failed; drop everything made on it and open it again";

/// A failed call: the operation, its errno (0 when this crate refused before the system was asked), and a hint.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Error {
    op: &'static str,
    errno: i32,
    kind: ErrorKind,
    hint: Option<Cow<'static, str>>,
}

impl Error {
    /// A call that returned `errno`. The sign is dropped: siw's provider returns negative values, rxe's positive ones.
    pub(crate) fn os(op: &'static str, errno: i32) -> Error {
        let errno = errno.saturating_abs();
        let kind = ErrorKind::of(errno);
        let hint = match errno {
            libc::EMFILE => Some(Cow::Owned(descriptors_hint())),
            _ => (kind == ErrorKind::DeviceGone).then_some(Cow::Borrowed(GONE)),
        };
        Error { op, errno, kind, hint }
    }

    /// A call that returned NULL or -1 and left its reason in `errno`.
    pub(crate) fn last(op: &'static str) -> Error {
        Error::os(op, last_errno())
    }

    /// A call that returns 0, or an errno of either sign, or -1 with `errno` set (siw).
    pub(crate) fn check(op: &'static str, rc: i32) -> Result<()> {
        match rc {
            0 => Ok(()),
            rc => Err(Error::os(op, errno_of(rc))),
        }
    }

    /// A call this crate refused by itself.
    pub(crate) fn refused(
        op: &'static str,
        kind: ErrorKind,
        why: impl Into<Cow<'static, str>>,
    ) -> Error {
        Error { op, errno: 0, kind, hint: Some(why.into()) }
    }

    pub(crate) fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.kind = kind;
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<Cow<'static, str>>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    /// The operation that failed, usually the name of the C function.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// The positive errno, or 0 when this crate refused before the system was asked.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// What sort of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do about it, if known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        match self.errno {
            0 => write!(f, " refused")?,
            e => write!(f, " failed: {}", std::io::Error::from_raw_os_error(e))?,
        }
        match &self.hint {
            Some(hint) => write!(f, ": {hint}"),
            None => Ok(()),
        }
    }
}

/// The thread's errno; EIO when a call failed without setting it.
pub(crate) fn last_errno() -> i32 {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(e) if e != 0 => e,
        _ => libc::EIO,
    }
}

/// The errno behind a non-zero return: -1 means "look at errno" (siw), anything else is the value with either sign.
pub(crate) fn errno_of(rc: i32) -> i32 {
    match rc {
        -1 => last_errno(),
        rc => rc.saturating_abs(),
    }
}

/// The errno behind a failed post. siw returns 0 and names a failed request when its queue was full.
pub(crate) fn errno_of_post(rc: i32) -> i32 {
    match rc {
        0 => libc::ENOMEM,
        rc => errno_of(rc),
    }
}

/// Adds the locked-memory limit to an ENOMEM: it is the usual reason, and the kernel does not say so.
pub(crate) fn memlock_hint(err: Error, bytes: usize) -> Error {
    if err.errno != libc::ENOMEM && err.errno != libc::EAGAIN {
        return err;
    }
    match memlock_limit() {
        None => err.with_hint(format!("{bytes} bytes could not be pinned; RLIMIT_MEMLOCK is unlimited, so the machine is short of memory")),
        Some(limit) => err.with_kind(ErrorKind::OutOfMemory).with_hint(format!(
            "{bytes} bytes could not be pinned; RLIMIT_MEMLOCK is {} KiB. Raise it: `ulimit -l unlimited`, \
             `* - memlock unlimited` in /etc/security/limits.conf, or LimitMEMLOCK=infinity for a systemd service",
            limit / 1024
        )),
    }
}

/// The soft RLIMIT_MEMLOCK in bytes; `None` when unlimited or unknown.
fn memlock_limit() -> Option<u64> {
    limit(libc::RLIMIT_MEMLOCK)
}

/// What to do when there are no descriptors left: contexts, channels and connections each need one.
fn descriptors_hint() -> String {
    let now = limit(libc::RLIMIT_NOFILE).map_or("not known".to_owned(), |n| n.to_string());
    format!(
        "this process has no file descriptor left: RLIMIT_NOFILE is {now}. Close some, or raise it: `ulimit -n`, \
         `* - nofile` in /etc/security/limits.conf, or LimitNOFILE= for a systemd service"
    )
}

/// A soft limit; `None` when unlimited or unknown.
fn limit(which: libc::__rlimit_resource_t) -> Option<u64> {
    let mut lim = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `lim` is a valid, writable rlimit for the duration of the call.
    let rc = unsafe { libc::getrlimit(which, &mut lim) };
    (rc == 0 && lim.rlim_cur != libc::RLIM_INFINITY).then_some(lim.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_of_errno_does_not_matter() {
        assert_eq!(Error::os("x", -libc::EINVAL).errno(), libc::EINVAL);
        assert_eq!(
            Error::check("x", libc::ENOMEM).map_err(|e| e.kind()),
            Err(ErrorKind::OutOfMemory)
        );
        assert_eq!(Error::os("x", i32::MIN).errno(), i32::MAX);
    }

    #[test]
    fn text_names_operation_reason_and_hint() {
        let e = Error::os("ibv_open_device", libc::EACCES).with_hint("do this");
        assert_eq!(
            e.to_string(),
            "ibv_open_device failed: Permission denied (os error 13): do this"
        );
        let e = Error::refused("create_qp", ErrorKind::CqDepth, "full");
        assert_eq!(e.to_string(), "create_qp refused: full");
    }
}
