//! The data path: [`Port`] over poll groups.
use super::nudge::Nudges;
use super::rma::{Rma, VerbsMemory};
use super::workshop::Workshop;
use crate::error::PortError;
use crate::lane::{RmaPermit, RmaPosted, SendPermit};
use crate::names::LaneId;
use crate::port::{
    Completion, Found, Op, Port, PortInfo, Posted, Refused, RefusedWhy, RmaRefused, SetupQp, Status,
};
use crate::rma::{RmaCaps, RmaErrorKind, RmaPost, Verb};
use rdma_safe::{
    BatchError, Error, PollGroup, Polled, PostError, ProtectionDomain, QpKey, QueuePair, Request,
    SendFlags, Slot, WcStatus, Why,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Completions taken from one group before the next has its turn.
const TURN: u32 = 64;

/// A queue pair of a port, with the number of the poll group it completes into.
#[derive(Debug)]
pub struct VerbsQp {
    pub(super) qp: QueuePair,
    pub(super) group: usize,
    /// The peer may not have seen this side's Hello: see [`nudge`](super::nudge).
    pub(super) nudge: bool,
    /// Reads and atomics that may be outstanding, once it is connected.
    pub(super) reads: u16,
}

impl SetupQp for VerbsQp {
    type Slot = Slot;

    fn post_recv(&mut self, slot: Slot) -> Result<(), Refused<Slot>> {
        self.qp.post_recv(slot).map_err(refused)
    }

    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Slot,
        len: usize,
    ) -> Result<Posted, Refused<Slot>> {
        self.qp.post_send(slot, len, SendFlags::empty()).map_err(refused)?;
        Ok(permit.posted())
    }

    fn max_reads(&self) -> u16 {
        self.reads
    }
}

impl VerbsQp {
    /// It is connected: what the connection managers of both sides agreed on.
    pub(super) fn learn_reads(&mut self) {
        // Which of the two is this side's differs between providers (siw has them the other way round).
        let both = self.qp.query().map(|q| q.max_rd_atomic.min(q.max_dest_rd_atomic));
        self.reads = both.map_or(0, u16::from);
    }
}

/// One port of a device: its poll groups, lanes and send buffers.
pub struct VerbsPort {
    pub(super) groups: Vec<Group>,
    /// The group whose turn it is, and how many completions it may still give.
    turn: (usize, u32),
    /// By lane index.
    lanes: Vec<Option<Place>>,
    pools: Vec<SendPool>,
    /// What is handed over with the next doorbell, all of one lane.
    staged: Vec<(Slot, usize)>,
    /// What a lane's device did not take of that.
    refused: Vec<(LaneId, Slot)>,
    /// What is left to report of a group that failed.
    failed: VecDeque<Completion<Slot>>,
    nudges: Nudges,
    info: PortInfo,
    /// There is one group, it works, and nothing is nudged or left to report.
    alone: bool,
    max_inline: usize,
    pub(super) rma: Rma,
    pub(super) workshop: Arc<Workshop>,
}

pub(super) struct Group {
    pub(super) group: PollGroup,
    /// By index of the key.
    lanes: Vec<LaneId>,
    broken: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Place {
    lane: LaneId,
    pub(super) group: usize,
    pub(super) key: QpKey,
}

/// The send buffers of one class: all of one region.
struct SendPool {
    free: Vec<Slot>,
    addresses: Range<usize>,
}

impl VerbsPort {
    /// Registers all send buffers.
    pub(super) fn new(
        workshop: Arc<Workshop>,
        pd: &ProtectionDomain,
        info: PortInfo,
        max_message: u32,
    ) -> rdma_safe::Result<Self> {
        let mut pools = Vec::new();
        for lane in &workshop.config.lanes {
            pools.push(SendPool::new(pd, lane.buffer_size as usize, lane.send_slots as usize)?);
        }
        let mut port = VerbsPort {
            groups: Vec::new(),
            turn: (0, TURN),
            lanes: Vec::new(),
            pools,
            staged: Vec::new(),
            refused: Vec::new(),
            failed: VecDeque::new(),
            nudges: Nudges::default(),
            info,
            alone: false,
            max_inline: 0,
            rma: Rma::new(workshop.context(), max_message),
            workshop,
        };
        port.take_groups();
        Ok(port)
    }

    fn take_groups(&mut self) {
        let fresh = self.workshop.fresh_groups().into_iter();
        self.groups.extend(fresh.map(|group| Group { group, lanes: Vec::new(), broken: false }));
        self.look_round();
    }

    #[inline]
    pub(super) fn place(&self, lane: LaneId) -> Option<Place> {
        self.lanes.get(lane.index()).copied().flatten().filter(|place| place.lane == lane)
    }

