//! Why a request was rejected, in words.

#![forbid(unsafe_code)]

use std::fmt;

/// Why a connection request was rejected: the status of REJECTED.
///
/// InfiniBand and RoCE carry a reason of IBTA 12.6.7.2. iWARP carries none; the kernel makes an errno of how the TCP
/// connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// The application said no (IBTA 28); its private data may say why.
    Application,
    /// Nobody listens there (IBTA 8).
    NoListener,
    /// The other side has no queue pair or no resources left (IBTA 1 to 3).
    NoResources,
    /// The other side gave up waiting for this one (IBTA 4).
    Timeout,
    /// The other side does not do what was asked for (IBTA 5, 9).
    Unsupported,
    /// The queue pair was in use by an older connection not long ago (IBTA 10, 30); try again later, with a new one.
    Stale,
    /// An address, path or limit in the request is not good there (IBTA 6, 7, 11 to 23, 26, 29, 31 to 33): the number.
    Invalid(i32),
    /// The service is to be had elsewhere (IBTA 24, 25).
    Redirect,
    /// More reads and atomics were wanted than the other side answers (IBTA 27).
    TooManyReads,
    /// The vendor options do not suit (IBTA 35); see [`Ece`](crate::Ece).
    VendorOptions,
    /// iWARP: the other side rejected, or closed the TCP connection without a word (ECONNRESET, ECONNREFUSED). Both look the
    /// same unless there is private data.
    Reset,
    /// Anything else: the status.
    Other(i32),
}

impl RejectReason {
    /// The reason a status of REJECTED stands for.
    pub fn from_status(status: i32) -> Self {
        const RESET: i32 = -libc::ECONNRESET;
        const REFUSED: i32 = -libc::ECONNREFUSED;
        match status {
            1..=3 => RejectReason::NoResources,
            4 => RejectReason::Timeout,
            5 | 9 => RejectReason::Unsupported,
            8 => RejectReason::NoListener,
            10 | 30 => RejectReason::Stale,
            6 | 7 | 11..=23 | 26 | 29 | 31..=33 => RejectReason::Invalid(status),
            24 | 25 => RejectReason::Redirect,
            27 => RejectReason::TooManyReads,
            28 => RejectReason::Application,
            35 => RejectReason::VendorOptions,
            RESET | REFUSED => RejectReason::Reset,
            _ => RejectReason::Other(status),
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RejectReason::Application => "its application said no",
            RejectReason::NoListener => "nobody listens there",
            RejectReason::NoResources => "it has no resources left",
            RejectReason::Timeout => "it gave up waiting",
            RejectReason::Unsupported => "it does not do what was asked for",
            RejectReason::Stale => {
                "the queue pair belonged to an older connection not long ago; use a new one"
            }
            RejectReason::Redirect => "the service is to be had elsewhere",
            RejectReason::TooManyReads => "fewer reads and atomics at once are to be had",
            RejectReason::VendorOptions => "the vendor options do not suit",
            RejectReason::Reset => "it rejected, or closed the connection without a word",
            RejectReason::Invalid(status) => {
                return write!(f, "something in the request is not valid there (reason {status})");
            }
            RejectReason::Other(status) => return write!(f, "status {status}"),
        })
    }
}

/// Why a question for a datagram queue pair was refused: the status of a SIDR reply (IBTA 12.11.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SidrReason {
    /// Nobody answers datagrams at that address and port (1).
    NoListener,
    /// The application said no (2).
    Application,
    /// It has no queue pair (3).
    NoQueuePair,
    /// The service is to be had elsewhere (4).
    Redirect,
    /// It speaks another version (5).
    Version,
    /// Anything else: the status.
    Other(i32),
}

impl SidrReason {
    pub(crate) fn from_status(status: i32) -> Self {
        match status {
            1 => SidrReason::NoListener,
            2 => SidrReason::Application,
            3 => SidrReason::NoQueuePair,
            4 => SidrReason::Redirect,
            5 => SidrReason::Version,
            _ => SidrReason::Other(status),
        }
    }
}

impl fmt::Display for SidrReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SidrReason::NoListener => f.write_str("nobody answers datagrams there"),
            SidrReason::Application => f.write_str("its application said no"),
            SidrReason::NoQueuePair => f.write_str("it has no queue pair"),
            SidrReason::Redirect => f.write_str("the service is to be had elsewhere"),
            SidrReason::Version => f.write_str("it speaks another version"),
            SidrReason::Other(status) => write!(f, "status {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_reason_and_words() {
        for status in -200..=70 {
            let reason = RejectReason::from_status(status);
            assert!(!reason.to_string().is_empty());
            assert_eq!(
                matches!(reason, RejectReason::Other(_)),
                !matches!(status, 1..=33 | 35 | -104 | -111),
                "{status}: {reason:?}"
            );
            assert!(!SidrReason::from_status(status).to_string().is_empty());
        }
        assert_eq!(RejectReason::from_status(28), RejectReason::Application);
        assert_eq!(RejectReason::from_status(8), RejectReason::NoListener);
    }
}
