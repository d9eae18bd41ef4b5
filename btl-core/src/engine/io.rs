//! A lane in the engine, and everything that posts on it.
use super::PortEvent;
use super::recover::Rec;
use super::rma::Ops;
use crate::error::{PortError, ProtocolFault};
use crate::frag::{Fifo, Table};
use crate::lane::{Frame, LaneAcct, NotSent, Refusal, When, transmit};
use crate::names::{ConnToken, LaneId, Nanos, PeerId, Role};
use crate::port::{Port, Posted, Refused, RefusedWhy};
use crate::route::FirstLane;
use crate::stats::Stats;
use crate::wire::{HelloInfo, Kind};
use std::collections::VecDeque;

/// One queue pair of one peer.
pub(super) struct Lane<S> {
    pub(super) acct: LaneAcct,
    pub(super) id: LaneId,
    /// Index of the peer.
    pub(super) peer: u32,
    pub(super) peer_id: PeerId,
    pub(super) class: u8,
    /// Payload bytes that fit a buffer of the peer, as in its class.
    pub(super) room: u32,
    pub(super) role: Role,
    pub(super) conn: ConnToken,
    pub(super) hello: HelloInfo,
    /// Messages the device has, in the order of their posts.
    pub(super) inflight: Fifo,
    /// Messages that failed; reported when the lane is closed.
    pub(super) failed: Fifo,
    /// The slot for control messages, unless in flight.
    pub(super) ctl: Option<S>,
    /// Stands for the control message in `inflight`.
    pub(super) ctl_frag: u32,
    /// Whether the peer's Hello or HelloAck came.
    pub(super) heard: bool,
    /// Whether a message of the upper layer went or came. Until then nothing can be lost with it.
    pub(super) used: bool,
    /// Answers that are still to be sent.
    pub(super) due: Due,
    /// One-sided operations the device has whole, in the order of their posts.
    pub(super) rma: Fifo,
    /// One-sided posts the device has.
    pub(super) rma_posted: u32,
    /// Fences the peer has been asked about.
    pub(super) fences: Fifo,
    pub(super) bye: Bye,
    /// What recovery needs.
    pub(super) rec: Rec,
    /// Receives the device did not take yet.
    pub(super) unposted: Vec<S>,
    pub(super) in_retry: bool,
    /// When a process nobody announced must have said Hello.
    pub(super) first: First,
    /// Why the lane is over.
    pub(super) dead: Option<Cause>,
    /// Credits that travel alone go on the peer's first lane.
    pub(super) elsewhere: Option<FirstLane>,
    /// It is in [`Io::elsewhere`].
    pub(super) in_elsewhere: bool,
    /// What it did. Goes to its peer when it is closed.
    pub(super) stats: Stats,
    /// Rule 1 is broken: the other side may speak first.
    #[cfg(feature = "sabotage")]
    pub(super) lawless: bool,
    /// Credits to be told on lane 0.
    #[cfg(feature = "sabotage")]
    pub(super) stray: u16,
}

/// What the peer has to be answered before anything else goes: one word, so that nothing due is one test.
#[derive(Debug, Default)]
pub(super) struct Due(u32);

impl Due {
    const HELLO_ACK: u32 = 1;
    const ACK: u32 = 2;
    const ASK: u32 = 4;
    const FENCE: u32 = 8;

    #[inline]
    pub(super) fn is_none(&self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(super) fn hello_ack(&self) -> bool {
        self.0 & Self::HELLO_ACK != 0
    }

    pub(super) fn set_hello_ack(&mut self, due: bool) {
        self.0 = self.0 & !Self::HELLO_ACK | u32::from(due);
    }

    /// Acknowledgements, though there is nothing for them to ride on.
    pub(super) fn ack(&self) -> bool {
        self.0 & Self::ACK != 0
    }

    #[inline]
    pub(super) fn set_ack(&mut self, due: bool) {
        self.0 = self.0 & !Self::ACK | if due { Self::ACK } else { 0 };
    }

    /// A question whether puts are there.
    pub(super) fn ask(&self) -> bool {
        self.0 & Self::ASK != 0
    }

    pub(super) fn set_ask(&mut self, due: bool) {
        self.0 = self.0 & !Self::ASK | if due { Self::ASK } else { 0 };
    }

    pub(super) fn fences(&self) -> bool {
        self.0 >= Self::FENCE
    }

    /// A fence came. A peer that sends more than 2^29 of them loses answers.
    pub(super) fn add_fence(&mut self) {
        self.0 = self.0.checked_add(Self::FENCE).unwrap_or(self.0);
    }

    pub(super) fn fence_answered(&mut self) {
        self.0 = self.0.checked_sub(Self::FENCE).unwrap_or(self.0);
    }
}

/// The goodbye on a lane: the last message in each direction.
#[derive(Debug, Default)]
pub(super) struct Bye {
    pub(super) wanted: bool,
    pub(super) posted: bool,
    pub(super) done: bool,
    pub(super) heard: bool,
}

/// The limit for a Hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    NoLimit,
    /// The next look at the timers sets it.
    NotArmed,
    By(Nanos),
}

