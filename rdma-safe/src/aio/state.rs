//! What an [`AsyncQueuePair`](super::AsyncQueuePair) shares between its tasks: the queues and who owns which slot.
//!
//! Every slot is in exactly one place: `free`, `spare`, `inbox`, the queue pair, or a [`SendBuffer`](super::SendBuffer)
//! or [`Message`](super::Message) of the user, which puts it back when dropped. Futures own none.

#![forbid(unsafe_code)]

use super::QueueError;
use crate::channel::CompletionChannel;
use crate::cq::CompletionQueue;
use crate::error::Result;
use crate::post::{PostError, Why};
use crate::qp::QueuePair;
use crate::qp_attr::{QpState, SendFlags};
use crate::slot::Slot;
use crate::wc::{Done, Op, Wc, WcStatus};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

const BATCH: usize = 16;

/// What comes out of a destruction, when it is over.
pub(super) type Ashes = Arc<Mutex<Option<Result<Vec<Slot>>>>>;

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
    /// Messages nobody has taken yet, with their lengths.
    inbox: VecDeque<(Slot, usize)>,
    /// Sends and probes posted and not completed.
    pub(super) unfinished: usize,
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
    ) -> State {
        State {
            life: Life::Open(Box::new(qp)),
            cq,
            channel,
            free,
            inbox: VecDeque::with_capacity(spare.len()),
            spare,
            unfinished: 0,
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
                if let Some(done) = qp.complete(wc) {
                    self.take_in(done);
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

    fn take_in(&mut self, done: Done) {
        let failed = !done.status.is_ok();
        match (done.op, done.slot) {
            (Op::Recv, Some(slot)) if failed => self.spare.push(slot),
            (Op::Recv, Some(slot)) => {
                self.heard = true;
                self.inbox.push_back((slot, done.byte_len));
            }
            (Op::Recv, None) => {}
            (_, slot) => {
                self.unfinished = self.unfinished.saturating_sub(1);
                self.free.extend(slot);
            }
        }
        if failed {
            self.fail(QueueError::Failed {
                op: done.op,
                status: done.status,
                vendor_err: done.vendor_err,
            });
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
    pub(super) fn message(&mut self) -> Option<(Slot, usize)> {
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
                self.unfinished += 1;
                Ok(())
            }
            Err(PostError { why, slot, .. }) => {
                if slot.is_none() {
                    self.fail(QueueError::Refused(why));
                }
                self.free.extend(slot);
                // Of a queue pair that failed earlier the reason is more than "broken".
                Err(self.end.clone().unwrap_or(QueueError::Refused(why)))
            }
        }
    }

    /// An empty write, if there is room for one.
    pub(super) fn probe(&mut self) -> std::result::Result<(), QueueError> {
        let qp = self.qp()?;
        if qp.room().0 == 0 {
            return Ok(());
        }
        match qp.post_empty_write() {
            Ok(()) => self.unfinished += 1,
            Err(PostError { why, .. }) => {
                if matches!(why, Why::Device(_)) {
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
            self.life = Life::Closed(closed.map(|slots| self.spare.extend(slots)));
        }
        match &self.life {
            Life::Closed(result) => Some(result.clone()),
            _ => None,
        }
    }

    /// Takes all slots that are here.
    pub(super) fn take_slots(&mut self) -> Vec<Slot> {
        let inbox = self.inbox.drain(..).map(|(slot, _)| slot);
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
