//! Queue pairs, what the device does with posted work, and completions.
use crate::check::Invariant;
use crate::cover::Hit;
use crate::net::{Cqe, Ev, Net};
use crate::options::{Havoc, Model};
use crate::rma::{Flight, Load, RmaWork, Sent};
use crate::slots::{Owner, SimSlot};
use btl_core::error::PortError;
use btl_core::port::{Refused, RefusedWhy, Status};
use btl_core::{LaneId, Nanos, RemoteRange};
use std::collections::VecDeque;

/// As verbs call it; `Dead` is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Init,
    Rts,
    Error,
    Dead,
}

/// A posted work request that the device has not popped.
#[derive(Debug)]
pub(crate) enum Wr {
    Send(SimSlot, usize),
    Recv(SimSlot),
    Rma(RmaWork),
}

/// Something on its way to the peer.
#[derive(Debug)]
pub(crate) enum Item {
    Message(Nanos, Vec<u8>),
    /// The end of the stream (iWARP).
    End(Nanos),
    /// Part of a one-sided operation.
    Rma(Nanos, Flight),
}

impl Item {
    fn at(&self) -> Nanos {
        match self {
            Item::Message(at, _) | Item::End(at) | Item::Rma(at, _) => *at,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) rank: u32,
    pub(crate) class: u8,
    pub(crate) acceptor: bool,
    pub(crate) wire: u32,
    pub(crate) peer: Option<u32>,
    pub(crate) state: State,
    pub(crate) lane: Option<LaneId>,
    /// Sends; with one shared work queue also receives.
    pub(crate) wq: VecDeque<Wr>,
    /// Receives that a message can be placed in.
    pub(crate) rq: VecDeque<SimSlot>,
    /// Work that has left and is not completed: not acknowledged (RoCE), or behind a read.
    pub(crate) tx: VecDeque<Sent>,
    /// Puts that arrived and are not in the memory yet (iWARP).
    pub(crate) unplaced: Vec<(RemoteRange, Vec<u8>)>,
    pub(crate) pipe: VecDeque<Item>,
    /// An arrival of the pipe's first item is scheduled.
    pub(crate) pipe_busy: bool,
    pub(crate) last_arrival: Nanos,
    pub(crate) cqes: VecDeque<Cqe>,
    pub(crate) last_cqe: Nanos,
    pub(crate) parked: VecDeque<Cqe>,
    nic_busy: bool,
    speed: u64,
    /// A message has arrived.
    pub(crate) received: bool,
    /// The CM side has read ESTABLISHED.
    pub(crate) up: bool,
    pub(crate) rnr_tries: u8,
    pub(crate) unanswered: bool,
}

impl Net {
    /// Makes a queue pair.
    pub(crate) fn create_qp(&mut self, rank: u32, class: u8, acceptor: bool, wire: u32) -> u32 {
        let id = self.qps.len() as u32;
        let speed = self.draw_speed();
        self.qps.push(Qp {
            rank,
            class,
            acceptor,
            wire,
            peer: None,
            state: State::Init,
            lane: None,
            wq: VecDeque::new(),
            rq: VecDeque::new(),
            tx: VecDeque::new(),
            unplaced: Vec::new(),
            pipe: VecDeque::new(),
            pipe_busy: false,
            last_arrival: 0,
            cqes: VecDeque::new(),
            last_cqe: 0,
            parked: VecDeque::new(),
            nic_busy: false,
            speed,
            received: false,
            up: false,
            rnr_tries: 0,
            unanswered: false,
        });
        let role = if acceptor { "acceptor" } else { "initiator" };
        let label = format!("rank {rank} lane {class} ({role}, qp {id})");
        let depth = self.opt.depths[rank as usize][usize::from(class)];
        let send_depth = self.opt.lanes[usize::from(class)].send_depth;
        self.check.add((rank, class), acceptor, label, depth, send_depth);
        let host = &mut self.hosts[rank as usize];
        host.cq_room += usize::from(depth) + usize::from(send_depth);
        self.trace.note(self.now, "create-qp", u64::from(rank), u64::from(id), u64::from(class));
        if let Some(picture) = &mut self.picture {
            picture.add_qp(rank, class);
            picture.mark_qp(self.now, id, if acceptor { "accepts" } else { "dials" }, false);
        }
        id
    }

