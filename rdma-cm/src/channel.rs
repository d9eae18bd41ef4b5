//! The event channel, which owns every id on it.
use std::collections::VecDeque;
use std::fmt;
use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rdma_sys as sys;
use rdma_sys::rdma_cm_event_type as cm_event;

use crate::datagram::DatagramRequest;
use crate::error::{Error, Result, last_errno};
use crate::event::{Copied, Details, Event};
use crate::id::{ConnectRequest, Graveyard, Handle, Id, IdKey, RequestFacts};
use crate::interrupt::CancelToken;
use crate::loopback::LoopbackPolicy;
use crate::raw::{Device, RawId, Space};
use crate::waker::Waker;

/// An event channel with its ids.
///
/// `rdma_get_cm_event` changes the ids that belong to the channel it reads, so an id can be reached only through
/// `&mut` of the channel: the typed handles ([`Connector`](crate::Connector), [`Listener`](crate::Listener), …) are names,
/// and a handle of another channel is refused with [`Error::State`]. The channel is `Send` with all its ids, and `!Sync`.
///
/// Events are copied and acknowledged as they are read, so nothing here can wait for an acknowledgement, and ids may be
/// destroyed at any moment: by [`destroy`](Self::destroy), by dropping their handle (at the next call), or with the
/// channel, which destroys every id before itself. A queue pair may be destroyed before or after its id: the id never
/// knew it.
///
/// One thing can block: the kernel does not let go of an iWARP id whose request has not been answered (soft iWARP: for up
/// to 10 s). Such an id is destroyed when its event is read, so only **dropping the channel, or closing the id's queue
/// pair**, blocks that long, uninterruptibly. [`lingering`](Self::lingering) tells whether there is such an id. Keep a
/// channel for several attempts, or drop it on a thread that may wait.
///
/// To wait for events in a loop of one's own, call [`next_event`](Self::next_event) with a zero timeout until it returns
/// `None`, then poll [`as_fd`](AsFd::as_fd): the blocking helpers keep events of other ids, which the descriptor does not
/// show.
pub struct EventChannel {
    // Fields drop in this order: ids before their channel.
    slots: Vec<Slot>,
    raw: RawChannel,
    free: Vec<u32>,
    pending: VecDeque<Event>,
    request_limit: usize,
    turned_away: u64,
    graveyard: Graveyard,
    token: CancelToken,
    waker: Option<Waker>,
    pub(crate) loopback: LoopbackPolicy,
    serial: u64,
}

// SAFETY: the channel and its ids have no tie to a thread; nothing else holds their pointers, and the queue pairs, which
// others do hold, are unknown to them.
unsafe impl Send for EventChannel {}

/// A place for an id; its generation counts the ids it has had.
struct Slot {
    generation: u32,
    entry: Option<Entry>,
}

/// An id and how far it has come.
pub(crate) struct Entry {
    pub(crate) raw: RawId,
    pub(crate) phase: Phase,
    /// Its handle is gone; it is destroyed as soon as that does not block.
    orphan: bool,
}

impl Entry {
    /// Whether destroying it would block: the kernel's iWARP connection manager waits, uninterruptibly, for the answer to
    /// a request or an accept (soft iWARP gives up after 10 s). The answer, or its absence, is an event in any case.
    fn blocks(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Accepting)
            && self.raw.device().is_some_and(|device| device.iwarp)
    }
}

/// How far an id has come, as far as its calls depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Idle,
    Resolving,
    AddrResolved,
    Routed,
    Listening,
    Requested,
    Connecting,
    Accepting,
    Established,
    Ended,
}

impl EventChannel {
    /// A new channel with a [`CancelToken`] of its own.
    ///
    /// # Errors
    /// [`Error::NoRdma`] when this machine has no connection manager or no device; [`Error::Os`] when descriptors or
    /// memory have run out, or when this user may not open `/dev/infiniband/rdma_cm` (EACCES, EPERM);
    /// [`Error::Override`] when the environment has an override about loopback that makes no sense.
    pub fn new() -> Result<Self> {
        Self::with_cancel(CancelToken::new()?)
    }

    /// A new channel whose blocking calls end when `token` is used. Many channels can share one.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_cancel(token: CancelToken) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            slots: Vec::new(),
            raw: RawChannel::open()?,
            free: Vec::new(),
            pending: VecDeque::new(),
            request_limit: 1024,
            turned_away: 0,
            graveyard: Graveyard::default(),
            token,
            waker: None,
            loopback: LoopbackPolicy::from_env()?,
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The token that ends this channel's blocking calls, from any thread.
    pub fn cancel_token(&self) -> CancelToken {
        self.token.clone()
    }

