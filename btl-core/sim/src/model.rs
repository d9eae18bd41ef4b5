//! What happens when a message arrives: the part in which the device models differ.
use crate::check::Invariant;
use crate::cover::Hit;
use crate::net::{DialError, Ev, Net};
use crate::options::Model;
use crate::qp::{Item, State};
use crate::rma::{Flight, Load};
use btl_core::error::PortError;
use btl_core::port::Status;
use btl_core::{Nanos, SECOND};

/// What becomes of the first item of a pipe.
enum Next {
    /// It is done with.
    Done,
    /// It is tried again after a while.
    Again(u64),
    /// It waits until the receiver is connected.
    Hold,
}

impl Net {
    /// The first item that `q` sent arrives at its peer.
    pub(crate) fn arrive(&mut self, q: u32) {
        self.qps[q as usize].pipe_busy = false;
        let Some(item) = self.qps[q as usize].pipe.pop_front() else { return };
        let peer = self.qps[q as usize].peer;
        let down = peer.and_then(|p| self.link_down(q, p));
        let next = match (&item, peer) {
            (_, None) => Next::Done,
            (Item::End(_), Some(_)) if down.is_some() => {
                // Whoever is left hears of it when the link is up again, if ever.
                down.map_or(Next::Done, |(until, _)| match until {
                    Nanos::MAX => Next::Done,
                    until => Next::Again(until - self.now),
                })
            }
            (Item::Rma(_, Flight::Answer(..)), Some(p)) if down.is_some() => {
                self.answer_lost(p, down)
            }
            (Item::Message(..) | Item::Rma(..), Some(_)) if down.is_some() => {
                self.not_there(q, down)
            }
            (Item::Rma(_, flight), Some(p)) => self.flight_arrives(q, p, flight),
            (Item::End(_), Some(p)) => {
                self.end_arrives(p);
                Next::Done
            }
            (Item::Message(_, bytes), Some(p)) => self.message_arrives(q, p, bytes),
        };
        match next {
            Next::Done => self.start_pipe(q),
            Next::Hold => self.qps[q as usize].pipe.push_front(item),
            Next::Again(delay) => {
                let qp = &mut self.qps[q as usize];
                qp.pipe.push_front(item);
                qp.pipe_busy = true;
                self.after(delay, Ev::Arrive { qp: q });
            }
        }
    }

    fn end_arrives(&mut self, p: u32) {
        let qp = &self.qps[p as usize];
        let (wire, initiator, state) = (qp.wire, !qp.acceptor, qp.state);
        if state == State::Init {
            // The stream ended before the reply was read.
            self.abort_dial(wire, DialError::ConnectError);
        } else if state == State::Rts {
            self.fail_qp(p, None);
            self.tell_gone(wire, initiator);
            self.qps[p as usize].pipe.clear();
        }
    }

    fn flight_arrives(&mut self, q: u32, p: u32, flight: &Flight) -> Next {
        let iwarp = self.opt.model.is_iwarp();
        let answer = matches!(flight, Flight::Answer(..));
        match self.qps[p as usize].state {
            State::Dead | State::Error if iwarp || answer => Next::Done,
            State::Dead | State::Error => self.unanswered(q),
            State::Init if iwarp => Next::Hold,
            State::Init => Next::Again(self.opt.dev.ack_timeout),
            State::Rts => {
                self.qps[q as usize].unanswered = false;
                if !self.rma_arrives(q, p, flight) {
                    self.access_error(q, p);
                } else if matches!(flight, Flight::Put(..)) && !iwarp {
                    self.acknowledge(q, p);
                }
                Next::Done
            }
        }
    }

    /// The answer to a read does not come through: whoever asked gives up if that lasts.
    fn answer_lost(&mut self, asker: u32, down: Option<(Nanos, bool)>) -> Next {
        match down {
            Some((until, false)) => Next::Again(until - self.now + self.rng.below(1_000_000)),
            _ => {
                let patience = self.patience();
                self.after(patience, Ev::GiveUp { qp: asker });
                Next::Done
            }
        }
    }

