//! How peers and their rails come and go.
use super::error::{RailFault, RailsFault, RailsFaultKind, RailsProtocolFault};
use super::event::RailsEvent;
use super::flow::ACK;
use super::frame::{Head, Kind, SHORT};
use super::link::{Link, State};
use super::peer::{Life, Peer};
use super::{Entry, Place, Rails, RailsPeer, peer_in};
use crate::error::{Error, FaultKind, PeerFault};
use crate::names::{Nanos, PeerId, ProcName};
use crate::port::{Cm, Port};
use std::net::SocketAddr;

/// How often the pause before a new try of a rail doubles.
const DOUBLINGS: u32 = 6;

impl<P: Port, C: Cm<Qp = P::Qp>> Entry<P, C> {
    /// Notes whose a peer of the engine is.
    fn own(&mut self, id: PeerId, index: u32) {
        if self.owners.len() <= id.index() {
            self.owners.resize(id.index() + 1, None);
        }
        if let Some(owner) = self.owners.get_mut(id.index()) {
            *owner = Some((id, index));
        }
    }

    /// Whether the engine is done with what it had with a peer before.
    fn is_free(&mut self, name: ProcName) -> bool {
        let engine = &self.rail.engine;
        if self.leaving.get(&name).is_some_and(|id| engine.peer_name(*id).is_none()) {
            self.leaving.remove(&name);
        }
        !self.leaving.contains_key(&name)
    }

    /// Tells a peer that nothing of it is taken any more.
    fn say_bye(&mut self, rail: usize, id: PeerId, epoch: u32, ack: u64) {
        let engine = &mut self.rail.engine;
        let Ok(mut buf) = engine.alloc(SHORT) else { return };
        let ack = ack as u32;
        let head = Head { kind: Kind::Bye, rail: rail as u8, epoch, seq: 0, ack, message: 0 };
        let _ = head.put(&mut buf);
        if let Err(error) = engine.send(id, 0, buf, ACK) {
            engine.free(error.buf);
        }
    }

    /// The engine closes its connections to a peer and forgets it.
    fn disown(&mut self, id: PeerId) {
        if let Some(owner) =
            self.owners.get_mut(id.index()).filter(|o| o.is_some_and(|o| o.0 == id))
        {
            *owner = None;
        }
        let engine = &mut self.rail.engine;
        engine.remove_peer(id);
        if let Some(name) = engine.peer_name(id) {
            self.leaving.insert(name, id);
        }
    }
}

