//! What the port completes.
use super::io::{Bye, Cause, First, Io, Lane};
use super::{Engine, Event, PortEvent, RecvBuf, SendBuf};
use crate::error::ProtocolFault;
use crate::frag::Fifo;
use crate::names::{LaneId, Role};
use crate::port::{Cm, Completion, Op, Port, Status};
use crate::wire::{HEADER, Header, Kind, LaneCredit};

/// What a received message means for the engine.
enum Verdict {
    /// For the upper layer.
    Deliver(Header),
    /// A control message: its buffer is posted again at once.
    Control,
    /// The lane works in both directions now.
    Heard,
    /// A fence was answered: otherwise a control message.
    Fenced,
    /// Credits of another lane.
    Elsewhere(LaneCredit),
    /// A message that was delivered before the connection was lost.
    Again,
}

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    pub(super) fn complete(&mut self, done: Completion<P::Slot>) -> Option<PortEvent<P>> {
        #[cfg(feature = "sabotage")]
        let done = self.taken_for_another(done);
        let entry = self.lanes.get_mut(done.lane.index());
        let entry = entry.filter(|entry| entry.generation == done.lane.generation());
        if entry.and_then(|entry| entry.lane.as_mut()).is_none() {
            self.io.stats.stale_completions += 1;
            if let Some(slot) = done.slot {
                self.io.port.recycle(slot);
            }
            if done.op == Op::OneSided {
                drop(self.io.port.take_memory(done.lane));
            }
            return None;
        }
        match (done.op, done.status) {
            (Op::Send, Status::Ok) => self.sent(done.lane, done.slot),
            (Op::Recv, Status::Ok) => self.received(done.lane, done.slot?, done.len),
            (Op::OneSided, Status::Ok) => self.rma_completed(done.lane),
            (op, Status::Flushed) => self.broken(done.lane, op, done.slot, Cause::Disconnected),
            (op, Status::Error(error)) => {
                self.broken(done.lane, op, done.slot, Cause::Error(error))
            }
        }
    }

    fn sent(&mut self, id: LaneId, slot: Option<P::Slot>) -> Option<PortEvent<P>> {
        let (lane, endpoint, io) = self.parts(id)?;
        let Some(i) = io.frags.pop(&mut lane.inflight) else {
            // More completions than posts: not ours.
            io.stats.stale_completions += 1;
            if let Some(slot) = slot {
                io.port.recycle(slot);
            }
            return None;
        };
        lane.acct.send_done();
        let pending = &mut endpoint.classes.get_mut(usize::from(lane.class))?.pending;
        if i == lane.ctl_frag {
            lane.ctl = slot;
            lane.bye.done = lane.bye.posted;
            io.pump(lane, pending);
            if lane.is_finished() {
                io.kill(lane, Cause::Finished);
            }
            #[cfg(feature = "sabotage")]
            self.stray_credits_of_peer(id);
            return None;
        }
        if lane.rec.on && !io.holds_not(lane, i) {
            if let Some(frag) = io.frags.get_mut(i) {
                frag.slot = slot;
            }
            io.pump(lane, pending);
            return None;
        }
        let frag = io.frags.remove(i)?;
        io.pump(lane, pending);
        let (peer, class, len, max) = (endpoint.id, frag.class, frag.len, frag.max);
        let buf = slot.map(|slot| SendBuf { slot, class, len, max });
        Some(Event::Sent { peer, cookie: frag.cookie, buf, result: Ok(()) })
    }

    /// A post that failed. The lane is over, but what arrived on it before is still looked at.
    #[cold]
    fn broken(
        &mut self,
        id: LaneId,
        op: Op,
        slot: Option<P::Slot>,
        cause: Cause,
    ) -> Option<PortEvent<P>> {
        if op == Op::OneSided {
            self.rma_broken(id, cause);
            return None;
        }
        let (lane, _, io) = self.parts(id)?;
        #[cfg(feature = "sabotage")]
        let slot = slot.filter(|_| op == Op::Recv || !io.sabotage.flush_lost);
        io.kill(lane, cause);
        let failed = (op == Op::Send).then(|| io.frags.pop(&mut lane.inflight)).flatten();
        match failed {
            Some(i) if i == lane.ctl_frag => lane.ctl = slot,
            Some(i) => {
                if let Some(frag) = io.frags.get_mut(i) {
                    frag.slot = slot;
                }
                io.frags.push(&mut lane.failed, i);
            }
            None => {
                if let Some(slot) = slot {
                    io.port.recycle(slot);
                }
            }
        }
        None
    }

    fn received(&mut self, id: LaneId, slot: P::Slot, len: usize) -> Option<PortEvent<P>> {
        #[cfg(feature = "sabotage")]
        self.take_stray_credits(id, &slot);
        let now = self.now;
        let entry = self.lanes.get_mut(id.index()).filter(|e| e.generation == id.generation)?;
        let lane = entry.lane.as_mut()?;
        let endpoint = self.peers.get_mut(lane.peer as usize)?.endpoint.as_mut()?;
        let io = &mut self.io;
        #[cfg(feature = "sabotage")]
        let len = io.sabotage.heard(&mut lane.acct, slot.len(), len);
        let verdict = match judge(lane, &slot, len) {
            Ok(verdict) => verdict,
            Err(fault) => {
                io.port.recycle(slot);
                io.kill(lane, Cause::Protocol(fault));
                // Nothing of this peer is delivered any more.
                self.settle(id);
                return None;
            }
        };
        let news = lane.rec.news > 0 && !matches!(verdict, Verdict::Heard);
        if news {
            io.acknowledged(lane, endpoint.id);
        }
        let pending = &mut endpoint.classes.get_mut(usize::from(lane.class))?.pending;
        match verdict {
            Verdict::Deliver(header) => {
                let first = lane.rec.on && io.owe_ack(lane, now);
                let buf = io.deliver(lane, pending, header, slot, news);
                let message = Event::Message { peer: endpoint.id, tag: header.tag, buf };
                self.arm_acks(first);
                Some(message)
            }
            Verdict::Again => {
                let first = io.came_again(lane, pending, slot, now);
                self.arm_acks(first);
                None
            }
            Verdict::Control => {
                // First the receive, so that its credit rides on what the pump sends.
                io.repost(lane, pending, slot);
                if lane.bye.heard && !lane.rec.on {
                    io.drop_fences(lane);
                }
                if io.may_pump_on_grant() {
                    io.pump(lane, pending);
                }
                if lane.is_finished() {
                    io.kill(lane, Cause::Finished);
                }
                None
            }
            Verdict::Fenced => {
                io.repost(lane, pending, slot);
                let event = self.fence_answered(id);
                let (lane, endpoint, io) = self.parts(id)?;
                io.pump(lane, &mut endpoint.classes.get_mut(usize::from(lane.class))?.pending);
                event
            }
            Verdict::Elsewhere(told) => {
                self.told_elsewhere(id, told, slot);
                None
            }
            Verdict::Heard => {
                io.repost(lane, pending, slot);
                self.greeted(id)
            }
        }
    }

    /// The first message on a lane was what it has to be.
    fn greeted(&mut self, id: LaneId) -> Option<PortEvent<P>> {
        self.rejoined(id);
        let (lane, endpoint, io) = self.parts(id)?;
        let class = endpoint.classes.get_mut(usize::from(lane.class))?;
        class.early_ends = 0;
        if io.may_pump_on_hello() {
            io.pump(lane, &mut class.pending);
        }
        if std::mem::replace(&mut endpoint.connected, true) {
            return None;
        }
        Some(Event::PeerConnected { peer: endpoint.id, name: endpoint.name })
    }

    /// Posts a received buffer again and returns its credit to the peer. A buffer of a lane that
    /// ended meanwhile goes back to the port.
    #[inline(always)]
    pub fn release(&mut self, buf: RecvBuf<P::Slot>) {
        let RecvBuf { slot, len, lane } = buf;
        if let Err(slot) = self.release_quick(lane, slot) {
            self.release_long(RecvBuf { slot, len, lane });
        }
    }

    /// [`release`](Engine::release) for everything.
    #[inline(never)]
    fn release_long(&mut self, buf: RecvBuf<P::Slot>) {
        let RecvBuf { slot, lane: id, .. } = buf;
        if self.lane(id).is_none() {
            self.io.port.recycle(slot);
            return;
        }
        let Some((lane, endpoint, io)) = self.parts(id) else { return };
        let Some(class) = endpoint.classes.get_mut(usize::from(lane.class)) else { return };
        io.repost(lane, &mut class.pending, slot);
        #[cfg(feature = "sabotage")]
        self.stray_credits(id);
        let Some((lane, endpoint, io)) = self.parts(id) else { return };
        let Some(class) = endpoint.classes.get_mut(usize::from(lane.class)) else { return };
        io.pump(lane, &mut class.pending);
    }
}

