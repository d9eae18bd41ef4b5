//! What carries each peer, and why: a record for each, and a line of text.
use crate::error::PeerFault;
use crate::names::{PeerId, ProcName, Role};
use crate::route::{CreditRoute, RouteRefused};
use crate::stats::Stats;
use std::fmt;

/// One peer, from [`Engine::report`](crate::Engine::report). Its `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// The peer.
    pub peer: PeerId,
    /// Its name.
    pub name: ProcName,
    /// The device here, like `siw0:1`.
    pub device: String,
    /// What it speaks, like `iWARP`.
    pub transport: String,
    /// How the peer is.
    pub state: PeerState,
    /// Its lanes by class, those too that were not needed yet.
    pub lanes: Vec<LaneReport>,
    /// On which lane credits travel that have no message to ride on.
    pub route: CreditRoute,
    /// Why on that.
    pub route_why: RouteWhy,
    /// What was done, closed lanes included.
    pub stats: Stats,
}

/// How a peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// Nothing was sent to it, nor came from it.
    Idle,
    /// A connection is being made.
    Connecting,
    /// A lane is up.
    Connected,
    /// It is being closed.
    Closing,
    /// It failed.
    Failed(PeerFault),
}

/// One lane of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneReport {
    /// Its class.
    pub class: u8,
    /// Bytes of one buffer, header included.
    pub buffer_size: u32,
    /// Receives posted.
    pub depth: u16,
    /// Places of the send queue.
    pub send_depth: u16,
    /// `None`: it is not up.
    pub up: Option<LaneUpReport>,
}

/// A lane that is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneUpReport {
    /// This side's role.
    pub role: Role,
    /// Sends we may make now.
    pub credits: u32,
    /// Receives posted that the peer has not been told of.
    pub owed: u32,
    /// Which connection of the lane it is, in the dialler's count.
    pub generation: u32,
    /// Whether it is made anew when it fails. `None`: that was not asked for here; `Some(false)`: not by the peer.
    pub recovers: Option<bool>,
}

/// Why credits travel where they do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteWhy {
    /// Nothing else was asked for here.
    Default,
    /// The first lane was asked for here, and no connection of another lane has been made on which to agree.
    NotAgreed,
    /// The first lane was asked for here, and the peer wants its own.
    PeerWantsOwn,
    /// The first lane was asked for here, but lanes recover, and credits on one lane would be lost when another fails.
    Recovery,
    /// Both sides asked for the first lane.
    BothAsked,
    /// The same, and this side's device had to be forced.
    Forced(RouteRefused),
}

impl fmt::Display for RouteWhy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteWhy::Default => f.write_str("default"),
            RouteWhy::NotAgreed => f.write_str("first was asked for, nothing agreed yet"),
            RouteWhy::PeerWantsOwn => f.write_str("first was asked for, the peer wants own"),
            RouteWhy::Recovery => f.write_str("first was asked for, but lanes recover"),
            RouteWhy::BothAsked => f.write_str("both sides asked for it"),
            RouteWhy::Forced(why) => write!(f, "forced, though {why}"),
        }
    }
}

impl fmt::Display for PeerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerState::Idle => f.write_str("idle"),
            PeerState::Connecting => f.write_str("connecting"),
            PeerState::Connected => f.write_str("connected"),
            PeerState::Closing => f.write_str("closing"),
            PeerState::Failed(fault) => write!(f, "failed ({})", fault.kind),
        }
    }
}

/// `0: 12288 B x 16, initiator`.
impl fmt::Display for LaneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} B x {}", self.class, self.buffer_size, self.depth)?;
        match self.up.map(|up| up.role) {
            Some(Role::Initiator) => f.write_str(" initiator")?,
            Some(Role::Acceptor) => f.write_str(" acceptor")?,
            None => f.write_str(" not up")?,
        }
        match self.up.and_then(|up| up.recovers) {
            Some(true) => f.write_str(" with recovery"),
            Some(false) => f.write_str(" without recovery, which the peer has off"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for PeerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = &self.stats;
        write!(f, "{}: {}, {} over {}; lanes", self.name, self.state, self.transport, self.device)?;
        for (n, lane) in self.lanes.iter().enumerate() {
            write!(f, "{} {lane}", if n > 0 { "," } else { "" })?;
        }
        write!(f, "; credit route {} ({})", self.route, self.route_why)?;
        write!(
            f,
            "; sent {} messages ({} B), received {} ({} B); puts {} ({} B), gets {} ({} B), atomics {}, fences {}",
            stats.messages_sent,
            stats.bytes_sent,
            stats.messages_received,
            stats.bytes_received,
            stats.puts,
            stats.bytes_put,
            stats.gets,
            stats.bytes_got,
            stats.atomics,
            stats.fences,
        )?;
        write!(
            f,
            "; credits {} with messages, {} alone in {}; waited for: {}; retries {}; lanes made {}, recovered {}",
            stats.credits_piggybacked,
            stats.credits_alone,
            stats.credit_only_sent,
            stats.stalls,
            stats.retries,
            stats.lanes_up,
            stats.recoveries,
        )
    }
}