    /// A handle that makes [`next_event`](Self::next_event) return early, from any thread. All handles of a channel are
    /// one.
    ///
    /// # Errors
    /// [`Error::Os`] when no eventfd can be made (EMFILE, ENFILE, ENOMEM).
    pub fn waker(&mut self) -> Result<Waker> {
        if let Some(waker) = &self.waker {
            return Ok(waker.clone());
        }
        let waker = Waker::new()?;
        self.waker = Some(waker.clone());
        Ok(waker)
    }

    /// Replaces what this channel believes about loopback; at first that is [`LoopbackPolicy::from_env`].
    pub fn set_loopback_policy(&mut self, policy: LoopbackPolicy) {
        self.loopback = policy;
    }

    /// The next event, or `None` when none came within `timeout` (`None`: no limit but the token), or the channel's
    /// [`Waker`] was used.
    ///
    /// Events that are there are still handed out after the token was used; the blocking helpers end at once.
    ///
    /// # Errors
    /// [`Error::Cancelled`]; [`Error::Os`] when the channel itself fails.
    pub fn next_event(&mut self, timeout: Option<Duration>) -> Result<Option<Event>> {
        self.reap();
        if let Some(event) = self.pending.pop_front() {
            return Ok(Some(event));
        }
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        self.read_until(deadline, self.waker.clone().as_ref())
    }

    /// The next event of one id, or `None` when none came within `timeout`; those of others are kept for
    /// [`next_event`](Self::next_event). The requests to a listener are not its own events: see
    /// [`wait_request`](Self::wait_request).
    ///
    /// # Errors
    /// As [`next_event`](Self::next_event); [`Error::State`] for an id of another channel.
    pub fn next_event_of(&mut self, id: &impl Id, timeout: Duration) -> Result<Option<Event>> {
        self.event_of(id.key(), deadline(timeout))
    }

    /// [`next_event_of`](Self::next_event_of) for a key and a deadline.
    pub(crate) fn event_of(&mut self, id: IdKey, deadline: Instant) -> Result<Option<Event>> {
        // Of an id of another channel no event would ever come.
        self.entry_of(id, "waiting for an event")?;
        self.next_matching(deadline, |event| event.id() == id)
    }

