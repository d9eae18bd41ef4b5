//! Credits that travel on the first lane of their peer, where both sides asked for it.
//!
//! Only credits that have no message of their lane to ride on go there, so a lane can do without: when the first one is
//! over or has said goodbye, they go on their own again.
use super::Engine;
use super::io::{Cause, Io, Lane};
use crate::endpoint::Link;
use crate::error::ProtocolFault;
use crate::names::LaneId;
use crate::port::{Cm, Port};
use crate::wire::{Kind, LaneCredit};

/// What became of the credits of one lane.
enum Told {
    /// They are under way.
    Now,
    /// The first lane cannot send now.
    Later,
    /// There is nothing to tell any more.
    Nothing,
}

impl<P: Port> Io<P> {
    /// The lane owes credits that go on the first one, which is not at hand.
    #[cold]
    pub(super) fn tell_elsewhere_later(&mut self, lane: &mut Lane<P::Slot>) {
        if !lane.in_elsewhere {
            lane.in_elsewhere = true;
            self.elsewhere.push(lane.id);
        }
    }
}

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// Tells what can be told; whether anything went.
    pub(super) fn tell_elsewhere(&mut self) -> bool {
        let (mut at, mut went) = (0, false);
        while let Some(id) = self.io.elsewhere.get(at).copied() {
            match self.tell_on_first_lane(id) {
                Told::Later => {
                    at += 1;
                    continue;
                }
                Told::Now => went = true,
                Told::Nothing => {}
            }
            self.io.elsewhere.swap_remove(at);
            if let Some((lane, ..)) = self.parts(id) {
                lane.in_elsewhere = false;
            }
        }
        went
    }

    fn tell_on_first_lane(&mut self, id: LaneId) -> Told {
        let Some((lane, endpoint, io)) = self.parts(id) else { return Told::Nothing };
        if lane.dead.is_some() || lane.bye.posted || !lane.acct.credits_due() {
            return Told::Nothing;
        }
        if lane.due.hello_ack() {
            // The answer to the Hello tells the first credits: what overtakes it on another lane may find a peer whose
            // engine does not have this one yet.
            return Told::Later;
        }
        let first = endpoint.classes.first().map(|class| class.link);
        let Some(Link::Up(first)) = first else {
            io.tell_alone(lane);
            return Told::Now;
        };
        let both = self.lanes.get_disjoint_mut([id.index(), first.index()]);
        let Ok([Some(lane), Some(first)]) = both.map(|two| two.map(|entry| entry.lane.as_mut()))
        else {
            return Told::Nothing;
        };
        let io = &mut self.io;
        if first.dead.is_some() || first.bye.posted {
            io.tell_alone(lane);
            return Told::Now;
        }
        if first.due.hello_ack() {
            return Told::Later;
        }
        let Some(advert) = lane.elsewhere.and_then(|agreed| lane.acct.advert_elsewhere(agreed))
        else {
            return Told::Nothing;
        };
        let Some(mut slot) = first.ctl.take() else { return Told::Later };
        let Some(len) = LaneCredit::put(&mut slot, &advert, lane.hello, lane.role) else {
            first.ctl = Some(slot);
            return Told::Nothing;
        };
        let Some(posted) = io.post_control_slot(first, Kind::LaneCredit, len, slot) else {
            return Told::Later;
        };
        let n = u64::from(advert.count());
        advert.used();
        // If it is lost with the first lane, the other one misses it for ever: that is no lane nothing was lost with.
        first.used = true;
        lane.stats.credit_only_sent += 1;
        lane.stats.credits_alone += n;
        lane.stats.credits_on_first_lane += n;
        first.stats.credits_piggybacked += u64::from(posted.told);
        Told::Now
    }

    /// A message on the first lane of a peer told credits of another one.
    #[cold]
    pub(super) fn told_elsewhere(&mut self, first: LaneId, told: LaneCredit, slot: P::Slot) {
        if let Some((lane, endpoint, io)) = self.parts(first)
            && let Some(class) = endpoint.classes.get_mut(usize::from(lane.class))
        {
            lane.used = true;
            io.repost(lane, &mut class.pending, slot);
            io.pump(lane, &mut class.pending);
        }
        if let Err(fault) = self.take_in(first, told) {
            if let Some((lane, _, io)) = self.parts(first) {
                io.kill(lane, Cause::Protocol(fault));
            }
            self.settle(first);
        }
    }

    fn take_in(&mut self, first: LaneId, told: LaneCredit) -> Result<(), ProtocolFault> {
        let Some((_, endpoint, _)) = self.parts(first) else { return Ok(()) };
        let Some(class) = endpoint.classes.get(usize::from(told.class)) else {
            return Err(ProtocolFault::LaneCredit { what: "there is no such lane" });
        };
        // What is for a connection that is gone has no meaning any more. One that is new here gets its first credits in
        // its own first message.
        let Link::Up(id) = class.link else { return Ok(()) };
        let Some((lane, endpoint, io)) = self.parts(id) else { return Ok(()) };
        if (lane.hello.generation, lane.role) != (told.generation, told.role) {
            return Ok(());
        }
        if lane.elsewhere.is_none() {
            return Err(ProtocolFault::LaneCredit { what: "they were not agreed on" });
        }
        lane.acct.grant(told.credits)?;
        if let Some(class) = endpoint.classes.get_mut(usize::from(told.class)) {
            io.pump(lane, &mut class.pending);
        }
        Ok(())
    }
}
