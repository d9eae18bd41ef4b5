//! What can go wrong, said so that a reader knows what to do.
use crate::credit::Overgrant;
use crate::names::ProcName;
use crate::port::RefusedWhy;
use crate::route::RouteRefused;
use crate::wire::RejectReason;
use std::fmt;

/// A call that cannot be done as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A configuration value out of range.
    #[error("{what} is {value}, but must be {allowed}")]
    Config {
        /// Which value.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        allowed: &'static str,
    },
    /// A lane class that the configuration does not have.
    #[error("there is no lane of class {class}")]
    NoSuchLane {
        /// The class.
        class: u8,
    },
    /// This process was added as its own peer, over a device that cannot connect to itself.
    #[error(
        "{name} is this process itself, and {device} cannot connect to itself ({reason}); \
         use a loopback transport for it (Open MPI: --mca btl self,verbs)"
    )]
    SelfPeer {
        /// The name.
        name: ProcName,
        /// The device.
        device: String,
        /// How that is known.
        reason: String,
    },
    /// A peer without an address.
    #[error("{name} has no address to connect to")]
    NoAddress {
        /// The name.
        name: ProcName,
    },
    /// More peers than the configuration allows.
    #[error("{limit} peers are known already; raise max_peers")]
    TooManyPeers {
        /// The limit.
        limit: u32,
    },
    /// The device cannot be trusted with the credit route.
    #[error(transparent)]
    CreditRoute(#[from] RouteRefused),
    /// The engine is closing.
    #[error("the engine is closing")]
    Closing,
}

/// Something a device or its library reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortError {
    /// errno, or the status code of a completion; 0 if neither.
    pub code: i32,
    /// What failed, in words.
    pub what: String,
}

impl PortError {
    /// `code`: errno or completion status; 0 if neither.
    pub fn new(code: i32, what: impl Into<String>) -> PortError {
        PortError { code, what: what.into() }
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => f.write_str(&self.what),
            code => write!(f, "{} (code {code})", self.what),
        }
    }
}

impl std::error::Error for PortError {}

impl From<Overgrant> for ProtocolFault {
    fn from(it: Overgrant) -> Self {
        ProtocolFault::Credits { held: it.held, window: it.window }
    }
}

impl RefusedWhy {
    /// What to report when the refusal cannot be waited out.
    pub fn into_error(self) -> PortError {
        match self {
            RefusedWhy::Again => PortError::new(0, "the device has no room for a post"),
            RefusedWhy::Broken(e) => e,
        }
    }
}

/// A peer that failed: reported once, and with every message that could not be sent to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFault {
    /// The peer.
    pub peer: ProcName,
    /// What happened.
    pub kind: FaultKind,
}

impl fmt::Display for PeerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.peer, self.kind)
    }
}

impl std::error::Error for PeerFault {}

/// What happened to a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// No connection came about.
    #[error("cannot connect: {0}")]
    Connect(ConnectFault),
    /// The peer broke the protocol.
    #[error(
        "it broke the protocol: {0}; both sides must run the same version, and nobody else \
         may use the connection"
    )]
    Protocol(ProtocolFault),
    /// A post failed.
    #[error("lane {class} failed: {error}; look for link errors, and at the peer's own messages")]
    Lane {
        /// The lane's class.
        class: u8,
        /// What the device said.
        error: PortError,
    },
    /// The connection went away with no word from the peer.
    #[error(
        "lane {class} was disconnected without a goodbye; the peer's process died, or its \
         device gave up (see its own messages)"
    )]
    Disconnected {
        /// The lane's class.
        class: u8,
    },
    /// The peer said goodbye while messages to it were waiting.
    #[error("it closed the connection while {waiting} message(s) to it were waiting")]
    Closed {
        /// Messages not sent.
        waiting: u32,
    },
    /// The peer was removed here while messages to it were waiting.
    #[error("the connection was closed here before the message could be sent")]
    Removed,
    /// A process nobody announced connected and then said nothing.
    #[error("it connected, but sent no Hello in {seconds} s; it was not announced either")]
    NoHello {
        /// The limit.
        seconds: u64,
    },
    /// A get or atomic on a connection that allows none: only that operation fails, not the peer.
    #[error(
        "the connection allows no RDMA reads and no atomics; raise rma_reads on both sides, or use puts and messages"
    )]
    NoReads,
    /// An atomic on a connection that was lost before its answer came: whether the peer's memory was changed is not known,
    /// so it is not made again. Only that operation fails, not the peer.
    #[error(
        "the connection was lost before the atomic's answer came, so nobody knows whether it was made; read the \
         value again before you decide"
    )]
    AtomicUnknown,
    /// A lane failed and could not be made anew.
    #[error("{cause}; recovery gave up after {tries} connection(s): {last}")]
    NotRecovered {
        /// What happened first.
        cause: Box<FaultKind>,
        /// Connections that came about since without a message getting through.
        tries: u32,
        /// What ended the last try.
        last: String,
    },
    /// The device is gone.
    #[error("the device was removed")]
    DeviceRemoved,
}