    fn draw_speed(&mut self) -> u64 {
        let spread = self.opt.dev.spread;
        self.rng.log_range(1, spread)
    }

    /// The device takes the queue pair into operation. Receives posted before are handed to it
    /// with the transition itself, in all models.
    pub(crate) fn set_rts(&mut self, q: u32) {
        let qp = &mut self.qps[q as usize];
        if qp.state == State::Init {
            qp.state = State::Rts;
        }
        if let Some(peer) = qp.peer {
            self.start_pipe(peer);
        }
    }

    /// A send is posted. What is posted on a broken queue pair is flushed or refused, as on
    /// real devices.
    pub(crate) fn post_send(
        &mut self,
        q: u32,
        slot: SimSlot,
        len: usize,
    ) -> Result<(), Refused<SimSlot>> {
        if let Some(why) = self.refusal(q) {
            return Err(Refused { why, slot: Some(slot) });
        }
        let bytes = slot.get(..len).unwrap_or(&slot);
        self.check.on_post_send(q, bytes);
        self.trace.note(self.now, "post-send", u64::from(q), len as u64, u64::from(bytes[0]));
        self.take_from_host(q, &slot);
        match self.qps[q as usize].state {
            State::Rts => {
                self.qps[q as usize].wq.push_back(Wr::Send(slot, len));
                self.kick(q);
            }
            State::Init | State::Dead => {
                self.fail(Invariant::S1, format!("qp {q}: a send before it is connected"));
                self.complete(q, true, Load::Slot(slot), 0, Status::Flushed);
            }
            // It takes the message and never says what became of it.
            State::Error if self.opt.model == Model::Siw => {
                self.cover.hit(Hit::NeverCompleted);
                self.qps[q as usize].wq.push_back(Wr::Send(slot, len));
            }
            State::Error => self.complete(q, true, Load::Slot(slot), 0, Status::Flushed),
        }
        Ok(())
    }

    /// A receive is posted.
    pub(crate) fn post_recv(&mut self, q: u32, slot: SimSlot) -> Result<(), Refused<SimSlot>> {
        if let Some(why) = self.refusal(q) {
            return Err(Refused { why, slot: Some(slot) });
        }
        self.check.on_post_recv(q);
        self.trace.note(self.now, "post-recv", u64::from(q), u64::from(slot.id), 0);
        self.take_from_host(q, &slot);
        let shared = self.opt.model == Model::SharedWq;
        let siw = self.opt.model == Model::Siw;
        let qp = &mut self.qps[q as usize];
        match qp.state {
            State::Rts if shared => {
                if qp.wq.iter().any(|wr| !matches!(wr, Wr::Recv(_))) {
                    self.cover.hit(Hit::LateReceive);
                }
                qp.wq.push_back(Wr::Recv(slot));
                self.kick(q);
            }
            State::Error if siw => qp.wq.push_back(Wr::Recv(slot)),
            State::Error | State::Dead => {
                self.complete(q, false, Load::Slot(slot), 0, Status::Flushed)
            }
            State::Init | State::Rts => qp.rq.push_back(slot),
        }
        Ok(())
    }

    pub(crate) fn refusal(&mut self, q: u32) -> Option<RefusedWhy> {
        let enomem = self.opt.dev.enomem;
        if enomem > 0 && self.rng.chance(1, enomem) {
            self.trace.note(self.now, "enomem", u64::from(q), 0, 0);
            // So many that they would hide how few the other faults are.
            self.cover.hit(Hit::Enomem);
            return Some(RefusedWhy::Again);
        }
        if self.qps[q as usize].state != State::Error {
            return None;
        }
        self.cover.hit(Hit::PostInError);
        let refused = self.opt.model != Model::Siw && self.rng.chance(1, 3);
        refused.then(|| RefusedWhy::Broken(PortError::new(22, "the queue pair is in error")))
    }

