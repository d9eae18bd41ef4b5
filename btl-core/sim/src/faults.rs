//! Ranks that die, and processes that are not of this job.
use crate::check::Invariant;
use crate::cm::{JOB, name_of};
use crate::cover::Hit;
use crate::frame;
use crate::net::{Ev, Net, Wire};
use crate::qp::State;
use crate::swarm::{Cut, Trick};
use btl_core::ProcName;
use btl_core::error::PortError;
use btl_core::wire::{Greeting, PrivateData};

/// A stranger's request: the reject it must get, and what is wrong with it.
const STRANGERS: [(&[u8], Stranger); 6] = [
    (&[1], Stranger::Garbage),
    (&[2], Stranger::Version),
    (&[3], Stranger::Job),
    (&[4], Stranger::WrongProcess),
    (&[7], Stranger::UnknownLane),
    (&[8], Stranger::Limits),
];

/// Any of these may come instead: it is busy, or closing.
const ALWAYS: &[u8] = &[6, 9];

#[derive(Clone, Copy)]
enum Stranger {
    Garbage,
    Version,
    Job,
    WrongProcess,
    UnknownLane,
    Limits,
}

impl Net {
    /// A rank's process dies. `never`: it was never there.
    pub(crate) fn die(&mut self, rank: u32, never: bool) {
        self.inject(if never { Hit::NeverThere } else { Hit::Died });
        self.trace.note(self.now, "die", u64::from(rank), 0, 0);
        if let Some(picture) = &mut self.picture {
            picture.mark(self.now, rank, 0, if never { "is never there" } else { "dies" }, true);
        }
        self.hosts[rank as usize].dead = true;
        if never {
            self.opt.listen_at[rank as usize] = u64::MAX;
            return;
        }
        // The kernel of its host says goodbye for it. A host that is gone altogether would go
        // unnoticed on RoCE by a peer that has no credits left: there is no keep-alive.
        for q in 0..self.qps.len() as u32 {
            let (r, state) = (self.qps[q as usize].rank, self.qps[q as usize].state);
            if r != rank || state == State::Dead {
                continue;
            }
            let (wire, acceptor) = (self.qps[q as usize].wire, self.qps[q as usize].acceptor);
            // Its memory is gone with it.
            self.destroy_qp(q).into_iter().for_each(|slot| {
                let back = self.hosts[rank as usize].slots.give_back(slot);
                self.own(back);
            });
            self.abandon(wire, acceptor);
        }
    }

    /// The host of a rank is gone, and nobody hears of it.
    pub(crate) fn vanish(&mut self, rank: u32) {
        self.trace.note(self.now, "vanish", u64::from(rank), 0, 0);
        self.inject(Hit::Vanished);
        if let Some(picture) = &mut self.picture {
            picture.mark(self.now, rank, 0, "vanishes", true);
        }
        self.hosts[rank as usize].dead = true;
        self.hosts[rank as usize].vanished = true;
        for q in self.alive(rank) {
            self.destroy_qp(q).into_iter().for_each(|slot| {
                let back = self.hosts[rank as usize].slots.give_back(slot);
                self.own(back);
            });
            self.qps[q as usize].pipe.clear();
        }
        for wire in &mut self.wires {
            wire.over |= !wire.replied && (wire.from == Some(rank) || wire.to == rank);
        }
    }

    /// The device of a rank is removed: all its queue pairs fail, and the peers hear of it.
    pub(crate) fn remove_device(&mut self, rank: u32) {
        self.trace.note(self.now, "device-removed", u64::from(rank), 0, 0);
        self.inject(Hit::DeviceRemoved);
        self.hosts[rank as usize].removed = true;
        if let Some(picture) = &mut self.picture {
            picture.mark(self.now, rank, 0, "its device is removed", true);
        }
        for q in self.alive(rank) {
            let was = self.qps[q as usize].state;
            let (wire, acceptor) = (self.qps[q as usize].wire, self.qps[q as usize].acceptor);
            self.fail_qp(q, None);
            self.qps[q as usize].pipe.clear();
            if self.opt.model.is_iwarp() && was == State::Rts {
                self.end_stream(q);
            }
            self.abandon(wire, acceptor);
        }
    }

    /// Queue pairs of a rank that were not destroyed.
    fn alive(&self, rank: u32) -> Vec<u32> {
        let is = |(id, qp): (usize, &crate::qp::Qp)| {
            (qp.rank == rank && qp.state != State::Dead).then_some(id as u32)
        };
        self.qps.iter().enumerate().filter_map(is).collect()
    }