    /// A group cannot be polled any more: each of its lanes fails.
    #[cold]
    #[inline(never)]
    fn fail_group(&mut self, at: usize, error: &Error) {
        if let Some(group) = self.groups.get_mut(at) {
            group.broken = true;
        }
        let what = format!("completions can no longer be read: {error}");
        let status = Status::Error(PortError::new(error.errno(), what));
        for place in self.lanes.iter().flatten().filter(|place| place.group == at) {
            let (lane, status) = (place.lane, status.clone());
            self.failed.push_back(Completion { lane, op: Op::Recv, slot: None, len: 0, status });
        }
        self.look_round();
    }

    /// Whether a completion is the engine's; ends the nudging of a lane that receives.
    #[inline]
    fn seen(&mut self, lane: LaneId, done: &rdma_safe::Completion) -> bool {
        if !self.nudges.is_empty() && done.op == rdma_safe::Op::Recv {
            self.nudges.remove(lane);
            self.look_round();
        }
        // What had nothing was a nudge.
        done.slot.is_some() || done.op == rdma_safe::Op::Recv || done.payload.is_some()
    }

    /// Whether there is one group and nothing else to look at.
    fn look_round(&mut self) {
        let whole = matches!(self.groups.as_slice(), [Group { broken: false, .. }]);
        self.alone = whole && self.nudges.is_empty() && self.failed.is_empty();
    }

    /// What a completion is for the engine, if it is something.
    #[inline]
    fn heard_of(&mut self, lane: LaneId, done: rdma_safe::Completion) -> Option<Completion<Slot>> {
        if !self.seen(lane, &done) {
            return None;
        }
        Some(match done.op {
            rdma_safe::Op::Send => translate(lane, Op::Send, done),
            op if op.is_recv() => translate(lane, Op::Recv, done),
            _ => self.one_sided(lane, done),
        })
    }

    /// The next completion of all groups, each in its turn.
    fn poll_all(&mut self) -> Option<Completion<Slot>> {
        let mut empty = 0;
        while empty < self.groups.len() {
            let (at, left) = self.turn;
            let Some(Group { group, lanes, broken: false }) = self.groups.get_mut(at) else {
                empty += 1;
                self.next_turn();
                continue;
            };
            match group.poll() {
                Ok(Some(done)) => {
                    let lane = lanes.get(done.key.index()).copied().unwrap_or(LaneId::NONE);
                    match left {
                        0 => self.next_turn(),
                        _ => self.turn.1 = left - 1,
                    }
                    let found = self.heard_of(lane, done);
                    if found.is_some() {
                        return found;
                    }
                }
                Ok(None) => {
                    empty += 1;
                    self.next_turn();
                }
                Err(e) => self.fail_group(at, &e),
            }
        }
        if !self.nudges.is_empty() {
            self.nudge();
        }
        self.failed.pop_front()
    }

    /// A put, get or atomic is done.
    #[cold]
    #[inline(never)]
    fn one_sided(&mut self, lane: LaneId, done: rdma_safe::Completion) -> Completion<Slot> {
        let status = status_of(done.status, done.vendor_err);
        self.rma.completed(lane, done.into_payload());
        Completion { lane, op: Op::OneSided, slot: None, len: 0, status }
    }

    #[cold]
    #[inline(never)]
    fn nudge(&mut self) {
        let due = self.nudges.due(Instant::now());
        for lane in due {
            let Some(place) = self.place(lane) else { continue };
            let group = self.groups.get_mut(place.group);
            let qp = group.and_then(|group| group.group.qp_mut(place.key));
            // A refused one is made up for by the next. When the queue pair has failed, its
            // completions say so.
            let _ = qp.map(QueuePair::post_empty_write);
        }
    }

    #[cold]
    #[inline(never)]
    fn next_turn(&mut self) {
        let next = self.turn.0 + 1;
        self.turn = (if next < self.groups.len() { next } else { 0 }, TURN);
    }

    /// Completion queues in use.
    pub fn queues(&self) -> usize {
        self.groups.len()
    }

    /// Completions that wait for their lane to be attached.
    pub fn parked(&self) -> usize {
        self.groups.iter().map(|g| g.group.parked()).sum()
    }

    /// Completions dropped because their queue pair was destroyed before.
    pub fn stale_completions(&self) -> u64 {
        self.groups.iter().map(|g| g.group.stale()).sum()
    }
}

impl Port for VerbsPort {
    type Slot = Slot;
    type Qp = VerbsQp;
    type Memory = VerbsMemory;

