//! The engine: peers, lanes and messages. See the crate's front page for the words.
mod gauges;
mod io;
mod life;
mod oneself;
mod quick;
mod receive;
mod recover;
mod report;
mod rma;
mod route;
#[cfg(feature = "sabotage")]
mod sabotage;
mod sizes;

use crate::config::Config;
use crate::endpoint::{Class, Endpoint, Link, State};
use crate::error::{AllocError, Error, PeerFault, SendError, SendErrorKind};
use crate::frag::{Frag, Table};
use crate::lane::{Refusal, When};
use crate::names::{ConnToken, LaneId, Nanos, PeerId, ProcName};
use crate::port::{Cm, CmRequest, Completion, Found, Op, Port, Status};
use crate::stats::{Stalls, Stats};
use crate::wire::{HEADER, Header};
pub use gauges::Gauges;
use io::{Io, Lane, Wait};
use quick::{Quick, What};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

/// A send buffer. Dereferences to exactly the payload.
#[derive(Debug)]
#[must_use = "a buffer that is not sent must be given back with Engine::free"]
pub struct SendBuf<S> {
    slot: S,
    class: u8,
    len: u32,
    /// Most payload bytes of the class.
    max: u32,
}

/// A received message that owns its buffer. Dereferences to exactly the payload.
#[derive(Debug)]
#[must_use = "Engine::release posts the buffer again and returns the credit"]
pub struct RecvBuf<S> {
    slot: S,
    len: usize,
    lane: LaneId,
}

impl<S: Deref<Target = [u8]>> SendBuf<S> {
    /// Payload bytes this buffer can hold.
    pub fn capacity(&self) -> usize {
        self.slot.len().saturating_sub(HEADER).min(self.max as usize)
    }

    /// Sets the payload's length, at most [`capacity`](SendBuf::capacity).
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity()) as u32;
    }

    /// The lane class it will travel on.
    pub fn class(&self) -> u8 {
        self.class
    }
}

impl<S: Deref<Target = [u8]>> Deref for SendBuf<S> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slot.get(HEADER..HEADER + self.len as usize).unwrap_or(&[])
    }
}

impl<S: DerefMut<Target = [u8]>> DerefMut for SendBuf<S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slot.get_mut(HEADER..HEADER + self.len as usize).unwrap_or(&mut [])
    }
}

impl<S: Deref<Target = [u8]>> Deref for RecvBuf<S> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.slot.get(HEADER..HEADER + self.len).unwrap_or(&[])
    }
}

impl<S: DerefMut<Target = [u8]>> DerefMut for RecvBuf<S> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slot.get_mut(HEADER..HEADER + self.len).unwrap_or(&mut [])
    }
}

/// What became of a message given to [`Engine::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The device has it.
    Posted,
    /// It waits for a connection, a credit, or a place in the send queue.
    Queued,
}

/// What [`Engine::poll`] reports. Events own their buffers, so any call may be made between.
#[derive(Debug)]
pub enum Event<S, M> {
    /// A message arrived. Give `buf` to [`Engine::release`] soon.
    Message {
        /// From whom.
        peer: PeerId,
        /// The tag it was sent with.
        tag: u8,
        /// The message.
        buf: RecvBuf<S>,
    },
    /// A message given to [`Engine::send`] has left, or never will. Exactly one for each. With
    /// [`Config::recover`] it comes when the peer has acknowledged the message.
    Sent {
        /// To whom.
        peer: PeerId,
        /// As given.
        cookie: u64,
        /// The buffer; `None` only if the device would not let it go.
        buf: Option<SendBuf<S>>,
        /// Whether it left.
        result: Result<(), PeerFault>,
    },
    /// A put, get or atomic is over. Exactly one for each that was taken; what it promises: [`rma`](crate::rma).
    Done {
        /// With whom.
        peer: PeerId,
        /// As given.
        cookie: u64,
        /// The memory; `None` only if the device would not let it go.
        memory: Option<M>,
        /// How it ended. After an error nothing is known of the peer's memory.
        result: Result<(), PeerFault>,
    },
    /// A [`fence`](Engine::fence) is over. Exactly one for each that was taken.
    Fenced {
        /// With whom.
        peer: PeerId,
        /// As given.
        cookie: u64,
        /// `Ok`: what was started before it is done at both ends.
        result: Result<(), PeerFault>,
    },
    /// The first lane of a peer works in both directions.
    PeerConnected {
        /// Who.
        peer: PeerId,
        /// Its name.
        name: ProcName,
    },
    /// A process that was not added connected; it is a peer now.
    NewPeer {
        /// Who.
        peer: PeerId,
        /// Its name.
        name: ProcName,
    },
    /// A peer failed. Comes once, after the `Sent`, `Done` and `Fenced` of everything that waited for it; nothing of
    /// the peer comes after it. It stays known, and refuses messages, until
    /// [`Engine::remove_peer`]. Comes for peers out of `NewPeer` too.
    ///
    /// The engine has no keepalive: a host that vanishes without a word is noticed by a device
    /// that retries in vain, so only while something is on the wire to it.
    PeerFailed {
        /// Who.
        peer: PeerId,
        /// Why.
        fault: PeerFault,
    },
    /// The close that was asked for is complete. Nothing comes after it.
    Closed,
}

