//! One-sided operations: they share the queue of their lane with its messages, so that the order is that of the calls.
use super::io::{Cause, Io, Lane};
use super::{Engine, Event, PortEvent, Sent};
use crate::endpoint::{Link, State};
use crate::error::{FaultKind, PeerFault, PortError, ProtocolFault};
use crate::frag::{Fifo, Frag};
use crate::names::{LaneId, PeerId, ProcName};
use crate::port::{Cm, Port, RefusedWhy, RmaRefused};
use crate::rma::{Atomic, MAX_LEN, RemoteRange, RmaCaps, RmaError, RmaErrorKind, RmaPost, Verb};
use crate::stats::Stats;
use crate::wire::Kind;

/// An operation under way.
#[derive(Debug)]
pub(super) struct Op<M> {
    /// `None` while the device has it, and of fences.
    memory: Option<M>,
    what: What,
    /// All of the peer's memory that it uses.
    remote: RemoteRange,
    /// Bytes that are through.
    done: u64,
    /// Bytes the device has; 0: none.
    piece: u64,
    /// With recovery: the number of the first message posted behind it.
    before: u64,
    peer: PeerId,
    name: ProcName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Verb(Verb),
    Fence,
}

/// A fixed number of operations.
#[derive(Debug)]
pub(super) struct Ops<M> {
    entries: Vec<Option<Op<M>>>,
    free: Vec<u32>,
}

impl<M> Ops<M> {
    pub(super) fn new(size: u32) -> Ops<M> {
        Ops { entries: (0..size).map(|_| None).collect(), free: (0..size).rev().collect() }
    }

    fn insert(&mut self, op: Op<M>) -> Result<u32, Op<M>> {
        let Some(i) = self.free.pop() else { return Err(op) };
        match self.entries.get_mut(i as usize) {
            Some(entry) => {
                *entry = Some(op);
                Ok(i)
            }
            None => Err(op),
        }
    }

    /// See [`Op::before`].
    pub(super) fn before(&self, at: usize) -> u64 {
        self.entries.get(at).and_then(|op| op.as_ref()).map_or(0, |op| op.before)
    }

    fn remove(&mut self, i: usize) -> Option<Op<M>> {
        let op = self.entries.get_mut(i)?.take()?;
        self.free.push(i as u32);
        Some(op)
    }
}

/// What a lost connection means for an operation that the device had.
pub(super) enum Lost {
    /// It can be made again.
    Again,
    /// It must not be made again, and may have been made.
    Unknown,
    /// The device has not let go of its memory.
    Kept,
}

/// What became of the first of the queue.
enum Step {
    /// It is off the queue.
    Gone,
    /// It stays.
    Waits,
}

impl<P: Port> Io<P> {
    fn op(&mut self, frag: u32) -> Option<&mut Op<P::Memory>> {
        let at = self.frags.get_mut(frag).filter(|frag| frag.one_sided)?.addr;
        self.ops.entries.get_mut(at)?.as_mut()
    }

    /// Takes an operation, which is on no list, out of all tables, and says how it ended.
    fn end_op(&mut self, frag: u32, result: Result<(), FaultKind>) -> Option<PortEvent<P>> {
        let Frag { addr, cookie, .. } = self.frags.remove(frag)?;
        let Op { memory, what, peer, name, .. } = self.ops.remove(addr)?;
        let result = result.map_err(|kind| PeerFault { peer: name, kind });
        Some(match what {
            What::Fence => Event::Fenced { peer, cookie, result },
            What::Verb(_) => Event::Done { peer, cookie, memory, result },
        })
    }

    /// The same; the event waits for the next poll.
    pub(super) fn end_op_later(&mut self, frag: u32, result: Result<(), FaultKind>) {
        let event = self.end_op(frag, result);
        self.events.extend(event);
    }

    /// Whether nothing one-sided is unfinished on the lane; its queue apart.
    pub(super) fn is_quiet(lane: &Lane<P::Slot>) -> bool {
        lane.rma_posted == 0
            && lane.fences.is_empty()
            && lane.due.is_none()
            && lane.rec.stream.open() == 0
    }

