//! Peers whose lanes differ from ours: what fits both.
use super::Engine;
use crate::endpoint::{Link, UNTOLD};
use crate::names::{LaneId, PeerId};
use crate::port::{Cm, Port};
use crate::wire::HEADER;

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// Makes known how large the buffers of a peer are, by lane class and with the header, as it published them
    /// (0, or missing: it has no such lane). From now on each message goes on the smallest lane that it fits on both
    /// sides, and one that fits none is refused. To be called right after [`add_peer`](Engine::add_peer), before the
    /// first message; a peer that nothing is told of has the same lanes as this side.
    pub fn set_peer_lanes(&mut self, peer: PeerId, sizes: &[u32]) {
        let Some(endpoint) = self.endpoint_mut(peer) else { return };
        let sizes = sizes.iter().copied().chain(std::iter::repeat(0));
        let mut up: Vec<(LaneId, u32)> = Vec::new();
        for (class, size) in endpoint.classes.iter_mut().zip(sizes) {
            class.room = room_in(size);
            if let Link::Up(id) = class.link {
                up.push((id, class.room));
            }
        }
        for (id, room) in up {
            if let Some((lane, ..)) = self.parts(id) {
                lane.room = room;
            }
        }
    }

    /// Whether a lane that came up has buffers as large as the peer said, if it said so. What a stranger's connect
    /// says holds until it is announced.
    pub(super) fn agrees(&mut self, peer: PeerId, class: u8, size: u32) -> bool {
        let own = self.config.lane(class).map_or(0, |lane| lane.buffer_size);
        let Some(endpoint) = self.endpoint_mut(peer) else { return false };
        let announced = endpoint.announced;
        let Some(c) = endpoint.classes.get_mut(usize::from(class)) else { return false };
        if c.room != UNTOLD {
            return c.room <= room_in(size);
        }
        if size < own {
            if announced || !c.pending.is_empty() {
                return false;
            }
            c.room = room_in(size);
        }
        true
    }

    /// Payload bytes that fit the peer's buffers of a class.
    pub(super) fn room_of(&mut self, peer: PeerId, class: u8) -> u32 {
        self.class_mut(peer, class).map_or(0, |class| class.room)
    }

    /// Payload bytes of the largest message to a peer: less than [`max_send_size`](Engine::max_send_size) where
    /// [its buffers are smaller](Engine::set_peer_lanes).
    pub fn max_send_size_to(&self, peer: PeerId) -> usize {
        let entry = self.peers.get(peer.index()).filter(|p| p.generation == peer.generation);
        let endpoint = entry.and_then(|entry| entry.endpoint.as_ref());
        let room = endpoint.and_then(|it| it.classes.iter().map(|class| class.room).max());
        room.map_or(0, |room| room as usize).min(self.max_send_size())
    }
}

/// Payload bytes of a frame in a buffer of this size.
fn room_in(size: u32) -> u32 {
    size.saturating_sub(HEADER as u32)
}
