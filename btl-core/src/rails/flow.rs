//! Frames out and in: what goes over which rail, and what becomes of what arrives.
use super::error::RailsProtocolFault as Fault;
use super::event::{RailsEvent, Received, payload};
use super::frame::{Head, Kind, SHORT, expand};
use super::incoming::Accepted;
use super::link::{MAX_ACKS, Speed, State, choose};
use super::outgoing::Next;
use super::{Entry, Rails, peer_in};
use crate::engine::{Event, PortEvent, RecvBuf};
use crate::names::{Nanos, PeerId};
use crate::port::{Cm, Port};

/// Cookie of an acknowledgement; that of a piece is its length.
pub(super) const ACK: u64 = u64::MAX;
/// Pieces that are not acknowledged, after which an acknowledgement goes at once.
const ACK_EVERY: u32 = 64;

/// What became of a piece.
enum Given {
    Yes,
    /// No rail has room; one that finishes something makes it.
    Full,
    /// No send buffer is free: other peers have them.
    NoBuffer,
}

impl<P: Port, C: Cm<Qp = P::Qp>> Entry<P, C> {
    pub(super) fn owner(&self, id: PeerId) -> Option<u32> {
        let owner = self.owners.get(id.index()).copied().flatten();
        owner.filter(|(of, _)| *of == id).map(|(_, index)| index)
    }

    fn speed(&self) -> Speed {
        Speed { bandwidth: self.rail.bandwidth, latency: self.rail.latency }
    }
}

impl<P: Port, C: Cm<Qp = P::Qp>> Rails<P, C> {
    pub(super) fn on_event(&mut self, rail: usize, event: PortEvent<P>) {
        match event {
            Event::Message { peer, tag, buf } => self.on_frame(rail, peer, tag, buf),
            Event::Sent { peer, cookie, buf, .. } => {
                if let Some(buf) = buf
                    && let Some(entry) = self.rails.get_mut(rail)
                {
                    entry.rail.engine.free(buf);
                }
                self.finished(rail, peer, cookie);
            }
            Event::Done { cookie, memory, result, .. } => self.part_done(cookie, memory, result),
            Event::Fenced { cookie, result, .. } => self.part_fenced(cookie, result),
            Event::NewPeer { peer, name } => self.met(rail, peer, name, false),
            Event::PeerConnected { peer, name } => self.met(rail, peer, name, true),
            Event::PeerFailed { peer, fault } => self.rail_failed(rail, peer, fault),
            Event::Closed => self.rail_closed(rail),
        }
    }

    /// A rail has finished a frame.
    fn finished(&mut self, rail: usize, id: PeerId, cookie: u64) {
        let Some(index) = self.rails.get(rail).and_then(|entry| entry.owner(id)) else { return };
        let Some(peer) = self.peer_at(index) else { return };
        let Some(link) = peer.links.get_mut(rail) else { return };
        link.moved();
        if cookie == ACK {
            link.acks = link.acks.saturating_sub(1);
        } else {
            link.bytes = link.bytes.saturating_sub(cookie);
            link.pieces = link.pieces.saturating_sub(1);
        }
        self.pump(index);
    }

    /// Gives rails what they have room for.
    pub(super) fn pump(&mut self, index: u32) {
        let now = self.now;
        loop {
            let piece = self.piece;
            let Some(peer) = self.peer_at(index).filter(|peer| peer.is_active()) else { return };
            let Some(next) = peer.out.next(piece) else { break };
            match self.give(index, &next, now) {
                Given::Yes => {}
                Given::Full => break,
                Given::NoBuffer => {
                    let Some(peer) = self.peer_at(index) else { return };
                    if !std::mem::replace(&mut peer.in_work, true) {
                        self.work.push(index);
                    }
                    break;
                }
            }
        }
        self.open_rails(index);
    }

