//! The short way of what happens for nearly every message: a send that may leave at once, its completion, a message for
//! the upper layer, the release of its buffer. Each step makes the same checks as the long way; where one says no, or
//! anything is to be done besides, it does nothing and leaves everything to the long way. Lanes that recover take the
//! long way.
use super::Engine;
use super::io::{Io, Lane};
use crate::frag::Frag;
use crate::lane::{Frame, NotSent, When, transmit};
use crate::names::{LaneId, Nanos, PeerId};
use crate::port::{Cm, Port, Refused};
use crate::wire::{Header, Kind};

/// A message without its slot.
#[derive(Clone, Copy)]
pub(super) struct What {
    pub(super) tag: u8,
    pub(super) class: u8,
    pub(super) len: u32,
    pub(super) max: u32,
    pub(super) cookie: u64,
}

/// What the short way made of a completion.
pub(super) enum Quick<T, S> {
    /// Something for the upper layer.
    News(T),
    /// It is done with.
    Nothing,
    /// The same; the lane may have something to send now.
    Pump,
    /// It is for the long way; nothing has happened.
    No(S),
}

/// A message that has left: to whom, cookie, length, most, class.
pub(super) type Left = (PeerId, u64, u32, u32, u8);

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// Posts a message if nothing speaks against it. `Err`: the slot, and nothing has happened but what
    /// [`Io::turned_away`] says.
    #[inline(always)]
    pub(super) fn send_quick(
        &mut self,
        peer: PeerId,
        slot: P::Slot,
        what: What,
    ) -> Result<(), P::Slot> {
        let hint = self.hints.get(peer.index()).copied().unwrap_or(u32::MAX);
        let Some(entry) = self.lanes.get_mut(hint as usize) else { return Err(slot) };
        let Some(lane) = &mut entry.lane else { return Err(slot) };
        // The hint may be old: what counts is what the lane says of itself. A lane that is over has a shut gate, and one
        // that is being closed owes a goodbye.
        if lane.peer_id != peer
            || lane.class != what.class
            || what.len > lane.room
            || !lane.due.is_none()
            || lane.bye.wanted
            || lane.rec.on
            || self.io.queued != 0
            || !self.io.is_straight()
        {
            return Err(slot);
        }
        self.io.post_quick(lane, slot, what)
    }

    /// A send went well.
    #[inline(always)]
    pub(super) fn sent_quick(
        &mut self,
        id: LaneId,
        slot: P::Slot,
    ) -> Quick<(Left, P::Slot), P::Slot> {
        let Some(entry) = self.lanes.get_mut(id.index()) else { return Quick::No(slot) };
        let Some(lane) = &mut entry.lane else { return Quick::No(slot) };
        let io = &mut self.io;
        let calm = io.queued == 0 && lane.is_calm() && !lane.rec.on && io.is_straight();
        let first = lane.inflight.front().filter(|_| calm && entry.generation == id.generation());
        let Some(i) = first else { return Quick::No(slot) };
        if i == lane.ctl_frag {
            // Bye is never sent from a calm lane.
            io.frags.pop(&mut lane.inflight);
            lane.acct.send_done();
            lane.ctl = Some(slot);
            return Quick::Nothing;
        }
        let Some((cookie, len, max, class)) = io.frags.pop_posted(&mut lane.inflight) else {
            return Quick::No(slot);
        };
        lane.acct.send_done();
        Quick::News(((lane.peer_id, cookie, len, max, class), slot))
    }

    /// Something came in.
    #[inline(always)]
    pub(super) fn received_quick(
        &mut self,
        id: LaneId,
        slot: P::Slot,
        len: usize,
    ) -> Quick<(PeerId, Header, P::Slot), P::Slot> {
        let Some(entry) = self.lanes.get_mut(id.index()) else { return Quick::No(slot) };
        let Some(lane) = &mut entry.lane else { return Quick::No(slot) };
        let Some(header) = Header::common(&slot, len) else { return Quick::No(slot) };
        let io = &mut self.io;
        let calm = header.credits == 0 || (io.queued == 0 && lane.is_calm());
        let heard = lane.heard && !lane.bye.heard && entry.generation == id.generation();
        if !heard
            || !calm
            || lane.rec.on
            || !io.is_straight()
            || lane.acct.grant(header.credits).is_err()
        {
            return Quick::No(slot);
        }
        if header.kind == Kind::Credit {
            io.repost_quick(lane, slot);
            return if lane.is_calm() { Quick::Nothing } else { Quick::Pump };
        }
        lane.used = true;
        lane.stats.messages_received += 1;
        lane.stats.bytes_received += u64::from(header.len);
        Quick::News((lane.peer_id, header, slot))
    }

    /// Posts a buffer again. `Err`: it comes back, and nothing has happened.
    #[inline(always)]
    pub(super) fn release_quick(&mut self, id: LaneId, slot: P::Slot) -> Result<(), P::Slot> {
        let Some(entry) = self.lanes.get_mut(id.index()) else { return Err(slot) };
        let Some(lane) = &mut entry.lane else { return Err(slot) };
        if entry.generation != id.generation() || self.io.queued != 0 || !self.io.is_straight() {
            return Err(slot);
        }
        // A lane that is over has a shut gate, and one whose gate is shut sends nothing.
        if !lane.acct.is_open() {
            return Err(slot);
        }
        if let Err(refused) = lane.acct.post_recv(&mut self.io.port, slot) {
            self.io.recv_refused(lane, refused);
        }
        if !lane.is_calm() {
            self.pump_lane(id);
        }
        Ok(())
    }

    /// Whether only the port has to be asked what is new.
    #[inline(always)]
    pub(super) fn is_quiet(&self) -> bool {
        self.io.events.is_empty() && self.since_cm < super::CM_EVERY
    }

    /// Whether nothing of this side waits for its time.
    #[inline(always)]
    pub(super) fn has_nothing(&self, now: Nanos) -> bool {
        let Io { events, hangups, retry, elsewhere, .. } = &self.io;
        let chores = events.len() | hangups.len() | retry.len() | elsewhere.len();
        chores == 0 && now < self.next_timer
    }
}

