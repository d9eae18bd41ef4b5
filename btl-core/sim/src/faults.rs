//! Ranks that die, and processes that are not of this job.
use crate::check::Invariant;
use crate::cm::{JOB, name_of};
use crate::cover::Hit;
use crate::frame;
use crate::net::{Ev, Net, Wire};
use crate::qp::State;
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

    /// A queue pair of a rank breaks.
    pub(crate) fn break_one(&mut self, rank: u32) {
        let is = |(id, qp): (usize, &crate::qp::Qp)| {
            (qp.rank == rank && qp.state == State::Rts).then_some(id as u32)
        };
        let all: Vec<u32> = self.qps.iter().enumerate().filter_map(is).collect();
        if all.is_empty() {
            return;
        }
        let q = self.rng.pick(&all);
        self.cover.hit(Hit::Broke);
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
        let (expect, stranger) = self.rng.pick(&STRANGERS);
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
        };
        match stranger {
            Stranger::Job => greeting.job = JOB + 1,
            Stranger::WrongProcess => greeting.to = ProcName { job: 1, rank: 77 },
            Stranger::UnknownLane => greeting.class = self.opt.lanes.len() as u8,
            Stranger::Limits if self.rng.chance(1, 2) => greeting.buffer_size += 1,
            Stranger::Limits => greeting.depth = 3,
            Stranger::Garbage | Stranger::Version => {}
        }
        let mut bytes = greeting.encode().as_slice().to_vec();
        match stranger {
            Stranger::Garbage if self.rng.chance(1, 2) => bytes[0] ^= 1,
            Stranger::Garbage => bytes.truncate(self.rng.below(8) as usize),
            Stranger::Version => bytes[4] = 2,
            _ => {}
        }
        self.wires.push(Wire {
            from: None,
            to: rank,
            dial_conn: 0,
            accept_conn: None,
            dial_qp: None,
            accept_qp: None,
            data: PrivateData::from_slice(&bytes),
            over: false,
            replied: false,
            last: [0; 2],
            expect: Some(expect),
        });
        let wire = self.wires.len() as u32 - 1;
        self.tell(wire, false, 0, Ev::CmIncoming { wire });
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
