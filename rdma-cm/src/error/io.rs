//! The errors of this crate as [`std::io::Error`], for programs whose other transports speak that.

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind};

use super::{ConnectError, Error};
use crate::private_data::PrivateDataError;

impl ConnectError {
    /// The errno behind it, if the system reported one, or has one for it: ECONNREFUSED, ETIMEDOUT, EADDRINUSE, ENODEV.
    pub fn errno(&self) -> Option<i32> {
        match self {
            ConnectError::Refused => Some(libc::ECONNREFUSED),
            ConnectError::Unreachable { errno } => Some(*errno),
            ConnectError::PortInUse { .. } => Some(libc::EADDRINUSE),
            ConnectError::Timeout { .. } => Some(libc::ETIMEDOUT),
            ConnectError::DeviceRemoved => Some(libc::ENODEV),
            ConnectError::Local(error) => error.errno(),
            ConnectError::Rejected { .. }
            | ConnectError::DatagramRefused { .. }
            | ConnectError::Failed { .. }
            | ConnectError::Disconnected
            | ConnectError::Cancelled => None,
        }
    }
}

/// The kind of an errno, as the standard library sees it.
fn kind_of(errno: i32) -> ErrorKind {
    io::Error::from_raw_os_error(errno).kind()
}

/// With this error inside; the kind is that of the errno, or the nearest.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Timeout { .. } => ErrorKind::TimedOut,
            Error::Disconnected => ErrorKind::ConnectionReset,
            Error::NotSupported { .. } => ErrorKind::Unsupported,
            Error::Loopback { .. } | Error::NoSelfConnect { .. } => ErrorKind::AddrNotAvailable,
            Error::Lookup { .. } => ErrorKind::NotFound,
            Error::Param { .. } | Error::PrivateData(_) | Error::Override { .. } => {
                ErrorKind::InvalidInput
            }
            // Not Interrupted, after which callers would try again.
            Error::Cancelled { .. } => ErrorKind::Other,
            other => other.errno().map_or(ErrorKind::Other, kind_of),
        };
        io::Error::new(kind, error)
    }
}

/// With this error inside; the kind is that of the errno, or the nearest.
impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        let kind = match error {
            ConnectError::Local(error) => return error.into(),
            ConnectError::Rejected { .. } | ConnectError::DatagramRefused { .. } => {
                ErrorKind::ConnectionRefused
            }
            ConnectError::Failed { .. } => ErrorKind::ConnectionAborted,
            ConnectError::Disconnected => ErrorKind::ConnectionReset,
            ref other => other.errno().map_or(ErrorKind::Other, kind_of),
        };
        io::Error::new(kind, error)
    }
}

impl From<rdma_safe::Error> for ConnectError {
    fn from(error: rdma_safe::Error) -> Self {
        ConnectError::Local(error.into())
    }
}

impl From<PrivateDataError> for ConnectError {
    fn from(error: PrivateDataError) -> Self {
        ConnectError::Local(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_data::PrivateData;
    use std::time::Duration;

    #[test]
    fn errors_have_kinds_and_keep_their_words() {
        let limit = Duration::from_secs(1);
        let rejected = ConnectError::Rejected { status: 28, private_data: PrivateData::empty() };
        let no_device = || Error::errno_of("rdma_bind_addr", libc::EADDRNOTAVAIL);
        for (error, kind) in [
            (ConnectError::Refused, ErrorKind::ConnectionRefused),
            (rejected, ErrorKind::ConnectionRefused),
            (ConnectError::Timeout { limit }, ErrorKind::TimedOut),
            (ConnectError::PortInUse { local: None }, ErrorKind::AddrInUse),
            (ConnectError::Unreachable { errno: libc::EHOSTUNREACH }, ErrorKind::HostUnreachable),
            (ConnectError::Disconnected, ErrorKind::ConnectionReset),
            (ConnectError::Cancelled, ErrorKind::Other),
            (ConnectError::Local(Error::Timeout { op: "x", limit }), ErrorKind::TimedOut),
            (ConnectError::Local(no_device()), ErrorKind::AddrNotAvailable),
            (Error::errno_of("poll", libc::EINTR).into(), ErrorKind::Interrupted),
        ] {
            let text = error.to_string();
            let io = io::Error::from(error);
            assert_eq!((io.kind(), io.to_string()), (kind, text));
        }
        let inside = io::Error::from(no_device());
        let inside = inside.get_ref().and_then(|e| e.downcast_ref::<Error>());
        assert_eq!(inside.and_then(Error::errno), Some(libc::EADDRNOTAVAIL));
    }

    #[test]
    fn a_cancelled_call_is_a_cancelled_connect() {
        let error = ConnectError::from(Error::Cancelled { op: "x" });
        assert!(matches!(error, ConnectError::Cancelled) && error.errno().is_none());
    }
}