    /// The next event that `wanted` picks; the others wait for [`next_event`](Self::next_event).
    pub(crate) fn next_matching(
        &mut self,
        deadline: Instant,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Option<Event>> {
        self.reap();
        if let Some(at) = self.pending.iter().position(&wanted) {
            return Ok(self.pending.remove(at));
        }
        let mut late = 0;
        loop {
            self.check_cancelled()?;
            let Some(event) = self.read_until(Some(deadline), None)? else { return Ok(None) };
            if wanted(&event) {
                return Ok(Some(event));
            }
            self.put_off(event);
            // Peers that flood a listener must not keep this going for ever.
            late += usize::from(Instant::now() >= deadline);
            if late == READ_LATE {
                return Ok(None);
            }
        }
    }

    /// Keeps an event for [`next_event`](Self::next_event): every id has few that matter, but strangers may flood a listener,
    /// and some events repeat.
    fn put_off(&mut self, event: Event) {
        let requests = || self.pending.iter().filter(|event| is_request(event)).count();
        let repeats = match event {
            Event::AddrChange { id } => {
                self.pending.iter().any(|e| matches!(e, Event::AddrChange { id: i } if *i == id))
            }
            _ => false,
        };
        if is_request(&event) && self.pending.len() >= self.request_limit {
            if requests() >= self.request_limit {
                self.turned_away += 1;
                drop(event);
                // Rejects it now, and not when the channel is used next.
                self.reap();
                return;
            }
        } else if repeats {
            return;
        }
        self.pending.push_back(event);
    }

    /// How many requests the blocking helpers keep for later while they wait for something else; more are rejected at once.
    /// Default 1024. Requests that nobody has read yet are bounded by their listener's
    /// [backlog](crate::ListenOptions::backlog).
    pub fn set_request_limit(&mut self, limit: usize) {
        self.request_limit = limit;
    }

    /// The number of requests that were rejected because of that limit.
    pub fn requests_turned_away(&self) -> u64 {
        self.turned_away
    }

    /// Reads the events that are there, until there are none, and keeps them; whether there were any.
    #[cfg(feature = "tokio")]
    pub(crate) fn read_all(&mut self) -> Result<bool> {
        self.reap();
        let mut any = false;
        // "None" is EAGAIN: a non-blocking read of this channel never waits, and so is never interrupted.
        while let Some(copied) = self.raw.read()? {
            if let Some(event) = self.digest(copied) {
                self.put_off(event);
            }
            any = true;
        }
        Ok(any)
    }

    /// The first event that was read and that `wanted` picks.
    #[cfg(feature = "tokio")]
    pub(crate) fn take_matching(&mut self, wanted: impl Fn(&Event) -> bool) -> Option<Event> {
        self.reap();
        let at = self.pending.iter().position(wanted)?;
        self.pending.remove(at)
    }

    /// Whether dropping the channel would block.
    #[cfg(feature = "tokio")]
    pub(crate) fn drop_blocks(&mut self) -> bool {
        self.reap();
        self.slots.iter().filter_map(|slot| slot.entry.as_ref()).any(Entry::blocks)
    }

    fn check_cancelled(&self) -> Result<()> {
        if self.token.is_cancelled() {
            return Err(Error::Cancelled { op: "waiting for connection events" });
        }
        Ok(())
    }

    fn read_until(
        &mut self,
        deadline: Option<Instant>,
        waker: Option<&Waker>,
    ) -> Result<Option<Event>> {
        loop {
            while let Some(copied) = self.raw.read()? {
                if let Some(event) = self.digest(copied) {
                    return Ok(Some(event));
                }
            }
            self.check_cancelled()?;
            if waker.is_some_and(Waker::take) || !self.raw.wait(&self.token, waker, deadline)? {
                return Ok(None);
            }
        }
    }

    /// Gives a copied event its keys and takes note of what it says. `None` for an id that has gone.
    fn digest(&mut self, mut copied: Copied) -> Option<Event> {
        let new = copied.request.take();
        if copied.kind == cm_event::RDMA_CM_EVENT_CONNECT_REQUEST {
            return self.digest_request(new?, copied);
        }
        let key = self.key_of_tag(copied.tag)?;
        let entry = self.slots.get_mut(copied.tag)?.entry.as_mut()?;
        let group = match copied.join() {
            // Of a group that was left meanwhile nobody wants to know.
            Some(number) => Some(entry.raw.group_of(number)?),
            None => None,
        };
        if copied.kind == cm_event::RDMA_CM_EVENT_DEVICE_REMOVAL {
            entry.raw.device_removed();
        }
        entry.phase = match copied.kind {
            cm_event::RDMA_CM_EVENT_ADDR_RESOLVED => Phase::AddrResolved,
            cm_event::RDMA_CM_EVENT_ROUTE_RESOLVED => Phase::Routed,
            // So does the kernel (cma_query_handler): the route can be asked for again.
            cm_event::RDMA_CM_EVENT_ROUTE_ERROR => Phase::AddrResolved,
            // InfiniBand and RoCE: the initiator's DREQ may overtake its RTU. What has ended stays so.
            cm_event::RDMA_CM_EVENT_ESTABLISHED if entry.phase != Phase::Ended => {
                Phase::Established
            }
            cm_event::RDMA_CM_EVENT_DISCONNECTED
            | cm_event::RDMA_CM_EVENT_REJECTED
            | cm_event::RDMA_CM_EVENT_UNREACHABLE
            | cm_event::RDMA_CM_EVENT_CONNECT_ERROR
            | cm_event::RDMA_CM_EVENT_DEVICE_REMOVAL => Phase::Ended,
            _ => entry.phase,
        };
        if copied.kind == cm_event::RDMA_CM_EVENT_DISCONNECTED
            && entry.raw.device().is_some_and(|device| !device.iwarp)
        {
            // InfiniBand and RoCE: the peer waits for an answer to its DREQ, and this is how to give it. It fails when
            // both sides have asked at the same time, and then there is nothing to answer.
            let _ = entry.raw.disconnect();
        }
        if entry.orphan {
            if !entry.blocks() {
                drop(self.remove(key));
            }
            return None;
        }
        Some(copied.into_event(key, group))
    }

    fn digest_request(&mut self, new: NonNull<sys::rdma_cm_id>, event: Copied) -> Option<Event> {
        let (index, key) = self.vacancy();
        // SAFETY: the new id of a CONNECT_REQUEST, taken out of the event once; `slots` drops before the channel.
        let raw = unsafe { RawId::own(new, index as usize) };
        let (device, local, peer) = (raw.device(), raw.local_addr(), raw.peer_addr());
        self.occupy(index, raw, Phase::Requested);
        let handle = Handle::new(key, &self.graveyard);
        // A request without a device, or to a listener that is gone, is of no use: dropping the handle rejects it.
        let listener = self.key_of_tag(event.tag)?;
        let (device, private_data) = (device?, event.private_data);
        match event.details {
            Details::Connection(conn) => {
                let facts = RequestFacts::new(private_data, &conn, local, peer);
                Some(Event::ConnectRequest {
                    listener,
                    request: ConnectRequest { handle, device, facts },
                })
            }
            Details::Datagram { .. } => {
                let request = DatagramRequest { handle, device, private_data, local, peer };
                Some(Event::DatagramRequest { listener, request })
            }
        }
    }

    fn key_of_tag(&self, tag: usize) -> Option<IdKey> {
        let slot = self.slots.get(tag)?;
        slot.entry.as_ref()?;
        Some(IdKey { channel: self.serial, index: tag as u32, generation: slot.generation })
    }

    /// A place for an id and the key it will have.
    pub(crate) fn vacancy(&mut self) -> (u32, IdKey) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, entry: None });
            (self.slots.len() - 1) as u32
        });
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        (index, IdKey { channel: self.serial, index, generation })
    }

    pub(crate) fn occupy(&mut self, index: u32, raw: RawId, phase: Phase) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.entry = Some(Entry { raw, phase, orphan: false });
        }
    }

    /// A new id.
    pub(crate) fn create(&mut self, space: Space) -> Result<Handle> {
        self.reap();
        let (index, key) = self.vacancy();
        // SAFETY: our own channel; `slots` drops before it.
        match unsafe { RawId::create(self.raw.as_ptr(), index as usize, space) } {
            Ok(raw) => {
                self.occupy(index, raw, Phase::Idle);
                Ok(Handle::new(key, &self.graveyard))
            }
            Err(error) => {
                self.free.push(index);
                Err(error)
            }
        }
    }

    /// Puts an id into its place as it comes.
    pub(crate) fn take_in(&mut self, index: u32, entry: Entry) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.entry = Some(entry);
        }
    }

    /// Gives a place back that was not used.
    pub(crate) fn give_back(&mut self, index: u32) {
        self.free.push(index);
    }

    /// The place and the handle of an id that comes from elsewhere, and the channel it is to be on.
    pub(crate) fn newcomer(&mut self) -> (u32, IdKey, Handle, *mut sys::rdma_event_channel) {
        self.reap();
        let (index, key) = self.vacancy();
        (index, key, Handle::new(key, &self.graveyard), self.raw.as_ptr())
    }

    /// Keeps events that were read elsewhere.
    pub(crate) fn keep(&mut self, events: impl Iterator<Item = Event>) {
        self.pending.extend(events);
    }

    /// The id a handle names.
    pub(crate) fn entry(&mut self, id: &impl Id, op: &'static str) -> Result<&mut Entry> {
        self.entry_of(id.key(), op)
    }

    pub(crate) fn entry_of(&mut self, key: IdKey, op: &'static str) -> Result<&mut Entry> {
        const WHY: &str = "the handle belongs to another channel";
        if key.channel != self.serial {
            return Err(Error::State { op, why: WHY });
        }
        self.slots
            .get_mut(key.index as usize)
            .filter(|slot| slot.generation == key.generation)
            .and_then(|slot| slot.entry.as_mut())
            .ok_or(Error::State { op, why: WHY })
    }

    /// The id and the device it is on.
    pub(crate) fn entry_on_device(
        &mut self,
        key: IdKey,
        op: &'static str,
    ) -> Result<(&mut Entry, Device)> {
        let entry = self.entry_of(key, op)?;
        let device = entry.raw.device();
        let device = device.ok_or(Error::State { op, why: "the id is on no device" })?;
        Ok((entry, device))
    }

    /// Takes an id out, with the events that have been read for it; of a listener its requests, too, because nobody waits
    /// for them any more.
    pub(crate) fn remove(&mut self, key: IdKey) -> Option<(Entry, VecDeque<Event>)> {
        if key.channel != self.serial {
            return None;
        }
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let entry = slot.entry.take()?;
        // A place that has used up its generations is never used again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(key.index);
        }
        let (events, others) = self
            .pending
            .drain(..)
            .partition(|event: &Event| event.listener().unwrap_or(event.id()) == key);
        self.pending = others;
        Some((entry, events))
    }

    /// Destroys the ids whose handles were dropped.
    fn reap(&mut self) {
        loop {
            let mut graveyard = self.graveyard.lock().unwrap_or_else(PoisonError::into_inner);
            let dead = std::mem::take(&mut *graveyard);
            drop(graveyard);
            if dead.is_empty() {
                return;
            }
            for key in dead {
                match self.entry_of(key, "destroy") {
                    Ok(entry) if entry.blocks() => {
                        entry.orphan = true;
                        self.pending.retain(|event| event.id() != key);
                    }
                    _ => drop(self.remove(key)),
                }
            }
        }
    }

    /// Destroys an id: ends its connection, stops its listening, rejects its request. Of a listener the requests are
    /// rejected that have not been handed out.
    ///
    /// Before destroying a connection that still carries something, disconnect it and drain its queue pair.
    pub fn destroy(&mut self, id: impl Id) {
        drop(id);
        self.reap();
    }

    /// The name of the device an id is on, once rdma_cm has chosen one.
    pub fn device_name(&mut self, id: &impl Id) -> Option<String> {
        self.entry(id, "device_name").ok()?.raw.device().map(|d| d.name)
    }

    /// Opens that device: a context of its own for each call, to make the id's queue pair on.
    ///
    /// # Errors
    /// [`Error::State`] when the id is on no device yet (or a wildcard listener, which is on all), or its device has gone;
    /// [`Error::Verbs`] when it cannot be opened.
    pub fn open_device(&mut self, id: &impl Id) -> Result<rdma_safe::Context> {
        const OP: &str = "open_device";
        let device = self.entry(id, OP)?.raw.device();
        let name = device.ok_or(Error::State { op: OP, why: "the id is on no device" })?.name;
        let found = crate::interfaces::open_device(&name)?;
        found.ok_or(Error::State { op: OP, why: "its device has gone" })
    }

    /// The node GUID of that device.
    pub fn device_guid(&mut self, id: &impl Id) -> Option<u64> {
        self.entry(id, "device_guid").ok()?.raw.device().map(|d| d.guid)
    }

    /// Whether that device speaks iWARP.
    pub fn is_iwarp(&mut self, id: &impl Id) -> Option<bool> {
        self.entry(id, "is_iwarp").ok()?.raw.device().map(|d| d.iwarp)
    }

    /// This side's address, once it is known.
    pub fn local_addr(&mut self, id: &impl Id) -> Option<SocketAddr> {
        self.entry(id, "local_addr").ok()?.raw.local_addr()
    }

    /// The other side's address, once it is known.
    pub fn peer_addr(&mut self, id: &impl Id) -> Option<SocketAddr> {
        self.entry(id, "peer_addr").ok()?.raw.peer_addr()
    }

    /// The number of iWARP ids whose handles are gone and which the kernel has not let go of yet, because their request has
    /// not been answered. While there are any, dropping the channel **or closing their queue pairs** blocks; read events
    /// until there are none.
    pub fn lingering(&mut self) -> usize {
        self.reap();
        self.slots
            .iter()
            .filter_map(|slot| slot.entry.as_ref())
            .filter(|entry| entry.orphan)
            .count()
    }

    /// The number of ids on this channel whose handles live.
    pub fn id_count(&mut self) -> usize {
        self.reap();
        self.slots
            .iter()
            .filter_map(|slot| slot.entry.as_ref())
            .filter(|entry| !entry.orphan)
            .count()
    }

    /// Drops the events of a group that were read.
    pub(crate) fn forget_group(&mut self, key: IdKey, left: SocketAddr) {
        self.pending.retain(|event| match event {
            Event::MulticastJoin { id, group, .. } | Event::MulticastError { id, group, .. } => {
                *id != key || *group != left
            }
            _ => true,
        });
    }

    /// Drops an ESTABLISHED that was read and is known by other means.
    pub(crate) fn forget_established(&mut self, key: IdKey) {
        self.pending.retain(|event| !matches!(event, Event::Established { id, .. } if *id == key));
    }
}

