//! Several rails to a peer: one engine for each device or port, messages and one-sided operations over all of them.
//!
//! A *rail* is an [`Engine`] on one port of one device; [`Rails`] owns all of a process. Rails are **numbered alike in all
//! processes**: rail 0 of one process connects to rail 0 of another. Number them by network; a process that lacks one
//! of them gives its peers no address for it. A frame that arrives under another number is refused with a clear fault.
//!
//! # Order, and what `Sent` means
//! Messages to a peer form **one sequence over all rails**: whatever their length and whichever rails they take, they
//! are delivered in the order of the calls, each exactly once. [`RailsEvent::Sent`] with `Ok` comes when the peer's rails
//! have *acknowledged* the whole message, not when a device took it. So a rail may fail at any instant: what it had and
//! the peer has not acknowledged goes again over the others, and what comes twice is dropped. This needs no
//! recovery inside the engine and loses nothing.
//!
//! The other way would be to keep all matching traffic on one rail and to stripe only the bulk of long messages. Then
//! order needs no sequence, but when that one rail fails it needs one all the same; with it, small messages may use
//! whichever rail is the quickest just now. It costs [24 bytes](RailsConfig#limits) a message.
//!
//! A piece that arrives is copied out at once (unless it is a whole message whose turn it is, which is handed over in
//! the device's buffer), so no rail's receives wait for another rail: pieces out of order cannot take the credits of
//! those that are missing.
//!
//! # Which rail
//! Each piece takes the rail on which it would arrive first: [`latency`](Rail::latency) + (bytes the rail has and has not
//! finished + its own) / [`bandwidth`](Rail::bandwidth). A small message takes the rail with the lowest latency, unless
//! that is busy; a long one fills all rails in proportion to their bandwidth, and a rail that is slower than it claims
//! gets less, because its bytes stay unfinished for longer.
//!
//! # Connecting, and falling back
//! The rail with the lowest latency is connected first, when something is to be sent. If it is not connected within
//! [`t_next_rail`](RailsConfig::t_next_rail), or fails, the next is tried beside it; within a rail the engine tries the
//! peer's next address, and begins again after a pause that doubles, until [`t_give_up`](crate::Config::t_give_up). When
//! much is to be sent ([`stripe_min`](RailsConfig::stripe_min)) all rails are connected.
//!
//! A rail to a peer that fails is dropped with [`RailsEvent::RailDown`], and tried anew after
//! [`t_rejoin`](RailsConfig::t_rejoin), which doubles. A rail on which nothing goes through for
//! [`t_stall`](RailsConfig::t_stall) while the peer answers on another is dropped too: TCP, below iWARP, goes on trying
//! for many minutes after a cable was pulled. When no rail is left, those that have worked are tried once more at once, for
//! [`t_revive`](RailsConfig::t_revive); so also a single rail survives that its queue pair fails. Then the peer has failed:
//! [`RailsFaultKind::NoRail`] says for each rail why it is not used.
//!
//! # One-sided operations
//! [`put`](Rails::put) and [`get`](Rails::get) take one part for each rail, because memory is registered with a device;
//! [`shares`](Rails::shares) says how to divide. A put that is [`Done`](RailsEvent::Done) **is in the peer's memory, on
//! every transport**: where a device's own completion does not say so (iWARP), the engine's fence is waited for. Puts and
//! messages are not ordered with each other: tell the peer of a put when it is done. Parts are not sent again when
//! their rail fails, since only the caller has the memory for another: `Done` tells them apart.
//!
//! # Limits
//! A message has at most [`max_message`](RailsConfig::max_message) bytes, 2^63 at the very most, and is refused with the
//! limit if it has more. A part of a put or get has 1 to 2^63 bytes ([`rma`](crate::rma)). At most [`WINDOW`] pieces to
//! a peer are not acknowledged at a time. What a peer can make this process keep is at most twice `max_message` and a
//! window of pieces; a peer that wants more fails alone.
//!
//! All of it runs without clock, threads or system calls, as the engine does. It allocates: for messages that are put
//! together, and for its queues.
mod error;
mod event;
mod flow;
mod frame;
mod incoming;
mod life;
mod link;
mod outgoing;
mod parts;
mod peer;