    fn take_from_host(&mut self, q: u32, slot: &SimSlot) {
        let rank = self.qps[q as usize].rank as usize;
        let passed = self.hosts[rank].slots.pass(slot.id, Owner::Host, Owner::Device(q));
        self.own(passed);
    }

    /// Has the device pop the next work request in a while.
    pub(crate) fn kick(&mut self, q: u32) {
        let pop = self.opt.dev.pop;
        let qp = &mut self.qps[q as usize];
        if qp.nic_busy || qp.wq.is_empty() {
            return;
        }
        qp.nic_busy = true;
        let delay = self.rng.delay(pop) * qp.speed;
        if self.rng.chance(1, 64) {
            self.qps[q as usize].speed = self.draw_speed();
        }
        self.after(delay, Ev::Nic { qp: q });
    }

    /// The device pops one work request.
    pub(crate) fn nic(&mut self, q: u32) {
        let qp = &mut self.qps[q as usize];
        qp.nic_busy = false;
        if qp.state != State::Rts {
            return;
        }
        match qp.wq.pop_front() {
            Some(Wr::Recv(slot)) => qp.rq.push_back(slot),
            Some(Wr::Send(slot, len)) => self.transmit(q, slot, len),
            Some(Wr::Rma(work)) => self.transmit_rma(q, work),
            None => {}
        }
        self.kick(q);
    }

    fn transmit(&mut self, q: u32, slot: SimSlot, len: usize) {
        let at = self.now + self.rng.delay(self.opt.dev.wire);
        let mut bytes = slot.get(..len).unwrap_or(&slot).to_vec();
        let twice = self.opt.havoc.is_some_and(|havoc| self.spoil(havoc, &mut bytes));
        let copies = self.misbehave(q, &mut bytes) + usize::from(twice);
        if let Some(picture) = &mut self.picture {
            (0..copies).for_each(|_| picture.sent(self.now, q, &bytes));
        }
        let early = self.qps[q as usize].acceptor && !self.qps[q as usize].received;
        let qp = &mut self.qps[q as usize];
        let at = at.max(qp.last_arrival);
        qp.last_arrival = at;
        qp.pipe.extend((0..copies).map(|_| Item::Message(at, bytes.clone())));
        // On iWARP, TCP has it: that is all a completed send says.
        let done = self.opt.model.is_iwarp() || copies == 0;
        qp.tx.push_back(Sent { load: Load::Slot(slot), done });
        self.complete_in_order(q);
        if early && self.opt.model == Model::StrictMpa && self.rng.chance(1, 3) {
            self.cover.hit(Hit::MpaTornDown);
            self.trace.note(self.now, "mpa-torn-down", u64::from(q), 0, 0);
            self.mark(q, "torn down: the acceptor sent first", true);
            self.break_stream(q);
        }
        self.start_pipe(q);
    }

    /// A device that lies. `true`: the message arrives twice.
    fn spoil(&mut self, havoc: Havoc, bytes: &mut [u8]) -> bool {
        let now = self.rng.chance(1, 8);
        let (header, payload) = bytes.split_at_mut(8.min(bytes.len()));
        match havoc {
            Havoc::Double => return now && !payload.is_empty(),
            Havoc::FlipBit => payload.last_mut().filter(|_| now).into_iter().for_each(|b| *b ^= 1),
            Havoc::LoseCredits if now => (header[2], header[3]) = (0, header[3] & 0xe0),
            Havoc::LoseCredits => {}
        }
        false
    }

    /// Schedules the arrival of what a queue pair sent first, unless that is done.
    pub(crate) fn start_pipe(&mut self, q: u32) {
        let qp = &mut self.qps[q as usize];
        if let (false, Some(item)) = (qp.pipe_busy, qp.pipe.front()) {
            qp.pipe_busy = true;
            let at = item.at();
            self.at(at, Ev::Arrive { qp: q });
        }
    }

    /// A work request ended: its completion will be in the completion queue in a while.
    pub(crate) fn complete(&mut self, q: u32, send: bool, load: Load, len: usize, s: Status) {
        let delay = self.rng.delay(self.opt.dev.completion);
        let delay = if self.opt.model == Model::LateCq { self.next_burst(q, delay) } else { delay };
        let at = {
            let qp = &mut self.qps[q as usize];
            let at = (self.now + delay).max(qp.last_cqe);
            qp.last_cqe = at;
            qp.cqes.push_back(Cqe { qp: q, send, load, len, status: s });
            at
        };
        self.at(at, Ev::Cqe { qp: q });
    }