impl<P: Port> Io<P> {
    /// A message for the upper layer. `news`: it acknowledged some.
    #[inline]
    fn deliver(
        &mut self,
        lane: &mut Lane<P::Slot>,
        pending: &mut Fifo,
        header: Header,
        slot: P::Slot,
        news: bool,
    ) -> RecvBuf<P::Slot> {
        lane.used = true;
        lane.stats.messages_received += 1;
        lane.stats.bytes_received += u64::from(header.len);
        if (header.credits > 0 || (news && lane.bye.wanted)) && self.may_pump_on_grant() {
            self.pump(lane, pending);
        }
        RecvBuf { slot, len: header.len as usize, lane: lane.id }
    }
}

/// Checks a received message against the protocol, and takes its credits in.
#[inline]
fn judge<S>(lane: &mut Lane<S>, slot: &[u8], len: usize) -> Result<Verdict, ProtocolFault> {
    let header = Header::parse(slot, len)?;
    if let Bye { heard: true, .. } = lane.bye
        && !lane.may_follow_bye(header.kind)
    {
        return Err(ProtocolFault::AfterBye { got: name(header.kind) });
    }
    if !lane.heard && !lane.may_be_spoken_to(header.kind) {
        return hear(lane, slot, header);
    }
    lane.acct.grant(header.credits)?;
    if lane.rec.on && !lane.count(header)? {
        return Ok(Verdict::Again);
    }
    match header.kind {
        Kind::Data => Ok(Verdict::Deliver(header)),
        Kind::Credit => Ok(Verdict::Control),
        Kind::Bye => {
            lane.bye.heard = true;
            lane.bye.wanted = true;
            Ok(Verdict::Control)
        }
        Kind::Fence => {
            lane.due.add_fence();
            Ok(Verdict::Control)
        }
        Kind::FenceAck => Ok(Verdict::Fenced),
        Kind::Ack if lane.rec.on => Ok(Verdict::Control),
        Kind::LaneCredit if lane.class == 0 => {
            let payload = slot.get(HEADER..HEADER + header.len as usize).unwrap_or(&[]);
            Ok(Verdict::Elsewhere(LaneCredit::parse(payload)?))
        }
        #[cfg(feature = "sabotage")]
        Kind::StrayCredit => Ok(Verdict::Control),
        Kind::Hello | Kind::HelloAck | Kind::LaneCredit | Kind::Ack => {
            Err(ProtocolFault::Unexpected { got: name(header.kind) })
        }
    }
}