    /// Gives the device the operation at the head of the lane's queue, if that is possible now. `true`: it is off the
    /// queue.
    #[cold]
    #[inline(never)]
    pub(super) fn pump_rma(&mut self, lane: &mut Lane<P::Slot>, pending: &mut Fifo) -> bool {
        if lane.rec.on && !lane.heard {
            // The peer has not said yet what it has.
            return false;
        }
        let Some(i) = pending.front() else { return false };
        let Some(what) = self.op(i).map(|op| op.what) else { return false };
        let step = match what {
            What::Fence => self.pump_fence(lane),
            What::Verb(verb) => self.pump_verb(lane, i, verb),
        };
        if let Step::Waits = step {
            return false;
        }
        self.frags.pop(pending);
        self.queued = self.queued.saturating_sub(1);
        if let Some(op) = self.op(i) {
            op.before = lane.rec.stream.sent();
        }
        match what {
            What::Verb(verb) if verb.reads() && lane.acct.max_reads() == 0 => {
                self.end_op_later(i, Err(FaultKind::NoReads));
            }
            What::Verb(_) => self.frags.push(&mut lane.rma, i),
            What::Fence if self.port.rma_caps().placed => {
                lane.stats.fences += 1;
                self.end_op_later(i, Ok(()));
            }
            // The peer has said its last word: nobody would answer. It fails when the lane is closed.
            What::Fence if lane.bye.heard && !lane.rec.on => self.frags.push(&mut lane.failed, i),
            What::Fence => self.frags.push(&mut lane.fences, i),
        }
        true
    }

    /// A fence: everything before it is done here. Where that says nothing of the peer, the peer is asked.
    fn pump_fence(&mut self, lane: &mut Lane<P::Slot>) -> Step {
        if lane.rma_posted > 0 {
            lane.stats.stalls.fence += 1;
            return Step::Waits;
        }
        if self.port.rma_caps().placed || (lane.bye.heard && !lane.rec.on) {
            return Step::Gone;
        }
        match self.post_control(lane, Kind::Fence) {
            Some(posted) => {
                lane.stats.credits_piggybacked += u64::from(posted.told);
                lane.rec.uncovered = false;
                lane.used = true;
                Step::Gone
            }
            None => Step::Waits,
        }
    }

    fn pump_verb(&mut self, lane: &mut Lane<P::Slot>, i: u32, verb: Verb) -> Step {
        if verb.reads() && lane.acct.max_reads() == 0 {
            return Step::Gone;
        }
        let limit = self.port.rma_caps().max_piece.max(1);
        let Some(op) = self.op(i) else { return Step::Waits };
        if op.piece > 0 {
            // Memory has one owner: the next piece goes when this one is back.
            lane.stats.stalls.fence += 1;
            return Step::Waits;
        }
        let left = op.remote.len.saturating_sub(op.done);
        let len = left.min(limit);
        let Some(remote) = op.remote.slice(op.done, len) else { return Step::Waits };
        let post = RmaPost { verb, token: i, offset: op.done, len, remote };
        let permit = match lane.acct.admit_rma(verb.reads()) {
            Ok(permit) => permit,
            Err(why) => {
                lane.stats.stalls.count(&super::io::Wait::Rule(why));
                return Step::Waits;
            }
        };
        let Some(op) = self.ops.entries.get_mut(self.frags.get_mut(i).map_or(0, |f| f.addr)) else {
            return Step::Waits;
        };
        let Some(op) = op.as_mut() else { return Step::Waits };
        let Some(memory) = op.memory.take() else { return Step::Waits };
        match self.port.post_rma(permit, &post, memory) {
            Ok(_posted) => {
                op.piece = len;
                lane.used = true;
                lane.rma_posted += 1;
                if len < left {
                    return Step::Waits;
                }
                count_op(&mut lane.stats, verb, post.offset + len);
                Step::Gone
            }
            Err(refused) => self.rma_refused(lane, i, refused),
        }
    }

