//! Lanes that fail and come back: what the engine holds until the peer has acknowledged it, what becomes of that when a
//! connection is lost, and what is sent again on the next. The counts are those of [`recover`](crate::recover).
use super::io::{Cause, Io, Lane};
use super::rma::Lost;
use super::{Engine, Event, SendBuf};
use crate::endpoint::{Class, Endpoint, Link, State};
use crate::error::{ConnectFault, FaultKind};
use crate::frag::Fifo;
use crate::names::{LaneId, Nanos, PeerId, Role};
use crate::port::{Cm, CmRequest, LaneUp, Port};
use crate::recover::{Held, Loss, Rejoin, Resume, Stream, merge};
use crate::setup::Agreed;
use crate::wire::{Header, Kind, RejectReason};

/// The part of a lane that recovery needs. Not used where it is off.
#[derive(Debug, Default)]
pub(super) struct Rec {
    /// Both sides recover.
    pub(super) on: bool,
    pub(super) stream: Stream,
    pub(super) held: Held,
    /// Messages that the header looked at last acknowledged.
    pub(super) news: u64,
    /// A fence of nobody's is under way, behind so many entries of the lane's `fences`.
    pub(super) asked: Option<u32>,
    /// A put is done here, and no message behind it will show that it is at the peer.
    pub(super) uncovered: bool,
    /// It is in [`Io::acks`].
    in_acks: bool,
    /// Since when acknowledgements are owed.
    owed_since: Nanos,
}

impl Rec {
    /// For a new connection of a class.
    fn new(class: &mut Class, role: Role, said: Resume) -> Rec {
        let saved = class.saved.get_or_insert_default();
        let mut stream = saved.stream.clone();
        let said = match role {
            Role::Initiator => said.delivered,
            // The answer is written when it is posted.
            Role::Acceptor => stream.delivered(),
        };
        stream.connected(said);
        Rec { on: true, stream, ..Rec::default() }
    }
}

impl<S> Lane<S> {
    /// A message of the upper layer was posted with `acks` in its header.
    #[inline]
    pub(super) fn data_posted(&mut self, acks: u16) {
        self.rec.stream.posted();
        self.rec.uncovered = false;
        self.told(acks);
    }

    /// A message or control message of this lane was posted with `acks` in its header.
    #[inline]
    pub(super) fn told(&mut self, acks: u16) {
        self.rec.stream.told(acks);
        if self.rec.stream.owed() == 0 {
            self.due.set_ack(false);
        }
    }

    /// What a header means where both sides recover. `false`: a message that was delivered before.
    #[inline]
    pub(super) fn count(&mut self, header: Header) -> Result<bool, crate::error::ProtocolFault> {
        self.rec.stream.acknowledged(header.acks)?;
        self.rec.news += u64::from(header.acks);
        Ok(header.kind != Kind::Data || self.rec.stream.arrived())
    }

    /// Whether a peer that said goodbye may send this: it acknowledges what is still on its way to it.
    pub(super) fn may_follow_bye(&self, kind: Kind) -> bool {
        self.rec.on && matches!(kind, Kind::Ack | Kind::FenceAck)
    }
}

impl<P: Port> Io<P> {
    /// Says that the peer has messages, oldest first: those held by the lane.
    #[inline]
    pub(super) fn acknowledged(&mut self, lane: &mut Lane<P::Slot>, peer: PeerId) {
        for _ in 0..std::mem::take(&mut lane.rec.news) {
            if let Some(i) = lane.rec.held.acknowledged(&mut self.frags) {
                self.is_over(i, peer);
            }
        }
        if !lane.fences.is_empty() {
            self.puts_acknowledged(lane);
        }
    }

    /// A message is at the peer.
    #[inline]
    fn is_over(&mut self, i: u32, peer: PeerId) {
        let Some(frag) = self.frags.remove(i) else { return };
        let (class, len, max) = (frag.class, frag.len, frag.max);
        let buf = frag.slot.map(|slot| SendBuf { slot, class, len, max });
        self.events.push_back(Event::Sent { peer, cookie: frag.cookie, buf, result: Ok(()) });
    }