    /// The first pending completion of a queue pair is due.
    pub(crate) fn cqe(&mut self, q: u32) {
        let qp = &mut self.qps[q as usize];
        let Some(cqe) = qp.cqes.pop_front() else { return };
        if qp.lane.is_none() {
            if !qp.up && !cqe.send && cqe.status == Status::Ok {
                self.cover.hit(Hit::EarlyReceive);
            }
            qp.parked.push_back(cqe);
            let rank = qp.rank as usize;
            self.hosts[rank].parked += 1;
            return;
        }
        let rank = qp.rank;
        let host = &mut self.hosts[rank as usize];
        host.cq.push_back(cqe);
        let (used, room) = (host.cq.len() + host.parked, host.cq_room);
        if used > room {
            self.overflow(rank, room);
        }
        self.wake(rank);
    }

    /// When the burst comes in which a completion of `delay` from now is written. Those of one
    /// burst are interleaved, but stay in order for each queue pair.
    fn next_burst(&mut self, q: u32, delay: Nanos) -> Nanos {
        let every = self.opt.dev.burst;
        let gap = self.rng.delay(every);
        let host = &mut self.hosts[self.qps[q as usize].rank as usize];
        if self.now + delay > host.burst_at {
            host.burst_at = self.now + delay + gap;
        } else {
            self.cover.hit(Hit::Burst);
        }
        host.burst_at - self.now + self.rng.below(50)
    }

    /// The completion queue is full: the device ends every queue pair that uses it.
    fn overflow(&mut self, rank: u32, room: usize) {
        self.cover.hit(Hit::CqOverflow);
        self.fail(Invariant::S5, format!("rank {rank}: the completion queue of {room} overflows"));
        for q in 0..self.qps.len() as u32 {
            if self.qps[q as usize].rank == rank {
                self.fail_qp(q, None);
            }
        }
    }

    /// The queue pair goes to the error state: everything posted is flushed, sends first; the
    /// first send has `first` as its status.
    pub(crate) fn fail_qp(&mut self, q: u32, first: Option<PortError>) {
        let qp = &mut self.qps[q as usize];
        if matches!(qp.state, State::Error | State::Dead) {
            return;
        }
        qp.state = State::Error;
        let mut sends: Vec<Load> = qp.tx.drain(..).map(|sent| sent.load).collect();
        let mut recvs: Vec<Load> = qp.rq.drain(..).map(Load::Slot).collect();
        for wr in qp.wq.drain(..) {
            match wr {
                Wr::Send(slot, _) => sends.push(Load::Slot(slot)),
                Wr::Rma(work) => sends.push(Load::Rma(work)),
                Wr::Recv(slot) => recvs.push(Load::Slot(slot)),
            }
        }
        self.trace.note(self.now, "qp-error", u64::from(q), sends.len() as u64, recvs.len() as u64);
        self.mark(q, "in error", true);
        self.cover.add(Hit::Flushed, (sends.len() + recvs.len()) as u64);
        let mut first = first.map(Status::Error);
        for slot in sends {
            self.complete(q, true, slot, 0, first.take().unwrap_or(Status::Flushed));
        }
        for load in recvs {
            self.complete(q, false, load, 0, Status::Flushed);
        }
    }

    /// iWARP: the device gives up a stream. Both ends will read DISCONNECTED.
    pub(crate) fn break_stream(&mut self, q: u32) {
        let (wire, acceptor) = (self.qps[q as usize].wire, self.qps[q as usize].acceptor);
        self.fail_qp(q, None);
        self.qps[q as usize].pipe.clear();
        self.end_stream(q);
        self.tell_gone(wire, !acceptor);
    }

