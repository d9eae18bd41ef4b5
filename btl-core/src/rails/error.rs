//! What can go wrong with rails.
use crate::error::PeerFault;
use crate::names::ProcName;
use crate::rma::RmaErrorKind;
use std::fmt;

/// Rails that cannot be made, or a peer that cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailsError {
    /// No rail, or too many.
    #[error("{n} rails were given, but there must be 1 to {max}")]
    Count {
        /// How many there were.
        n: usize,
        /// The most there may be.
        max: usize,
    },
    /// A setting is out of range.
    #[error("{what} is {value}, but must be {allowed}")]
    Config {
        /// Which.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        allowed: &'static str,
    },
    /// The engines of the rails are not of one process: names, jobs or numbers of lanes differ.
    #[error("the engine of rail {rail} has another {what} than that of rail 0")]
    Differs {
        /// Which rail.
        rail: usize,
        /// What differs.
        what: &'static str,
    },
    /// Addresses for more rails than there are, or for none.
    #[error("{name} has addresses for {given} rails, but this process has {rails}")]
    Addresses {
        /// The peer.
        name: ProcName,
        /// Lists of addresses.
        given: usize,
        /// Rails here.
        rails: usize,
    },
    /// This process was added as its own peer. One engine can do that ([`Engine::add_peer`](crate::Engine::add_peer)).
    #[error(
        "{name} is this process itself, which needs no rails to itself; one engine can have itself as a peer"
    )]
    Oneself {
        /// The name.
        name: ProcName,
    },
    /// The engine of a rail said no.
    #[error("rail {rail}: {error}")]
    Engine {
        /// Which rail.
        rail: usize,
        /// What it said.
        error: crate::error::Error,
    },
    /// The rails are closing.
    #[error("the rails are closing")]
    Closing,
}

/// Why a rail to a peer is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailFault {
    /// The engine of the rail reported the peer as failed.
    Failed(PeerFault),
    /// Nothing went through for so long, while the peer answered on another rail.
    Stalled {
        /// Milliseconds.
        ms: u64,
    },
    /// It worked, failed, and could not be connected again within that time; no other rail was left.
    NotBack {
        /// Milliseconds.
        ms: u64,
    },
    /// No address of the peer on this rail is known, and the peer has not connected over it.
    NoAddress,
    /// The engine would not take the peer.
    Refused(crate::error::Error),
}

impl fmt::Display for RailFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The peer's name is said elsewhere.
            RailFault::Failed(fault) => fault.kind.fmt(f),
            RailFault::Stalled { ms } => {
                write!(
                    f,
                    "nothing went through for {ms} ms, while the peer answered on another rail"
                )
            }
            RailFault::NotBack { ms } => {
                write!(f, "it failed, and was not connected again within {ms} ms")
            }
            RailFault::NoAddress => f.write_str(
                "no address of the peer is known on it, and the peer has not connected over it",
            ),
            RailFault::Refused(error) => error.fmt(f),
        }
    }
}

/// One rail that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TriedRail {
    /// Its number.
    pub rail: usize,
    /// Its label, usually the device.
    pub label: String,
    /// Why it is not used.
    pub fault: RailFault,
}

/// A peer that failed on all rails: reported once, and with every message that was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailsFault {
    /// The peer.
    pub peer: ProcName,
    /// What happened.
    pub kind: RailsFaultKind,
}

impl fmt::Display for RailsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.peer, self.kind)
    }
}

impl std::error::Error for RailsFault {}

/// What happened to a peer, or to a message for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailsFaultKind {
    /// No rail reaches it: which were tried, and why each is not used.
    NoRail {
        /// All rails, by number.
        tried: Vec<TriedRail>,
    },
    /// It broke the protocol.
    Protocol(RailsProtocolFault),
    /// It closed before it had acknowledged the message.
    Left,
    /// It was removed here before the message was acknowledged.
    Removed,
}