    fn rma_refused(
        &mut self,
        lane: &mut Lane<P::Slot>,
        i: u32,
        refused: RmaRefused<P::Memory>,
    ) -> Step {
        let RmaRefused { why, memory } = refused;
        let kept = memory.is_none();
        if let Some(op) = self.op(i) {
            op.memory = memory;
            // Nobody knows what the device does with what it kept.
            op.piece = u64::from(kept);
        }
        match why {
            RefusedWhy::Again if !kept => {
                lane.stats.stalls.device += 1;
                self.retry_later(lane);
            }
            // What the device kept comes back when the lane is closed.
            why => self.kill(lane, Cause::Error(why.into_error())),
        }
        Step::Waits
    }

    /// Puts memory that came back into its operation.
    fn take_memory(&mut self, lane: LaneId) -> Option<u32> {
        let (token, memory) = self.port.take_memory(lane)?;
        let op = self.op(token)?;
        op.memory = Some(memory);
        Some(token)
    }

    /// The lane is closed: everything the device let go of comes back.
    pub(super) fn take_all_memory(&mut self, lane: LaneId) {
        // Bounded by what was posted.
        while let Some((token, memory)) = self.port.take_memory(lane) {
            if let Some(op) = self.op(token) {
                op.memory = Some(memory);
            }
        }
    }

    /// Pays what is owed to the peer before anything else. `false`: nothing else may go.
    #[cold]
    #[inline(never)]
    pub(super) fn pay_dues(&mut self, lane: &mut Lane<P::Slot>) -> bool {
        if lane.due.hello_ack() {
            // Nothing goes before the answer to the Hello.
            let Some(posted) = self.post_control(lane, Kind::HelloAck) else { return false };
            lane.stats.credits_piggybacked += u64::from(posted.told);
            lane.due.set_hello_ack(false);
        }
        if lane.due.ack()
            && let Some(posted) = self.post_control(lane, Kind::Ack)
        {
            lane.stats.credits_piggybacked += u64::from(posted.told);
            lane.stats.acks_alone += 1;
        }
        if lane.due.ask() {
            self.ask_for_puts(lane);
        }
        while lane.due.fences() {
            let Some(posted) = self.post_control(lane, Kind::FenceAck) else { break };
            lane.stats.credits_piggybacked += u64::from(posted.told);
            lane.due.fence_answered();
        }
        true
    }

    /// Whether a put lies before message number `number`, from 0.
    pub(super) fn put_is_behind(&mut self, i: u32, number: u64) -> bool {
        self.op(i).is_some_and(|op| op.what == What::Verb(Verb::Put) && op.before < number)
    }

    /// The same of a fence.
    pub(super) fn fence_is_behind(&mut self, i: u32, number: u64) -> bool {
        self.op(i).is_some_and(|op| op.what == What::Fence && op.before < number)
    }

    pub(super) fn is_fence(&mut self, i: u32) -> bool {
        self.op(i).is_some_and(|op| op.what == What::Fence)
    }

    /// The connection was lost with this operation: what the device had of it is to be made again.
    pub(super) fn op_lost(&mut self, i: u32) -> Lost {
        let placed = self.port.rma_caps().placed;
        let Some(op) = self.op(i) else { return Lost::Kept };
        let began = std::mem::take(&mut op.piece) > 0;
        if op.what == What::Verb(Verb::Put) && !placed {
            // That pieces of it have left says nothing.
            op.done = 0;
        }
        match op.what {
            What::Fence => Lost::Again,
            What::Verb(_) if op.memory.is_none() => Lost::Kept,
            What::Verb(Verb::Atomic(_)) if began => Lost::Unknown,
            What::Verb(_) => Lost::Again,
        }
    }