use crate::engine::Engine;
use crate::names::{Nanos, PeerId, ProcName, SECOND};
use crate::port::{Cm, Port};
use incoming::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

pub use error::{
    PartFault, RailFault, RailsError, RailsFault, RailsFaultKind, RailsProtocolFault,
    RailsSendError, RailsSendErrorKind, TriedRail,
};
pub use event::{PartDone, RailsEvent, RailsPortEvent, Received};
use link::Link;
pub use link::RailState;
pub use parts::{Part, PartsError, PartsErrorKind, Share};
use peer::{Life, Peer};

/// Most rails of a process.
pub const MAX_RAILS: usize = 8;
/// Most pieces to a peer that are not acknowledged.
pub const WINDOW: u64 = 1024;

/// One rail: an engine on one port of one device.
pub struct Rail<P: Port, C: Cm<Qp = P::Qp>> {
    /// For reports; usually the device, like `mlx5_0`.
    pub label: String,
    /// The engine; all of a process have the same [`me`](crate::Config::me), and no peers yet.
    pub engine: Engine<P, C>,
    /// Weight of the rail: what it carries, in million bytes a second; at least 1.
    pub bandwidth: u32,
    /// How long a small message takes, in nanoseconds.
    pub latency: u32,
}

/// Settings of rails; the same in all processes that connect to each other.
///
/// # Limits
/// Each frame has 24 bytes in front of the payload, that of a message cut into pieces 40. Both come out of the engine's
/// largest message ([`Engine::max_send_size`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailsConfig {
    /// Bytes of the longest message, 1 to 2^63.
    pub max_message: u64,
    /// Messages to a peer that are not acknowledged, at least 1.
    pub max_queued: u32,
    /// Bytes that wait for a peer from which on all rails to it are connected.
    pub stripe_min: u64,
    /// A rail that takes longer to connect gets help of the next.
    pub t_next_rail: Nanos,
    /// After this long an acknowledgement that no message carried goes by itself.
    pub t_ack: Nanos,
    /// A rail that moves nothing for so long, while the peer answers on another, is dropped. What is not acknowledged for
    /// half of it is sent again.
    pub t_stall: Nanos,
    /// Pause before a rail that failed is tried anew; it doubles up to 64 times this.
    pub t_rejoin: Nanos,
    /// When the last rail to a peer fails, those that have worked are tried anew at once, for so long; then the peer has
    /// failed. 0: not at all.
    pub t_revive: Nanos,
    /// Most time [`Rails::close`] waits for acknowledgements.
    pub t_close: Nanos,
    /// Tells a process from an earlier one of the same name, for example the time of its start. Not the same in all.
    pub epoch: u32,
    /// Test only: rules to break.
    #[cfg(feature = "sabotage")]
    pub sabotage: RailsSabotage,
}

/// Test only: which rule of rails to break.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailsSabotage {
    /// Messages are delivered as they arrive.
    pub any_order: bool,
    /// Duplicates are delivered.
    pub no_dedup: bool,
    /// What a failed rail had is not sent again.
    pub no_resend: bool,
    /// A put is done when the device says so.
    pub no_fence: bool,
}

impl Default for RailsConfig {
    fn default() -> RailsConfig {
        RailsConfig {
            max_message: 256 << 20,
            max_queued: 4096,
            stripe_min: 256 << 10,
            t_next_rail: SECOND,
            t_ack: SECOND / 5000,
            t_stall: 5 * SECOND,
            t_rejoin: 5 * SECOND,
            t_revive: 10 * SECOND,
            t_close: 5 * SECOND,
            epoch: 0,
            #[cfg(feature = "sabotage")]
            sabotage: RailsSabotage::default(),
        }
    }
}