/// Why a lane ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// Goodbye was said and heard.
    Finished,
    /// The connection went away, or its queues were flushed.
    Disconnected,
    Error(PortError),
    Protocol(ProtocolFault),
    NoHello,
}

/// Why a message was not posted.
pub(super) enum Wait {
    Rule(Refusal),
    Device,
    /// The lane is over.
    Dead,
    /// It is a one-sided operation: [`Io::pump_rma`] posts it.
    OneSided,
}

/// What every step needs beside the lane: one field next to the lanes, so both can be borrowed.
pub(super) struct Io<P: Port> {
    pub(super) port: P,
    pub(super) frags: Table<P::Slot>,
    pub(super) ops: Ops<P::Memory>,
    /// Rare events: everything but `Message`, and `Sent` and `Done` of what went well.
    pub(super) events: VecDeque<PortEvent<P>>,
    /// What belongs to no peer, and what removed peers did.
    pub(super) stats: Stats,
    /// Messages that wait, of all peers.
    pub(super) queued: u32,
    /// Lanes that are over and not closed yet.
    pub(super) hangups: Vec<LaneId>,
    /// Lanes on which the device refused something for the moment.
    pub(super) retry: Vec<LaneId>,
    /// Why the device has just refused the message that takes the long way now.
    pub(super) turned_away: Option<RefusedWhy>,
    /// Lanes whose credits are to be told on the first lane of their peer.
    pub(super) elsewhere: Vec<LaneId>,
    /// Lanes on which acknowledgements were owed, and when that was entered.
    pub(super) acks: VecDeque<(Nanos, LaneId)>,
    #[cfg(feature = "sabotage")]
    pub(super) sabotage: crate::config::Sabotage,
    /// No rule is broken: messages take the short way, as in what ships.
    #[cfg(feature = "sabotage")]
    pub(super) straight: bool,
}

impl<S> Lane<S> {
    /// Whether a goodbye was said and heard, and the device has sent ours.
    pub(super) fn is_finished(&self) -> bool {
        self.bye.heard && self.bye.done
    }

    /// Whether [`pump`](Io::pump) would find nothing to send but messages that wait.
    #[inline]
    pub(super) fn is_calm(&self) -> bool {
        self.due.is_none() && !self.bye.wanted && !self.acct.credits_due()
    }
}

impl<P: Port> Io<P> {
    /// The lane is over; it is closed when everything that arrived on it has been seen.
    #[cold]
    pub(super) fn kill(&mut self, lane: &mut Lane<P::Slot>, cause: Cause) {
        lane.acct.shut();
        match &lane.dead {
            None => self.hangups.push(lane.id),
            // What the device says is more telling than that the connection went away.
            Some(Cause::Disconnected) => {}
            Some(_) => return,
        }
        lane.dead = Some(cause);
    }

    #[cold]
    pub(super) fn retry_later(&mut self, lane: &mut Lane<P::Slot>) {
        if !lane.in_retry {
            lane.in_retry = true;
            self.retry.push(lane.id);
        }
    }