    /// The rank at the other end of a queue pair.
    fn other_end(&self, q: u32) -> Option<u32> {
        let wired = &self.wires[self.qps[q as usize].wire as usize];
        if self.qps[q as usize].acceptor { wired.from } else { Some(wired.to) }
    }

    /// Every queue pair of a rank breaks.
    pub(crate) fn break_all(&mut self, rank: u32) {
        self.inject(Hit::DeviceFatal);
        for q in self.alive(rank) {
            if self.qps[q as usize].state == State::Rts {
                self.break_qp(q);
            }
        }
    }

    /// A queue pair of a rank breaks; the rank at its other end.
    pub(crate) fn break_one(&mut self, rank: u32) -> Option<u32> {
        let mut all = self.alive(rank);
        all.retain(|q| self.qps[*q as usize].state == State::Rts);
        if all.is_empty() {
            return None;
        }
        let q = self.rng.pick(&all);
        self.inject(Hit::Broke);
        self.break_qp(q);
        self.other_end(q)
    }

    fn break_qp(&mut self, q: u32) {
        let rank = self.qps[q as usize].rank;
        self.trace.note(self.now, "break", u64::from(rank), u64::from(q), 0);
        self.mark(q, "breaks", true);
        if self.opt.model.is_iwarp() {
            self.break_stream(q);
        } else {
            self.qps[q as usize].pipe.clear();
            self.fail_qp(q, Some(PortError::new(10, "remote access error")));
        }
    }

    /// What the other end of a wire hears when one end's process is gone.
    fn abandon(&mut self, wire: u32, acceptor: bool) {
        let iwarp = self.opt.model.is_iwarp();
        let wired = &mut self.wires[wire as usize];
        let (replied, was_over, accept_qp) = (wired.replied, wired.over, wired.accept_qp);
        if was_over {
            return;
        }
        match acceptor {
            // iWARP: the end of the stream is on its way already.
            _ if iwarp && replied => {}
            true if replied => self.tell_gone(wire, true),
            // The reply does not come, or is of no use: the deadline ends the dial.
            true => wired.over = true,
            false => {
                wired.over = true;
                if let Some(qp) = accept_qp {
                    if iwarp {
                        self.fail_qp(qp, None);
                    }
                    self.tell_gone(wire, false);
                }
            }
        }
    }

    /// Someone who is not of this job connects to a rank.
    pub(crate) fn intrude(&mut self, rank: u32) {
        let (mut expect, stranger) = self.rng.pick(&STRANGERS);
        let from = ProcName { job: 99, rank: 99 };
        let buffer_size = self.opt.lanes[0].buffer_size;
        let mut greeting = Greeting {
            job: JOB,
            from,
            to: name_of(rank),
            class: 0,
            generation: 1,
            buffer_size,
            depth: 4,
            route: self.opt.route,
            recover: false,
            lost: None,
        };
        match stranger {
            Stranger::Job => greeting.job = JOB + 1,
            Stranger::WrongProcess => greeting.to = ProcName { job: 1, rank: 77 },
            Stranger::UnknownLane => greeting.class = self.opt.lanes.len() as u8,
            Stranger::Limits if self.rng.chance(1, 2) => greeting.buffer_size = 255,
            Stranger::Limits => greeting.depth = 3,
            Stranger::Garbage | Stranger::Version => {}
        }
        let mut bytes = greeting.encode().as_slice().to_vec();
        match stranger {
            Stranger::Garbage if self.rng.chance(1, 2) => bytes[0] ^= 1,
            Stranger::Garbage => {
                bytes.truncate(self.rng.below(8) as usize);
                if !self.opt.model.is_iwarp() {
                    // InfiniBand pads it with zeros, which makes another version or job of it.
                    expect = &[1, 2, 3];
                }
            }
            Stranger::Version => bytes[4] = 3,
            _ => {}
        }
        self.inject(Hit::Intruder);
        let data = PrivateData::from_slice(&bytes);
        self.wires.push(Wire { expect: Some(expect), ..Wire::new(None, rank, data) });
        let wire = self.wires.len() as u32 - 1;
        self.tell(wire, false, 0, Ev::CmIncoming { wire });
    }