/// Events of others that a wait for one id still reads after its deadline, to find its own behind them.
const READ_LATE: usize = 1024;

/// The moment `timeout` from now; a century for one that no clock can hold.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + timeout.min(CENTURY)
}

fn is_request(event: &Event) -> bool {
    matches!(event, Event::ConnectRequest { .. } | Event::DatagramRequest { .. })
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.slots.iter().filter(|slot| slot.entry.is_some()).count();
        write!(f, "EventChannel({}, {ids} ids, {} events read)", self.serial, self.pending.len())
    }
}

/// An owned `rdma_event_channel` in non-blocking mode.
struct RawChannel(NonNull<sys::rdma_event_channel>);

impl RawChannel {
    fn open() -> Result<Self> {
        // SAFETY: no arguments.
        let raw = unsafe { sys::rdma_create_event_channel() };
        let Some(raw) = NonNull::new(raw) else { return Err(open_error(last_errno())) };
        let channel = Self(raw);
        let fd = channel.as_fd().as_raw_fd();
        // SAFETY: a descriptor that is ours; no pointers.
        let rc = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        if rc == 0 { Ok(channel) } else { Err(Error::last("fcntl")) }
    }

    fn as_ptr(&self) -> *mut sys::rdma_event_channel {
        self.0.as_ptr()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives, and its descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).fd) }
    }

    /// The next event that is there now, copied and acknowledged.
    fn read(&mut self) -> Result<Option<Copied>> {
        let mut event = ptr::null_mut();
        // SAFETY: a live channel and a place for the result.
        let rc = unsafe { sys::rdma_get_cm_event(self.as_ptr(), &raw mut event) };
        if let (0, Some(event)) = (rc, NonNull::new(event)) {
            // SAFETY: just read.
            return Ok(Some(unsafe { Copied::take(event) }));
        }
        match last_errno() {
            libc::EAGAIN | libc::EINTR => Ok(None),
            errno => Err(Error::errno_of("rdma_get_cm_event", errno)),
        }
    }

    /// Waits for an event, the token or the waker; false when the deadline passed first.
    fn wait(
        &self,
        token: &CancelToken,
        waker: Option<&Waker>,
        deadline: Option<Instant>,
    ) -> Result<bool> {
        loop {
            let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // A negative descriptor is ignored.
            let waker_fd = waker.map_or(-1, Waker::fd);
            let mut fds = [poll(self.as_fd().as_raw_fd()), poll(token.wake_fd()), poll(waker_fd)];
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            // Rounded up, so that the last fraction of a millisecond is not spun away.
            let millis = left
                .map_or(-1, |l| i32::try_from(l.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
            // SAFETY: an array of three, valid during the call.
            match unsafe { libc::poll(fds.as_mut_ptr(), 3, millis) } {
                0 if left.is_some_and(|l| l.as_millis() < i32::MAX as u128) => return Ok(false),
                0 => {}
                n if n > 0 && fds[0].revents & !libc::POLLIN != 0 => {
                    return Err(Error::errno_of("poll", libc::EIO).about("the event channel"));
                }
                n if n > 0 => return Ok(true),
                _ if last_errno() == libc::EINTR => {}
                _ => return Err(Error::last("poll")),
            }
        }
    }
}

impl Drop for RawChannel {
    fn drop(&mut self) {
        // SAFETY: a live channel, once; its ids are destroyed (they are in a field before this one).
        unsafe { sys::rdma_destroy_event_channel(self.as_ptr()) };
    }
}

/// rdma_create_event_channel fails with ENODEV or ENOENT without a connection manager. With a file that may not be opened it
/// looks for another one and may tell how that ended, so the file is asked.
fn open_error(errno: i32) -> Error {
    const OP: &str = "rdma_create_event_channel";
    const FILE: &str = "/dev/infiniband/rdma_cm";
    if matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM) {
        return Error::errno_of(OP, errno);
    }
    let asked = OpenOptions::new().read(true).write(true).open(FILE);
    let denied = asked.as_ref().err().and_then(|e| e.raw_os_error());
    match denied {
        Some(errno @ (libc::EACCES | libc::EPERM)) => {
            Error::errno_of(OP, errno).about(FILE).hint_for(
                &[errno],
                "this user may not open it: join the group that owns it, or give it mode 0666 by a udev rule, as Debian does",
            )
        }
        Some(errno @ (libc::EMFILE | libc::ENFILE)) => Error::errno_of(OP, errno),
        Some(libc::ENOENT) => Error::NoRdma { what: FILE, errno },
        _ => Error::NoRdma { what: "rdma_create_event_channel found no device", errno },
    }
}