    /// The same for the head of a queue, of which the device may have had a piece. `false`: the device has not let go.
    pub(super) fn reset_head(&mut self, pending: &mut Fifo) -> bool {
        let Some(i) = pending.front() else { return true };
        if self.op(i).is_none() {
            return true;
        }
        match self.op_lost(i) {
            Lost::Again => true,
            Lost::Kept => false,
            Lost::Unknown => {
                self.frags.pop(pending);
                self.queued = self.queued.saturating_sub(1);
                self.end_op_later(i, Err(FaultKind::AtomicUnknown));
                true
            }
        }
    }

    /// Nobody answers the fences of a lane any more: they fail when it is closed.
    #[cold]
    pub(super) fn drop_fences(&mut self, lane: &mut Lane<P::Slot>) {
        while let Some(i) = self.frags.pop(&mut lane.fences) {
            self.frags.push(&mut lane.failed, i);
        }
    }
}

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// What the device can do one-sided.
    pub fn rma_caps(&self) -> RmaCaps {
        self.io.port.rma_caps()
    }

    /// Writes the first `len` bytes of `memory` to the start of `to`, which the peer has told us in a message. Ends
    /// with one [`Event::Done`]; what that promises, and the order of puts and messages: see [`rma`](crate::rma).
    ///
    /// # Errors
    /// [`RmaError`]: not taken; the memory comes back.
    pub fn put(
        &mut self,
        peer: PeerId,
        memory: P::Memory,
        len: u64,
        to: RemoteRange,
        cookie: u64,
    ) -> Result<Sent, RmaError<P::Memory>> {
        self.one_sided(peer, memory, Verb::Put, len, to, cookie)
    }

    /// Reads the first `len` bytes of `from` into the start of `memory`. As [`put`](Engine::put); see
    /// [`RmaCaps::get_is_fast`] for when to prefer which.
    ///
    /// # Errors
    /// As [`put`](Engine::put).
    pub fn get(
        &mut self,
        peer: PeerId,
        memory: P::Memory,
        len: u64,
        from: RemoteRange,
        cookie: u64,
    ) -> Result<Sent, RmaError<P::Memory>> {
        self.one_sided(peer, memory, Verb::Get, len, from, cookie)
    }

    /// Changes the first 8 bytes of `at`, all at once; what was there before comes in the first 8 bytes of `memory`, in
    /// host order.
    ///
    /// # Errors
    /// As [`put`](Engine::put); [`RmaErrorKind::NotSupported`] where [`RmaCaps::atomics`] is false.
    pub fn atomic(
        &mut self,
        peer: PeerId,
        memory: P::Memory,
        at: RemoteRange,
        what: Atomic,
        cookie: u64,
    ) -> Result<Sent, RmaError<P::Memory>> {
        self.one_sided(peer, memory, Verb::Atomic(what), 8, at, cookie)
    }

    /// Ends with one [`Event::Fenced`], when every put, get and atomic to the peer given to the engine before it is
    /// done at both ends. What is given to lane 0 after it begins only when all before it is done here.
    ///
    /// Where a put's completion promises nothing about the peer (iWARP, [`RmaCaps::placed`]), the peer's engine is
    /// asked, so the peer has to poll.
    ///
    /// # Errors
    /// [`RmaError`] without memory: not taken.
    pub fn fence(&mut self, peer: PeerId, cookie: u64) -> Result<Sent, RmaError<()>> {
        let place = match self.rma_place(peer) {
            Ok(place) => place,
            Err(kind) => return Err(RmaError { kind, memory: () }),
        };
        let nowhere = RemoteRange { addr: 0, len: 0, rkey: 0 };
        let op = Op {
            memory: None,
            what: What::Fence,
            remote: nowhere,
            done: 0,
            piece: 0,
            before: u64::MAX,
            peer,
            name: place,
        };
        self.queue_op(peer, op, cookie)
            .map_err(|_| RmaError { kind: RmaErrorKind::Busy, memory: () })
    }

    fn one_sided(
        &mut self,
        peer: PeerId,
        memory: P::Memory,
        verb: Verb,
        len: u64,
        remote: RemoteRange,
        cookie: u64,
    ) -> Result<Sent, RmaError<P::Memory>> {
        let checked = self.rma_place(peer).and_then(|name| {
            let remote = check(self.io.port.rma_caps(), verb, len, remote)?;
            self.io.port.check_memory(&memory, verb, len)?;
            Ok((name, remote))
        });
        let (name, remote) = match checked {
            Ok(found) => found,
            Err(kind) => return Err(RmaError { kind, memory }),
        };
        let what = What::Verb(verb);
        let op = Op {
            memory: Some(memory),
            what,
            remote,
            done: 0,
            piece: 0,
            before: u64::MAX,
            peer,
            name,
        };
        match self.queue_op(peer, op, cookie) {
            Ok(sent) => Ok(sent),
            Err(Some(memory)) => Err(RmaError { kind: RmaErrorKind::Busy, memory }),
            // Not reachable: the memory was put in above.
            Err(None) => Ok(Sent::Queued),
        }
    }

    /// The peer's name, if operations to it are taken.
    fn rma_place(&mut self, peer: PeerId) -> Result<ProcName, RmaErrorKind> {
        let endpoint = self.endpoint_mut(peer).ok_or(RmaErrorKind::Closing)?;
        match &endpoint.state {
            State::Open => Ok(endpoint.name),
            State::Failed(fault) => Err(RmaErrorKind::Failed(fault.clone())),
            State::Closing(_) => Err(RmaErrorKind::Closing),
        }
    }

    /// Puts an operation at the end of its lane's queue, and sends what can be sent.
    fn queue_op(
        &mut self,
        peer: PeerId,
        op: Op<P::Memory>,
        cookie: u64,
    ) -> Result<Sent, Option<P::Memory>> {
        let class = self.rma_class(&op);
        let at = self.io.ops.insert(op).map_err(|op| op.memory)?;
        let addr = at as usize;
        let frag =
            Frag { slot: None, addr, cookie, len: 0, max: 0, tag: 0, class, one_sided: true };
        // The message table has an entry for each operation.
        let Ok(i) = self.io.frags.insert(frag) else {
            return Err(self.io.ops.remove(addr).and_then(|op| op.memory));
        };
        let Some(c) = self.class_mut(peer, class) else { return Ok(Sent::Queued) };
        let link = c.link;
        let mut pending = std::mem::take(&mut c.pending);
        self.io.frags.push(&mut pending, i);
        self.io.queued += 1;
        if let Some(c) = self.class_mut(peer, class) {
            c.pending = pending;
        }
        let Link::Up(id) = link else {
            if let Some(endpoint) = self.endpoint_mut(peer) {
                endpoint.stats.stalls.connect += 1;
            }
            self.connect(peer.index, class);
            return Ok(Sent::Queued);
        };
        let Some((lane, endpoint, io)) = self.parts(id) else { return Ok(Sent::Queued) };
        let Some(c) = endpoint.classes.get_mut(usize::from(class)) else { return Ok(Sent::Queued) };
        io.pump(lane, &mut c.pending);
        Ok(if c.pending.is_empty() { Sent::Posted } else { Sent::Queued })
    }

    /// All one-sided operations of a peer use the lane of its control messages.
    #[cfg(not(feature = "sabotage"))]
    fn rma_class(&self, _op: &Op<P::Memory>) -> u8 {
        0
    }

    /// Test only: puts may be told to go elsewhere.
    #[cfg(feature = "sabotage")]
    fn rma_class(&self, op: &Op<P::Memory>) -> u8 {
        match self.config.sabotage.puts_on_last_lane && op.what == What::Verb(Verb::Put) {
            true => (self.config.lanes.len() as u8).saturating_sub(1),
            false => 0,
        }
    }

    /// The device has finished an operation, or a piece of one.
    #[cold]
    #[inline(never)]
    pub(super) fn rma_completed(&mut self, id: LaneId) -> Option<PortEvent<P>> {
        let (lane, endpoint, io) = self.parts(id)?;
        let pending = &mut endpoint.classes.get_mut(usize::from(lane.class))?.pending;
        let Some(token) = io.take_memory(id) else {
            let what = "a completion of a one-sided operation without its memory";
            io.kill(lane, Cause::Error(PortError::new(0, what)));
            return None;
        };
        let op = io.op(token)?;
        let reads = matches!(op.what, What::Verb(verb) if verb.reads());
        let put = op.what == What::Verb(Verb::Put);
        op.done += std::mem::take(&mut op.piece);
        let whole = op.done >= op.remote.len;
        lane.rma_posted = lane.rma_posted.saturating_sub(1);
        lane.acct.rma_done(reads);
        let event = match whole {
            true if io.frags.pop(&mut lane.rma) == Some(token) => {
                if lane.rec.on && put && !io.port.rma_caps().placed {
                    io.hold_put(lane, token);
                    None
                } else {
                    io.end_op(token, Ok(()))
                }
            }
            true => {
                let what = "the device finished one-sided operations out of order";
                io.kill(lane, Cause::Error(PortError::new(0, what)));
                None
            }
            false => None,
        };
        io.pump(lane, pending);
        event
    }

    /// The device has failed one. The lane is over.
    #[cold]
    pub(super) fn rma_broken(&mut self, id: LaneId, cause: Cause) {
        let Some((lane, _, io)) = self.parts(id) else { return };
        io.kill(lane, cause);
        let Some(token) = io.take_memory(id) else { return };
        lane.rma_posted = lane.rma_posted.saturating_sub(1);
        // That its piece is still counted as posted tells recovery that the peer may have seen it.
        // One with pieces to come is on the queue still.
        if lane.rma.front() == Some(token) {
            io.frags.pop(&mut lane.rma);
            io.frags.push(&mut lane.failed, token);
        }
    }

    /// The peer has answered a fence.
    #[cold]
    pub(super) fn fence_answered(&mut self, id: LaneId) -> Option<PortEvent<P>> {
        let (lane, _, io) = self.parts(id)?;
        if lane.rec.on && io.fence_answered_recovering(lane) {
            return None;
        }
        match io.frags.pop(&mut lane.fences) {
            Some(i) => {
                lane.stats.fences += 1;
                io.end_op(i, Ok(()))
            }
            None => {
                let fault = ProtocolFault::Unexpected { got: "answer to a fence" };
                io.kill(lane, Cause::Protocol(fault));
                self.settle(id);
                None
            }
        }
    }
}