    /// Nothing passes between two ranks for a while.
    pub(crate) fn cut(&mut self, cut: Cut) {
        self.inject(if cut.breaks { Hit::CutForLong } else { Hit::CutShort });
        let until = self.now + cut.len;
        self.trace.note(self.now, "cut", u64::from(cut.from), u64::from(cut.to), cut.len);
        self.cuts.push((cut.from, cut.to, until, cut.breaks));
        if cut.both {
            self.cuts.push((cut.to, cut.from, until, cut.breaks));
        } else {
            self.cover.hit(Hit::CutOneWay);
        }
    }

    /// A rank's process stands still until then.
    pub(crate) fn pause(&mut self, rank: u32, until: u64) {
        self.inject(Hit::Paused);
        self.trace.note(self.now, "pause", u64::from(rank), until, 0);
        if let Some(picture) = &mut self.picture {
            picture.mark(self.now, rank, 0, "stands still", true);
        }
        self.hosts[rank as usize].paused = true;
        self.at(until, Ev::Resume { rank });
    }

    /// What a Byzantine rank makes of a message that leaves; how often it is sent.
    pub(crate) fn misbehave(&mut self, q: u32, bytes: &mut Vec<u8>) -> usize {
        let rank = self.qps[q as usize].rank;
        let Some(trick) = self.hosts[rank as usize].trick else { return 1 };
        let hello = matches!(bytes[0] & 15, 1 | 2);
        let about_hello =
            matches!(trick, Trick::NoHello | Trick::TwoHellos | Trick::WrongHello | Trick::Resume);
        if about_hello != hello || !(hello || self.rng.chance(1, 4)) {
            return 1;
        }
        let mut copies = 1;
        match trick {
            Trick::Version => bytes[0] = 0x10 | bytes[0] & 15,
            Trick::Kind => bytes[0] = 0x2e,
            Trick::Short => bytes.truncate(self.rng.below(8) as usize),
            Trick::Length => {
                let more = self.rng.range(1, 1000) as u32;
                let claimed = (bytes.len() as u32 - 8 + more).to_le_bytes();
                bytes[5..8].copy_from_slice(&claimed[..3]);
            }
            Trick::Credits => (bytes[2], bytes[3]) = (0xff, bytes[3] | 0x1f),
            Trick::Acks => (bytes[3], bytes[4]) = (bytes[3] | 0xe0, 0xff),
            Trick::Resume => bytes[20..28].iter_mut().for_each(|byte| *byte ^= 0x5a),
            Trick::FewCredits => bytes[2] = bytes[2].saturating_add(self.rng.range(1, 8) as u8),
            Trick::NoHello => copies = 0,
            Trick::TwoHellos => copies = 2,
            Trick::WrongHello => bytes[16] ^= 1,
            Trick::Flood => copies = 40,
            Trick::Noise => bytes.iter_mut().for_each(|byte| *byte = self.rng.bits() as u8),
            Trick::EarlyBye => {
                bytes.truncate(8);
                bytes[0] = 0x25;
                bytes[5..8].fill(0);
            }
            Trick::TooLong => bytes.resize(1 << 13, 0),
        }
        self.inject(Hit::for_trick(trick));
        copies
    }

    /// S12: the reject of an intruder says what is wrong.
    pub(crate) fn check_intruder(&mut self, wire: u32) {
        let wired = &self.wires[wire as usize];
        let Some(expect) = wired.expect else { return };
        let code = frame::reject_code(wired.data.as_slice());
        if !code.is_some_and(|code| expect.contains(&code) || ALWAYS.contains(&code)) {
            let what = format!("a reject with reason {code:?} instead of {expect:?}");
            self.fail(Invariant::S12, what);
        }
    }

    /// Counts a reject by its reason.
    pub(crate) fn count_reject(&mut self, data: &[u8]) {
        let hit = match frame::reject_code(data) {
            Some(1) => Hit::RejectGarbage,
            Some(2) => Hit::RejectVersion,
            Some(3) => Hit::RejectJob,
            Some(4) => Hit::RejectWrongProcess,
            Some(5) => Hit::RejectCrossing,
            Some(6) => Hit::RejectBusy,
            Some(7) => Hit::RejectUnknownLane,
            Some(8) => Hit::RejectLimits,
            Some(9) => Hit::RejectClosing,
            Some(10) => Hit::RejectUnknownPeer,
            _ => {
                self.fail(Invariant::S12, "a reject without a reason".to_owned());
                return;
            }
        };
        self.cover.hit(hit);
    }
}