    /// The device is done with message `i`. `true`: the peer has it already, so nothing is held.
    #[inline]
    pub(super) fn holds_not(&mut self, lane: &mut Lane<P::Slot>, i: u32) -> bool {
        #[cfg(feature = "sabotage")]
        if self.sabotage.acked_too_early {
            return true;
        }
        lane.rec.held.done(&mut self.frags, i)
    }

    /// A message that came is to be acknowledged, soon. `true`: nothing was, so nobody looks at the time yet.
    #[inline]
    pub(super) fn owe_ack(&mut self, lane: &mut Lane<P::Slot>, now: Nanos) -> bool {
        if lane.rec.stream.owed() == 1 {
            lane.rec.owed_since = now;
        }
        if lane.rec.in_acks {
            return false;
        }
        lane.rec.in_acks = true;
        self.acks.push_back((now, lane.id));
        self.acks.len() == 1
    }

    /// A message that was delivered before is dropped, and acknowledged. As [`owe_ack`](Self::owe_ack).
    #[cold]
    pub(super) fn came_again(
        &mut self,
        lane: &mut Lane<P::Slot>,
        pending: &mut Fifo,
        slot: P::Slot,
        now: Nanos,
    ) -> bool {
        lane.stats.duplicates += 1;
        let first = self.owe_ack(lane, now);
        self.repost(lane, pending, slot);
        self.pump(lane, pending);
        first
    }

    /// Puts that a message behind them, or a fence, has shown to be at the peer.
    #[cold]
    #[inline(never)]
    fn puts_acknowledged(&mut self, lane: &mut Lane<P::Slot>) {
        while lane.rec.asked != Some(0)
            && let Some(i) = lane.fences.front()
            && self.put_is_behind(i, lane.rec.stream.acked())
        {
            self.frags.pop(&mut lane.fences);
            lane.rec.asked = lane.rec.asked.map(|n| n.saturating_sub(1));
            self.end_op_later(i, Ok(()));
        }
    }

    /// A put is done here, but who knows where the bytes are: it waits for a word of the peer.
    pub(super) fn hold_put(&mut self, lane: &mut Lane<P::Slot>, i: u32) {
        if self.put_is_behind(i, lane.rec.stream.acked()) && lane.fences.is_empty() {
            self.end_op_later(i, Ok(()));
            return;
        }
        if !self.put_is_behind(i, lane.rec.stream.sent()) {
            lane.rec.uncovered = true;
            lane.due.set_ask(true);
        }
        self.frags.push(&mut lane.fences, i);
    }

    /// Asks the peer whether the puts are there, for nobody but ourselves.
    pub(super) fn ask_for_puts(&mut self, lane: &mut Lane<P::Slot>) {
        if !lane.rec.uncovered {
            lane.due.set_ask(false);
            return;
        }
        // One question at a time, about as many puts as possible.
        if lane.rec.asked.is_some() || lane.rma_posted > 0 {
            return;
        }
        if self.post_control(lane, Kind::Fence).is_some() {
            lane.rec.asked = Some(lane.fences.len());
            lane.rec.uncovered = false;
            lane.due.set_ask(false);
        }
    }

    /// An answer to a fence: ours, or one of the upper layer, and the puts before it. `false`: nobody asked.
    pub(super) fn fence_answered_recovering(&mut self, lane: &mut Lane<P::Slot>) -> bool {
        let asked = self.fence_reached(lane);
        // Those behind it may have been acknowledged meanwhile.
        self.puts_acknowledged(lane);
        asked
    }

    fn fence_reached(&mut self, lane: &mut Lane<P::Slot>) -> bool {
        loop {
            if lane.rec.asked == Some(0) {
                lane.rec.asked = None;
                return true;
            }
            let Some(i) = self.frags.pop(&mut lane.fences) else { return false };
            lane.rec.asked = lane.rec.asked.map(|n| n - 1);
            let fence = self.is_fence(i);
            self.end_op_later(i, Ok(()));
            if fence {
                return true;
            }
        }
    }