    fn give(&mut self, index: u32, next: &Next, now: Nanos) -> Given {
        let Some(peer) = peer_in(&mut self.peers, index) else {
            return Given::Full;
        };
        let len = next.len as usize;
        let speeds = self.rails.iter().map(Entry::speed);
        let Some(at) = choose(&peer.links, speeds, len as u64) else { return Given::Full };
        let (Some(link), Some(entry)) = (peer.links.get_mut(at), self.rails.get_mut(at)) else {
            return Given::Full;
        };
        let Some(id) = link.id else { return Given::Full };
        let whole = next.offset == 0 && u64::from(next.len) == next.total;
        let kind = match whole {
            true => Kind::Whole,
            false => Kind::Piece { total: next.total, offset: next.offset },
        };
        let (seq, message) = (next.seq as u32, next.message as u32);
        let ack = peer.inc.acknowledged() as u32;
        let head = Head { kind, rail: at as u8, epoch: self.config.epoch, seq, ack, message };
        let engine = &mut entry.rail.engine;
        let Ok(mut buf) = engine.alloc(head.len() + len) else { return Given::NoBuffer };
        let fits = head.put(&mut buf);
        if let (Some(()), Some(to)) = (fits, buf.get_mut(head.len()..)) {
            to.copy_from_slice(peer.out.bytes(next));
        }
        match engine.send(id, next.tag, buf, len as u64) {
            Ok(_) => {
                link.bytes += len as u64;
                link.pieces += 1;
                peer.out.sent(next, at as u8, now);
                peer.told();
                self.stats.pieces += 1;
                Given::Yes
            }
            Err(error) => {
                engine.free(error.buf);
                match error.kind {
                    crate::error::SendErrorKind::Busy => Given::NoBuffer,
                    // The rail has failed; the next try takes another, and an event says why.
                    _ => {
                        link.state = State::Ending;
                        Given::Yes
                    }
                }
            }
        }
    }

    /// A frame of a peer.
    fn on_frame(&mut self, rail: usize, id: PeerId, tag: u8, buf: RecvBuf<P::Slot>) {
        let owner = self.rails.get(rail).and_then(|entry| entry.owner(id));
        // What a rail that was dropped still brings is not acknowledged, so it comes over another.
        let Some(index) = owner else { return self.drop_buffer(rail, buf) };
        self.heard(rail, index);
        let fault = match self.read(rail, index, tag, &buf) {
            Ok(Accepted::Deliver) => {
                let Some(id) = self.peer_at(index).map(|peer| peer.id) else {
                    return self.drop_buffer(rail, buf);
                };
                let data = Received::whole(rail, buf);
                self.stats.delivered += 1;
                self.events.push_back(RailsEvent::Message { peer: id, tag, data });
                None
            }
            Ok(Accepted::Kept | Accepted::Duplicate) => {
                self.drop_buffer(rail, buf);
                None
            }
            Err(fault) => {
                self.drop_buffer(rail, buf);
                Some(fault)
            }
        };
        match fault {
            Some(fault) => self.broke_protocol(index, fault),
            None => self.settle(index),
        }
    }

    fn drop_buffer(&mut self, rail: usize, buf: RecvBuf<P::Slot>) {
        if let Some(entry) = self.rails.get_mut(rail) {
            entry.rail.engine.release(buf);
        }
    }

    /// The peer is alive, and this rail works.
    fn heard(&mut self, rail: usize, index: u32) {
        let now = self.now;
        let Some(peer) = self.peer_at(index) else { return };
        peer.heard = (now, rail);
        for (at, link) in peer.links.iter_mut().enumerate() {
            if at == rail {
                link.moved();
            } else if link.is_up() && link.pieces > 0 {
                link.suspect = link.suspect.or(Some(now));
            }
        }
    }

    /// Takes in a frame; `Deliver`: its payload is a message.
    fn read(&mut self, rail: usize, index: u32, tag: u8, frame: &[u8]) -> Result<Accepted, Fault> {
        let (now, limits) = (self.now, self.limits);
        let Some(peer) = peer_in(&mut self.peers, index) else {
            return Ok(Accepted::Duplicate);
        };
        let head = Head::get(frame).ok_or(Fault::Header { arrived: frame.len() })?;
        if usize::from(head.rail) != rail {
            return Err(Fault::Number { theirs: head.rail.into(), ours: rail });
        }
        let was = *peer.epoch.get_or_insert(head.epoch);
        if was != head.epoch {
            return Err(Fault::Restarted { was, is: head.epoch });
        }
        let acked = peer.out.acked();
        // An old one may be a little behind.
        if let Some(n) = expand(acked, head.ack) {
            // Of one that gave up, and may have forgotten what it had, nothing is expected.
            let sound = peer.out.acknowledge(n, now).is_some() || head.kind == Kind::Bye;
            sound.then_some(()).ok_or(Fault::Acknowledged)?;
        }
        match head.kind {
            Kind::Ack => return Ok(Accepted::Kept),
            Kind::Bye => {
                self.left(index);
                return Ok(Accepted::Kept);
            }
            Kind::Whole | Kind::Piece { .. } => {}
        }
        if !peer.is_active() {
            return Ok(Accepted::Duplicate);
        }
        let accepted = peer.inc.accept(&head, tag, payload(frame), limits)?;
        if peer.owed == 0 {
            peer.owed_since = now;
        }
        peer.owed += 1;
        if accepted == Accepted::Duplicate {
            // The acknowledgement was lost: the peer waits for it.
            peer.urgent = true;
            self.stats.duplicates += 1;
        }
        if !std::mem::replace(&mut peer.in_owing, true) {
            self.owing.push(index);
        }
        Ok(accepted)
    }

