//! A poll group: one completion queue and the queue pairs on it, with completions already redeemed and routed.
//!
//! A queue pair is usually made and connected by another thread and joins the group later, but the group polls its
//! completions from the start (it happens: on rxe a first message is often polled before `rdma_accept` has returned).
//! Those are parked, and delivered right after [`adopt`](PollGroup::adopt). Completions of queue pairs that are gone
//! are dropped: their slots came back with the destruction.

#![forbid(unsafe_code)]

use crate::channel::deadline_after;
use crate::cq::{CompletionQueue, CqRef};
use crate::error::{Error, ErrorKind, Result};
use crate::payload::Payload;
use crate::post::{BatchError, PostError, Request, Why};
use crate::qp::QueuePair;
use crate::qp_attr::SendFlags;
use crate::ring::{is_shared, serial_and_more};
use crate::route::Route;
use crate::slot::Slot;
use crate::srq::SharedReceiveQueue;
use crate::wc::{Done, Extra, Op, Wc, WcStatus, message};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

/// Completions taken from the device at once.
const BATCH: usize = 16;
/// Beyond every batch.
const NOWHERE: usize = usize::MAX - 1;
const INDEX_BITS: u32 = 24;
/// Most queue pairs of one group at a time.
const QPS_MAX: usize = 1 << INDEX_BITS;

/// Names a queue pair in its group. Never valid for another one: it carries the serial.
///
/// From [`PollGroup::adopt`](crate::PollGroup::adopt).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QpKey(u64);

impl QpKey {
    /// Names none: of a completion from a shared receive queue whose queue pair is not known.
    pub const UNKNOWN: QpKey = QpKey(0);

    fn new(serial: u64, index: u32) -> QpKey {
        QpKey(serial << INDEX_BITS | u64::from(index))
    }

    /// A dense index, below the largest number of queue pairs the group has had at once; reused.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize & (QPS_MAX - 1)
    }

    /// The queue pair's serial.
    #[inline]
    pub fn serial(self) -> u64 {
        self.0 >> INDEX_BITS
    }
}

/// A redeemed completion of a group's queue pair.
///
/// From [`PollGroup::poll`](crate::PollGroup::poll).
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// Whose it is. Of a completion from a shared receive queue: over which queue pair of the group it came, or
    /// [`QpKey::UNKNOWN`].
    pub key: QpKey,
    /// What the request was.
    pub op: Op,
    /// The slot that was posted; `None` for requests without memory of their own and for other kinds of it.
    pub slot: Option<Slot>,
    /// What was posted, when it was something else than a slot.
    pub payload: Option<Payload>,
    /// The outcome.
    pub status: WcStatus,
    /// Bytes received, at most the slot's capacity; 0 for sends and failures.
    pub byte_len: usize,
    /// The driver's own error number, for reports.
    pub vendor_err: u32,
    /// What a message carried beside its bytes.
    pub extra: Extra,
}

impl Completion {
    #[inline(always)]
    fn of(key: QpKey, done: Done) -> Completion {
        let Done { slot, payload, op, status, byte_len, vendor_err, extra } = done;
        Completion { key, op, slot, payload, status, byte_len, vendor_err, extra }
    }

    /// Immediate data that came with it, in host order.
    pub fn imm(&self) -> Option<u32> {
        self.extra.imm()
    }

    /// The key that the peer's send invalidated here. Neither siw nor rxe tells.
    pub fn invalidated(&self) -> Option<u32> {
        self.extra.invalidated()
    }

    /// The bytes received into a slot, without what stands in front of a datagram; empty for everything else.
    pub fn message(&self) -> &[u8] {
        message(self.slot.as_ref(), self.op, self.byte_len, self.extra)
    }

    /// What was posted, of whatever kind.
    pub fn into_payload(self) -> Option<Payload> {
        self.payload.or(self.slot.map(Payload::from))
    }
}

/// What [`PollGroup::poll_slot`] found.
#[derive(Debug)]
pub enum Polled {
    /// Nothing has completed.
    Nothing,
    /// A slot was sent, and that went well.
    Sent(QpKey, Slot),
    /// A message came into a slot of a queue pair of its own, with so many bytes.
    Received(QpKey, Slot, usize),
    /// Something else: [`PollGroup::poll`] tells what.
    Other,
}