    /// Posts a message of the upper layer. On success the caller puts it on `lane.inflight`.
    pub(super) fn post_data(
        &mut self,
        lane: &mut Lane<P::Slot>,
        i: u32,
        when: When,
    ) -> Result<(), Wait> {
        if lane.dead.is_some() || lane.bye.posted {
            return Err(Wait::Dead);
        }
        if lane.due.hello_ack() {
            // Nothing goes before the answer to the Hello.
            return Err(Wait::Rule(Refusal::Gate));
        }
        let Some(frag) = self.frags.get_mut(i) else { return Err(Wait::Dead) };
        let Some(slot) = frag.slot.take() else {
            return Err(if frag.one_sided { Wait::OneSided } else { Wait::Dead });
        };
        frag.addr = slot.as_ptr().addr();
        if let Some(why) = self.turned_away.take() {
            return self.data_refused(lane, i, Refused { why, slot: Some(slot) });
        }
        let acks = if lane.rec.on { lane.rec.stream.owed() } else { 0 };
        let frame = Frame { kind: Kind::Data, tag: frag.tag, acks, len: frag.len };
        match transmit(&mut lane.acct, &mut self.port, frame, slot, when) {
            Ok(posted) => {
                lane.used = true;
                lane.stats.messages_sent += 1;
                lane.stats.bytes_sent += u64::from(frame.len);
                lane.stats.credits_piggybacked += u64::from(posted.told);
                if lane.rec.on {
                    lane.data_posted(acks);
                }
                Ok(())
            }
            Err(NotSent::Refused(why, slot)) => {
                frag.slot = Some(slot);
                Err(Wait::Rule(why))
            }
            Err(NotSent::Port(refused)) => self.data_refused(lane, i, refused),
        }
    }

    #[cold]
    fn data_refused(
        &mut self,
        lane: &mut Lane<P::Slot>,
        i: u32,
        refused: Refused<P::Slot>,
    ) -> Result<(), Wait> {
        let Some(frag) = self.frags.get_mut(i) else { return Err(Wait::Dead) };
        frag.slot = refused.slot;
        if frag.slot.is_some() {
            if refused.why == RefusedWhy::Again {
                self.retry_later(lane);
                return Err(Wait::Device);
            }
            self.kill(lane, Cause::Error(refused.why.into_error()));
            return Err(Wait::Dead);
        }
        self.kept(lane, refused.why);
        Ok(())
    }

    /// The device kept the slot of a message: it comes back when the lane is closed.
    #[cold]
    pub(super) fn kept(&mut self, lane: &mut Lane<P::Slot>, why: RefusedWhy) {
        lane.used = true;
        if lane.rec.on {
            lane.data_posted(0);
        }
        self.kill(lane, Cause::Error(why.into_error()));
    }

    /// Posts a control message if the rules, the lane's control slot and the device allow it.
    pub(super) fn post_control(&mut self, lane: &mut Lane<P::Slot>, kind: Kind) -> Option<Posted> {
        let mut slot = lane.ctl.take()?;
        let len = match kind {
            Kind::HelloAck => lane.hello.put(&mut slot, lane.rec.stream.resume()).unwrap_or(0),
            _ => 0,
        };
        self.post_control_slot(lane, kind, len, slot)
    }

    /// The same with the payload, of `len` bytes, in the slot already.
    pub(super) fn post_control_slot(
        &mut self,
        lane: &mut Lane<P::Slot>,
        kind: Kind,
        len: u32,
        slot: P::Slot,
    ) -> Option<Posted> {
        let addr = slot.as_ptr().addr();
        let acks = lane.rec.stream.owed();
        let frame = Frame { kind, tag: 0, acks, len };
        match transmit(&mut lane.acct, &mut self.port, frame, slot, When::Now) {
            Ok(posted) => {
                lane.told(acks);
                if let Some(frag) = self.frags.get_mut(lane.ctl_frag) {
                    frag.addr = addr;
                }
                self.frags.push(&mut lane.inflight, lane.ctl_frag);
                Some(posted)
            }
            Err(NotSent::Refused(_, slot)) => {
                lane.ctl = Some(slot);
                None
            }
            Err(NotSent::Port(refused)) => {
                match refused {
                    Refused { why: RefusedWhy::Again, slot: Some(slot) } => {
                        lane.ctl = Some(slot);
                        self.retry_later(lane);
                    }
                    Refused { why, slot } => {
                        lane.ctl = slot;
                        self.kill(lane, Cause::Error(why.into_error()));
                    }
                }
                None
            }
        }
    }