    /// Everything on the lists of a closed lane goes to its `failed`, held messages first.
    pub(super) fn gather(&mut self, lane: &mut Lane<P::Slot>) {
        let mut over = Fifo::default();
        let mut failed = std::mem::take(&mut lane.failed);
        lane.failed = lane.rec.held.take(&mut self.frags, &mut failed, &mut over);
        // What the peer has, and was not reported yet, is as good as lost now.
        self.frags.append(&mut over, &mut lane.failed);
        lane.failed = over;
        self.frags.append(&mut lane.failed, &mut lane.rma);
        self.frags.append(&mut lane.failed, &mut lane.fences);
    }

    /// What a closed lane had under way and may be sent again, in order. What the peer has acknowledged is said to be
    /// over; atomics end, for nobody knows whether they were made. `Err`: the device has not let go of everything.
    fn collect(&mut self, lane: &mut Lane<P::Slot>, peer: PeerId) -> (Fifo, bool) {
        let mut whole = true;
        let (mut messages, mut ops) = (Fifo::default(), std::mem::take(&mut lane.fences));
        let mut failed = std::mem::take(&mut lane.failed);
        while let Some(i) = self.frags.pop(&mut failed) {
            let one_sided = self.frags.get_mut(i).is_some_and(|frag| frag.one_sided);
            self.frags.push(if one_sided { &mut ops } else { &mut messages }, i);
        }
        self.frags.append(&mut ops, &mut lane.rma);
        let mut over = Fifo::default();
        let mut messages = lane.rec.held.take(&mut self.frags, &mut messages, &mut over);
        while let Some(i) = self.frags.pop(&mut over) {
            self.is_over(i, peer);
        }
        let mut again = Fifo::default();
        while let Some(i) = self.frags.pop(&mut ops) {
            match self.op_lost(i) {
                Lost::Again => self.frags.push(&mut again, i),
                Lost::Unknown => self.end_op_later(i, Err(FaultKind::AtomicUnknown)),
                Lost::Kept => {
                    whole = false;
                    self.frags.push(&mut again, i);
                }
            }
        }
        let acked = lane.rec.stream.acked();
        let ops = &self.ops;
        let all = merge(&mut self.frags, acked, &mut messages, &mut again, |table, i| {
            ops.before(table.get_mut(i).map_or(usize::MAX, |frag| frag.addr))
        });
        whole &= !self.frags.any(&all, |frag| frag.slot.is_none() && !frag.one_sided);
        (all, whole)
    }

