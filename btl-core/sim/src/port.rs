//! The engine's two traits over the simulated fabric.
use crate::check::Invariant;
use crate::cover::Hit;
use crate::net::{Ev, Net};
use crate::qp::State;
use crate::rma::{Load, RmaWork, SimMemory, no_lane};
use crate::slots::{Owner, SimSlot};
use btl_core::LaneId;
use btl_core::error::PortError;
use btl_core::lane::{RmaPermit, RmaPosted, SendPermit};
use btl_core::port::{
    Cm, CmEvent, CmRequest, Completion, Op, Port, Posted, Refused, RefusedWhy, RmaRefused, SetupQp,
    Status,
};
use btl_core::rma::{RmaCaps, RmaErrorKind, RmaPost, Verb};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The fabric, shared by everything of one run (one thread).
pub(crate) type SharedNet = Rc<RefCell<Net>>;

/// A queue pair that is owned by the CM side. Dropped, it is destroyed.
pub struct SimQp {
    pub(crate) net: SharedNet,
    pub(crate) id: u32,
    given: bool,
}

impl SimQp {
    pub(crate) fn new(net: &SharedNet, id: u32) -> SimQp {
        SimQp { net: Rc::clone(net), id, given: false }
    }
}

impl Drop for SimQp {
    fn drop(&mut self) {
        if self.given {
            return;
        }
        let mut net = self.net.borrow_mut();
        let rank = net.qps[self.id as usize].rank as usize;
        for slot in net.destroy_qp(self.id) {
            let back = net.hosts[rank].slots.give_back(slot);
            net.own(back);
        }
    }
}

impl SetupQp for SimQp {
    type Slot = SimSlot;

    fn post_recv(&mut self, slot: SimSlot) -> Result<(), Refused<SimSlot>> {
        self.net.borrow_mut().post_recv(self.id, slot)
    }

    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: SimSlot,
        len: usize,
    ) -> Result<Posted, Refused<SimSlot>> {
        // A Hello that is refused ends its connection, and eight such in a row end the peer: a new
        // queue pair has room more often than not.
        let mut net = self.net.borrow_mut();
        let enomem = net.opt.dev.enomem;
        net.opt.dev.enomem = enomem * 10;
        let posted = net.post_send(self.id, slot, len);
        net.opt.dev.enomem = enomem;
        posted.map(|()| permit.posted())
    }

    fn max_reads(&self) -> u16 {
        self.net.borrow().opt.max_reads
    }
}

/// One rank's device, as its engine sees it.
pub struct SimPort {
    pub(crate) net: SharedNet,
    pub(crate) rank: u32,
}

impl SimPort {
    fn queue_pair(&self, lane: LaneId) -> Option<u32> {
        let net = self.net.borrow();
        let id = (*net.hosts[self.rank as usize].lanes.get(lane.index())?)?;
        (net.qps[id as usize].lane == Some(lane)).then_some(id)
    }

    /// The completion of a one-sided operation.
    fn one_sided(
        &self,
        net: &mut Net,
        qp: u32,
        work: RmaWork,
        status: Status,
    ) -> Option<Completion<SimSlot>> {
        net.pass_memory(qp, &work.memory, false);
        net.check.on_rma_polled(qp, work.post.verb.reads());
        net.trace.note(net.now, "poll-rma", u64::from(qp), u64::from(work.post.token), 0);
        let lane = net.qps[qp as usize].lane?;
        net.hand_back(self.rank, lane, work);
        Some(Completion { lane, op: Op::OneSided, slot: None, len: 0, status })
    }

    fn stale(&self, lane: LaneId, slot: SimSlot) -> Refused<SimSlot> {
        let what = format!("rank {}: a post on {lane:?}, which is closed", self.rank);
        self.net.borrow_mut().fail(Invariant::S6, what);
        let why = RefusedWhy::Broken(PortError::new(22, "no such lane"));
        Refused { why, slot: Some(slot) }
    }
}

impl Port for SimPort {
    type Slot = SimSlot;
    type Qp = SimQp;
    type Memory = SimMemory;