impl fmt::Display for RailsFaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RailsFaultKind::NoRail { tried } => {
                write!(f, "no rail reaches it:")?;
                for (i, it) in tried.iter().enumerate() {
                    let sep = if i == 0 { "" } else { ";" };
                    write!(f, "{sep} rail {} ({}): {}", it.rail, it.label, it.fault)?;
                }
                Ok(())
            }
            RailsFaultKind::Protocol(fault) => write!(
                f,
                "it broke the protocol of rails: {fault}; both sides must use rails, of the same version, numbered alike"
            ),
            RailsFaultKind::Left => f.write_str("it closed before it acknowledged the message"),
            RailsFaultKind::Removed => {
                f.write_str("it was removed here before it acknowledged the message")
            }
        }
    }
}

/// How a peer broke the protocol of rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailsProtocolFault {
    /// A message without the header of rails.
    #[error("a message of {arrived} bytes does not begin as one of rails does")]
    Header {
        /// Bytes that came.
        arrived: usize,
    },
    /// It numbers its rails otherwise.
    #[error(
        "its rail {theirs} reaches rail {ours} here; rails are numbered alike in all processes"
    )]
    Number {
        /// Its number.
        theirs: usize,
        /// The number of the rail on which it came.
        ours: usize,
    },
    /// It is another process of the same name now.
    #[error(
        "its epoch changed from {was} to {is}: it was started again; remove the peer and add it anew"
    )]
    Restarted {
        /// Before.
        was: u32,
        /// Now.
        is: u32,
    },
    /// Beyond the window.
    #[error("a piece or message is outside the window of {} pieces", super::WINDOW)]
    Window,
    /// It acknowledged what it was not sent.
    #[error("it acknowledged what it was not sent")]
    Acknowledged,
    /// A message longer than allowed.
    #[error(
        "a message of {len} bytes; max_message allows {max} here and must be the same everywhere"
    )]
    TooLong {
        /// Its length.
        len: u64,
        /// The most there may be.
        max: u64,
    },
    /// Messages that are not complete take more memory than a peer may make this side use.
    #[error("its unfinished messages hold {held} bytes, and no more than {max} are kept")]
    Memory {
        /// In use.
        held: u64,
        /// The most there may be.
        max: u64,
    },
    /// A piece that does not fit its message.
    #[error("a piece {what}")]
    Piece {
        /// What is wrong.
        what: &'static str,
    },
}

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RailsSendErrorKind {
    /// The peer failed or left before.
    #[error("{0}")]
    Failed(RailsFault),
    /// The peer was removed, or the rails are closing.
    #[error("the peer was removed or the rails are closing")]
    Closing,
    /// As many messages as [`RailsConfig::max_queued`](super::RailsConfig::max_queued) allows are not acknowledged: poll,
    /// then try again.
    #[error("{max} messages to the peer are not acknowledged; poll and try again")]
    Busy {
        /// The limit.
        max: u32,
    },
    /// Longer than [`RailsConfig::max_message`](super::RailsConfig::max_message).
    #[error(
        "{len} bytes are more than the longest message, {max}; raise max_message in all processes"
    )]
    TooLong {
        /// Asked for.
        len: u64,
        /// The most there is.
        max: u64,
    },
}

/// A message that was not taken, unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailsSendError {
    /// Why.
    pub kind: RailsSendErrorKind,
    /// The message.
    pub data: Vec<u8>,
}

impl fmt::Display for RailsSendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl std::error::Error for RailsSendError {}

/// Why a part of a one-sided operation did not happen, or may not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartFault {
    /// The rail failed: nothing is known of the peer's memory.
    #[error("{0}")]
    Rail(PeerFault),
    /// The rail's engine did not take it: nothing happened.
    #[error("{0}")]
    Refused(RmaErrorKind),
    /// The rail is not connected to the peer, or there is no rail of that number: nothing happened.
    #[error("rail {rail} is not in use to the peer; ask `shares` which are")]
    NotUp {
        /// Which.
        rail: usize,
    },
}