    /// Delivers what is complete, reports what is acknowledged, and sends what there is room for now.
    fn settle(&mut self, index: u32) {
        let Some(peer) = peer_in(&mut self.peers, index) else {
            return;
        };
        let id = peer.id;
        while let Some((tag, data)) = peer.inc.ready() {
            let data = Received::copied(data);
            self.stats.delivered += 1;
            self.stats.reassembled += 1;
            self.events.push_back(RailsEvent::Message { peer: id, tag, data });
        }
        while let Some(done) = peer.out.done() {
            let (cookie, data, result) = (done.cookie, done.data, Ok(()));
            self.events.push_back(RailsEvent::Sent { peer: id, cookie, data, result });
        }
        self.pump(index);
        self.finish_peer(index, false);
    }

    /// Nothing came: time for what can wait. `true`: something happened that an engine or the caller should see.
    pub(super) fn idle(&mut self) -> bool {
        for index in std::mem::take(&mut self.work) {
            if let Some(peer) = self.peer_at(index) {
                peer.in_work = false;
            }
            self.pump(index);
        }
        self.retry_fences();
        if !self.owing.is_empty() {
            self.pay();
        }
        if self.now >= self.next_timer {
            self.run_timers();
        }
        !self.events.is_empty()
    }

    /// Sends the acknowledgements that are due.
    pub(super) fn pay(&mut self) {
        let mut owing = std::mem::take(&mut self.owing);
        owing.retain(|index| !self.pay_one(*index));
        self.owing.append(&mut owing);
    }

    /// `true`: nothing is owed any more.
    fn pay_one(&mut self, index: u32) -> bool {
        let (now, t_ack) = (self.now, self.config.t_ack);
        let Some(peer) = self.peer_at(index) else { return true };
        if peer.owed == 0 || !peer.is_active() {
            peer.in_owing = false;
            return true;
        }
        let due =
            peer.urgent || peer.owed >= ACK_EVERY || now >= peer.owed_since.saturating_add(t_ack);
        if !due || !self.control(index, Kind::Ack) {
            return false;
        }
        let Some(peer) = self.peer_at(index) else { return true };
        peer.told();
        peer.in_owing = false;
        true
    }

    /// Sends a frame without payload over the rail on which the peer was heard last, or another. `false`: not now.
    pub(super) fn control(&mut self, index: u32, kind: Kind) -> bool {
        let Some(peer) = peer_in(&mut self.peers, index) else {
            return false;
        };
        let usable = |at: &usize| {
            peer.links.get(*at).is_some_and(|link| link.is_up() && link.acks < MAX_ACKS)
        };
        let last = Some(peer.heard.1).filter(usable);
        let Some(at) = last.or_else(|| (0..peer.links.len()).find(usable)) else { return false };
        let (ack, epoch) = (peer.inc.acknowledged() as u32, self.config.epoch);
        let head = Head { kind, rail: at as u8, epoch, seq: 0, ack, message: 0 };
        let (Some(link), Some(entry)) = (peer.links.get_mut(at), self.rails.get_mut(at)) else {
            return false;
        };
        let (Some(id), engine) = (link.id, &mut entry.rail.engine) else { return false };
        let Ok(mut buf) = engine.alloc(SHORT) else { return false };
        let _ = head.put(&mut buf);
        match engine.send(id, 0, buf, ACK) {
            Ok(_) => {
                link.acks += 1;
                self.stats.acks_alone += u64::from(kind == Kind::Ack);
                true
            }
            Err(error) => {
                engine.free(error.buf);
                if error.kind != crate::error::SendErrorKind::Busy {
                    link.state = State::Ending;
                }
                false
            }
        }
    }

    /// Starts to connect a rail: whether the engine has begun.
    pub(super) fn knock(&mut self, index: u32, at: usize) -> bool {
        let epoch = self.config.epoch;
        let Some(peer) = peer_in(&mut self.peers, index) else {
            return false;
        };
        let ack = peer.inc.acknowledged() as u32;
        let (Some(link), Some(entry)) = (peer.links.get_mut(at), self.rails.get_mut(at)) else {
            return false;
        };
        let (Some(id), engine) = (link.id, &mut entry.rail.engine) else { return false };
        let Ok(mut buf) = engine.alloc(SHORT) else { return false };
        let head = Head { kind: Kind::Ack, rail: at as u8, epoch, seq: 0, ack, message: 0 };
        let _ = head.put(&mut buf);
        match engine.try_send(id, 0, buf, ACK) {
            Ok(()) => link.acks += 1,
            Err(error) => engine.free(error.buf),
        }
        true
    }
}