impl<P: Port> Io<P> {
    #[inline(always)]
    fn post_quick(
        &mut self,
        lane: &mut Lane<P::Slot>,
        slot: P::Slot,
        what: What,
    ) -> Result<(), P::Slot> {
        let What { tag, class, len, max, cookie } = what;
        let Some(i) = self.frags.vacancy() else { return Err(slot) };
        let addr = slot.as_ptr().addr();
        let frame = Frame { kind: Kind::Data, tag, acks: 0, len };
        match transmit(&mut lane.acct, &mut self.port, frame, slot, When::Now) {
            Ok(posted) => {
                lane.used = true;
                lane.stats.messages_sent += 1;
                lane.stats.bytes_sent += u64::from(len);
                lane.stats.credits_piggybacked += u64::from(posted.told);
            }
            Err(NotSent::Refused(_, slot)) => return Err(slot),
            Err(NotSent::Port(refused)) => match refused {
                Refused { why, slot: Some(slot) } => {
                    self.turned_away = Some(why);
                    return Err(slot);
                }
                Refused { why, slot: None } => self.kept(lane, why),
            },
        }
        let frag = Frag { slot: None, addr, cookie, len, max, tag, class, one_sided: false };
        self.frags.fill(i, frag, &mut lane.inflight);
        Ok(())
    }

    /// The buffer of a message of credits goes back at once.
    #[inline(never)]
    fn repost_quick(&mut self, lane: &mut Lane<P::Slot>, slot: P::Slot) {
        if let Err(refused) = lane.acct.post_recv(&mut self.port, slot) {
            self.recv_refused(lane, refused);
        }
    }

    /// Whether no test has switched a rule off.
    #[inline(always)]
    fn is_straight(&self) -> bool {
        #[cfg(feature = "sabotage")]
        return self.straight;
        #[cfg(not(feature = "sabotage"))]
        true
    }
}