fn count_op(stats: &mut Stats, verb: Verb, len: u64) {
    match verb {
        Verb::Put => {
            stats.puts += 1;
            stats.bytes_put += len;
        }
        Verb::Get => {
            stats.gets += 1;
            stats.bytes_got += len;
        }
        Verb::Atomic(_) => stats.atomics += 1,
    }
}

/// What can be said of an operation without its memory: the exact piece of the peer's memory, or why not.
fn check(
    caps: RmaCaps,
    verb: Verb,
    len: u64,
    remote: RemoteRange,
) -> Result<RemoteRange, RmaErrorKind> {
    let (has, what) = match verb {
        Verb::Put => (caps.put, "RDMA writes"),
        Verb::Get => (caps.get, "RDMA reads"),
        Verb::Atomic(_) => (caps.atomics, "atomics"),
    };
    if !has {
        return Err(RmaErrorKind::NotSupported { what });
    }
    if len == 0 {
        return Err(RmaErrorKind::Empty);
    }
    if len > MAX_LEN {
        return Err(RmaErrorKind::TooLong { len, max: MAX_LEN });
    }
    if matches!(verb, Verb::Atomic(_)) && !remote.addr.is_multiple_of(8) {
        return Err(RmaErrorKind::Misaligned { addr: remote.addr });
    }
    remote.slice(0, len).ok_or(RmaErrorKind::OutOfRange { len, room: remote.len })
}