    /// Sends whatever may be sent on the lane now. Called after everything that can change that:
    /// a grant, a completion, a Hello, a release.
    pub(super) fn pump(&mut self, lane: &mut Lane<P::Slot>, pending: &mut Fifo) {
        if lane.dead.is_some() || (lane.bye.posted && !lane.rec.on) {
            return;
        }
        if !lane.due.is_none() && !self.pay_dues(lane) {
            return;
        }
        if lane.bye.posted {
            return;
        }
        if !pending.is_empty() {
            self.drain(lane, pending);
        }
        if lane.bye.wanted && pending.is_empty() && Self::is_quiet(lane) {
            if let Some(posted) = self.post_control(lane, Kind::Bye) {
                lane.stats.credits_piggybacked += u64::from(posted.told);
                lane.bye.posted = true;
            }
        } else if lane.acct.credits_due() {
            match lane.elsewhere {
                None => self.tell_alone(lane),
                Some(_) => self.tell_elsewhere_later(lane),
            }
        }
    }

    /// Sends what the lane owes in a message of its own, on it.
    pub(super) fn tell_alone(&mut self, lane: &mut Lane<P::Slot>) {
        if let Some(posted) = self.post_control(lane, Kind::Credit) {
            lane.stats.credit_only_sent += 1;
            lane.stats.credits_alone += u64::from(posted.told);
        }
    }

    /// Posts what waits, several at a time with one doorbell.
    #[inline(never)]
    fn drain(&mut self, lane: &mut Lane<P::Slot>, pending: &mut Fifo) {
        let when = if pending.len() > 1 { When::Later } else { When::Now };
        while let Some(i) = pending.front() {
            match self.post_data(lane, i, when) {
                Ok(()) => {}
                Err(Wait::OneSided) => {
                    self.ring(lane, when);
                    match self.pump_rma(lane, pending) {
                        true => continue,
                        false => break,
                    }
                }
                Err(_) => break,
            }
            self.frags.pop(pending);
            self.frags.push(&mut lane.inflight, i);
            #[cfg(feature = "sabotage")]
            self.sabotage.miscount(&mut lane.acct);
            self.queued = self.queued.saturating_sub(1);
        }
        self.ring(lane, when);
    }

    /// Hands over what was posted for later.
    fn ring(&mut self, lane: &mut Lane<P::Slot>, when: When) {
        if when == When::Later
            && let Err(error) = self.port.ring(lane.id)
        {
            self.kill(lane, Cause::Error(error));
        }
    }

    /// Posts a receive again.
    #[inline]
    pub(super) fn repost(&mut self, lane: &mut Lane<P::Slot>, pending: &mut Fifo, slot: P::Slot) {
        if lane.dead.is_some() {
            self.port.recycle(slot);
            return;
        }
        #[cfg(feature = "sabotage")]
        if self.sabotage.advertise_before_post {
            lane.acct.owe_unposted();
            self.pump(lane, pending);
            let _ = self.port.post_recv(lane.id, slot);
            return;
        }
        #[cfg(feature = "sabotage")]
        if self.sabotage.release_early {
            let _ = self.port.post_recv(lane.id, slot);
            return;
        }
        if let Err(refused) = lane.acct.post_recv(&mut self.port, slot) {
            self.recv_refused(lane, refused);
        }
        let _ = pending;
    }

    #[cold]
    pub(super) fn recv_refused(&mut self, lane: &mut Lane<P::Slot>, refused: Refused<P::Slot>) {
        lane.stats.receives_refused += 1;
        match refused {
            Refused { why: RefusedWhy::Again, slot: Some(slot) } => {
                lane.unposted.push(slot);
                self.retry_later(lane);
            }
            Refused { why, slot } => {
                if let Some(slot) = slot {
                    self.port.recycle(slot);
                }
                self.kill(lane, Cause::Error(why.into_error()));
            }
        }
    }

    /// Tries again what the device refused.
    pub(super) fn retry(&mut self, lane: &mut Lane<P::Slot>, pending: &mut Fifo) {
        lane.in_retry = false;
        lane.stats.retries += 1;
        for slot in std::mem::take(&mut lane.unposted) {
            self.repost(lane, pending, slot);
        }
        self.pump(lane, pending);
    }
}