    /// iWARP: the end of the stream goes to the peer, behind what is under way.
    pub(crate) fn end_stream(&mut self, q: u32) {
        let at = self.now + self.rng.delay(self.opt.dev.wire);
        let qp = &mut self.qps[q as usize];
        qp.last_arrival = at.max(qp.last_arrival);
        qp.pipe.push_back(Item::End(qp.last_arrival));
        self.start_pipe(q);
    }

    /// Completions that were under way when their queue pair was destroyed show up later, in
    /// front of a driver that does not filter them.
    fn leave_stale(&mut self, rank: usize, lane: Option<LaneId>, late: &[bool]) {
        let Some(lane) = lane.filter(|_| self.opt.dev.stale > 0) else { return };
        if self.opt.model != Model::LateCq || self.hosts[rank].dead {
            return;
        }
        for send in late {
            if self.rng.chance(1, self.opt.dev.stale) {
                let at = self.now + self.rng.below(100_000_000);
                let at = self.hosts[rank].stale.back().map_or(at, |last| at.max(last.0));
                self.hosts[rank].stale.push_back((at, lane, *send));
            }
        }
    }

    /// Destroys a queue pair; returns the slots that were posted on it.
    pub(crate) fn destroy_qp(&mut self, q: u32) -> Vec<SimSlot> {
        let reset = self.opt.dev.reset_loses && self.rng.chance(1, 2);
        let iwarp = self.opt.model.is_iwarp();
        let qp = &mut self.qps[q as usize];
        let was = std::mem::replace(&mut qp.state, State::Dead);
        if was == State::Dead {
            return Vec::new();
        }
        let rank = qp.rank as usize;
        qp.unplaced.clear();
        let mut loads: Vec<Load> = qp.tx.drain(..).map(|sent| sent.load).collect();
        loads.extend(qp.rq.drain(..).map(Load::Slot));
        loads.extend(qp.wq.drain(..).map(|wr| match wr {
            Wr::Send(slot, _) | Wr::Recv(slot) => Load::Slot(slot),
            Wr::Rma(work) => Load::Rma(work),
        }));
        let parked = qp.parked.len();
        let messages = |cqe: &&Cqe| !cqe.is_rma();
        let mut late: Vec<bool> = qp.cqes.iter().filter(messages).map(|cqe| cqe.send).collect();
        loads.extend(qp.cqes.drain(..).chain(qp.parked.drain(..)).map(|cqe| cqe.load));
        if !iwarp || reset {
            let lost = qp.pipe.iter().filter(|item| !matches!(item, Item::End(_))).count();
            qp.pipe.retain(|item| matches!(item, Item::End(_)));
            self.cover.add(Hit::ResetLoss, lost as u64);
        }
        if let Some(lane) = qp.lane
            && let Some(entry) = self.hosts[rank].lanes.get_mut(lane.index())
            && *entry == Some(q)
        {
            *entry = None;
        }
        let (lane, class) = (qp.lane, usize::from(qp.class));
        let host = &mut self.hosts[rank];
        host.parked -= parked;
        let (depth, send_depth) = (self.opt.depths[rank][class], self.opt.lanes[class].send_depth);
        host.cq_room -= usize::from(depth) + usize::from(send_depth);
        let cq = &mut host.cq;
        let (gone, kept): (VecDeque<Cqe>, _) =
            std::mem::take(cq).into_iter().partition(|cqe| cqe.qp == q);
        *cq = kept;
        late.extend(gone.iter().filter(messages).map(|cqe| cqe.send));
        self.leave_stale(rank, lane, &late);
        loads.extend(gone.into_iter().map(|cqe| cqe.load));
        let mut slots = Vec::new();
        for load in loads {
            match load {
                Load::Slot(slot) => {
                    let passed =
                        self.hosts[rank].slots.pass(slot.id, Owner::Device(q), Owner::Host);
                    self.own(passed);
                    slots.push(slot);
                }
                Load::Rma(work) => {
                    self.pass_memory(q, &work.memory, false);
                    if let Some(lane) = lane {
                        self.hand_back(rank as u32, lane, work);
                    }
                }
            }
        }
        self.trace.note(self.now, "destroy-qp", u64::from(q), slots.len() as u64, 0);
        if iwarp && was == State::Rts {
            self.end_stream(q);
        }
        slots
    }
}