    fn message_arrives(&mut self, q: u32, p: u32, bytes: &[u8]) -> Next {
        let iwarp = self.opt.model.is_iwarp();
        match self.qps[p as usize].state {
            // Its own end of the stream is on the way to us.
            State::Dead | State::Error if iwarp => Next::Done,
            State::Dead | State::Error => self.unanswered(q),
            State::Init if matches!(self.opt.model, Model::StrictMpa | Model::Siw) => {
                self.early_message(p)
            }
            State::Init if iwarp => Next::Hold,
            State::Init => {
                self.cover.hit(Hit::AckTimeout);
                Next::Again(self.opt.dev.ack_timeout)
            }
            State::Rts => self.place(q, p, bytes),
        }
    }

    /// Whether nothing passes from `q` to `p`: until when, and whether devices give up before.
    fn link_down(&self, q: u32, p: u32) -> Option<(Nanos, bool)> {
        let (from, to) = (self.qps[q as usize].rank, self.qps[p as usize].rank);
        if self.hosts[to as usize].vanished {
            return Some((Nanos::MAX, true));
        }
        if self.cuts.is_empty() { None } else { self.blocked(from, to) }
    }

    /// How long a device tries in vain.
    fn patience(&self) -> Nanos {
        match self.opt.model.is_iwarp() {
            true => self.opt.dev.tcp_patience,
            false => (self.opt.dev.ack_timeout * 8).min(4 * SECOND),
        }
    }

    /// Nothing comes through: the message is sent again and again.
    fn not_there(&mut self, q: u32, down: Option<(Nanos, bool)>) -> Next {
        let Some((until, breaks)) = down else { return Next::Done };
        let patience = self.patience();
        let qp = &mut self.qps[q as usize];
        if qp.state != State::Rts {
            return Next::Done;
        }
        if !breaks {
            return Next::Again(until - self.now + self.rng.below(1_000_000));
        }
        if !std::mem::replace(&mut qp.unanswered, true) {
            return Next::Again(patience);
        }
        self.give_up(q);
        Next::Done
    }

    /// A device has tried long enough.
    pub(crate) fn give_up(&mut self, q: u32) {
        if self.qps[q as usize].state != State::Rts {
            return;
        }
        self.qps[q as usize].pipe.clear();
        self.cover.hit(Hit::RetryExceeded);
        self.trace.note(self.now, "retry-exceeded", u64::from(q), 0, 0);
        self.mark(q, "retries exceeded", true);
        if self.opt.model.is_iwarp() {
            self.break_stream(q);
        } else {
            self.fail_qp(q, Some(PortError::new(12, "transport retry counter exceeded")));
        }
    }

    /// RoCE: nobody acknowledges. After a while the sender gives up.
    fn unanswered(&mut self, q: u32) -> Next {
        let qp = &mut self.qps[q as usize];
        if qp.state != State::Rts {
            return Next::Done;
        }
        if !qp.unanswered {
            qp.unanswered = true;
            return Next::Again(self.opt.dev.ack_timeout * 2);
        }
        self.give_up(q);
        Next::Done
    }

    /// MPA: the acceptor's message is in the stream while the initiator reads the reply.
    fn early_message(&mut self, p: u32) -> Next {
        // Soft iWARP reads on until nothing is there, and finds it.
        if self.opt.model == Model::StrictMpa && self.rng.chance(1, 2) {
            self.cover.hit(Hit::MpaPassed);
            return Next::Hold;
        }
        let wire = self.qps[p as usize].wire;
        self.cover.hit(Hit::MpaConnectError);
        self.trace.note(self.now, "mpa-connect-error", u64::from(p), 0, 0);
        self.mark(p, "connect error: data in the MPA reply", true);
        self.abort_dial(wire, DialError::ConnectError);
        Next::Done
    }