    fn attach(&mut self, lane: LaneId, qp: VerbsQp) -> Result<(), PortError> {
        let VerbsQp { qp, group: at, nudge, reads } = qp;
        if at >= self.groups.len() {
            self.take_groups();
        }
        self.max_inline = self.max_inline.max(qp.max_inline());
        self.rma.attach(lane, qp.config().send_depth);
        self.staged.reserve(qp.config().send_depth as usize);
        let Some(group) = self.groups.get_mut(at).filter(|g| !g.broken) else {
            self.workshop.scrap(VerbsQp { qp, group: at, nudge, reads });
            return Err(PortError::new(0, "the lane's completion queue has failed"));
        };
        let key = match group.group.adopt(qp) {
            Ok(key) => key,
            Err((qp, e)) => {
                self.workshop.scrap(VerbsQp { qp, group: at, nudge, reads });
                return Err(PortError::new(e.errno(), e.to_string()));
            }
        };
        put(&mut group.lanes, key.index(), lane, LaneId::NONE);
        put(&mut self.lanes, lane.index(), Some(Place { lane, group: at, key }), None);
        if nudge {
            self.nudges.add(lane);
        }
        self.look_round();
        Ok(())
    }

    #[inline(always)]
    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Slot,
        len: usize,
    ) -> Result<Posted, Refused<Slot>> {
        let place = self.place(permit.lane());
        let Some((group, place)) = place.and_then(|p| Some((self.groups.get_mut(p.group)?, p)))
        else {
            return Err(gone(slot));
        };
        // Every send is signalled: the engine counts places of the send queue by completions, and
        // on siw a large unsignalled send is never known to be done.
        group.group.post_send(place.key, slot, len, SendFlags::empty()).map_err(refused)?;
        Ok(permit.posted())
    }

    fn post_send_later(
        &mut self,
        permit: SendPermit<'_>,
        slot: Slot,
        len: usize,
    ) -> Result<Posted, Refused<Slot>> {
        if self.place(permit.lane()).is_none() {
            return Err(gone(slot));
        }
        self.staged.push((slot, len));
        Ok(permit.posted())
    }

    fn ring(&mut self, lane: LaneId) -> Result<(), PortError> {
        let place = self.place(lane);
        let mut staged = self.staged.drain(..);
        let group = place.and_then(|p| Some((self.groups.get_mut(p.group)?, p.key)));
        let Some((group, key)) = group else {
            self.refused.extend(staged.map(|(slot, _)| (lane, slot)));
            return Err(PortError::new(0, GONE));
        };
        let mut requests = staged.by_ref().map(|(slot, len)| Request::send(slot, len));
        let Err(BatchError { error, unseen, .. }) = group.group.post_batch(key, &mut requests)
        else {
            return Ok(());
        };
        let unseen = unseen.into_iter().filter_map(|payload| payload.into_slot().ok());
        let back = error.slot.into_iter().chain(unseen).chain(staged.map(|(slot, _)| slot));
        self.refused.extend(back.map(|slot| (lane, slot)));
        Err(match error.why {
            Why::Device(errno) => PortError::new(errno, error.why.to_string()),
            why => PortError::new(0, why.to_string()),
        })
    }

    #[inline(always)]
    fn post_recv(&mut self, lane: LaneId, slot: Slot) -> Result<(), Refused<Slot>> {
        let place = self.place(lane);
        let Some((group, place)) = place.and_then(|p| Some((self.groups.get_mut(p.group)?, p)))
        else {
            return Err(gone(slot));
        };
        group.group.post_recv(place.key, slot).map_err(refused)
    }

    fn poll(&mut self) -> Option<Completion<Slot>> {
        self.poll_all()
    }

    #[inline(always)]
    fn is_idle(&mut self) -> bool {
        self.alone && self.groups.first_mut().is_some_and(|it| it.group.is_idle())
    }

    #[inline(always)]
    fn poll_message(&mut self) -> Found<Slot> {
        let Some(Group { group, lanes, .. }) = self.groups.first_mut().filter(|_| self.alone)
        else {
            return Found::Other;
        };
        let lane = |key: QpKey| lanes.get(key.index()).copied().unwrap_or(LaneId::NONE);
        match group.poll_slot() {
            Polled::Nothing => Found::Nothing,
            Polled::Sent(key, slot) => Found::Sent(lane(key), slot),
            Polled::Received(key, slot, len) => Found::Received(lane(key), slot, len),
            Polled::Other => Found::Other,
        }
    }