impl RailsConfig {
    fn validate(&self) -> Result<(), RailsError> {
        let check = |what, value: u64, ok: bool, allowed| {
            if ok { Ok(()) } else { Err(RailsError::Config { what, value, allowed }) }
        };
        let max = self.max_message;
        check("max_message", max, (1..=1 << 63).contains(&max), "1 to 2^63 bytes")?;
        check("max_queued", self.max_queued.into(), self.max_queued > 0, "at least 1")?;
        for (what, t) in [
            ("t_next_rail", self.t_next_rail),
            ("t_stall", self.t_stall),
            ("t_rejoin", self.t_rejoin),
            ("t_close", self.t_close),
        ] {
            let ok = (SECOND / 1000..=86_400 * SECOND).contains(&t);
            check(what, t, ok, "1 ms to 1 day, in nanoseconds")?;
        }
        check("t_revive", self.t_revive, self.t_revive <= 86_400 * SECOND, "at most 1 day")?;
        check("t_ack", self.t_ack, self.t_ack <= SECOND, "at most 1 s, in nanoseconds")
    }
}

/// A peer of rails. Carries a generation, so the name of a removed peer never means another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RailsPeer {
    index: u32,
    generation: u32,
}

/// What rails did since they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailsStats {
    /// Whole messages and pieces given to rails, those sent again included.
    pub pieces: u64,
    /// Pieces that were sent again, because their rail failed or they were not acknowledged.
    pub resent: u64,
    /// Pieces that arrived again and were dropped.
    pub duplicates: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Of these, how many had been put together or kept until their turn.
    pub reassembled: u64,
    /// Acknowledgements that went by themselves.
    pub acks_alone: u64,
    /// Rails to peers that came up.
    pub rails_up: u64,
    /// Rails to peers that were dropped.
    pub rails_down: u64,
    /// Of these, because nothing moved.
    pub rails_stalled: u64,
}

/// All rails of a process.
pub struct Rails<P: Port, C: Cm<Qp = P::Qp>> {
    config: RailsConfig,
    rails: Vec<Entry<P, C>>,
    peers: Vec<Place>,
    free: Vec<u32>,
    names: BTreeMap<ProcName, u32>,
    events: VecDeque<RailsPortEvent<P>>,
    ops: parts::Ops<P::Memory>,
    /// Peers whose pieces found no send buffer.
    work: Vec<u32>,
    /// Peers to which an acknowledgement is owed.
    owing: Vec<u32>,
    stats: RailsStats,
    /// Bytes of payload of the longest piece.
    piece: usize,
    limits: Limits,
    /// Whose turn it is, and how many events it may still give.
    turn: (usize, u32),
    now: Nanos,
    next_timer: Nanos,
    closing: Option<Nanos>,
    closed: bool,
}

struct Entry<P: Port, C: Cm<Qp = P::Qp>> {
    rail: Rail<P, C>,
    /// By index of the engine's peers: its whole name, and whose it is.
    owners: Vec<Option<(PeerId, u32)>>,
    /// What the engine may still be closing.
    leaving: BTreeMap<ProcName, PeerId>,
    closed: bool,
}

struct Place {
    generation: u32,
    peer: Option<Peer>,
}

/// Events taken from one rail before the next has its turn.
const TURN: u32 = 64;

