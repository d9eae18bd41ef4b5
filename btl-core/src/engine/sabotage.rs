//! Test only: the broken rules that need code in the engine.
use super::Engine;
use super::io::{Io, Lane};
use crate::config::Sabotage;
use crate::endpoint::Link;
use crate::lane::{Frame, LaneAcct, NotSent, When, transmit};
use crate::names::LaneId;
use crate::port::{Cm, Completion, Port};
use crate::wire::{HEADER, Header, Kind};

impl<S> Lane<S> {
    /// With rule 1 broken the other side may speak before its Hello.
    pub(super) fn may_be_spoken_to(&self, kind: Kind) -> bool {
        self.lawless && !matches!(kind, Kind::Hello | Kind::HelloAck)
    }
}

impl Sabotage {
    /// A message that had to wait has left.
    pub(super) fn miscount(self, acct: &mut LaneAcct) {
        if self.credit_twice {
            acct.forge_credit();
        }
        if self.credit_lost {
            acct.lose_credit();
        }
    }

    /// The peer has said how many of the messages under way it has, and how many it has in all; what is believed.
    pub(super) fn believe(self, messages: &mut u64, acked: u64) -> u64 {
        if self.resend_nothing {
            *messages = u64::MAX;
        }
        if self.forget_delivered {
            *messages = 0;
        }
        if self.repeat_puts { 0 } else { acked }
    }

    /// A message of `len` bytes arrived in a slot of `room` bytes; the length that is believed.
    pub(super) fn heard(self, acct: &mut LaneAcct, room: usize, len: usize) -> usize {
        if self.release_early {
            acct.owe_unposted();
        }
        if self.length_unchecked { room } else { len }
    }
}

impl<P: Port> Io<P> {
    pub(super) fn may_pump_on_grant(&self) -> bool {
        !self.sabotage.deaf_to_grants
    }

    pub(super) fn may_pump_on_hello(&self) -> bool {
        !self.sabotage.deaf_to_hello
    }
}

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// A completion of a lane that is over gets the name of the lane that has its place.
    pub(super) fn taken_for_another(&self, mut done: Completion<P::Slot>) -> Completion<P::Slot> {
        if self.config.sabotage.old_generations
            && let Some(entry) = self.lanes.get(done.lane.index())
        {
            done.lane.generation = entry.generation;
        }
        done
    }

    /// Takes what lane `id` owes, and tells it in a message on lane 0 of the same peer.
    pub(super) fn stray_credits(&mut self, id: LaneId) {
        if !self.config.sabotage.credits_on_lane_0 {
            return;
        }
        let Some((lane, endpoint, _)) = self.parts(id) else { return };
        let Some(Link::Up(zero)) = endpoint.classes.first().map(|class| class.link) else { return };
        if lane.class == 0 {
            return;
        }
        lane.stray += lane.acct.take_owed();
        let (class, n) = (lane.class, lane.stray);
        if n >= 2
            && self.send_stray(zero, class, n)
            && let Some((lane, ..)) = self.parts(id)
        {
            lane.stray = 0;
        }
    }

    /// The control slot of lane 0 is free again.
    pub(super) fn stray_credits_of_peer(&mut self, id: LaneId) {
        if !self.config.sabotage.credits_on_lane_0 {
            return;
        }
        let Some((_, endpoint, _)) = self.parts(id) else { return };
        let up = |link| if let Link::Up(id) = link { Some(id) } else { None };
        let lanes: Vec<LaneId> = endpoint.classes.iter().filter_map(|c| up(c.link)).collect();
        for id in lanes {
            self.stray_credits(id);
        }
    }

    fn send_stray(&mut self, zero: LaneId, class: u8, n: u16) -> bool {
        let Some((zero, _, io)) = self.parts(zero) else { return false };
        if zero.dead.is_some() || zero.bye.posted || zero.due.hello_ack() {
            return false;
        }
        let Some(mut slot) = zero.ctl.take() else { return false };
        if let Some(count) = slot.get_mut(HEADER..HEADER + 2) {
            count.copy_from_slice(&n.to_le_bytes());
        }
        let addr = slot.as_ptr().addr();
        let frame = Frame { kind: Kind::StrayCredit, tag: class, acks: 0, len: 2 };
        match transmit(&mut zero.acct, &mut io.port, frame, slot, When::Now) {
            Ok(_) => {
                if let Some(frag) = io.frags.get_mut(zero.ctl_frag) {
                    frag.addr = addr;
                }
                io.frags.push(&mut zero.inflight, zero.ctl_frag);
                true
            }
            Err(NotSent::Refused(_, slot)) => {
                zero.ctl = Some(slot);
                false
            }
            Err(NotSent::Port(refused)) => {
                zero.ctl = refused.slot;
                false
            }
        }
    }

    /// Takes such credits in.
    pub(super) fn take_stray_credits(&mut self, id: LaneId, slot: &[u8]) {
        let Ok(header) = Header::parse(slot, slot.len()) else { return };
        if header.kind != Kind::StrayCredit {
            return;
        }
        let n = slot.get(HEADER..HEADER + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        let Some((_, endpoint, _)) = self.parts(id) else { return };
        let link = endpoint.classes.get(usize::from(header.tag)).map(|class| class.link);
        let Some(Link::Up(other)) = link else { return };
        let Some((lane, endpoint, io)) = self.parts(other) else { return };
        let Some(class) = endpoint.classes.get_mut(usize::from(lane.class)) else { return };
        let _ = lane.acct.grant(n);
        io.pump(lane, &mut class.pending);
    }
}