/// The events of an engine on a port.
pub type PortEvent<P> = Event<<P as Port>::Slot, <P as Port>::Memory>;

/// The transport of one process over one port.
pub struct Engine<P: Port, C: Cm<Qp = P::Qp>> {
    config: Config,
    /// Payload bytes of lane 0.
    eager: u32,
    cm: C,
    io: Io<P>,
    lanes: Vec<LaneEntry<P::Slot>>,
    free_lanes: Vec<u32>,
    peers: Vec<PeerEntry>,
    free_peers: Vec<u32>,
    names: BTreeMap<ProcName, u32>,
    /// The other end of this process as its own peer: see [`oneself`].
    mirror: Option<u32>,
    /// By peer: where its lane 0 was when it came up.
    hints: Vec<u32>,
    /// Which lane a connection became.
    conns: BTreeMap<ConnToken, LaneId>,
    now: Nanos,
    /// When the timers are to be looked at; `Nanos::MAX`: never.
    next_timer: Nanos,
    /// When those of peers and lanes are; the others are acknowledgements.
    next_scan: Nanos,
    /// Lanes asked for.
    connecting: u32,
    /// Completions since the connection manager's side was asked last.
    since_cm: u32,
    /// Completions since a lane broke.
    undrained: u32,
    closing: Closing,
}

/// A lane, its peer, and what is needed to post.
type Parts<'a, P> = (&'a mut Lane<<P as Port>::Slot>, &'a mut Endpoint, &'a mut Io<P>);

/// Where [`Engine::post`] put a message.
enum Placed {
    /// The device has it.
    Posted,
    /// It is in the table, with its slot, and on no list.
    Waits { i: u32, class: u8 },
}

struct LaneEntry<S> {
    generation: u32,
    lane: Option<Lane<S>>,
}

struct PeerEntry {
    generation: u32,
    endpoint: Option<Endpoint>,
}

/// How far the close of the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    /// The peers are being closed.
    Peers,
    /// The connection manager is stopping.
    Cm {
        deadline: Nanos,
    },
    Done,
}