impl<P: Port, C: Cm<Qp = P::Qp>> Rails<P, C> {
    /// Rails without peers.
    ///
    /// # Errors
    /// [`RailsError`]: no rail or more than [`MAX_RAILS`], engines of different processes, a value out of range.
    pub fn new(config: RailsConfig, rails: Vec<Rail<P, C>>) -> Result<Self, RailsError> {
        config.validate()?;
        let n = rails.len();
        if !(1..=MAX_RAILS).contains(&n) {
            return Err(RailsError::Count { n, max: MAX_RAILS });
        }
        let me = rails.first().map(|rail| rail.engine.config().me);
        for (at, rail) in rails.iter().enumerate() {
            if Some(rail.engine.config().me) != me {
                return Err(RailsError::Differs { rail: at, what: "name" });
            }
            let value = u64::from(rail.bandwidth);
            if value == 0 {
                return Err(RailsError::Config { what: "bandwidth", value, allowed: "at least 1" });
            }
        }
        let longest = rails.iter().map(|rail| rail.engine.max_send_size()).min().unwrap_or(0);
        let piece = outgoing::longest_piece(longest);
        let limits = Limits::new(config.max_message, piece as u64);
        let rails = rails
            .into_iter()
            .map(|rail| Entry { rail, owners: Vec::new(), leaving: BTreeMap::new(), closed: false })
            .collect();
        Ok(Rails {
            config,
            rails,
            peers: Vec::new(),
            free: Vec::new(),
            names: BTreeMap::new(),
            events: VecDeque::new(),
            ops: parts::Ops::default(),
            work: Vec::new(),
            owing: Vec::new(),
            stats: RailsStats::default(),
            piece,
            limits,
            turn: (0, TURN),
            now: 0,
            next_timer: 0,
            closing: None,
            closed: false,
        })
    }

    /// Makes a process a peer: `addrs` are its addresses by number of the rail, best first; none for a rail that it lacks.
    /// Nothing is sent; a rail is connected when it is needed. A peer that connected by itself, or was added before, keeps
    /// its name and gets these addresses.
    ///
    /// # Errors
    /// [`RailsError`]: it is this process, no rail has an address, or an engine will not have it.
    pub fn add_peer(
        &mut self,
        name: ProcName,
        addrs: &[Vec<SocketAddr>],
    ) -> Result<RailsPeer, RailsError> {
        let (given, rails) = (addrs.len(), self.rails.len());
        if given > rails || addrs.iter().all(Vec::is_empty) {
            return Err(RailsError::Addresses { name, given, rails });
        }
        if self.closing.is_some() {
            return Err(RailsError::Closing);
        }
        if self.rails.iter().any(|entry| entry.rail.engine.config().me == name) {
            return Err(RailsError::Oneself { name });
        }
        let known = self.names.get(&name).copied();
        let peer = self.peer_named(name);
        for (rail, addrs) in addrs.iter().enumerate().filter(|(_, addrs)| !addrs.is_empty()) {
            if let Err(error) = self.announce(peer.index, rail, name, addrs) {
                if known.is_none() {
                    self.forget(peer.index);
                }
                return Err(RailsError::Engine { rail, error });
            }
        }
        self.pump(peer.index);
        Ok(peer)
    }

    /// Closes the connections to a peer and forgets it: what was sent before is waited for, for at most
    /// [`t_close`](RailsConfig::t_close). `Sent` events still carry its name; nothing else of it comes.
    pub fn remove_peer(&mut self, peer: RailsPeer) {
        self.close_peer(peer);
    }

    /// Sends a message, of any length up to [`max_message`](Self::max_message). It stays here until the peer has
    /// acknowledged it and comes back with [`RailsEvent::Sent`].
    ///
    /// # Errors
    /// [`RailsSendError`]: not taken; the message comes back.
    pub fn send(
        &mut self,
        peer: RailsPeer,
        tag: u8,
        data: Vec<u8>,
        cookie: u64,
    ) -> Result<(), RailsSendError> {
        let (len, max) = (data.len() as u64, self.config.max_message);
        let max_queued = self.config.max_queued;
        let refused = match self.peer_mut(peer) {
            None => Some(RailsSendErrorKind::Closing),
            Some(it) => match &it.life {
                Life::Failed(fault) => Some(RailsSendErrorKind::Failed(fault.clone())),
                Life::Closing(_) => Some(RailsSendErrorKind::Closing),
                Life::Open if len > max => Some(RailsSendErrorKind::TooLong { len, max }),
                Life::Open if it.out.len() >= max_queued as usize => {
                    Some(RailsSendErrorKind::Busy { max: max_queued })
                }
                Life::Open => None,
            },
        };
        if let Some(kind) = refused {
            return Err(RailsSendError { kind, data });
        }
        if let Some(it) = self.peer_mut(peer) {
            it.out.push(tag, data, cookie);
        }
        self.pump(peer.index);
        Ok(())
    }

