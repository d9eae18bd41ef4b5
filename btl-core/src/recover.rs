//! What recovery counts: which messages of a stream are out, which the peer has, and what is said of that. Pure.
//!
//! A *stream* is all that one side ever sends to one peer on one lane class, over all connections. Its messages have
//! numbers that are never sent: a lane delivers in order, so both ends count. What travels is
//!
//! - in each header, how many messages of the other direction were **delivered** to the upper layer since the last one
//!   ([`MAX_ACKS`] at most);
//! - in Hello and its answer, how many were ever delivered. Everything behind that is sent again, everything before it
//!   is not, so each message is delivered once, whatever was lost with the connection between them.
//!
//! The receiver drops what it delivered before the sender could know (its Hello is written by the connection manager's
//! side and may be older than the last messages of the connection before).
use crate::error::{FaultKind, ProtocolFault};
use crate::frag::{Fifo, Table};
use crate::names::Nanos;

/// Most acknowledgements that one header carries.
pub const MAX_ACKS: u16 = (1 << 11) - 1;

/// What one side says of a stream when it connects: part of Hello and of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Messages of the peer that were ever delivered here.
    pub delivered: u64,
    /// Nothing was ever sent or delivered here: what the peer remembers is of another time, before a goodbye.
    pub fresh: bool,
    /// The peer's goodbye was heard and nothing is open: if the peer is fresh, we begin anew too.
    pub goodbye: bool,
}

/// What the engine says with a wish for a connection, see [`CmRequest::Connect`](crate::port::CmRequest).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rejoin {
    /// For the Hello.
    pub resume: Resume,
    /// The generation of a lost connection that the *peer* had dialled: it may be replaced, though the peer may not
    /// know yet that it is lost.
    pub lost: Option<u32>,
    /// Set when a connection was lost: pause before the first dial. The limits of
    /// [`Recovery`](crate::config::Recovery) apply instead of those of a first connect.
    pub after: Option<Nanos>,
}

/// The counts of both directions on one lane class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    /// Messages posted, on this connection or before what was sent again on it.
    sent: u64,
    /// Messages ever posted: the peer may have them.
    peak: u64,
    /// Of these, acknowledged.
    acked: u64,
    /// Messages delivered to the upper layer here.
    delivered: u64,
    /// Messages that came on this connection and are not acknowledged to the peer.
    owed: u64,
    /// Messages still to come that were delivered before.
    again: u64,
    /// The last connection ended with the peer's goodbye.
    goodbye: bool,
}

impl Stream {
    /// A message was posted.
    #[inline]
    pub(crate) fn posted(&mut self) {
        self.sent += 1;
        self.peak = self.peak.max(self.sent);
    }

    /// Acknowledgements for the next header.
    #[inline]
    pub(crate) fn owed(&self) -> u16 {
        self.owed.min(u64::from(MAX_ACKS)) as u16
    }

    /// The header with them was posted.
    #[inline]
    pub(crate) fn told(&mut self, acks: u16) {
        self.owed = self.owed.saturating_sub(u64::from(acks));
    }

    /// A message came; whether it is to be delivered.
    #[inline]
    pub(crate) fn arrived(&mut self) -> bool {
        self.owed += 1;
        if self.again > 0 {
            self.again -= 1;
            return false;
        }
        self.delivered += 1;
        true
    }

    /// A header acknowledged `n` messages.
    #[inline]
    pub(crate) fn acknowledged(&mut self, n: u16) -> Result<(), ProtocolFault> {
        let acked = self.acked + u64::from(n);
        if acked > self.sent {
            return Err(ProtocolFault::Acks { claimed: acked, sent: self.sent });
        }
        self.acked = acked;
        Ok(())
    }

    fn is_fresh(&self) -> bool {
        (self.peak, self.delivered) == (0, 0)
    }

    /// What to say in the next Hello.
    pub(crate) fn resume(&self) -> Resume {
        let goodbye = self.goodbye && self.peak == self.acked;
        Resume { delivered: self.delivered, fresh: self.is_fresh(), goodbye }
    }

    /// The peer said its last word on a connection.
    pub(crate) fn parted(&mut self) {
        self.goodbye = true;
    }

    /// A new connection, on which we have said (or are about to say) that `said` messages were delivered.
    pub(crate) fn connected(&mut self, said: u64) {
        self.owed = 0;
        self.again = self.delivered.saturating_sub(said);
    }