    fn attach(&mut self, lane: LaneId, mut qp: SimQp) -> Result<(), PortError> {
        qp.given = true;
        let mut net = self.net.borrow_mut();
        let net = &mut *net;
        let host = &mut net.hosts[self.rank as usize];
        if host.lanes.len() <= lane.index() {
            host.lanes.resize(lane.index() + 1, None);
        }
        if let Some(old) = host.lanes[lane.index()].replace(qp.id) {
            let what = format!("rank {}: {lane:?} is attached over qp {old}", self.rank);
            net.check.fail(Invariant::S6, what);
        }
        let up = host.lanes.iter().flatten().count();
        host.lanes_peak = host.lanes_peak.max(up);
        let it = &mut net.qps[qp.id as usize];
        it.lane = Some(lane);
        host.parked -= it.parked.len();
        net.cover.add(Hit::Parked, it.parked.len() as u64);
        host.cq.append(&mut it.parked);
        net.trace.note(net.now, "attach", u64::from(self.rank), u64::from(qp.id), 0);
        net.wake(self.rank);
        Ok(())
    }

    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: SimSlot,
        len: usize,
    ) -> Result<Posted, Refused<SimSlot>> {
        let Some(qp) = self.queue_pair(permit.lane()) else {
            return Err(self.stale(permit.lane(), slot));
        };
        self.net.borrow_mut().post_send(qp, slot, len).map(|()| permit.posted())
    }

    fn post_recv(&mut self, lane: LaneId, slot: SimSlot) -> Result<(), Refused<SimSlot>> {
        let Some(qp) = self.queue_pair(lane) else { return Err(self.stale(lane, slot)) };
        self.net.borrow_mut().post_recv(qp, slot)
    }

    fn poll(&mut self) -> Option<Completion<SimSlot>> {
        let mut net = self.net.borrow_mut();
        let net = &mut *net;
        let host = &mut net.hosts[self.rank as usize];
        if let Some(&(at, lane, send)) = host.stale.front()
            && at <= net.now
        {
            host.stale.pop_front();
            host.stale_given += 1;
            net.cover.hit(Hit::Stale);
            net.trace.note(net.now, "poll-stale", u64::from(self.rank), u64::from(send), 0);
            let op = if send { Op::Send } else { Op::Recv };
            let status = if net.rng.chance(1, 2) { Status::Ok } else { Status::Flushed };
            return Some(Completion { lane, op, slot: None, len: 0, status });
        }
        let cqe = host.cq.pop_front()?;
        host.last_polled = cqe.qp;
        let slot = match cqe.load {
            Load::Slot(slot) => slot,
            Load::Rma(work) => return self.one_sided(net, cqe.qp, work, cqe.status),
        };
        let passed = host.slots.pass(slot.id, Owner::Device(cqe.qp), Owner::Host);
        net.own(passed);
        let arrived = match (cqe.send, &cqe.status) {
            (false, Status::Ok) => slot.get(..cqe.len),
            _ => None,
        };
        net.check.on_polled(cqe.qp, cqe.send, arrived);
        net.trace.note(net.now, "poll", u64::from(cqe.qp), u64::from(cqe.send), cqe.len as u64);
        let lane = net.qps[cqe.qp as usize].lane?;
        let op = if cqe.send { Op::Send } else { Op::Recv };
        Some(Completion { lane, op, slot: Some(slot), len: cqe.len, status: cqe.status })
    }

    fn close(&mut self, lane: LaneId) -> Vec<SimSlot> {
        let Some(qp) = self.queue_pair(lane) else {
            let what = format!("rank {}: {lane:?} is closed twice", self.rank);
            self.net.borrow_mut().fail(Invariant::S6, what);
            return Vec::new();
        };
        self.net.borrow_mut().destroy_qp(qp)
    }

    fn send_slot(&mut self, class: u8) -> Option<SimSlot> {
        self.net.borrow_mut().hosts[self.rank as usize].slots.take_send(class)
    }

    fn recycle(&mut self, slot: SimSlot) {
        let mut net = self.net.borrow_mut();
        let back = net.hosts[self.rank as usize].slots.give_back(slot);
        net.own(back);
    }

    fn max_inline(&self) -> usize {
        0
    }

    fn rma_caps(&self) -> RmaCaps {
        self.net.borrow().rma_caps()
    }

    fn check_memory(&self, memory: &SimMemory, _: Verb, len: u64) -> Result<(), RmaErrorKind> {
        match memory.bytes.len() as u64 {
            max if len > max => Err(RmaErrorKind::TooLong { len, max }),
            _ => Ok(()),
        }
    }

    fn post_rma(
        &mut self,
        permit: RmaPermit<'_>,
        post: &RmaPost,
        memory: SimMemory,
    ) -> Result<RmaPosted, RmaRefused<SimMemory>> {
        let Some(qp) = self.queue_pair(permit.lane()) else { return Err(no_lane(memory)) };
        let work = RmaWork { post: *post, memory };
        self.net.borrow_mut().post_rma(qp, work).map(|()| permit.posted())
    }

    fn take_memory(&mut self, lane: LaneId) -> Option<(u32, SimMemory)> {
        let back = &mut self.net.borrow_mut().hosts[self.rank as usize].back;
        let at = back.iter().position(|(of, ..)| *of == lane)?;
        back.remove(at).map(|(_, token, memory)| (token, memory))
    }
}

/// The queues between an engine and its CM side.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) requests: VecDeque<CmRequest>,
    /// From the CM side, still under way.
    pub(crate) outbox: VecDeque<CmEvent<SimQp>>,
    pub(crate) events: VecDeque<CmEvent<SimQp>>,
}

/// An engine's end of the queues.
pub struct SimCm {
    pub(crate) net: SharedNet,
    pub(crate) rank: u32,
    pub(crate) link: Rc<RefCell<Link>>,
}

impl Cm for SimCm {
    type Qp = SimQp;

    fn request(&mut self, request: CmRequest) {
        self.link.borrow_mut().requests.push_back(request);
        let mut net = self.net.borrow_mut();
        let delay = net.opt.cm.step;
        let at = net.now + net.rng.delay(delay);
        let host = &mut net.hosts[self.rank as usize];
        host.last_request = at.max(host.last_request);
        let at = host.last_request;
        net.at(at, Ev::CmRequest { rank: self.rank });
    }

    fn poll(&mut self) -> Option<CmEvent<SimQp>> {
        self.link.borrow_mut().events.pop_front()
    }
}

impl Net {
    /// Whether two queue pairs are the two live ends of one lane.
    pub(crate) fn joined(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.qps[a as usize], &self.qps[b as usize]);
        let live = |qp: &crate::qp::Qp| qp.state == State::Rts && qp.lane.is_some();
        a.wire == b.wire && live(a) && live(b) && a.acceptor != b.acceptor
    }
}
