//! How peers and lanes come and go.
use super::io::{Bye, Cause, Due, First, Lane};
use super::{Closing, Engine, Event, LaneEntry, SendBuf};
use crate::config::MAX_LANES;
use crate::endpoint::{EARLY_ENDS, Endpoint, Link, State};
use crate::error::{ConnectFault, Error, FaultKind, PeerFault};
use crate::frag::{Fifo, Frag};
use crate::names::{LaneId, Nanos, PeerId, ProcName, Role, SECOND};
use crate::port::{Cm, CmEvent, CmRequest, LaneUp, Port, SetupQp};
use crate::stats::Stats;
use crate::wire::{HelloInfo, RejectReason};

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// The peer of that name, made if there is none.
    pub(super) fn peer_named(&mut self, name: ProcName) -> Result<PeerId, Error> {
        if let Some(entry) = self.names.get(&name).and_then(|i| self.peers.get(*i as usize))
            && let Some(endpoint) = &entry.endpoint
        {
            return Ok(endpoint.id);
        }
        let index = self.free_entry()?;
        let limit = self.config.max_peers;
        let Some(entry) = self.peers.get_mut(index as usize) else {
            return Err(Error::TooManyPeers { limit });
        };
        let id = PeerId { index, generation: entry.generation };
        entry.endpoint = Some(Endpoint::new(id, name, self.config.lanes.len()));
        self.names.insert(name, index);
        Ok(id)
    }

    /// A peer was added that may have been here before: it is not closing, nor unknown.
    pub(super) fn known_now(&mut self, peer: PeerId) {
        let Some(endpoint) = self.endpoint_mut(peer) else { return };
        if endpoint.is_closing() {
            endpoint.state = State::Open;
        }
        endpoint.announced = true;
        for id in lanes_of(endpoint).into_iter().flatten() {
            if let Some((lane, ..)) = self.parts(id) {
                lane.first = First::NoLimit;
            }
        }
    }

    pub(super) fn endpoint_at(&mut self, index: u32) -> Option<&mut Endpoint> {
        self.peers.get_mut(index as usize)?.endpoint.as_mut()
    }

    /// Asks for the lane that a waiting message needs: lane 0 first, then its own.
    pub(super) fn connect(&mut self, index: u32, class: u8) {
        let Some(endpoint) = self.endpoint_at(index) else { return };
        let zero_up = endpoint.classes.first().is_some_and(|c| matches!(c.link, Link::Up(_)));
        let class = if zero_up { class } else { 0 };
        let name = endpoint.name;
        // Nobody knows where to dial yet, but the peer is there: it is added later, or it dials.
        let wait = !endpoint.announced && !endpoint.has_no_lane();
        let Some(wanted) = endpoint.classes.get_mut(usize::from(class)) else { return };
        if wanted.link == Link::Idle && !wait {
            wanted.link = Link::Connecting;
            self.connecting += 1;
            let rejoin = self.rejoin(index, class);
            self.cm.request(CmRequest::Connect { name, class, rejoin });
        }
    }

    /// The same for every class of a peer on which messages wait.
    pub(super) fn connect_waiting(&mut self, index: u32) {
        let Some(endpoint) = self.endpoint_at(index) else { return };
        let n = endpoint.classes.len() as u8;
        for class in 0..n {
            let Some(endpoint) = self.endpoint_at(index) else { return };
            let Some(c) = endpoint.classes.get(usize::from(class)) else { return };
            if c.link == Link::Idle && !c.pending.is_empty() {
                self.connect(index, class);
            }
        }
    }

    pub(super) fn on_cm(&mut self, event: CmEvent<P::Qp>) {
        match event {
            CmEvent::LaneUp(up) => self.lane_up(up),
            CmEvent::ConnectFailed { name, class, fault } => {
                self.connect_failed(name, class, fault);
            }
            CmEvent::Disconnected { conn } => {
                let Some(id) = self.conns.get(&conn).copied() else { return };
                let Some((lane, _, io)) = self.parts(id) else { return };
                io.kill(lane, Cause::Disconnected);
            }
            CmEvent::DeviceRemoved => {
                for index in 0..self.peers.len() as u32 {
                    self.fail_peer(index, FaultKind::DeviceRemoved);
                }
            }
            CmEvent::Stopped => self.cm_stopped(),
        }
    }

    fn cm_stopped(&mut self) {
        if let Closing::Cm { .. } = self.closing {
            self.closing = Closing::Done;
            self.io.events.push_back(Event::Closed);
            return;
        }
        for index in 0..self.peers.len() as u32 {
            let Some(endpoint) = self.endpoint_at(index) else { continue };
            if endpoint.classes.iter().any(|class| class.link == Link::Connecting) {
                self.fail_peer(index, FaultKind::Connect(ConnectFault::Stopped));
            }
        }
    }

    fn connect_failed(&mut self, name: ProcName, class: u8, fault: ConnectFault) {
        let Some(index) = self.names.get(&name).copied() else { return };
        let Some(endpoint) = self.endpoint_at(index) else { return };
        let link = endpoint.classes.get(usize::from(class)).map(|class| class.link);
        if link == Some(Link::Connecting) {
            let kind = self.not_recovered(index, class, fault);
            self.fail_peer(index, kind);
        }
    }

    fn lane_up(&mut self, up: LaneUp<P::Qp>) {
        let mirror = self.is_for_mirror(&up);
        self.end_replaced(up.name, up.class, mirror);
        let known = self.names.contains_key(&up.name);
        // One that was announced and is not known was removed meanwhile.
        let refuse = !known && (up.announced || self.closing != Closing::No);
        let peer = match refuse {
            true => Err(Error::Closing),
            false if mirror => self.mirror_peer(),
            false => self.peer_named(up.name),
        };
        let usable = peer.ok().filter(|peer| {
            let Some(endpoint) = self.endpoint_mut(*peer) else { return false };
            match endpoint.state {
                State::Open => usize::from(up.class) < endpoint.classes.len(),
                // What waits may be for another lane, which comes after this one.
                State::Closing(_) => endpoint.waiting() > 0 || endpoint.is_recovering(),
                State::Failed(_) => false,
            }
        });
        let Some(peer) = usable else {
            let conn = up.conn;
            // The queue pair goes first: nothing arrives on it any more.
            drop(up);
            self.cm.request(CmRequest::Disconnect { conn });
            return;
        };
        if !known {
            self.io.events.push_back(Event::NewPeer { peer, name: up.name });
        }
        if self.agrees(peer, up.class, up.lane.agreed.peer_buffer_size) {
            if let Some(up) = self.loses_nothing(peer, up) {
                self.adopt(peer, up);
            }
            return;
        }
        let conn = up.conn;
        drop(up);
        self.cm.request(CmRequest::Disconnect { conn });
        let fault = ConnectFault::BadAnswer(RejectReason::Limits);
        self.fail_peer(peer.index, FaultKind::Connect(fault));
    }

    /// The connection manager has one connection per lane: when there is a newer one, the older
    /// is gone. Its end may be the end of the peer too, so this comes before all else.
    fn end_replaced(&mut self, name: ProcName, class: u8, mirror: bool) {
        let named = self.names.get(&name).copied();
        let Some(index) = (if mirror { self.mirror } else { named }) else { return };
        let Some(endpoint) = self.endpoint_at(index) else { return };
        let link = endpoint.classes.get(usize::from(class)).map(|c| c.link);
        if let Some(Link::Up(old)) = link {
            self.kill(old, Cause::Disconnected);
            self.settle(old);
        }
    }

    /// Makes a lane of a connection.
    fn adopt(&mut self, peer: PeerId, up: LaneUp<P::Qp>) {
        let LaneUp { class, role, announced, conn, lane: up, .. } = up;
        let id = self.lane_id();
        let reads = up.qp.max_reads();
        if let Err(error) = self.io.port.attach(id, up.qp) {
            self.free_lanes.push(id.index);
            if let Some(slot) = up.ctl {
                self.io.port.recycle(slot);
            }
            self.cm.request(CmRequest::Disconnect { conn });
            self.fail_peer(peer.index, FaultKind::Lane { class, error });
            return;
        }
        let ctl_frag = self.control_frag(up.hello_addr.unwrap_or(0), class);
        let mut acct = up.acct;
        acct.set_id(id);
        acct.set_reads(reads);
        let rec = self.new_rec(peer, class, role, up.agreed);
        let mut lane = Lane {
            acct,
            id,
            peer: peer.index,
            peer_id: self.endpoint_mut(peer).map_or(peer, |endpoint| endpoint.id),
            class,
            room: self.room_of(peer, class),
            role,
            conn,
            hello: HelloInfo { class, generation: up.agreed.generation },
            inflight: Fifo::default(),
            failed: Fifo::default(),
            ctl: up.ctl,
            ctl_frag,
            heard: false,
            used: false,
            due: Due::default(),
            rma: Fifo::default(),
            rma_posted: 0,
            fences: Fifo::default(),
            bye: Bye::default(),
            rec,
            unposted: Vec::new(),
            in_retry: false,
            first: First::NoLimit,
            dead: None,
            elsewhere: up.agreed.first_lane.filter(|_| class > 0),
            in_elsewhere: false,
            stats: Stats { lanes_up: 1, ..Stats::default() },
            #[cfg(feature = "sabotage")]
            lawless: self.config.sabotage.acceptor_sends_at_once,
            #[cfg(feature = "sabotage")]
            stray: 0,
        };
        #[cfg(feature = "sabotage")]
        if self.config.sabotage.hello_on_lane_0_only && class > 0 {
            lane.heard = true;
        }
        if up.hello_addr.is_some() {
            self.io.frags.push(&mut lane.inflight, ctl_frag);
        }
        if role == Role::Acceptor && !announced {
            lane.first = First::NotArmed;
            self.arm_timers();
        }
        self.io.elsewhere.reserve(usize::from(lane.elsewhere.is_some()));
        self.conns.insert(conn, id);
        if let Some(entry) = self.lanes.get_mut(id.index()) {
            entry.lane = Some(lane);
        }
        self.link_up(peer, class, id);
    }

    fn link_up(&mut self, peer: PeerId, class: u8, id: LaneId) {
        if class == 0 {
            if self.hints.len() <= peer.index() {
                self.hints.resize(peer.index() + 1, u32::MAX);
            }
            if let Some(hint) = self.hints.get_mut(peer.index()) {
                *hint = id.index;
            }
        }
        let Some(endpoint) = self.endpoint_mut(peer) else { return };
        let closing = endpoint.is_closing();
        let Some(c) = endpoint.classes.get_mut(usize::from(class)) else { return };
        let was = std::mem::replace(&mut c.link, Link::Up(id));
        if was == Link::Connecting {
            self.connecting = self.connecting.saturating_sub(1);
        }
        if let Some((lane, endpoint, io)) = self.parts(id)
            && let Some(c) = endpoint.classes.get_mut(usize::from(class))
        {
            lane.bye.wanted = closing;
            io.pump(lane, &mut c.pending);
        }
        self.connect_waiting(peer.index);
    }

    fn lane_id(&mut self) -> LaneId {
        let index = self.free_lanes.pop().unwrap_or_else(|| {
            self.lanes.push(LaneEntry { generation: 1, lane: None });
            self.lanes.len() as u32 - 1
        });
        let generation = self.lanes.get(index as usize).map_or(0, |entry| entry.generation);
        LaneId { index, generation }
    }

    /// An entry of the message table that stands for the lane's control message.
    fn control_frag(&mut self, addr: usize, class: u8) -> u32 {
        let mut frag =
            Frag { slot: None, addr, cookie: 0, len: 0, max: 0, tag: 0, class, one_sided: false };
        // One for every send buffer and one-sided operation, and one for every lane.
        let lanes = (self.lanes.len() - self.free_lanes.len()) as u32;
        if self.io.frags.size() < self.config.message_entries() + lanes {
            self.io.frags.grow(1);
        }
        loop {
            match self.io.frags.insert(frag) {
                Ok(i) => return i,
                Err(again) => {
                    frag = again;
                    self.io.frags.grow(1);
                }
            }
        }
    }

    fn kill(&mut self, id: LaneId, cause: Cause) {
        if let Some((lane, _, io)) = self.parts(id) {
            io.kill(lane, cause);
        }
    }

    /// Closes all lanes that are over.
    pub(super) fn settle_all(&mut self) {
        while let Some(id) = self.io.hangups.pop() {
            self.settle(id);
        }
    }

    /// Closes a lane that is over, and decides what that means for its peer.
    pub(super) fn settle(&mut self, id: LaneId) {
        let Some((index, class)) = self.lane(id).map(|lane| (lane.peer, lane.class)) else {
            return;
        };
        let Some(mut lane) = self.take_lane(id) else { return };
        let mut cause = lane.dead.take().unwrap_or(Cause::Disconnected);
        if lane.rec.on {
            match self.recover(index, lane, cause) {
                Some(over) => (lane, cause) = over,
                None => return,
            }
        }
        self.io.gather(&mut lane);
        let lost = lane.failed.len();
        // Nothing but greetings went over it: nothing is lost. Such are also the dials that the peer did not want any
        // more when we accepted them.
        let early = !lane.used && matches!(cause, Cause::Disconnected | Cause::Error(_));
        let Some(endpoint) = self.endpoint_at(index) else { return };
        let Some(c) = endpoint.classes.get_mut(usize::from(class)) else { return };
        c.early_ends = c.early_ends.saturating_add(u8::from(early));
        let (ends, waiting) = (c.early_ends, lost + c.pending.len());
        // With recovery, what waits for this lane was seen to above: nothing does.
        let patient = lane.rec.on || ends < EARLY_ENDS || endpoint.waiting() == 0;
        let retry = early && patient;
        let removed = endpoint.is_closing();
        let said_bye = lane.bye.heard && (lost == 0) && (lane.bye.posted || waiting == 0);
        if self.is_mirror(index) {
            self.mirror_lane_over(index, lane);
            return;
        }
        let kind = match cause {
            Cause::Protocol(fault) => FaultKind::Protocol(fault),
            _ if removed || retry || said_bye => {
                self.end_messages(index, lane, removed.then_some(FaultKind::Removed));
                if removed {
                    self.finish_peer_if_done(index);
                } else {
                    self.connect_waiting(index);
                }
                return;
            }
            _ if lane.bye.heard => FaultKind::Closed { waiting },
            Cause::Error(error) => FaultKind::Lane { class, error },
            Cause::NoHello => FaultKind::NoHello { seconds: self.config.t_first / SECOND },
            Cause::Disconnected | Cause::Finished => FaultKind::Disconnected { class },
        };
        self.fail_peer_with(index, kind, Some(lane));
    }

    /// Takes a lane out of all tables and destroys its queue pair. Its messages are on its lists,
    /// each with its buffer if the device let it go.
    pub(super) fn take_lane(&mut self, id: LaneId) -> Option<Lane<P::Slot>> {
        let entry = self.lanes.get_mut(id.index())?;
        if entry.generation != id.generation {
            return None;
        }
        let mut lane = entry.lane.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free_lanes.push(id.index);
        self.conns.remove(&lane.conn);
        let io = &mut self.io;
        lane.stats.lanes_closed += 1;
        for slot in io.port.close(id) {
            let owner = io.frags.find(&lane.inflight, slot.as_ptr().addr());
            match owner.filter(|i| *i != lane.ctl_frag).and_then(|i| io.frags.get_mut(i)) {
                Some(frag) if frag.slot.is_none() => frag.slot = Some(slot),
                _ => io.port.recycle(slot),
            }
        }
        io.take_all_memory(id);
        for slot in lane.ctl.take().into_iter().chain(std::mem::take(&mut lane.unposted)) {
            io.port.recycle(slot);
        }
        let mut inflight = std::mem::take(&mut lane.inflight);
        while let Some(i) = io.frags.pop(&mut inflight) {
            if i != lane.ctl_frag {
                io.frags.push(&mut lane.failed, i);
            }
        }
        io.frags.remove(lane.ctl_frag);
        self.cm.request(CmRequest::Disconnect { conn: lane.conn });
        let endpoint = self.peers.get_mut(lane.peer as usize)?.endpoint.as_mut()?;
        endpoint.stats += std::mem::take(&mut lane.stats);
        let class = endpoint.classes.get_mut(usize::from(lane.class))?;
        if class.link == Link::Up(id) {
            class.link = Link::Idle;
        }
        Some(lane)
    }

    /// Completes the messages of a closed lane upward, and with `fault` those that wait too.
    pub(super) fn end_messages(
        &mut self,
        index: u32,
        mut lane: Lane<P::Slot>,
        fault: Option<FaultKind>,
    ) {
        let kind = fault.clone().unwrap_or(FaultKind::Removed);
        self.fail_list(index, &mut lane.failed, &kind);
        if let Some(kind) = fault {
            self.fail_pending(index, lane.class, &kind);
        }
    }

    fn fail_pending(&mut self, index: u32, class: u8, kind: &FaultKind) {
        let Some(endpoint) = self.endpoint_at(index) else { return };
        let Some(c) = endpoint.classes.get_mut(usize::from(class)) else { return };
        let mut waiting = std::mem::take(&mut c.pending);
        // What may be at the peer was sent first.
        let mut pending = c.saved.take().map_or_else(Fifo::default, |saved| saved.open);
        self.io.frags.append(&mut pending, &mut waiting);
        self.io.queued = self.io.queued.saturating_sub(pending.len());
        self.fail_list(index, &mut pending, kind);
    }

    fn fail_list(&mut self, index: u32, list: &mut Fifo, kind: &FaultKind) {
        let Some(endpoint) = self.peers.get(index as usize).and_then(|e| e.endpoint.as_ref())
        else {
            return;
        };
        while let Some(i) = self.io.frags.pop(list) {
            if self.io.frags.get_mut(i).is_some_and(|frag| frag.one_sided) {
                self.io.end_op_later(i, Err(kind.clone()));
                continue;
            }
            let Some(frag) = self.io.frags.remove(i) else { continue };
            let (class, len) = (frag.class, frag.len);
            let max = self.config.max_payload(class) as u32;
            self.io.events.push_back(Event::Sent {
                peer: endpoint.id,
                cookie: frag.cookie,
                buf: frag.slot.map(|slot| SendBuf { slot, class, len, max }),
                result: Err(PeerFault { peer: endpoint.name, kind: kind.clone() }),
            });
        }
    }

    pub(super) fn fail_peer(&mut self, index: u32, kind: FaultKind) {
        self.fail_peer_with(index, kind, None);
    }

    /// A peer failed: all its lanes are closed, all its messages completed with the fault, and it
    /// is reported, once. A peer that is being closed just ends.
    pub(super) fn fail_peer_with(
        &mut self,
        index: u32,
        kind: FaultKind,
        ended: Option<Lane<P::Slot>>,
    ) {
        let Some(endpoint) = self.endpoint_at(index) else { return };
        if matches!(endpoint.state, State::Failed(_)) {
            return;
        }
        if self.is_mirror(index) {
            self.end_all(index, &kind);
            self.finish_peer_if_done(index);
            return;
        }
        let Some(endpoint) = self.endpoint_at(index) else { return };
        let (id, name, closing) = (endpoint.id, endpoint.name, endpoint.is_closing());
        let fault = PeerFault { peer: name, kind: kind.clone() };
        if let Some(lane) = ended {
            self.end_messages(index, lane, Some(kind.clone()));
        }
        self.end_all(index, &kind);
        self.mirror_fails_too(name);
        if closing {
            self.finish_peer_if_done(index);
            return;
        }
        let Some(endpoint) = self.endpoint_at(index) else { return };
        endpoint.state = State::Failed(fault.clone());
        endpoint.stats.peers_failed += 1;
        self.cm.request(CmRequest::Forget { name });
        self.io.events.push_back(Event::PeerFailed { peer: id, fault });
    }

    /// Ends all lanes and messages of a peer.
    fn end_all(&mut self, index: u32, kind: &FaultKind) {
        for class in 0..self.config.lanes.len() as u8 {
            let Some(endpoint) = self.endpoint_at(index) else { return };
            let Some(c) = endpoint.classes.get_mut(usize::from(class)) else { return };
            match c.link {
                Link::Up(id) => {
                    if let Some(mut lane) = self.take_lane(id) {
                        self.io.gather(&mut lane);
                        self.fail_list(index, &mut lane.failed, kind);
                    }
                }
                Link::Connecting => {
                    c.link = Link::Idle;
                    self.connecting = self.connecting.saturating_sub(1);
                }
                Link::Idle => {}
            }
            self.fail_pending(index, class, kind);
        }
    }

    /// Starts the orderly close of a peer.
    pub(super) fn close_peer(&mut self, peer: PeerId) {
        let Some(endpoint) = self.endpoint_mut(peer) else { return };
        match endpoint.state {
            State::Failed(_) => {
                self.free_peer(peer.index);
                return;
            }
            State::Closing(_) => return,
            State::Open => endpoint.state = State::Closing(None),
        }
        for id in lanes_of(endpoint).into_iter().flatten() {
            let Some((lane, endpoint, io)) = self.parts(id) else { continue };
            let Some(class) = endpoint.classes.get_mut(usize::from(lane.class)) else { continue };
            lane.bye.wanted = true;
            io.pump(lane, &mut class.pending);
        }
        self.arm_timers();
        self.finish_peer_if_done(peer.index);
    }

    /// Forgets a peer that is being closed, once it has no lane and nothing waits.
    pub(super) fn finish_peer_if_done(&mut self, index: u32) {
        let Some(endpoint) = self.endpoint_at(index) else { return };
        if endpoint.is_closing()
            && endpoint.has_no_lane()
            && endpoint.waiting() == 0
            && !endpoint.is_recovering()
        {
            let name = endpoint.name;
            let connecting = endpoint.classes.iter().filter(|c| c.link == Link::Connecting);
            let connecting = connecting.count() as u32;
            self.connecting = self.connecting.saturating_sub(connecting);
            if !self.is_mirror(index) {
                self.cm.request(CmRequest::Forget { name });
            }
            self.free_peer(index);
        }
    }

    fn free_peer(&mut self, index: u32) {
        let Some(entry) = self.peers.get_mut(index as usize) else { return };
        let Some(endpoint) = entry.endpoint.take() else { return };
        entry.generation = entry.generation.wrapping_add(1);
        self.io.stats += endpoint.stats;
        self.free_peers.push(index);
        if self.is_mirror(index) {
            self.mirror = None;
        } else {
            self.names.remove(&endpoint.name);
            if endpoint.name == self.config.me {
                self.close_mirror();
            }
        }
        self.stop_cm_if_done();
    }

    pub(super) fn close_all(&mut self) {
        if self.closing != Closing::No {
            return;
        }
        self.closing = Closing::Peers;
        for index in 0..self.peers.len() as u32 {
            if let Some(id) = self.endpoint_at(index).map(|endpoint| endpoint.id) {
                self.close_peer(id);
            }
        }
        self.stop_cm_if_done();
    }

    fn stop_cm_if_done(&mut self) {
        if self.closing == Closing::Peers && self.names.is_empty() && self.mirror.is_none() {
            let deadline = self.now.saturating_add(self.config.t_close);
            self.closing = Closing::Cm { deadline };
            self.look_at(deadline);
            self.cm.request(CmRequest::Stop);
        }
    }

    /// Something has a deadline that is not set yet: that is done once the clock has moved. A
    /// coarse clock may still show the time before the application's last long computation, and a
    /// deadline counted from there would be over before it began.
    pub(super) fn arm_timers(&mut self) {
        self.look_at(self.now.saturating_add(1));
    }

    fn look_at(&mut self, at: Nanos) {
        self.next_scan = self.next_scan.min(at);
        self.next_timer = self.next_timer.min(at);
    }

    /// Looks at everything that has a deadline.
    pub(super) fn run_timers(&mut self, now: Nanos) {
        let acks = self.ack_timers(now);
        if now < self.next_scan {
            self.next_timer = acks.min(self.next_scan);
            return;
        }
        self.next_scan = Nanos::MAX;
        let mut next = self.recovery_timers(now);
        let t_close = self.config.t_close;
        for index in 0..self.peers.len() as u32 {
            let Some(endpoint) = self.endpoint_at(index) else { continue };
            let State::Closing(by) = &mut endpoint.state else { continue };
            let by = *by.get_or_insert(now.saturating_add(t_close));
            if now >= by {
                self.end_all(index, &FaultKind::Removed);
                self.finish_peer_if_done(index);
            } else {
                next = next.min(by);
            }
        }
        for i in 0..self.lanes.len() {
            let Some(lane) = self.lanes.get_mut(i).and_then(|l| l.lane.as_mut()) else { continue };
            let by = match lane.first {
                First::NoLimit => continue,
                First::NotArmed => now.saturating_add(self.config.t_first),
                First::By(by) => by,
            };
            lane.first = First::By(by);
            if now >= by {
                lane.first = First::NoLimit;
                self.io.kill(lane, Cause::NoHello);
            } else {
                next = next.min(by);
            }
        }
        if let Closing::Cm { deadline } = self.closing {
            if now >= deadline {
                self.closing = Closing::Done;
                self.io.events.push_back(Event::Closed);
            } else {
                next = next.min(deadline);
            }
        }
        // Those that ended above may have set one of their own.
        self.next_scan = self.next_scan.min(next);
        self.next_timer = acks.min(self.next_scan);
    }

    /// Tries again what the device refused; whether anything went.
    pub(super) fn retry_all(&mut self) -> bool {
        let mut went = false;
        for _ in 0..self.io.retry.len() {
            if self.io.retry.is_empty() {
                break;
            }
            let id = self.io.retry.remove(0);
            let Some((lane, endpoint, io)) = self.parts(id) else { continue };
            let Some(class) = endpoint.classes.get_mut(usize::from(lane.class)) else { continue };
            io.retry(lane, &mut class.pending);
            went |= !lane.in_retry;
        }
        went
    }
}

/// The lanes of a peer that are up.
pub(super) fn lanes_of(endpoint: &Endpoint) -> [Option<LaneId>; MAX_LANES] {
    let mut lanes = [None; MAX_LANES];
    for (to, class) in lanes.iter_mut().zip(&endpoint.classes) {
        if let Link::Up(id) = class.link {
            *to = Some(id);
        }
    }
    lanes
}