    /// The peer has said what it has: that is over, and the rest goes to the head of the class's queue.
    #[cold]
    fn send_again(&mut self, lane: &mut Lane<P::Slot>, class: &mut Class, peer: PeerId) {
        let Some(saved) = class.saved.as_mut() else { return };
        let mut news = std::mem::take(&mut lane.rec.news);
        let acked = lane.rec.stream.acked();
        #[cfg(feature = "sabotage")]
        let acked = self.sabotage.believe(&mut news, acked);
        let (mut all, mut again) = (std::mem::take(&mut saved.open), Fifo::default());
        let mut open = all.len();
        lane.stats.retransmitted += u64::from(open);
        // What was to be sent again on a connection that was lost before that may be at the peer all the same.
        self.frags.append(&mut all, &mut class.pending);
        while (open > 0 || news > 0)
            && let Some(i) = self.frags.pop(&mut all)
        {
            let one_sided = self.frags.get_mut(i).is_some_and(|frag| frag.one_sided);
            let over = match one_sided {
                true => self.put_is_behind(i, acked) || self.fence_is_behind(i, acked),
                false => news > 0,
            };
            let counted = u64::from(over && open > 0);
            lane.stats.retransmitted = lane.stats.retransmitted.saturating_sub(counted);
            self.queued = self.queued.saturating_sub(u32::from(over));
            open = open.saturating_sub(1);
            match (over, one_sided) {
                (true, true) => self.end_op_later(i, Ok(())),
                (true, false) => {
                    news -= 1;
                    self.is_over(i, peer);
                }
                (false, _) => self.frags.push(&mut again, i),
            }
        }
        self.frags.append(&mut again, &mut all);
        class.pending = again;
    }
}

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// Whether the lanes of a peer are made anew when they fail: both sides must have
    /// [`Config::recover`](crate::Config::recover). `None`: it is not connected.
    pub fn recovers(&self, peer: PeerId) -> Option<bool> {
        let entry = self.peers.get(peer.index()).filter(|p| p.generation == peer.generation)?;
        let class = entry.endpoint.as_ref()?.classes.first()?;
        match class.link {
            Link::Up(id) => self.lane(id).map(|lane| lane.rec.on),
            _ => class.is_recovering().then_some(true),
        }
    }

    /// For a new connection.
    pub(super) fn new_rec(&mut self, peer: PeerId, class: u8, role: Role, agreed: Agreed) -> Rec {
        let on = self.config.recover.is_some() && agreed.recover;
        let lanes = self.lanes.len();
        self.io.acks.reserve(if on { lanes } else { 0 });
        match self.class_mut(peer, class).filter(|_| on) {
            Some(class) => Rec::new(class, role, agreed.resume),
            None => Rec::default(),
        }
    }

    /// The same connection, unless something would be lost on it: what is to be sent again, when the peer does not
    /// recover any more.
    pub(super) fn loses_nothing(
        &mut self,
        peer: PeerId,
        up: LaneUp<P::Qp>,
    ) -> Option<LaneUp<P::Qp>> {
        let (class, conn) = (up.class, up.conn);
        let on = self.config.recover.is_some() && up.lane.agreed.recover;
        if on || !self.class_mut(peer, class).is_some_and(|class| class.is_recovering()) {
            return Some(up);
        }
        // The queue pair goes first: nothing arrives on it any more.
        drop(up);
        self.cm.request(CmRequest::Disconnect { conn });
        let fault = ConnectFault::BadAnswer(RejectReason::Limits);
        let kind = self.not_recovered(peer.index, class, fault);
        self.fail_peer(peer.index, kind);
        None
    }

    /// What to say with the wish for a lane.
    pub(super) fn rejoin(&self, index: u32, class: u8) -> Rejoin {
        let endpoint = self.peers.get(index as usize).and_then(|entry| entry.endpoint.as_ref());
        let saved = endpoint.and_then(|e| e.classes.get(usize::from(class))?.saved.as_deref());
        let Some(saved) = saved else {
            return Rejoin { resume: Stream::default().resume(), ..Rejoin::default() };
        };
        let mut rejoin = Rejoin { resume: saved.stream.resume(), lost: None, after: None };
        if let (Some(loss), Some(config)) = (&saved.loss, self.config.recover) {
            rejoin.lost = loss.theirs;
            rejoin.after = Some(config.pause(saved.tries.saturating_sub(1)));
        }
        rejoin
    }

    /// A lane is over and closed. `Some`: it is not to be made anew, and its end means what it means without recovery.
    pub(super) fn recover(
        &mut self,
        index: u32,
        mut lane: Lane<P::Slot>,
        cause: Cause,
    ) -> Option<(Lane<P::Slot>, Cause)> {
        let class = lane.class;
        let (now, recovery) = (self.now, self.config.recover.unwrap_or_default());
        let endpoint = self.peers.get_mut(index as usize).and_then(|e| e.endpoint.as_mut());
        let Some(endpoint) = endpoint else { return Some((lane, cause)) };
        let (peer, announced) = (endpoint.id, endpoint.announced);
        let open_state = !matches!(endpoint.state, State::Failed(_));
        let Some(c) = endpoint.classes.get_mut(usize::from(class)) else {
            return Some((lane, cause));
        };
        let saved = c.saved.get_or_insert_default();
        saved.stream = lane.rec.stream.clone();
        if lane.bye.heard {
            saved.stream.parted();
        }
        let nothing_open = saved.stream.open() == 0
            && saved.open.is_empty()
            && lane.rma.is_empty()
            && lane.fences.is_empty()
            && lane.failed.is_empty();
        let parted = lane.bye.heard && nothing_open && (lane.bye.posted || c.pending.is_empty());
        let wanted = !c.pending.is_empty();
        let begun = lane.used || wanted || !nothing_open || !saved.stream.resume().fresh;
        let passing = matches!(cause, Cause::Disconnected | Cause::Error(_));
        if !open_state || parted || !begun || !passing {
            return Some((lane, cause));
        }
        let kind = match cause {
            Cause::Error(error) => FaultKind::Lane { class, error },
            _ => FaultKind::Disconnected { class },
        };
        let tries = saved.lost(now, nothing_open && c.pending.is_empty(), recovery.backoff_max);
        let since = saved.since;
        let cause = match saved.loss.take() {
            // What happened first, of a chain of losses.
            Some(loss) if tries > 0 => loss.cause,
            _ => kind.clone(),
        };
        let theirs = (lane.role == Role::Acceptor).then_some(lane.hello.generation);
        saved.loss = Some(Loss { cause: cause.clone(), theirs, asked: false, by: None });
        let whole = self.keep_open(&mut lane, peer);
        let over = now.saturating_sub(since) > recovery.t_recover || tries >= recovery.attempts;
        if over || !whole {
            let last = match whole {
                true => kind.to_string(),
                false => "the device did not let go of its buffers".to_owned(),
            };
            let kind = FaultKind::NotRecovered { cause: Box::new(cause), tries, last };
            self.fail_peer_with(index, kind, None);
            return None;
        }
        self.ask_again(index, class, announced);
        None
    }

    /// Keeps what a closed lane had under way. `false`: the device has not let go of everything.
    fn keep_open(&mut self, lane: &mut Lane<P::Slot>, peer: PeerId) -> bool {
        let class = lane.class;
        let Some(c) = self.class_mut(peer, class) else { return false };
        let mut pending = std::mem::take(&mut c.pending);
        // Of a connection on which the peer had not said yet what it has, all is there still.
        let before = c.saved.as_mut().map(|saved| std::mem::take(&mut saved.open));
        let whole = self.io.reset_head(&mut pending);
        let (mut open, all) = self.io.collect(lane, peer);
        self.io.queued += open.len();
        self.io.frags.append(&mut open, &mut before.unwrap_or_default());
        if let Some(c) = self.class_mut(peer, class) {
            c.pending = pending;
            c.saved.get_or_insert_default().open = open;
        }
        whole && all
    }

    /// Asks for the lane, or waits for the peer to dial.
    fn ask_again(&mut self, index: u32, class: u8, announced: bool) {
        let rejoin = self.rejoin(index, class);
        let endpoint = self.peers.get_mut(index as usize).and_then(|e| e.endpoint.as_mut());
        let Some(endpoint) = endpoint else { return };
        let name = endpoint.name;
        let Some(c) = endpoint.classes.get_mut(usize::from(class)) else { return };
        if c.link == Link::Idle {
            c.link = Link::Connecting;
            self.connecting += 1;
        }
        if let Some(loss) = c.saved.as_mut().and_then(|saved| saved.loss.as_mut()) {
            loss.asked = announced;
        }
        if announced {
            self.cm.request(CmRequest::Connect { name, class, rejoin });
        } else {
            self.arm_timers();
        }
    }

    /// The address of a peer became known that is to be connected again.
    pub(super) fn recover_announced(&mut self, index: u32) {
        for class in 0..self.config.lanes.len() as u8 {
            let endpoint = self.peers.get(index as usize).and_then(|e| e.endpoint.as_ref());
            let c = endpoint.and_then(|endpoint| endpoint.classes.get(usize::from(class)));
            let saved = c.and_then(|c| c.saved.as_ref());
            if saved.and_then(|saved| saved.loss.as_ref()).is_some_and(|loss| !loss.asked) {
                self.ask_again(index, class, true);
            }
        }
    }

    /// The peer's Hello, or its answer, was heard: what it has is over, the rest is sent again.
    pub(super) fn rejoined(&mut self, id: LaneId) {
        let now = self.now;
        let Some(entry) = self.lanes.get_mut(id.index()) else { return };
        let Some(lane) = entry.lane.as_mut().filter(|lane| lane.rec.on) else { return };
        let endpoint = self.peers.get_mut(lane.peer as usize).and_then(|e| e.endpoint.as_mut());
        let Some(Endpoint { id: peer, classes, .. }) = endpoint else { return };
        let Some(class) = classes.get_mut(usize::from(lane.class)) else { return };
        let Some(saved) = class.saved.as_mut() else { return };
        saved.joined_at = Some(now);
        if saved.loss.take().is_some() {
            lane.stats.recoveries += 1;
        }
        self.io.send_again(lane, class, *peer);
    }

    /// What to report when a lane that is wanted cannot be had: why it is wanted again, if that is so.
    pub(super) fn not_recovered(&self, index: u32, class: u8, fault: ConnectFault) -> FaultKind {
        let endpoint = self.peers.get(index as usize).and_then(|entry| entry.endpoint.as_ref());
        let saved = endpoint.and_then(|e| e.classes.get(usize::from(class))?.saved.as_ref());
        match saved.and_then(|saved| Some((saved.tries, saved.loss.as_ref()?))) {
            Some((tries, loss)) => FaultKind::NotRecovered {
                cause: Box::new(loss.cause.clone()),
                tries: tries.saturating_sub(1),
                last: fault.to_string(),
            },
            None => FaultKind::Connect(fault),
        }
    }

    /// Peers that had to dial again and did not; when to look again.
    pub(super) fn recovery_timers(&mut self, now: Nanos) -> Nanos {
        let Some(recovery) = self.config.recover else { return Nanos::MAX };
        let mut next = Nanos::MAX;
        for index in 0..self.peers.len() as u32 {
            let entry = self.peers.get_mut(index as usize);
            let Some(endpoint) = entry.and_then(|entry| entry.endpoint.as_mut()) else { continue };
            let waits = endpoint.classes.iter_mut().filter_map(|c| c.saved.as_mut()?.loss.as_mut());
            let mut over = None;
            for loss in waits.filter(|loss| !loss.asked) {
                let by = *loss.by.get_or_insert(now.saturating_add(recovery.t_recover));
                if now >= by {
                    over = Some(loss.cause.clone());
                } else {
                    next = next.min(by);
                }
            }
            if let Some(cause) = over {
                let last = "it did not connect again, and its address is not known".to_owned();
                let kind = FaultKind::NotRecovered { cause: Box::new(cause), tries: 0, last };
                self.fail_peer_with(index, kind, None);
            }
        }
        next
    }

    /// Sends acknowledgements that have waited long enough for a message to ride on; when to look again.
    pub(super) fn ack_timers(&mut self, now: Nanos) -> Nanos {
        let t_ack = self.config.recover.map_or(0, |recovery| recovery.t_ack);
        #[cfg(feature = "sabotage")]
        if self.config.sabotage.no_tail_acks {
            return Nanos::MAX;
        }
        while let Some((since, id)) = self.io.acks.front().copied() {
            if now < since.saturating_add(t_ack) {
                return since.saturating_add(t_ack);
            }
            self.io.acks.pop_front();
            let Some((lane, endpoint, io)) = self.parts(id) else { continue };
            lane.rec.in_acks = false;
            if lane.rec.stream.owed() == 0 || lane.dead.is_some() {
                continue;
            }
            if now < lane.rec.owed_since.saturating_add(t_ack) {
                lane.rec.in_acks = true;
                let entry = (lane.rec.owed_since, id);
                io.acks.push_back(entry);
                continue;
            }
            lane.due.set_ack(true);
            if let Some(class) = endpoint.classes.get_mut(usize::from(lane.class)) {
                io.pump(lane, &mut class.pending);
            }
        }
        Nanos::MAX
    }

    /// An acknowledgement is owed: its time is to be looked at.
    #[inline]
    pub(super) fn arm_acks(&mut self, first: bool) {
        if first
            && let (Some((since, _)), Some(recovery)) = (self.io.acks.front(), self.config.recover)
        {
            self.next_timer = self.next_timer.min(since.saturating_add(recovery.t_ack));
        }
    }
}