    fn place(&mut self, q: u32, p: u32, bytes: &[u8]) -> Next {
        let fits = |slot: &crate::slots::SimSlot| bytes.len() <= slot.len();
        let receiver = &mut self.qps[p as usize];
        if !receiver.rq.front().is_some_and(fits) {
            return self.no_buffer(q, p);
        }
        let Some(mut slot) = receiver.rq.pop_front() else { return Next::Done };
        if let Some(to) = slot.get_mut(..bytes.len()) {
            to.copy_from_slice(bytes);
        }
        receiver.received = true;
        self.trace.note(self.now, "arrive", u64::from(q), u64::from(p), bytes.len() as u64);
        if let Some(picture) = &mut self.picture {
            picture.arrived(self.now, q, p);
        }
        // What was put before it on this queue pair is in place when it is delivered.
        self.place_all(p);
        self.complete(p, false, Load::Slot(slot), bytes.len(), Status::Ok);
        let sender = &mut self.qps[q as usize];
        sender.rnr_tries = 0;
        sender.unanswered = false;
        if !self.opt.model.is_iwarp() {
            self.acknowledge(q, p);
        }
        Next::Done
    }

    /// RoCE: the receiver's device acknowledges a message.
    fn acknowledge(&mut self, q: u32, p: u32) {
        match self.link_down(p, q) {
            Some((_, true)) => {
                // It arrived, and the sender will never know.
                self.cover.hit(Hit::AckLost);
                let patience = self.patience();
                self.after(patience, Ev::GiveUp { qp: q });
                return;
            }
            Some((until, false)) => {
                let sender = &mut self.qps[q as usize];
                sender.last_cqe = sender.last_cqe.max(until);
            }
            None => {}
        }
        self.acknowledged(q);
    }

    /// A message finds no receive.
    fn no_buffer(&mut self, q: u32, p: u32) -> Next {
        let honest = |qp: u32| {
            let rank = self.qps[qp as usize].rank as usize;
            self.hosts[rank].trick.is_none()
        };
        let honest = honest(q) && honest(p);
        self.no_buffer += u64::from(honest);
        self.trace.note(self.now, "no-receive", u64::from(q), u64::from(p), 0);
        self.mark(p, "a message finds no receive", true);
        let what = format!("a message of qp {q} finds no receive on qp {p}");
        if honest {
            self.fail(Invariant::S3, what);
        }
        if self.opt.model.is_iwarp() {
            // TERMINATE: layer 1 (DDP), type 2 (untagged buffer), code 2 (no buffer).
            self.cover.hit(Hit::Terminate);
            self.break_stream(p);
            return Next::Done;
        }
        self.cover.hit(Hit::RnrNak);
        let sender = &mut self.qps[q as usize];
        sender.rnr_tries = sender.rnr_tries.saturating_add(1);
        // For ever is too long when nobody means it well.
        let forever = self.opt.dev.rnr_retry == 7 && (honest || sender.rnr_tries < 50);
        if forever || sender.rnr_tries <= self.opt.dev.rnr_retry {
            return Next::Again(self.opt.dev.rnr_timer);
        }
        sender.pipe.clear();
        self.cover.hit(Hit::RnrExceeded);
        self.fail_qp(q, Some(PortError::new(13, "RNR retry counter exceeded")));
        Next::Done
    }

    /// The initiator's device ends a dial whose reply it has not read.
    fn abort_dial(&mut self, wire: u32, why: DialError) {
        let w = &mut self.wires[wire as usize];
        if w.over || w.replied {
            return;
        }
        w.over = true;
        let accept_qp = w.accept_qp;
        self.tell(wire, true, 0, Ev::CmDialError { wire, why });
        if let Some(a) = accept_qp
            && self.qps[a as usize].state == State::Rts
        {
            self.fail_qp(a, None);
            self.tell_gone(wire, false);
        }
    }
}