/// The first message on a lane: Hello at the acceptor, HelloAck at the initiator.
#[cold]
fn hear<S>(lane: &mut Lane<S>, slot: &[u8], header: Header) -> Result<Verdict, ProtocolFault> {
    let expected = match lane.role {
        Role::Acceptor => Kind::Hello,
        Role::Initiator => Kind::HelloAck,
    };
    if header.kind != expected {
        let (got, expected) = (name(header.kind), name(expected));
        return Err(ProtocolFault::BeforeHello { got, expected });
    }
    let payload = slot.get(HEADER..HEADER + header.len as usize).unwrap_or(&[]);
    let (proof, theirs) = lane.hello.check(payload)?;
    lane.acct.grant(header.credits)?;
    if lane.rec.on {
        lane.rec.news = lane.rec.stream.joined(theirs)?;
    }
    lane.acct.heard(&proof);
    lane.heard = true;
    lane.first = First::NoLimit;
    lane.due.set_hello_ack(lane.role == Role::Acceptor);
    Ok(Verdict::Heard)
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Hello => "Hello",
        Kind::HelloAck => "HelloAck",
        Kind::Data => "data",
        Kind::Credit => "credits",
        Kind::Bye => "Bye",
        Kind::Fence => "a fence",
        Kind::FenceAck => "an answer to a fence",
        Kind::LaneCredit => "credits for another lane",
        Kind::Ack => "acknowledgements",
        #[cfg(feature = "sabotage")]
        Kind::StrayCredit => "stray credits",
    }
}

/// Always so, but in sabotage builds.
#[cfg(not(feature = "sabotage"))]
impl<P: Port> Io<P> {
    #[inline]
    fn may_pump_on_grant(&self) -> bool {
        true
    }

    #[inline]
    fn may_pump_on_hello(&self) -> bool {
        true
    }
}

impl<S> Lane<S> {
    /// Whether something else than a Hello may come first: never, but in sabotage builds.
    #[cfg(not(feature = "sabotage"))]
    #[inline]
    fn may_be_spoken_to(&self, _kind: Kind) -> bool {
        false
    }
}