    fn close(&mut self, lane: LaneId) -> Vec<Slot> {
        let Some(place) = self.place(lane) else { return Vec::new() };
        if let Some(entry) = self.lanes.get_mut(lane.index()) {
            *entry = None;
        }
        self.failed.retain(|c| c.lane != lane);
        self.nudges.remove(lane);
        self.look_round();
        let Some(group) = self.groups.get_mut(place.group) else { return Vec::new() };
        put(&mut group.lanes, place.key.index(), LaneId::NONE, LaneId::NONE);
        // When the queue pair cannot be destroyed, its buffers are lost with it.
        let payloads = group.group.release(place.key).and_then(|qp| qp.close_payloads().ok());
        let mut slots = self.rma.closed(lane, payloads);
        slots.extend(self.refused.extract_if(.., |(of, _)| *of == lane).map(|(_, slot)| slot));
        slots
    }

    #[inline]
    fn send_slot(&mut self, class: u8) -> Option<Slot> {
        self.pools.get_mut(usize::from(class))?.free.pop()
    }

    #[inline]
    fn recycle_send(&mut self, class: u8, slot: Slot) {
        let address = slot.as_ptr().addr();
        match self.pools.get_mut(usize::from(class)) {
            Some(pool) if pool.addresses.contains(&address) => pool.free.push(slot),
            // Not of this port.
            _ => self.recycle(slot),
        }
    }

    #[inline]
    fn recycle(&mut self, slot: Slot) {
        let address = slot.as_ptr().addr();
        match self.pools.iter_mut().find(|pool| pool.addresses.contains(&address)) {
            Some(pool) => pool.free.push(slot),
            None => self.workshop.home(slot),
        }
    }

    fn max_inline(&self) -> usize {
        self.max_inline
    }

    fn info(&self) -> PortInfo {
        self.info.clone()
    }

    #[inline]
    fn rma_caps(&self) -> RmaCaps {
        self.rma.caps()
    }

    fn check_memory(&self, memory: &VerbsMemory, verb: Verb, len: u64) -> Result<(), RmaErrorKind> {
        self.rma.check(memory, verb, len)
    }

    fn post_rma(
        &mut self,
        permit: RmaPermit<'_>,
        post: &RmaPost,
        memory: VerbsMemory,
    ) -> Result<RmaPosted, RmaRefused<VerbsMemory>> {
        self.post_one_sided(permit, post, memory)
    }

    fn take_memory(&mut self, lane: LaneId) -> Option<(u32, VerbsMemory)> {
        self.rma.take(lane)
    }
}

impl SendPool {
    fn new(pd: &ProtectionDomain, size: usize, count: usize) -> rdma_safe::Result<SendPool> {
        let free = pd.slots(size, count)?;
        let start = free.iter().map(|slot| slot.as_ptr().addr()).min().unwrap_or(0);
        let end = free.iter().map(|slot| slot.as_ptr().addr() + size).max().unwrap_or(0);
        Ok(SendPool { free, addresses: start..end })
    }
}

/// Sets an entry, growing the list when needed.
fn put<T: Clone>(list: &mut Vec<T>, at: usize, value: T, empty: T) {
    if at >= list.len() {
        list.resize(at + 1, empty);
    }
    if let Some(entry) = list.get_mut(at) {
        *entry = value;
    }
}

#[inline]
fn translate(lane: LaneId, op: Op, done: rdma_safe::Completion) -> Completion<Slot> {
    let status = status_of(done.status, done.vendor_err);
    Completion { lane, op, slot: done.slot, len: done.byte_len, status }
}

#[inline]
fn status_of(status: WcStatus, vendor_err: u32) -> Status {
    match status {
        WcStatus::SUCCESS => Status::Ok,
        WcStatus::WR_FLUSH_ERR => Status::Flushed,
        other => failure(other, vendor_err),
    }
}

#[cold]
fn failure(status: WcStatus, vendor_err: u32) -> Status {
    let what = format!("{status}, the driver's own code is {vendor_err:#x}");
    Status::Error(PortError::new(i32::try_from(status.0).unwrap_or(i32::MAX), what))
}

const GONE: &str = "the lane has no queue pair";

#[cold]
fn gone(slot: Slot) -> Refused<Slot> {
    let why = RefusedWhy::Broken(PortError::new(0, GONE));
    Refused { why, slot: Some(slot) }
}

#[cold]
fn refused(error: PostError) -> Refused<Slot> {
    let why = match error.why {
        // The queue is as deep as the lane's account: it cannot be full unless completions are
        // still to be polled.
        Why::Full => RefusedWhy::Again,
        Why::Device(errno) => RefusedWhy::Broken(PortError::new(errno, error.why.to_string())),
        why => RefusedWhy::Broken(PortError::new(0, why.to_string())),
    };
    Refused { why, slot: error.slot }
}
