//! What an [`AsyncQueuePair`](super::AsyncQueuePair) shares between its tasks: the queues and who owns which slot.
//!
//! Every slot of the queue pair's own is in exactly one place: `free`, `spare`, `inbox`, the queue pair, or a
//! [`SendBuffer`](super::SendBuffer) or [`Message`](super::Message) of the user, which puts it back when dropped. What a
//! request names is in the queue pair, in its completion, or among the `abandoned`. Futures own nothing.

#![forbid(unsafe_code)]

use super::{QueueError, RequestError};
use crate::channel::CompletionChannel;
use crate::cq::CompletionQueue;
use crate::error::Result;
use crate::payload::Payload;
use crate::post::{PostError, Request, Why};
use crate::qp::QueuePair;
use crate::qp_attr::{QpState, SendFlags};
use crate::ring::place_of;
use crate::slot::Slot;
use crate::wc::{Done, Op, Wc, WcStatus};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

const BATCH: usize = 16;

/// What comes out of a destruction, when it is over.
pub(super) type Ashes = Arc<Mutex<Option<Result<Vec<Payload>>>>>;

/// What a send queue entry is. On soft iWARP reads complete after what was posted later, so an entry is known by its
/// place and not by its turn.
enum Posted {
    /// A message.
    Message,
    Probe,
    /// Somebody's request.
    Request(u64),
}

/// What has become of a request.
enum Outcome {
    Waiting,
    Done(Done),
    /// Nobody waits for it.
    Abandoned,
}

/// A message that was received.
pub(super) struct Received {
    pub(super) slot: Slot,
    pub(super) len: usize,
    pub(super) imm: Option<u32>,
}

/// The queue pair and how it ends.
pub(super) enum Life {
    Open(Box<QueuePair>),
    /// A thread destroys it, and puts here what comes out.
    Closing(Ashes),
    Closed(Result<()>),
}

pub(super) struct State {
    pub(super) life: Life,
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// Send buffers nobody uses.
    pub(super) free: Vec<Slot>,
    /// Receive buffers that are not posted.
    pub(super) spare: Vec<Slot>,
    /// Messages nobody has taken yet.
    inbox: VecDeque<Received>,
    /// What is in the send queue, by place.
    posted: Vec<Option<Posted>>,
    /// Messages and probes among these.
    pub(super) unfinished: usize,
    /// Requests that may still be posted.
    pub(super) room: u32,
    requests: BTreeMap<u64, Outcome>,
    next_request: u64,
    /// What nobody waits for any more.
    pub(super) abandoned: Vec<Payload>,
    /// Why the queue pair has failed.
    end: Option<QueueError>,
    /// Armed, and no event read since: the next completion raises one.
    pub(super) armed: bool,
    /// A message has been received.
    pub(super) heard: bool,
    /// No send before one has been received.
    pub(super) listen_first: bool,
}

impl State {
    pub(super) fn new(
        qp: QueuePair,
        cq: CompletionQueue,
        channel: CompletionChannel,
        free: Vec<Slot>,
        spare: Vec<Slot>,
        room: u32,
    ) -> State {
        State {
            life: Life::Open(Box::new(qp)),
            cq,
            channel,
            free,
            inbox: VecDeque::with_capacity(spare.len()),
            spare,
            posted: Vec::new(),
            unfinished: 0,
            room,
            requests: BTreeMap::new(),
            next_request: 0,
            abandoned: Vec::new(),
            end: None,
            armed: false,
            heard: false,
            listen_first: false,
        }
    }

    pub(super) fn qp(&mut self) -> std::result::Result<&mut QueuePair, QueueError> {
        match &mut self.life {
            Life::Open(qp) => Ok(qp),
            _ => Err(QueueError::Closed),
        }
    }

    /// Why nothing more can be done, if so.
    pub(super) fn over(&self) -> Option<QueueError> {
        match self.life {
            Life::Open(_) => self.end.clone(),
            _ => Some(QueueError::Closed),
        }
    }

    /// Moves what has completed to where it is looked for; whether there was anything. `readable`: the channel may have
    /// events, which then are all read.
    pub(super) fn drive(&mut self, readable: bool) -> Result<bool> {
        let mut moved = false;
        if readable {
            while self.channel.take_event()?.is_some() {
                self.armed = false;
            }
        }
        let mut wcs: [Wc; BATCH] = std::array::from_fn(|_| Wc::empty());
        loop {
            // Ends: what a receive completes with is not posted again before somebody has taken the message.
            let n = self.cq.poll(&mut wcs)?;
            for wc in wcs.iter_mut().take(n) {
                // Of a queue pair that is being closed: its slots come back from that.
                let Life::Open(qp) = &mut self.life else { continue };
                let place = place_of(wc.0.wr_id);
                if let Some(done) = qp.complete(wc) {
                    self.take_in(done, place);
                    moved = true;
                }
            }
            if n < BATCH {
                return Ok(moved);
            }
        }
    }