/// Room for events that wait, so that fences need none.
const EVENTS: usize = 64;
/// With traffic that never ends, ask the connection manager's side after so many completions.
const CM_EVERY: u32 = 64;
/// With traffic that never ends, close a broken lane after so many completions.
const HANGUP_AFTER: u32 = 4096;

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// An engine without peers.
    ///
    /// # Errors
    /// A value of `config` is out of range, or the device cannot be trusted with its credit route.
    pub fn new(config: Config, port: P, cm: C) -> Result<Self, Error> {
        config.validate()?;
        if !config.force_credit_route {
            config.credit_route.check(&port.info())?;
        }
        let io = Io {
            port,
            frags: Table::new(config.message_entries()),
            ops: rma::Ops::new(config.rma_ops),
            events: VecDeque::with_capacity(EVENTS + config.acked_entries()),
            stats: Stats::default(),
            queued: 0,
            hangups: Vec::new(),
            retry: Vec::new(),
            turned_away: None,
            elsewhere: Vec::new(),
            acks: VecDeque::new(),
            #[cfg(feature = "sabotage")]
            sabotage: config.sabotage,
            #[cfg(feature = "sabotage")]
            straight: config.sabotage == crate::config::Sabotage::default(),
        };
        Ok(Engine {
            eager: config.max_payload(0) as u32,
            config,
            cm,
            io,
            lanes: Vec::new(),
            free_lanes: Vec::new(),
            peers: Vec::new(),
            free_peers: Vec::new(),
            names: BTreeMap::new(),
            mirror: None,
            hints: Vec::new(),
            conns: BTreeMap::new(),
            now: 0,
            next_timer: Nanos::MAX,
            next_scan: Nanos::MAX,
            connecting: 0,
            since_cm: 0,
            undrained: 0,
            closing: Closing::No,
        })
    }

    /// Makes a process a peer. Nothing is sent; it is connected when a message needs it. A peer
    /// that was added before, or connected by itself, keeps its id and gets these addresses.
    ///
    /// A process may be its own peer, over a device that can connect to itself; its own addresses are those it
    /// published.
    ///
    /// # Errors
    /// It is this process and the device cannot connect to itself, has no address, there are too many peers, or the
    /// engine is closing.
    pub fn add_peer(&mut self, name: ProcName, addrs: &[SocketAddr]) -> Result<PeerId, Error> {
        if name == self.config.me {
            self.check_oneself(name)?;
        }
        if addrs.is_empty() {
            return Err(Error::NoAddress { name });
        }
        if self.closing != Closing::No {
            return Err(Error::Closing);
        }
        let peer = self.peer_named(name)?;
        self.known_now(peer);
        self.cm.request(CmRequest::Announce { name, addrs: addrs.to_vec() });
        self.recover_announced(peer.index);
        self.connect_waiting(peer.index);
        Ok(peer)
    }

    /// Closes the connections to a peer in an orderly way and forgets it: what was sent before is
    /// still sent, for at most `t_close`. From now on a disconnect by it is normal. Its id is
    /// good for nothing any more, but `Sent` events still carry it.
    pub fn remove_peer(&mut self, peer: PeerId) {
        self.close_peer(peer);
    }

    /// Payload bytes of the largest message of a lane class; 0 if there is none.
    pub fn max_payload(&self, class: u8) -> usize {
        self.config.max_payload(class)
    }

    /// Payload bytes up to which all messages to a peer share lane 0 and stay in order.
    pub fn eager_limit(&self) -> usize {
        self.config.max_payload(0)
    }

    /// Payload bytes of the largest message.
    pub fn max_send_size(&self) -> usize {
        self.config.max_payload((self.config.lanes.len() as u8).saturating_sub(1))
    }

    /// A buffer for a message of `len` bytes, of the smallest class that fits.
    ///
    /// # Errors
    /// [`AllocError`]: too long, or all are in use for now.
    #[inline]
    pub fn alloc(&mut self, len: usize) -> Result<SendBuf<P::Slot>, AllocError> {
        if len > self.eager as usize {
            return self.alloc_large(len);
        }
        let slot = self.io.port.send_slot(0).ok_or(AllocError::Busy)?;
        Ok(SendBuf { slot, class: 0, len: len as u32, max: self.eager })
    }

    #[inline(never)]
    fn alloc_large(&mut self, len: usize) -> Result<SendBuf<P::Slot>, AllocError> {
        let Some(class) = self.config.class_for(len) else {
            return Err(AllocError::TooLong { len, max: self.max_send_size() });
        };
        let slot = self.io.port.send_slot(class).ok_or(AllocError::Busy)?;
        let max = self.config.max_payload(class) as u32;
        Ok(SendBuf { slot, class, len: len as u32, max })
    }

    /// Gives a buffer back: one that was not sent, or one out of [`Event::Sent`].
    #[inline]
    pub fn free(&mut self, buf: SendBuf<P::Slot>) {
        self.io.port.recycle_send(buf.class, buf.slot);
    }

    /// Sends a message. Messages of one lane class to one peer arrive in order. May be called at
    /// any time, also between [`poll`](Engine::poll) and [`release`](Engine::release).
    ///
    /// # Errors
    /// [`SendError`]: not taken; the buffer comes back.
    #[inline(always)]
    pub fn send(
        &mut self,
        peer: PeerId,
        tag: u8,
        buf: SendBuf<P::Slot>,
        cookie: u64,
    ) -> Result<Sent, SendError<SendBuf<P::Slot>>> {
        let SendBuf { slot, class, len, max } = buf;
        match self.send_quick(peer, slot, What { tag, class, len, max, cookie }) {
            Ok(()) => Ok(Sent::Posted),
            Err(slot) => self.send_long(peer, tag, SendBuf { slot, class, len, max }, cookie),
        }
    }

    /// [`send`](Engine::send) for everything.
    #[inline(never)]
    fn send_long(
        &mut self,
        peer: PeerId,
        tag: u8,
        buf: SendBuf<P::Slot>,
        cookie: u64,
    ) -> Result<Sent, SendError<SendBuf<P::Slot>>> {
        match self.post(peer, tag, buf, cookie)? {
            Placed::Posted => Ok(Sent::Posted),
            Placed::Waits { i, class } => {
                let Some(c) = self.class_mut(peer, class) else { return Ok(Sent::Queued) };
                let mut pending = std::mem::take(&mut c.pending);
                self.io.frags.push(&mut pending, i);
                if let Some(c) = self.class_mut(peer, class) {
                    c.pending = pending;
                }
                self.io.queued += 1;
                self.connect(peer.index, class);
                Ok(Sent::Queued)
            }
        }
    }

    /// Sends a message if the device can have it at once; never queues. The connection is made if
    /// there is none, so that a later try finds it.
    ///
    /// # Errors
    /// [`SendErrorKind::WouldQueue`] where [`send`](Engine::send) would queue; else as there.
    pub fn try_send(
        &mut self,
        peer: PeerId,
        tag: u8,
        buf: SendBuf<P::Slot>,
        cookie: u64,
    ) -> Result<(), SendError<SendBuf<P::Slot>>> {
        let SendBuf { slot, class: c, len, max } = buf;
        let slot = match self.send_quick(peer, slot, What { tag, class: c, len, max, cookie }) {
            Ok(()) => return Ok(()),
            Err(slot) => slot,
        };
        let buf = SendBuf { slot, class: c, len, max };
        let Placed::Waits { i, class } = self.post(peer, tag, buf, cookie)? else { return Ok(()) };
        self.connect(peer.index, class);
        let frag = self.io.frags.remove(i).and_then(|frag| Some((frag.slot?, frag.class)));
        match frag {
            Some((slot, class)) => {
                let buf = SendBuf { slot, class, len, max };
                Err(SendError { kind: SendErrorKind::WouldQueue, buf })
            }
            // Not reachable: what waits has its slot.
            None => Ok(()),
        }
    }

    /// Gives a message to the device, if that is possible at once.
    fn post(
        &mut self,
        peer: PeerId,
        tag: u8,
        buf: SendBuf<P::Slot>,
        cookie: u64,
    ) -> Result<Placed, SendError<SendBuf<P::Slot>>> {
        let entry = self.peers.get_mut(peer.index()).filter(|p| p.generation == peer.generation);
        let endpoint = entry.and_then(|entry| entry.endpoint.as_mut());
        let kind = match endpoint.as_ref().map(|endpoint| &endpoint.state) {
            Some(State::Open) => SendErrorKind::Busy,
            Some(State::Failed(fault)) => SendErrorKind::Failed(fault.clone()),
            Some(State::Closing(_)) | None => SendErrorKind::Closing,
        };
        let SendBuf { slot, class: c, len, max } = buf;
        let lane = endpoint.as_ref().and_then(|endpoint| endpoint.lane_for(c, len)).unwrap_or(c);
        let class = endpoint
            .and_then(|it| Some((it.classes.get_mut(usize::from(lane))?, &mut it.stats.stalls)));
        let (Some((class, stalls)), SendErrorKind::Busy) = (class, &kind) else {
            return Err(SendError { kind, buf: SendBuf { slot, class: c, len, max } });
        };
        if !class.fits(len) {
            let (len, most) = (len as usize, self.max_send_size_to(peer));
            let kind = SendErrorKind::TooLong { len, max: most };
            return Err(SendError { kind, buf: SendBuf { slot, class: c, len: len as u32, max } });
        }
        let frag =
            Frag { slot: Some(slot), addr: 0, cookie, len, max, tag, class: c, one_sided: false };
        let i = match self.io.frags.insert(frag) {
            Ok(i) => i,
            Err(Frag { slot: Some(slot), .. }) => {
                return Err(SendError { kind, buf: SendBuf { slot, class: c, len, max } });
            }
            // Not reachable: the slot was put in above.
            Err(Frag { slot: None, .. }) => return Ok(Placed::Posted),
        };
        let waits = Ok(Placed::Waits { i, class: lane });
        let Link::Up(id) = class.link else {
            stalls.connect += 1;
            return waits;
        };
        if !class.pending.is_empty() {
            stalls.behind += 1;
            return waits;
        }
        let lane = self.lanes.get_mut(id.index()).and_then(|entry| entry.lane.as_mut());
        let Some(lane) = lane else { return waits };
        match self.io.post_data(lane, i, When::Now) {
            Ok(()) => {
                self.io.frags.push(&mut lane.inflight, i);
                Ok(Placed::Posted)
            }
            Err(why) => {
                stalls.count(&why);
                waits
            }
        }
    }

    /// The next event. `now`: the caller's monotonic clock in nanoseconds, may be coarse.
    ///
    /// Take one event, let go of whatever guards the engine, handle the event, repeat: the
    /// handler may call the engine.
    #[inline(always)]
    pub fn poll(&mut self, now: Nanos) -> Option<PortEvent<P>> {
        self.now = now;
        // What the port takes in on the way stays with it until it is polled.
        if self.io.port.is_idle() && self.has_nothing(now) && !self.cm.has_news() {
            self.since_cm = 0;
            return None;
        }
        self.poll_busy(now)
    }

    /// [`poll`](Engine::poll) when there is something, as far as is known.
    fn poll_busy(&mut self, now: Nanos) -> Option<PortEvent<P>> {
        if !self.is_quiet() {
            return self.poll_all(now);
        }
        let (lane, op, slot, len) = match self.io.port.poll_message() {
            Found::Sent(lane, slot) => match self.sent_quick(lane, slot) {
                Quick::News(((peer, cookie, len, max, class), slot)) => {
                    self.since_cm += 1;
                    let buf = Some(SendBuf { slot, class, len, max });
                    return Some(Event::Sent { peer, cookie, buf, result: Ok(()) });
                }
                Quick::Nothing | Quick::Pump => return self.poll_on(),
                Quick::No(slot) => (lane, Op::Send, slot, 0),
            },
            Found::Received(lane, slot, len) => match self.received_quick(lane, slot, len) {
                Quick::News((peer, Header { tag, len, .. }, slot)) => {
                    self.since_cm += 1;
                    let buf = RecvBuf { slot, len: len as usize, lane };
                    return Some(Event::Message { peer, tag, buf });
                }
                Quick::Nothing => return self.poll_on(),
                Quick::Pump => {
                    self.pump_lane(lane);
                    return self.poll_on();
                }
                Quick::No(slot) => (lane, Op::Recv, slot, len),
            },
            Found::Nothing | Found::Other => return self.poll_all(now),
            Found::Done(done) => return self.poll_after(done),
        };
        let (slot, status) = (Some(slot), Status::Ok);
        self.poll_after(Completion { lane, op, slot, len, status })
    }

    /// [`poll`](Engine::poll) after a completion that the short way has settled.
    #[inline(never)]
    fn poll_on(&mut self) -> Option<PortEvent<P>> {
        self.since_cm += 1;
        self.poll_busy(self.now)
    }

    /// [`poll`](Engine::poll) after a completion that is for the long way.
    #[inline(never)]
    fn poll_after(&mut self, done: Completion<P::Slot>) -> Option<PortEvent<P>> {
        self.since_cm += 1;
        self.complete(done).or_else(|| self.poll_all(self.now))
    }

    /// [`poll`](Engine::poll) for everything.
    #[inline(never)]
    fn poll_all(&mut self, now: Nanos) -> Option<PortEvent<P>> {
        loop {
            if let Some(event) = self.io.events.pop_front() {
                return Some(event);
            }
            if self.since_cm < CM_EVERY
                && let Some(done) = self.io.port.poll()
            {
                self.since_cm += 1;
                if let Some(event) = self.complete(done) {
                    return Some(event);
                }
                continue;
            }
            if !self.poll_rest(now) {
                return None;
            }
        }
    }

    /// Everything but completions. `false`: there is nothing to do.
    fn poll_rest(&mut self, now: Nanos) -> bool {
        let drained = self.since_cm < CM_EVERY;
        self.since_cm = 0;
        if !self.io.hangups.is_empty() {
            // What arrived before the end of a lane is seen before the end.
            self.undrained = if drained { 0 } else { self.undrained + CM_EVERY };
            if drained || self.undrained > HANGUP_AFTER {
                self.undrained = 0;
                self.settle_all();
            }
            return true;
        }
        if let Some(event) = self.cm.poll() {
            self.on_cm(event);
            return true;
        }
        if now >= self.next_timer {
            self.run_timers(now);
            return true;
        }
        let retried = !self.io.retry.is_empty() && self.retry_all();
        let told = !self.io.elsewhere.is_empty() && self.tell_elsewhere();
        retried || told || !drained
    }

    /// Starts an orderly close of everything; poll until [`Event::Closed`], which comes after
    /// `t_close` at the latest (twice that if the connection manager hangs).
    pub fn close(&mut self, now: Nanos) {
        self.now = now;
        self.close_all();
    }

    /// Whether connects are under way or messages wait: a driver that shares a CPU with the
    /// peer or the connection manager should yield on an empty poll.
    #[inline]
    pub fn busy(&self) -> bool {
        self.connecting > 0 || self.io.queued > 0 || self.closing != Closing::No
    }

    /// The settings it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The port, for reports.
    pub fn port(&self) -> &P {
        &self.io.port
    }

    /// The port, for a driver that has to tend it. Posting or closing lanes by hand breaks the
    /// accounts.
    pub fn port_mut(&mut self) -> &mut P {
        &mut self.io.port
    }

    /// The connection manager's side.
    pub fn cm_mut(&mut self) -> &mut C {
        &mut self.cm
    }

    /// The name of a peer, while it is one.
    pub fn peer_name(&self, peer: PeerId) -> Option<ProcName> {
        let entry = self.peers.get(peer.index()).filter(|p| p.generation == peer.generation)?;
        entry.endpoint.as_ref().map(|endpoint| endpoint.name)
    }

    /// Receives posted to a peer on a lane class that it has not been told of, and sends we may
    /// make on it: for tests and reports. `None`: the lane is not up.
    pub fn credits(&self, peer: PeerId, class: u8) -> Option<(u32, u32)> {
        let entry = self.peers.get(peer.index()).filter(|p| p.generation == peer.generation)?;
        match entry.endpoint.as_ref()?.classes.get(usize::from(class))?.link {
            Link::Up(id) => self.lane(id).map(|l| (l.acct.owed(), l.acct.credits())),
            _ => None,
        }
    }

    #[inline]
    fn lane(&self, id: LaneId) -> Option<&Lane<P::Slot>> {
        let entry = self.lanes.get(id.index())?;
        if entry.generation == id.generation { entry.lane.as_ref() } else { None }
    }

    /// A lane, its peer, and what is needed to post, all at once.
    #[inline]
    fn parts(&mut self, id: LaneId) -> Option<Parts<'_, P>> {
        let entry = self.lanes.get_mut(id.index())?;
        if entry.generation != id.generation {
            return None;
        }
        let lane = entry.lane.as_mut()?;
        let endpoint = self.peers.get_mut(lane.peer as usize)?.endpoint.as_mut()?;
        Some((lane, endpoint, &mut self.io))
    }

    /// Sends whatever may be sent on a lane now.
    #[inline(never)]
    fn pump_lane(&mut self, id: LaneId) {
        let Some((lane, endpoint, io)) = self.parts(id) else { return };
        if let Some(class) = endpoint.classes.get_mut(usize::from(lane.class)) {
            io.pump(lane, &mut class.pending);
        }
    }

    fn class_mut(&mut self, peer: PeerId, class: u8) -> Option<&mut Class> {
        self.endpoint_mut(peer)?.classes.get_mut(usize::from(class))
    }

    fn endpoint_mut(&mut self, peer: PeerId) -> Option<&mut Endpoint> {
        let entry = self.peers.get_mut(peer.index())?;
        if entry.generation == peer.generation { entry.endpoint.as_mut() } else { None }
    }
}

impl Stalls {
    #[cold]
    fn count(&mut self, why: &Wait) {
        let counter = match why {
            Wait::Rule(Refusal::Gate) => &mut self.gate,
            Wait::Rule(Refusal::Credit | Refusal::NotDue) => &mut self.credit,
            Wait::Rule(Refusal::LastCredit) => &mut self.last_credit,
            Wait::Rule(Refusal::SendQueue) => &mut self.send_queue,
            Wait::Rule(Refusal::Reads) => &mut self.reads,
            Wait::Device => &mut self.device,
            Wait::Dead => &mut self.connect,
            // Counted where it is posted.
            Wait::OneSided => return,
        };
        *counter += 1;
    }
}
