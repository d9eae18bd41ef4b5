//! This process as its own peer: two queue pairs of one engine on each lane.
//!
//! The lanes it dialled belong to the peer that the upper layer knows. Those it accepted belong to a second, hidden one,
//! the *mirror*: it receives, answers and gives credits back, and never has a message of its own. What happens to it is
//! no event: the other end of each of its lanes is here too and tells.
use super::io::Lane;
use super::life::lanes_of;
use super::{Engine, PeerEntry};
use crate::endpoint::{Endpoint, State};
use crate::error::Error;
use crate::names::{PeerId, ProcName, Role};
use crate::port::{Cm, LaneUp, Port};
use crate::stats::Stats;

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// Whether the device can connect to itself, for all that is known.
    pub(super) fn check_oneself(&self, name: ProcName) -> Result<(), Error> {
        let info = self.io.port.info();
        match info.no_loopback {
            Some(reason) => Err(Error::SelfPeer { name, device: info.device, reason }),
            None => Ok(()),
        }
    }

    /// Whether a connection is the accepted end of one to oneself.
    pub(super) fn is_for_mirror(&self, up: &LaneUp<P::Qp>) -> bool {
        up.name == self.config.me && up.role == Role::Acceptor
    }

    /// Whether this is the hidden peer.
    pub(super) fn is_mirror(&self, index: u32) -> bool {
        self.mirror == Some(index)
    }

    /// The hidden peer, made if there is none. What arrives there is shown as of the peer that is known.
    ///
    /// # Errors
    /// This process is not its own peer, or no more.
    pub(super) fn mirror_peer(&mut self) -> Result<PeerId, Error> {
        let name = self.config.me;
        let known =
            self.names.get(&name).and_then(|i| self.peers.get(*i as usize)?.endpoint.as_ref());
        let shown = known.ok_or(Error::Closing)?.id;
        let index = match self.mirror {
            Some(index) => index,
            None => self.free_entry()?,
        };
        self.mirror = Some(index);
        let classes = self.config.lanes.len();
        let entry = self.peers.get_mut(index as usize).ok_or(Error::Closing)?;
        let endpoint = entry.endpoint.get_or_insert_with(|| Endpoint::new(shown, name, classes));
        endpoint.id = shown;
        endpoint.state = State::Open;
        endpoint.announced = true;
        endpoint.connected = true;
        Ok(PeerId { index, generation: entry.generation })
    }

    /// A free place for a peer.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn free_entry(&mut self) -> Result<u32, Error> {
        let limit = self.config.max_peers;
        if let Some(index) = self.free_peers.pop() {
            return Ok(index);
        }
        if self.peers.len() as u64 >= u64::from(limit) {
            return Err(Error::TooManyPeers { limit });
        }
        self.peers.push(PeerEntry { generation: 0, endpoint: None });
        Ok(self.peers.len() as u32 - 1)
    }

    /// The peer that was oneself is gone: the other ends of its lanes end too, at the latest when a close may end. Those
    /// that still may receive end at once: nothing comes of a peer that is gone.
    pub(super) fn close_mirror(&mut self) {
        let Some(index) = self.mirror else { return };
        self.end_mirror_lanes(|heard_bye| !heard_bye);
        if let Some(endpoint) = self.endpoint_at(index)
            && endpoint.state == State::Open
        {
            endpoint.state = State::Closing(None);
            self.arm_timers();
        }
        self.finish_peer_if_done(index);
    }

    /// The peer that is oneself has failed: nothing of it is delivered any more.
    pub(super) fn mirror_fails_too(&mut self, name: ProcName) {
        if name == self.config.me {
            self.end_mirror_lanes(|_| true);
        }
    }

    /// Ends the lanes of the mirror that `which` takes, by whether their other end has said goodbye.
    fn end_mirror_lanes(&mut self, which: impl Fn(bool) -> bool) {
        let Some(index) = self.mirror else { return };
        let Some(endpoint) = self.endpoint_at(index) else { return };
        for id in lanes_of(endpoint).into_iter().flatten() {
            if self.lane(id).is_some_and(|lane| which(lane.bye.heard)) {
                // It has no messages of its own.
                drop(self.take_lane(id));
            }
        }
    }

    /// A lane of the mirror is over. Its other end will hear of that.
    pub(super) fn mirror_lane_over(&mut self, index: u32, lane: Lane<P::Slot>) {
        self.end_messages(index, lane, None);
        self.finish_peer_if_done(index);
    }

    /// What the accepted ends of the lanes to oneself did.
    pub(super) fn mirror_stats(&self, name: ProcName) -> Stats {
        let mut stats = Stats::default();
        let Some(index) = self.mirror.filter(|_| name == self.config.me) else { return stats };
        if let Some(endpoint) = self.peers.get(index as usize).and_then(|e| e.endpoint.as_ref()) {
            stats += endpoint.stats;
        }
        let lanes = self.lanes.iter().filter_map(|entry| entry.lane.as_ref());
        lanes.filter(|lane| lane.peer == index).for_each(|lane| stats += lane.stats);
        stats
    }
}