impl<P: Port, C: Cm<Qp = P::Qp>> Rails<P, C> {
    /// The peer of that name, made if there is none.
    pub(super) fn peer_named(&mut self, name: ProcName) -> RailsPeer {
        if let Some(index) = self.names.get(&name).copied()
            && let Some(peer) = self.peer_at(index)
        {
            return peer.id;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.peers.push(Place { generation: 0, peer: None });
            self.peers.len() as u32 - 1
        });
        let rails = self.rails.len();
        let mut id = RailsPeer { index, generation: 0 };
        if let Some(place) = self.peers.get_mut(index as usize) {
            id.generation = place.generation;
            let mut peer = Peer::new(id, name, rails);
            #[cfg(feature = "sabotage")]
            {
                peer.inc.any_order = self.config.sabotage.any_order;
                peer.inc.no_dedup = self.config.sabotage.no_dedup;
            }
            peer.heard.0 = self.now;
            place.peer = Some(peer);
        }
        self.names.insert(name, index);
        id
    }

    /// Tells a rail's engine of a peer.
    pub(super) fn announce(
        &mut self,
        index: u32,
        rail: usize,
        name: ProcName,
        addrs: &[SocketAddr],
    ) -> Result<(), Error> {
        let Some(entry) = self.rails.get_mut(rail) else { return Ok(()) };
        if !entry.is_free(name) {
            if let Some(link) =
                peer_in(&mut self.peers, index).and_then(|it| it.links.get_mut(rail))
            {
                link.addrs = addrs.to_vec();
                if link.state == State::NoAddress {
                    link.state = State::Waiting;
                }
            }
            return Ok(());
        }
        let id = entry.rail.engine.add_peer(name, addrs)?;
        entry.own(id, index);
        let Some(peer) = self.peer_at(index) else { return Ok(()) };
        let Some(link) = peer.links.get_mut(rail) else { return Ok(()) };
        link.addrs = addrs.to_vec();
        link.id = Some(id);
        if !link.is_hope() || link.state == State::Waiting {
            link.state = State::Idle;
        }
        Ok(())
    }

    /// A peer is connected, or about to be, over a rail.
    pub(super) fn met(&mut self, rail: usize, id: PeerId, name: ProcName, works: bool) {
        let known = self.names.contains_key(&name);
        if self.closing.is_some() && !known {
            if let Some(entry) = self.rails.get_mut(rail) {
                entry.disown(id);
            }
            return;
        }
        let who = self.peer_named(name);
        let now = self.now;
        let Some(peer) = peer_in(&mut self.peers, who.index) else { return };
        let (refuse, ack) = (!peer.is_active(), peer.inc.acknowledged());
        let Some(link) = peer.links.get_mut(rail) else { return };
        let Some(entry) = self.rails.get_mut(rail) else { return };
        if refuse {
            // It may not know yet that it has failed here.
            entry.say_bye(rail, id, self.config.epoch, ack);
            entry.disown(id);
            return;
        }
        entry.own(id, who.index);
        if link.id != Some(id) {
            link.reset();
            link.id = Some(id);
            if !link.addrs.is_empty() {
                // It dialled while it was dropped here: the engine has forgotten where to dial it for more lanes. It is
                // known by that name, so this only adds the addresses.
                let _ = entry.rail.engine.add_peer(name, &link.addrs);
            }
        }
        let was_up = link.is_up();
        link.revived &= !works;
        link.state = if works || was_up { State::Up } else { State::Connecting(now) };
        link.worked |= works;
        if !known {
            self.events.push_back(RailsEvent::NewPeer { peer: who, name });
        }
        if works && !was_up {
            self.stats.rails_up += 1;
            self.events.push_back(RailsEvent::RailUp { peer: who, rail });
            self.pump(who.index);
        }
    }

    /// Connects rails to a peer to which something is to be sent: the best first, the next when that takes long, all when
    /// there is much.
    pub(super) fn open_rails(&mut self, index: u32) {
        let (now, patience) = (self.now, self.config.t_next_rail);
        let much = self.config.stripe_min;
        let Some(peer) = self.peer_at(index).filter(|peer| peer.is_active() && peer.has_work())
        else {
            return;
        };
        let all = peer.out.unsent() >= much;
        let recent = |link: &Link| match link.state {
            State::Connecting(since) => now < since.saturating_add(patience),
            State::Up => true,
            _ => false,
        };
        if !all && peer.links.iter().any(recent) {
            return;
        }
        let mut idle: Vec<usize> = (0..peer.links.len())
            .filter(|at| peer.links.get(*at).is_some_and(|link| link.state == State::Idle))
            .collect();
        let rails = &self.rails;
        idle.sort_by_key(|at| {
            rails.get(*at).map(|e| (e.rail.latency, u32::MAX - e.rail.bandwidth))
        });
        for at in idle {
            if !self.knock(index, at) {
                continue;
            }
            if let Some(link) = self.peer_at(index).and_then(|peer| peer.links.get_mut(at))
                && link.state == State::Idle
            {
                link.state = State::Connecting(now);
            }
            self.next_timer = self.next_timer.min(now.saturating_add(patience));
            if !all {
                return;
            }
        }
    }

    /// A rail's engine says that a peer failed.
    pub(super) fn rail_failed(&mut self, rail: usize, id: PeerId, fault: PeerFault) {
        let Some(entry) = self.rails.get_mut(rail) else { return };
        let Some(index) = entry.owner(id) else {
            entry.disown(id);
            return;
        };
        self.drop_rail(index, rail, RailFault::Failed(fault));
    }

    /// A rail to a peer is not used any more: what it had goes over the others.
    pub(super) fn drop_rail(&mut self, index: u32, rail: usize, fault: RailFault) {
        let (now, rejoin) = (self.now, self.config.t_rejoin);
        #[cfg(feature = "sabotage")]
        let forget = self.config.sabotage.no_resend;
        #[cfg(not(feature = "sabotage"))]
        let forget = false;
        let Some(peer) = self.peer_at(index) else { return };
        let (who, active) = (peer.id, peer.is_active());
        let Some(link) = peer.links.get_mut(rail) else { return };
        let id = link.id;
        link.reset();
        let gone = matches!(&fault, RailFault::Failed(f) if f.kind == FaultKind::DeviceRemoved);
        link.pause = link.pause.saturating_mul(2).clamp(rejoin, rejoin << DOUBLINGS);
        let again = if gone { Nanos::MAX } else { now.saturating_add(link.pause) };
        link.state = State::Down { fault: fault.clone(), again };
        let moved = if forget { 0 } else { peer.out.lost(rail as u8) };
        if peer.inc.acknowledged() > 0 {
            // An acknowledgement may have been lost with it.
            (peer.urgent, peer.owed) = (true, peer.owed.max(1));
            if !std::mem::replace(&mut peer.in_owing, true) {
                self.owing.push(index);
            }
        }
        if let (Some(id), Some(entry)) = (id, self.rails.get_mut(rail)) {
            entry.disown(id);
        }
        if !active {
            return;
        }
        self.stats.resent += u64::from(moved);
        self.stats.rails_down += 1;
        self.next_timer = self.next_timer.min(again);
        self.events.push_back(RailsEvent::RailDown { peer: who, rail, fault, moved });
        self.check_hope(index);
        self.pump(index);
    }

    /// A peer without any rail has failed, unless one that worked before works again.
    fn check_hope(&mut self, index: u32) {
        let labels = self.rails.iter().map(|entry| entry.rail.label.clone());
        let Some(peer) = self.peers.get(index as usize).and_then(|place| place.peer.as_ref())
        else {
            return;
        };
        if !peer.is_active() || peer.links.iter().any(Link::is_hope) {
            return;
        }
        let tried = peer.tried(labels);
        if !self.revive(index) {
            self.fail_peer(index, RailsFaultKind::NoRail { tried });
        }
    }

    /// Tries rails anew at once that have worked, each only once until it works again. `false`: there is none.
    fn revive(&mut self, index: u32) -> bool {
        let (now, limit) = (self.now, self.config.t_revive);
        let mut any = false;
        for rail in 0..self.rails.len() {
            let Some(peer) = peer_in(&mut self.peers, index) else { return any };
            let name = peer.name;
            let free = self.rails.get_mut(rail).is_some_and(|entry| entry.is_free(name));
            let Some(link) = peer.links.get_mut(rail).filter(|_| free) else { continue };
            let gone = matches!(link.state, State::Down { again: Nanos::MAX, .. });
            if limit == 0 || gone || !link.worked || link.revived || link.addrs.is_empty() {
                continue;
            }
            link.revived = true;
            let addrs = link.addrs.clone();
            if self.announce(index, rail, name, &addrs).is_err() {
                continue;
            }
            any = true;
            // If no buffer is free, the timer of the rail ends it.
            self.knock(index, rail);
            if let Some(link) = self.peer_at(index).and_then(|peer| peer.links.get_mut(rail)) {
                link.state = State::Connecting(now);
            }
        }
        any
    }

    /// The peer broke the protocol.
    pub(super) fn broke_protocol(&mut self, index: u32, fault: RailsProtocolFault) {
        self.fail_peer(index, RailsFaultKind::Protocol(fault));
    }

    /// The peer said goodbye.
    pub(super) fn left(&mut self, index: u32) {
        self.fail_peer(index, RailsFaultKind::Left);
    }

    /// A peer is over: its messages are reported, its rails closed.
    fn fail_peer(&mut self, index: u32, kind: RailsFaultKind) {
        let place = peer_in(&mut self.peers, index);
        let Some(peer) = place.filter(|peer| peer.is_active()) else { return };
        let (id, name) = (peer.id, peer.name);
        let closing = matches!(peer.life, Life::Closing(_));
        let fault = RailsFault { peer: name, kind };
        if let RailsFaultKind::Protocol(_) = fault.kind {
            let (epoch, ack) = (self.config.epoch, peer.inc.acknowledged());
            for (rail, (link, entry)) in peer.links.iter().zip(&mut self.rails).enumerate() {
                if let Some(id) = link.id.filter(|_| link.is_up()) {
                    entry.say_bye(rail, id, epoch, ack);
                }
            }
        }
        // What is acknowledged is not lost.
        let mut reports = Vec::new();
        while let Some(done) = peer.out.done() {
            reports.push((done, Ok(())));
        }
        reports.extend(peer.out.give_up().into_iter().map(|message| (message, Err(fault.clone()))));
        peer.life = Life::Failed(fault.clone());
        for (message, result) in reports {
            let (cookie, data) = (message.cookie, message.data);
            self.events.push_back(RailsEvent::Sent { peer: id, cookie, data, result });
        }
        self.close_links(index);
        match fault.kind {
            _ if closing => self.forget(index),
            RailsFaultKind::Left => self.events.push_back(RailsEvent::PeerLeft { peer: id }),
            _ => self.events.push_back(RailsEvent::PeerFailed { peer: id, fault }),
        }
    }

    /// The engines close their connections to a peer.
    fn close_links(&mut self, index: u32) {
        let Some(peer) = peer_in(&mut self.peers, index) else {
            return;
        };
        for (link, entry) in peer.links.iter_mut().zip(&mut self.rails) {
            if let Some(id) = link.id {
                entry.disown(id);
            }
            link.reset();
            if link.is_hope() {
                link.state = State::NoAddress;
            }
        }
    }

    /// Takes a peer out of all tables.
    pub(super) fn forget(&mut self, index: u32) {
        self.close_links(index);
        let Some(place) = self.peers.get_mut(index as usize) else { return };
        let Some(peer) = place.peer.take() else { return };
        place.generation = place.generation.wrapping_add(1);
        self.names.remove(&peer.name);
        self.free.push(index);
        self.close_engines();
    }

    pub(super) fn close_peer(&mut self, id: RailsPeer) {
        let Some(peer) = self.peer_mut(id) else { return };
        match peer.life {
            Life::Failed(_) => self.forget(id.index),
            Life::Closing(_) => {}
            Life::Open => {
                peer.life = Life::Closing(None);
                self.next_timer = self.now;
                self.finish_peer(id.index, false);
            }
        }
    }

    /// Ends the close of a peer when everything is acknowledged, or `now_or_never`.
    pub(super) fn finish_peer(&mut self, index: u32, now_or_never: bool) {
        let Some(peer) = self.peer_at(index) else { return };
        if !matches!(peer.life, Life::Closing(_)) || !(peer.out.is_empty() || now_or_never) {
            return;
        }
        let up = peer.links.iter().any(Link::is_up);
        // It carries the last acknowledgement too.
        if up && !self.control(index, Kind::Bye) && !now_or_never {
            return;
        }
        self.fail_peer(index, RailsFaultKind::Removed);
    }

    pub(super) fn close_all(&mut self) {
        if self.closing.is_some() {
            return;
        }
        self.closing = Some(self.now);
        for index in 0..self.peers.len() as u32 {
            if let Some(id) = self.peer_at(index).map(|peer| peer.id) {
                self.close_peer(id);
            }
        }
        self.close_engines();
    }

    /// Closes the engines when no peer is left.
    fn close_engines(&mut self) {
        if self.closing.is_some() && self.names.is_empty() {
            let now = self.now;
            self.rails.iter_mut().for_each(|entry| entry.rail.engine.close(now));
        }
    }

    pub(super) fn rail_closed(&mut self, rail: usize) {
        if let Some(entry) = self.rails.get_mut(rail) {
            entry.closed = true;
        }
        if self.rails.iter().all(|entry| entry.closed) && !std::mem::replace(&mut self.closed, true)
        {
            self.events.push_back(RailsEvent::Closed);
        }
    }

    /// Looks at everything that has a deadline.
    pub(super) fn run_timers(&mut self) {
        let c = &self.config;
        let tick = (c.t_stall / 8).min(c.t_next_rail / 4).min(c.t_rejoin / 2).max(1);
        self.next_timer = self.now.saturating_add(tick);
        for index in 0..self.peers.len() as u32 {
            self.look_at_rails(index);
            self.look_at_peer(index);
        }
    }

    /// Rails that stall are dropped, and those that were dropped tried anew.
    fn look_at_rails(&mut self, index: u32) {
        let (now, t_stall) = (self.now, self.config.t_stall);
        let t_revive = self.config.t_revive;
        for rail in 0..self.rails.len() {
            let Some(peer) = self.peer_at(index).filter(|peer| peer.is_active()) else { return };
            let (name, up) = (peer.name, peer.links.iter().filter(|link| link.is_up()).count());
            let Some(link) = peer.links.get_mut(rail) else { return };
            let stalled = link.suspect.filter(|_| link.is_up() && link.pieces > 0 && up > 1);
            match &link.state {
                State::Up => {
                    // A long put keeps everything behind it waiting.
                    let patience = if link.ops > 0 { t_stall.saturating_mul(8) } else { t_stall };
                    if let Some(since) =
                        stalled.filter(|since| now >= since.saturating_add(patience))
                    {
                        let ms = now.saturating_sub(since) / 1_000_000;
                        self.stats.rails_stalled += 1;
                        self.drop_rail(index, rail, RailFault::Stalled { ms });
                    }
                }
                State::Connecting(since)
                    if link.revived && now >= since.saturating_add(t_revive) =>
                {
                    let ms = now.saturating_sub(*since) / 1_000_000;
                    self.drop_rail(index, rail, RailFault::NotBack { ms });
                }
                // A connection that ended before it was used is not repeated by the engine, where nothing waits for it.
                State::Connecting(_) => {
                    self.knock(index, rail);
                }
                State::Waiting => {
                    let addrs = link.addrs.clone();
                    if let Err(error) = self.announce(index, rail, name, &addrs) {
                        self.drop_rail(index, rail, RailFault::Refused(error));
                    }
                }
                // Only beside one that works: else two that do not would keep each other's hope up for ever.
                State::Down { again, .. } if now >= *again && up > 0 && !link.addrs.is_empty() => {
                    let addrs = link.addrs.clone();
                    if let Err(error) = self.announce(index, rail, name, &addrs) {
                        self.drop_rail(index, rail, RailFault::Refused(error));
                    }
                }
                _ => {}
            }
        }
    }

    /// What is not acknowledged for long goes again: either it is lost, or its acknowledgement.
    fn look_at_peer(&mut self, index: u32) {
        let (now, patience) = (self.now, self.config.t_stall / 2);
        let t_close = self.config.t_close;
        let Some(peer) = self.peer_at(index).filter(|peer| peer.is_active()) else { return };
        let silent_since = peer.out.moved;
        let late = now >= silent_since.saturating_add(patience) && peer.out.in_flight() > 0;
        let mut by = Nanos::MAX;
        if let Life::Closing(deadline) = &mut peer.life {
            by = *deadline.get_or_insert(now.saturating_add(t_close));
        }
        #[cfg(feature = "sabotage")]
        let late = late && !self.config.sabotage.no_resend;
        let Some(peer) = self.peer_at(index) else { return };
        if late {
            // One that computes needs no more than one reminder.
            let alive = peer.heard.0 > silent_since;
            let again = peer.out.stale(now.saturating_sub(patience), alive);
            peer.out.moved = now;
            self.stats.resent += u64::from(again);
        }
        self.pump(index);
        self.finish_peer(index, now >= by);
    }
}