    /// The next event. `now`: the caller's monotonic clock in nanoseconds, may be coarse. Any call may be made between
    /// two events.
    pub fn poll(&mut self, now: Nanos) -> Option<RailsPortEvent<P>> {
        self.now = now;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if !self.poll_rails(now) && !self.idle() {
                return None;
            }
        }
    }

    /// One event of an engine. `false`: there is none.
    fn poll_rails(&mut self, now: Nanos) -> bool {
        for _ in 0..self.rails.len() {
            let (at, left) = self.turn;
            let event = self.rails.get_mut(at).and_then(|entry| entry.rail.engine.poll(now));
            if left == 0 || event.is_none() {
                self.turn = (if at + 1 < self.rails.len() { at + 1 } else { 0 }, TURN);
            } else {
                self.turn.1 = left - 1;
            }
            if let Some(event) = event {
                self.on_event(at, event);
                return true;
            }
        }
        false
    }

    /// Gives a received message's buffer back.
    pub fn release(&mut self, data: Received<P::Slot>) {
        if let Some((rail, buf)) = data.into_buffer()
            && let Some(entry) = self.rails.get_mut(rail)
        {
            entry.rail.engine.release(buf);
        }
    }

    /// Starts an orderly close of everything; poll until [`RailsEvent::Closed`].
    pub fn close(&mut self, now: Nanos) {
        self.now = now;
        self.close_all();
    }

    /// Whether something is under way: a loop that shares its CPU should yield on an empty poll.
    pub fn busy(&self) -> bool {
        let waits = |place: &Place| place.peer.as_ref().is_some_and(|peer| !peer.out.is_empty());
        self.closing.is_some()
            || !self.owing.is_empty()
            || self.rails.iter().any(|entry| entry.rail.engine.busy())
            || self.peers.iter().any(waits)
    }

    /// Bytes of the longest message.
    pub fn max_message(&self) -> u64 {
        self.config.max_message
    }

    /// What was done so far. What each rail carried: [`Engine::stats`] of [`engine`](Self::engine).
    pub fn stats(&self) -> &RailsStats {
        &self.stats
    }

    /// Number of rails.
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// The engine of a rail, for reports.
    pub fn engine(&self, rail: usize) -> Option<&Engine<P, C>> {
        self.rails.get(rail).map(|entry| &entry.rail.engine)
    }

    /// The engine of a rail, for a driver that has to tend its port. Messages and operations on it by hand, and changes of
    /// its peers, break the accounts of the rails.
    pub fn engine_mut(&mut self, rail: usize) -> Option<&mut Engine<P, C>> {
        self.rails.get_mut(rail).map(|entry| &mut entry.rail.engine)
    }

    /// The name of a peer, while it is one.
    pub fn peer_name(&self, peer: RailsPeer) -> Option<ProcName> {
        self.peer_ref(peer).map(|it| it.name)
    }

    /// How a rail to a peer is. `None`: there is no such peer or rail.
    pub fn rail_state(&self, peer: RailsPeer, rail: usize) -> Option<RailState> {
        self.peer_ref(peer)?.links.get(rail).map(Link::public)
    }

    fn peer_ref(&self, peer: RailsPeer) -> Option<&Peer> {
        let place = self.peers.get(peer.index as usize)?;
        place.peer.as_ref().filter(|_| place.generation == peer.generation)
    }

    fn peer_mut(&mut self, peer: RailsPeer) -> Option<&mut Peer> {
        let place = self.peers.get_mut(peer.index as usize)?;
        place.peer.as_mut().filter(|_| place.generation == peer.generation)
    }

    fn peer_at(&mut self, index: u32) -> Option<&mut Peer> {
        peer_in(&mut self.peers, index)
    }
}

/// The same, where other fields are needed beside it.
fn peer_in(peers: &mut [Place], index: u32) -> Option<&mut Peer> {
    peers.get_mut(index as usize)?.peer.as_mut()
}