/// One completion queue and its queue pairs. `Send`.
pub struct PollGroup {
    /// Place in `batch` of what is next; [`NOWHERE`] while something is `ready`.
    head: usize,
    /// Behind the last one in `batch`; beyond [`NOWHERE`] while something is `ready`. Equal to `head`: ask the device.
    end: usize,
    /// `head` and `end`, while these are [`NOWHERE`] and beyond.
    resume: (usize, usize),
    /// In a place of its own, so that a call of the device leaves the group's fields in their registers.
    batch: Box<[Wc; BATCH]>,
    /// Formerly parked completions of a queue pair that has been adopted since.
    ready: VecDeque<Wc>,
    qps: Route<Box<QueuePair>>,
    /// Completions of queue pairs that exist on the queue but not in the group.
    parked: Vec<Wc>,
    /// Indices given so far, and those of them that are free again.
    indices: u32,
    free: Vec<u32>,
    srqs: Vec<SharedReceiveQueue>,
    /// Queue pairs on shared receive queues, by the device's number.
    numbers: BTreeMap<u32, QpKey>,
    stale: u64,
    cq: CompletionQueue,
}

impl PollGroup {
    /// A group without queue pairs.
    pub fn new(cq: CompletionQueue) -> PollGroup {
        PollGroup {
            head: 0,
            end: 0,
            resume: (0, 0),
            batch: Box::new(std::array::from_fn(|_| Wc::empty())),
            ready: VecDeque::new(),
            qps: Route::new(),
            parked: Vec::new(),
            indices: 0,
            free: Vec::new(),
            srqs: Vec::new(),
            numbers: BTreeMap::new(),
            stale: 0,
            cq,
        }
    }

    /// A handle to make queue pairs on the group's queue.
    pub fn cq_ref(&self) -> CqRef {
        self.cq.cq_ref()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Takes a queue pair in. Its completions that were polled before are delivered next.
    ///
    /// # Errors
    /// Gives the queue pair back when its queues complete elsewhere ([`ErrorKind::WrongContext`]) or the group is full.
    #[allow(clippy::result_large_err)] // the queue pair must come back, and this is not the message path
    pub fn adopt(&mut self, qp: QueuePair) -> std::result::Result<QpKey, (QueuePair, Error)> {
        let refused = |kind, why| Error::refused("adopting a queue pair", kind, why);
        if !qp.is_on(&self.cq.cq_ref()) {
            let e = refused(
                ErrorKind::WrongContext,
                "it completes into another queue than the group's",
            );
            return Err((qp, e));
        }
        let index = match self.free.pop() {
            Some(i) => i,
            None if (self.indices as usize) < QPS_MAX => {
                self.indices += 1;
                self.indices - 1
            }
            None => return Err((qp, refused(ErrorKind::Other, "the group has 2^24 queue pairs"))),
        };
        let serial = qp.serial();
        let key = QpKey::new(serial, index);
        let mut qp = Box::new(qp);
        qp.key = key;
        if qp.srq().is_some() {
            self.numbers.insert(qp.qp_num(), key);
        }
        self.qps.insert(serial, qp);
        self.unpark(serial);
        Ok(key)
    }

    /// Makes the parked completions of a queue pair deliverable, and drops those of queue pairs that have died.
    fn unpark(&mut self, serial: u64) {
        for wc in std::mem::take(&mut self.parked) {
            if wc.serial() == serial {
                if self.ready.is_empty() {
                    self.resume = (self.head, self.end);
                    (self.head, self.end) = (NOWHERE, NOWHERE + 1);
                }
                self.ready.push_back(wc);
            } else if self.cq.inner().is_live(wc.serial()) {
                self.parked.push(wc);
            } else {
                self.stale += 1;
            }
        }
    }

    /// Sends from a slot; see [`QueuePair::post_send`].
    ///
    /// # Errors
    /// As there, and [`Why::NoSuchQp`].
    #[inline(always)]
    pub fn post_send(
        &mut self,
        key: QpKey,
        slot: Slot,
        len: usize,
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        match self.qp_mut(key) {
            Some(qp) => qp.post_send(slot, len, flags),
            None => Err(PostError::of_slot(Why::NoSuchQp, Some(slot))),
        }
    }

    /// Sends a copy; see [`QueuePair::post_inline`].
    ///
    /// # Errors
    /// As there, and [`Why::NoSuchQp`].
    #[inline(always)]
    pub fn post_inline(
        &mut self,
        key: QpKey,
        data: &[u8],
        flags: SendFlags,
    ) -> std::result::Result<(), PostError> {
        match self.qp_mut(key) {
            Some(qp) => qp.post_inline(data, flags),
            None => Err(PostError::of_slot(Why::NoSuchQp, None)),
        }
    }

    /// Posts a receive; see [`QueuePair::post_recv`].
    ///
    /// # Errors
    /// As there, and [`Why::NoSuchQp`].
    #[inline(always)]
    pub fn post_recv(&mut self, key: QpKey, slot: Slot) -> std::result::Result<(), PostError> {
        match self.qp_mut(key) {
            Some(qp) => qp.post_recv(slot),
            None => Err(PostError::of_slot(Why::NoSuchQp, Some(slot))),
        }
    }

    /// Posts a request; see [`QueuePair::post`].
    ///
    /// # Errors
    /// As there, and [`Why::NoSuchQp`].
    pub fn post(&mut self, key: QpKey, request: Request<'_>) -> std::result::Result<(), PostError> {
        match self.qp_mut(key) {
            Some(qp) => qp.post(request),
            None => Err(PostError::of(Why::NoSuchQp, request.payload)),
        }
    }

    /// Posts requests with one doorbell; see [`QueuePair::post_batch`].
    ///
    /// # Errors
    /// As there, and [`Why::NoSuchQp`], which takes nothing from the iterator.
    pub fn post_batch<'a>(
        &mut self,
        key: QpKey,
        requests: impl IntoIterator<Item = Request<'a>>,
    ) -> std::result::Result<usize, BatchError> {
        match self.qp_mut(key) {
            Some(qp) => qp.post_batch(requests),
            None => Err(BatchError::no_such_qp()),
        }
    }