    /// Arms the queue if it is not, and drives again: what came before the arming raises no event. Whether there was
    /// anything.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.armed {
            // Armed before the latest drive. A completion since then has disarmed it, and its event will wake somebody.
            return Ok(false);
        }
        self.cq.req_notify()?;
        self.armed = true;
        self.drive(false)
    }

    fn take_in(&mut self, done: Done, place: usize) {
        if !done.status.is_ok() {
            self.fail(QueueError::Failed {
                op: done.op,
                status: done.status,
                vendor_err: done.vendor_err,
            });
        }
        if done.op.is_recv() {
            let (ok, imm, with_bytes) = (done.status.is_ok(), done.imm(), done.op == Op::Recv);
            match done.slot {
                Some(slot) if ok => {
                    self.heard = true;
                    // A write with immediate data takes a receive and leaves its memory untouched.
                    let len = if with_bytes { done.byte_len } else { 0 };
                    self.inbox.push_back(Received { slot, len, imm });
                }
                slot => self.spare.extend(slot),
            }
            return;
        }
        match self.posted.get_mut(place).and_then(Option::take) {
            Some(Posted::Request(id)) => {
                self.room += 1;
                match self.requests.get_mut(&id) {
                    Some(outcome @ Outcome::Waiting) => *outcome = Outcome::Done(done),
                    _ => {
                        self.requests.remove(&id);
                        self.abandoned.extend(done.into_payload());
                    }
                }
            }
            Some(Posted::Message | Posted::Probe) => {
                self.unfinished = self.unfinished.saturating_sub(1);
                self.free.extend(done.slot);
            }
            // Posted by hand, past this.
            None => self.abandoned.extend(done.into_payload()),
        }
    }

    /// Keeps the first reason; that a request was flushed is none.
    pub(super) fn fail(&mut self, why: QueueError) {
        let flushed =
            |e: &QueueError| matches!(e, QueueError::Failed { status: WcStatus::WR_FLUSH_ERR, .. });
        if self.end.as_ref().is_none_or(|first| flushed(first) && !flushed(&why)) {
            self.end = Some(why);
        }
    }

    /// A message, if one is there. Those received before a failure come before it.
    pub(super) fn message(&mut self) -> Option<Received> {
        self.inbox.pop_front()
    }

    /// A send buffer, if there is one and sends are allowed.
    pub(super) fn buffer(&mut self) -> Option<Slot> {
        if self.listen_first && !self.heard {
            return None;
        }
        self.free.pop()
    }

    /// Sends. A slot the device never saw goes back to the free ones.
    pub(super) fn send(&mut self, slot: Slot, len: usize) -> std::result::Result<(), QueueError> {
        let posted = match &mut self.life {
            Life::Open(qp) => qp.post_send(slot, len, SendFlags::empty()),
            _ => {
                self.free.push(slot);
                return Err(QueueError::Closed);
            }
        };
        match posted {
            Ok(()) => {
                self.posted_own(Posted::Message);
                Ok(())
            }
            Err(PostError { why, slot, .. }) => {
                if slot.is_none() {
                    // The queue pair keeps it, and it may complete.
                    self.posted_own(Posted::Message);
                    self.fail(QueueError::Refused(why));
                }
                self.free.extend(slot);
                // Of a queue pair that failed earlier the reason is more than "broken".
                Err(self.end.clone().unwrap_or(QueueError::Refused(why)))
            }
        }
    }

    fn posted_own(&mut self, what: Posted) {
        self.unfinished += 1;
        self.note_posted(what);
    }

    /// What the latest send is.
    fn note_posted(&mut self, what: Posted) {
        let Life::Open(qp) = &self.life else { return };
        let place = qp.flight.latest_send();
        if place >= self.posted.len() {
            self.posted.resize_with(place + 1, || None);
        }
        if let Some(entry) = self.posted.get_mut(place) {
            *entry = Some(what);
        }
    }

    /// Room for a request, taken.
    pub(super) fn take_room(&mut self) -> Option<()> {
        self.room = self.room.checked_sub(1)?;
        Some(())
    }

    /// Posts a request, for which room was taken; its number.
    pub(super) fn request(
        &mut self,
        mut request: Request<'_>,
    ) -> std::result::Result<u64, RequestError> {
        request.flags -= SendFlags::UNSIGNALLED;
        let posted = match &mut self.life {
            Life::Open(qp) => qp.post(request),
            _ => {
                self.room += 1;
                return Err(RequestError { why: QueueError::Closed, payload: request.payload });
            }
        };
        let id = self.next_request;
        if let Err(error) = posted {
            let why = error.why;
            if matches!(why, Why::Device(_)) {
                // The queue pair keeps it, and it may complete; its room is gone with the queue pair.
                self.note_posted(Posted::Request(id));
                self.next_request += 1;
                self.fail(QueueError::Refused(why));
            } else {
                self.room += 1;
            }
            let why = self.end.clone().unwrap_or(QueueError::Refused(why));
            return Err(RequestError { why, payload: error.into_payload() });
        }
        self.next_request += 1;
        self.note_posted(Posted::Request(id));
        self.requests.insert(id, Outcome::Waiting);
        Ok(id)
    }

    /// The completion of a request, taken, if it has come.
    pub(super) fn done(&mut self, id: u64) -> Option<Done> {
        if !matches!(self.requests.get(&id), Some(Outcome::Done(_))) {
            return None;
        }
        match self.requests.remove(&id) {
            Some(Outcome::Done(done)) => Some(done),
            _ => None,
        }
    }

    /// Nobody waits for the request any more.
    pub(super) fn abandon(&mut self, id: u64) {
        match self.requests.remove(&id) {
            Some(Outcome::Done(done)) => self.abandoned.extend(done.into_payload()),
            Some(_) => drop(self.requests.insert(id, Outcome::Abandoned)),
            None => {}
        }
    }

    /// An empty write, unless one is under way.
    pub(super) fn probe(&mut self) -> std::result::Result<(), QueueError> {
        // There is one entry for it.
        let under_way = self.posted.iter().flatten().any(|posted| matches!(posted, Posted::Probe));
        let qp = self.qp()?;
        if under_way {
            return Ok(());
        }
        match qp.post_empty_write() {
            Ok(()) => self.posted_own(Posted::Probe),
            Err(PostError { why, .. }) => {
                if matches!(why, Why::Device(_)) {
                    self.posted_own(Posted::Probe);
                    self.fail(QueueError::Refused(why));
                }
                return Err(self.end.clone().unwrap_or(QueueError::Refused(why)));
            }
        }
        Ok(())
    }

    /// Takes back a receive buffer, and posts it as long as there is something to receive.
    pub(super) fn recycle(&mut self, slot: Slot) {
        self.spare.push(slot);
        if self.end.is_none() {
            // A refusal leaves the buffer in `spare`; a failure shows in the next call.
            let _ = self.post_receives();
        }
    }

    /// Posts the receive buffers that are not posted.
    pub(super) fn post_receives(&mut self) -> std::result::Result<(), QueueError> {
        let Life::Open(qp) = &mut self.life else { return Err(QueueError::Closed) };
        while let Some(slot) = self.spare.pop() {
            if let Err(PostError { why, slot, .. }) = qp.post_recv(slot) {
                let kept = slot.is_none();
                self.spare.extend(slot);
                if kept {
                    self.fail(QueueError::Refused(why));
                }
                return Err(QueueError::Refused(why));
            }
        }
        Ok(())
    }

    /// Whether the connection manager may still hold on to the queue pair: destroying it can then block for seconds.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(&self.life, Life::Open(qp) if matches!(qp.state(), QpState::Init | QpState::ReadyToReceive))
    }

    /// How the destruction went, when it is over.
    pub(super) fn closed(&mut self) -> Option<Result<()>> {
        if let Life::Closing(ashes) = &self.life {
            let closed = ashes.lock().unwrap_or_else(PoisonError::into_inner).take()?;
            self.life = Life::Closed(closed.map(|payloads| {
                for payload in payloads {
                    match payload.into_slot() {
                        Ok(slot) => self.spare.push(slot),
                        Err(other) => self.abandoned.push(other),
                    }
                }
            }));
        }
        match &self.life {
            Life::Closed(result) => Some(result.clone()),
            _ => None,
        }
    }

    /// Takes all slots that are here.
    pub(super) fn take_slots(&mut self) -> Vec<Slot> {
        let inbox = self.inbox.drain(..).map(|message| message.slot);
        self.free.drain(..).chain(self.spare.drain(..)).chain(inbox).collect()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("open", &matches!(self.life, Life::Open(_)))
            .field("free", &self.free.len())
            .field("spare", &self.spare.len())
            .field("inbox", &self.inbox.len())
            .field("unfinished", &self.unfinished)
            .field("armed", &self.armed)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