    /// The peer has said what it has; how many messages that acknowledges. The rest is to be sent again.
    ///
    /// # Errors
    /// It claims more than was sent, or less than it acknowledged before.
    pub(crate) fn joined(&mut self, theirs: Resume) -> Result<u64, ProtocolFault> {
        if theirs.fresh && self.goodbye && self.peak == self.acked {
            // It has forgotten us since its goodbye, and so do we.
            *self = Stream::default();
        }
        let anew = theirs.goodbye && self.is_fresh();
        let claimed = if anew { 0 } else { theirs.delivered };
        if claimed > self.peak || claimed < self.acked {
            return Err(ProtocolFault::Resume { claimed, acked: self.acked, sent: self.peak });
        }
        let newly = claimed - self.acked;
        (self.acked, self.sent, self.goodbye) = (claimed, claimed, false);
        Ok(newly)
    }

    /// Messages posted and not acknowledged.
    pub(crate) fn open(&self) -> u64 {
        self.sent - self.acked
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Messages of both directions that are through: grows as long as there is progress.
    pub(crate) fn through(&self) -> u64 {
        self.acked.wrapping_add(self.delivered)
    }
}

/// Messages that the device is done with and the peer has not acknowledged, in order. Their buffers stay here.
#[derive(Debug, Default)]
pub(crate) struct Held {
    done: Fifo,
    /// Messages acknowledged before the device said that it is done with them.
    ahead: u64,
}

impl Held {
    /// The device is done with message `i`, the next in order. `true`: the peer has it, it is over.
    #[inline]
    pub(crate) fn done<S>(&mut self, table: &mut Table<S>, i: u32) -> bool {
        if self.ahead > 0 {
            self.ahead -= 1;
            return true;
        }
        table.push(&mut self.done, i);
        false
    }

    /// The peer has acknowledged one more: the message, if the device is done with it.
    #[inline]
    pub(crate) fn acknowledged<S>(&mut self, table: &mut Table<S>) -> Option<u32> {
        let i = table.pop(&mut self.done);
        self.ahead += u64::from(i.is_none());
        i
    }

    pub(crate) fn len(&self) -> u32 {
        self.done.len()
    }

    /// The connection is over. `flushed`: what the device had, in order; the messages at its head that were acknowledged
    /// are moved to `over`, and what is left is put behind those held here.
    pub(crate) fn take<S>(
        &mut self,
        table: &mut Table<S>,
        flushed: &mut Fifo,
        over: &mut Fifo,
    ) -> Fifo {
        for _ in 0..std::mem::take(&mut self.ahead) {
            let Some(i) = table.pop(flushed) else { break };
            table.push(over, i);
        }
        let mut all = std::mem::take(&mut self.done);
        table.append(&mut all, flushed);
        all
    }
}

/// What is kept of a lane class between its connections.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    pub(crate) stream: Stream,
    /// What was under way when the last connection was lost, in the order of its posts. It waits for the peer's word.
    pub(crate) open: Fifo,
    /// Set while the class is to be connected again.
    pub(crate) loss: Option<Loss>,
    /// Connections lost since a message got through.
    pub(crate) tries: u32,
    /// When the first of these was lost.
    pub(crate) since: Nanos,
    /// [`Stream::through`] at the last loss.
    through: u64,
    /// When the peer said what it has, on the connection there is.
    pub(crate) joined_at: Option<Nanos>,
}

/// Why a connection was lost, and how long to wait for the next.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) cause: FaultKind,
    /// The generation, if the peer had dialled it.
    pub(crate) theirs: Option<u32>,
    /// The connection manager's side was asked for another. It was not where the peer has to dial.
    pub(crate) asked: bool,
    /// When that has to have happened; set by the first look at the timers.
    pub(crate) by: Option<Nanos>,
}

impl Saved {
    /// A connection was lost, with nothing under way if `idle`: the number of those that were lost before without a
    /// message getting through.
    pub(crate) fn lost(&mut self, now: Nanos, idle: bool, idle_reset: Nanos) -> u32 {
        let joined = self.joined_at.take();
        let lasted = joined.is_some_and(|at| now.saturating_sub(at) > idle_reset);
        if self.stream.through() != self.through || (idle && lasted) {
            self.tries = 0;
        }
        self.through = self.stream.through();
        if self.tries == 0 {
            self.since = now;
        }
        self.tries = self.tries.saturating_add(1);
        self.tries - 1
    }
}

/// Puts one-sided operations between messages, as they were posted. `number`: that of the first message;
/// `before`: for each operation the number of the first message behind it, never falling.
pub(crate) fn merge<S>(
    table: &mut Table<S>,
    mut number: u64,
    messages: &mut Fifo,
    ops: &mut Fifo,
    mut before: impl FnMut(&mut Table<S>, u32) -> u64,
) -> Fifo {
    let mut all = Fifo::default();
    loop {
        while let Some(i) = ops.front() {
            if before(table, i) > number && !messages.is_empty() {
                break;
            }
            table.pop(ops);
            table.push(&mut all, i);
        }
        let Some(i) = table.pop(messages) else { return all };
        table.push(&mut all, i);
        number += 1;
    }
}

#[cfg(test)]
mod tests;