/// Why a lane could not be connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFault {
    /// The peer said no, for good.
    #[error("the peer rejected it: {0}")]
    Rejected(RejectReason),
    /// All tries failed.
    #[error(
        "{tries} tries in {seconds} s; the last one, to {addr}, failed: {last}; check that the \
         peer runs and that its address can be reached over this device"
    )]
    GaveUp {
        /// Number of dials.
        tries: u32,
        /// How long it went on.
        seconds: u64,
        /// Address of the last dial.
        addr: String,
        /// What it said.
        last: String,
    },
    /// The peer was never announced and is not connected.
    #[error("no address of the peer is known")]
    NoAddress,
    /// The peer's accept did not fit our connect.
    #[error("the peer's answer is wrong: {0}")]
    BadAnswer(RejectReason),
    /// The connection manager stopped.
    #[error("the connection manager has stopped")]
    Stopped,
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolFault {
    /// Shorter than a header.
    #[error("a message of {arrived} bytes is shorter than a header")]
    Short {
        /// Bytes that came.
        arrived: usize,
    },
    /// Another version.
    #[error("version {theirs} instead of {ours}")]
    Version {
        /// In the message.
        theirs: u8,
        /// Ours.
        ours: u8,
    },
    /// No such kind of message.
    #[error("unknown kind of message {kind}")]
    Kind {
        /// In the message.
        kind: u8,
    },
    /// The header claims more than came.
    #[error("a header claims {claimed} bytes of payload, but {arrived} came")]
    Length {
        /// In the header.
        claimed: u32,
        /// Bytes behind the header.
        arrived: usize,
    },
    /// A grant beyond what the peer can have posted.
    #[error("it granted up to {held} receives on a lane that has {window}")]
    Credits {
        /// Credits we would hold.
        held: u32,
        /// What the lane has.
        window: u32,
    },
    /// A Hello that is not the one expected.
    #[error("bad Hello: {what}")]
    BadHello {
        /// What is wrong.
        what: &'static str,
    },
    /// Acknowledgements of what was never sent.
    #[error("it acknowledged {claimed} messages, but was sent {sent}")]
    Acks {
        /// Messages acknowledged.
        claimed: u64,
        /// Messages sent.
        sent: u64,
    },
    /// A lane that was made anew, and a peer that cannot have what it claims.
    #[error(
        "it claims to have {claimed} messages, but acknowledged {acked} and was sent {sent}; was it started anew?"
    )]
    Resume {
        /// Messages it claims to have.
        claimed: u64,
        /// Messages it acknowledged before.
        acked: u64,
        /// Messages sent.
        sent: u64,
    },
    /// Something came before Hello (or HelloAck).
    #[error("it sent {got} before {expected}")]
    BeforeHello {
        /// What came.
        got: &'static str,
        /// What had to come.
        expected: &'static str,
    },
    /// A second Hello, or one from the wrong side.
    #[error("an unexpected {got}")]
    Unexpected {
        /// What came.
        got: &'static str,
    },
    /// Credits for another lane that cannot be.
    #[error("bad credits for another lane: {what}")]
    LaneCredit {
        /// What is wrong.
        what: &'static str,
    },
    /// A message after Bye.
    #[error("it sent {got} after Bye")]
    AfterBye {
        /// What came.
        got: &'static str,
    },
}

/// Why no send buffer was given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// All buffers are in use: poll, then try again.
    #[error("all send buffers are in use; poll and try again")]
    Busy,
    /// No lane takes that much.
    #[error("{len} bytes are more than the largest message, {max}")]
    TooLong {
        /// Asked for.
        len: usize,
        /// The most there is.
        max: usize,
    },
}

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendErrorKind {
    /// The peer failed before.
    #[error("{0}")]
    Failed(PeerFault),
    /// The peer was removed, or the engine is closing.
    #[error("the peer was removed or the engine is closing")]
    Closing,
    /// It cannot leave at once ([`Engine::try_send`](crate::Engine::try_send) only).
    #[error("the message cannot leave at once")]
    WouldQueue,
    /// It fits no buffer of the peer, whose lanes are smaller than this side's
    /// ([`Engine::set_peer_lanes`](crate::Engine::set_peer_lanes)).
    #[error("the message has {len} bytes, and the peer's buffers hold {max}")]
    TooLong {
        /// Its payload bytes.
        len: usize,
        /// The most that fit.
        max: usize,
    },
    /// All entries of the message table are in use: poll, then try again.
    #[error("too many messages are under way; poll and try again")]
    Busy,
}

/// A message that was not taken, with its buffer.
pub struct SendError<B> {
    /// Why.
    pub kind: SendErrorKind,
    /// The buffer, unchanged.
    pub buf: B,
}

impl<B> fmt::Debug for SendError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for SendError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(f)
    }
}

impl<B> std::error::Error for SendError<B> {}