    /// Posts receives with one doorbell; see [`QueuePair::post_recv_batch`].
    ///
    /// # Errors
    /// As there, and [`Why::NoSuchQp`], which takes nothing from the iterator.
    pub fn post_recv_batch(
        &mut self,
        key: QpKey,
        slots: impl IntoIterator<Item = Slot>,
    ) -> std::result::Result<usize, BatchError> {
        match self.qp_mut(key) {
            Some(qp) => qp.post_recv_batch(slots),
            None => Err(BatchError::no_such_qp()),
        }
    }

    /// The next completion, if there is one. Batched inside; does not block, allocate or lock, except to park.
    ///
    /// # Errors
    /// The errno of the provider's poll.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<Completion>> {
        let mut i = self.head;
        if i == self.end {
            let n = self.cq.poll_unchecked(&mut *self.batch)?;
            if n == 0 {
                return Ok(None);
            }
            (i, self.end) = (0, n);
        }
        // Before anything is redeemed, so that the ways of it have nothing in common afterwards.
        self.head = i.wrapping_add(1);
        if let Some(wc) = self.batch.get_mut(i)
            && let Some(qp) = self.qps.near(serial_and_more(wc.0.wr_id))
            && let Some(done) = qp.redeem_plain(wc)
        {
            return Ok(Some(Completion::of(qp.key, done)));
        }
        self.head = i;
        let mut rest = Ok(None);
        self.poll_rest_into(&mut rest);
        rest
    }

    /// Whether nothing has completed: asks the device if nothing is left of what it gave before. When it fails, `false`:
    /// [`poll`](Self::poll) tells how.
    #[inline(always)]
    pub fn is_idle(&mut self) -> bool {
        if self.head != self.end {
            return false;
        }
        match self.cq.poll_unchecked(&mut *self.batch) {
            Ok(0) => true,
            Ok(n) => {
                (self.head, self.end) = (0, n);
                false
            }
            Err(_) => false,
        }
    }

    /// The short way of [`poll`](Self::poll) for whoever moves slots only: takes the next completion if it is a slot's and
    /// went well. Leaves every other one, and a failure of the queue, to `poll`.
    #[inline(always)]
    pub fn poll_slot(&mut self) -> Polled {
        let mut i = self.head;
        if i == self.end {
            match self.cq.poll_unchecked(&mut *self.batch) {
                Ok(0) => return Polled::Nothing,
                Ok(n) => (i, self.end) = (0, n),
                Err(_) => return Polled::Other,
            }
        }
        self.head = i.wrapping_add(1);
        if let Some(wc) = self.batch.get_mut(i)
            && let Some(qp) = self.qps.near(serial_and_more(wc.0.wr_id))
            && let Some((slot, len)) = qp.redeem_slot(wc)
        {
            return match len {
                None => Polled::Sent(qp.key, slot),
                Some(len) => Polled::Received(qp.key, slot, len),
            };
        }
        self.head = i;
        Polled::Other
    }

    /// [`poll_rest`](Self::poll_rest). Were the result of that the caller's, the usual case would go through memory too.
    #[cold]
    #[inline(never)]
    fn poll_rest_into(&mut self, rest: &mut Result<Option<Completion>>) {
        *rest = self.poll_rest();
    }

    /// [`poll`](Self::poll) for all that is rare.
    fn poll_rest(&mut self) -> Result<Option<Completion>> {
        loop {
            let mut wc = match self.ready.pop_front() {
                Some(wc) => {
                    if self.ready.is_empty() {
                        (self.head, self.end) = self.resume;
                    }
                    wc
                }
                None => {
                    if self.head == self.end {
                        // A provider cannot have written more than it was asked for.
                        (self.head, self.end) = (0, self.cq.poll(&mut *self.batch)?);
                        if self.end == 0 {
                            return Ok(None);
                        }
                    }
                    match self.batch.get_mut(self.head) {
                        Some(wc) => {
                            self.head += 1;
                            std::mem::take(wc)
                        }
                        // The number was the provider's.
                        None => {
                            self.end = self.head;
                            continue;
                        }
                    }
                }
            };
            if is_shared(wc.0.wr_id) {
                if let Some(c) = self.redeem_shared(&mut wc) {
                    return Ok(Some(c));
                }
            } else if let Some(qp) = self.qps.get_mut(wc.serial())
                && let Some(done) = qp.redeem(&mut wc)
            {
                return Ok(Some(Completion::of(qp.key, done)));
            }
            self.unrouted(wc);
        }
    }

    fn redeem_shared(&mut self, wc: &mut Wc) -> Option<Completion> {
        let serial = wc.serial();
        let done = self.srqs.iter_mut().find(|s| s.serial() == serial)?.complete(wc)?;
        // A number that a dead queue pair had names nobody until its last completions are out.
        let number = wc.0.qp_num;
        let known = self.numbers.get(&number).filter(|_| !self.cq.inner().is_haunted(number));
        Some(Completion::of(known.copied().unwrap_or(QpKey::UNKNOWN), done))
    }

    /// Takes a shared receive queue in: from here on the group redeems its completions, and those polled before are
    /// delivered next. Its queue pairs have to complete on the group's queue. Returns its serial, which names it here.
    pub fn adopt_srq(&mut self, srq: SharedReceiveQueue) -> u64 {
        let serial = srq.serial();
        self.srqs.push(srq);
        self.unpark(serial);
        serial
    }

    /// A shared receive queue of the group, to post to it.
    pub fn srq_mut(&mut self, serial: u64) -> Option<&mut SharedReceiveQueue> {
        self.srqs.iter_mut().find(|s| s.serial() == serial)
    }

    /// Lets a shared receive queue go.
    pub fn release_srq(&mut self, serial: u64) -> Option<SharedReceiveQueue> {
        let at = self.srqs.iter().position(|s| s.serial() == serial)?;
        Some(self.srqs.swap_remove(at))
    }

    /// Parks a completion whose queue pair has not joined yet; drops it when that is dead, or the device made it up.
    #[cold]
    #[inline(never)]
    fn unrouted(&mut self, wc: Wc) {
        let serial = wc.serial();
        let cq = self.cq.inner();
        let known =
            self.qps.get(serial).is_some() || self.srqs.iter().any(|s| s.serial() == serial);
        if known || !cq.is_live(serial) {
            self.stale += 1;
            return;
        }
        let depth = cq.depth() as usize;
        if self.parked.len() >= depth {
            // Live queue pairs cannot have more than the queue's depth in flight: the rest is of dead ones.
            let before = self.parked.len();
            self.parked.retain(|w| cq.is_live(w.serial()));
            self.stale += (before - self.parked.len()) as u64;
        }
        match self.parked.len() < depth {
            true => self.parked.push(wc),
            false => self.stale += 1,
        }
    }

    /// As [`poll`](Self::poll), but sleeps on the queue's channel while there is nothing; `None` after `timeout`. For
    /// groups whose queue was made with a channel, by [`create_cq_with`](crate::Context::create_cq_with).
    ///
    /// # Errors
    /// As [`CompletionQueue::poll_wait`].
    pub fn poll_wait(&mut self, timeout: Duration) -> Result<Option<Completion>> {
        let deadline = deadline_after(timeout);
        loop {
            if let Some(c) = self.poll()? {
                return Ok(Some(c));
            }
            self.cq.req_notify()?;
            if let Some(c) = self.poll()? {
                return Ok(Some(c));
            }
            if !self.cq.wait_event(deadline)? {
                return Ok(None);
            }
        }
    }

    /// Arms the queue's channel; see [`CompletionQueue::req_notify`]. Poll until `None` once more after it.
    ///
    /// # Errors
    /// As there.
    pub fn req_notify(&mut self) -> Result<()> {
        self.cq.req_notify()
    }

    /// A queue pair of the group.
    #[inline(always)]
    pub fn qp_mut(&mut self, key: QpKey) -> Option<&mut QueuePair> {
        match self.qps.near(key.serial()).is_some_and(|qp| qp.key == key) {
            true => self.qps.near(key.serial()).map(|qp| &mut **qp),
            false => self.qp_far(key),
        }
    }

    #[cold]
    #[inline(never)]
    fn qp_far(&mut self, key: QpKey) -> Option<&mut QueuePair> {
        self.qps.get_mut(key.serial()).map(|qp| &mut **qp)
    }

    /// A queue pair of the group.
    pub fn qp(&self, key: QpKey) -> Option<&QueuePair> {
        Some(&**self.qps.get(key.serial())?)
    }

    /// Destroys a queue pair and gives back its slots; see [`QueuePair::close`].
    ///
    /// # Errors
    /// As there; [`ErrorKind::InvalidArgument`] when the key names none.
    pub fn remove(&mut self, key: QpKey) -> Result<Vec<Slot>> {
        match self.release(key) {
            Some(qp) => qp.close(),
            None => Err(Error::refused(
                "removing a queue pair",
                ErrorKind::InvalidArgument,
                "the group has no such queue pair",
            )),
        }
    }

    /// Lets a queue pair go without destroying it. Its completions are still polled by the group, and parked until it
    /// is adopted again or destroyed.
    pub fn release(&mut self, key: QpKey) -> Option<QueuePair> {
        let mut qp = *self.qps.remove(key.serial())?;
        // Lossless: an index is below QPS_MAX.
        self.free.push(qp.key.index() as u32);
        qp.key = QpKey::UNKNOWN;
        if self.numbers.get(&qp.qp_num()) == Some(&key) {
            self.numbers.remove(&qp.qp_num());
        }
        Some(qp)
    }

    /// Keys of the queue pairs in the group.
    pub fn keys(&self) -> impl Iterator<Item = QpKey> + '_ {
        self.qps.values().map(|qp| qp.key)
    }

    /// Completions dropped so far because their queue pair was gone.
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// Completions that wait for their queue pair to be adopted.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }
}

impl fmt::Debug for PollGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollGroup")
            .field("cq", &self.cq)
            .field("qps", &self.qps.values().count())
            .field("parked", &self.parked.len())
            .field("stale", &self.stale)
            .finish_non_exhaustive()
    }
}
