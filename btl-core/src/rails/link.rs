//! One rail to one peer, and which of them a piece takes.
use super::error::RailFault;
use crate::names::{Nanos, PeerId};
use std::net::SocketAddr;

/// Pieces a rail may have to one peer at a time: enough to keep it busy, so few that a rail which stalls holds little.
pub(super) const MAX_PIECES: u32 = 16;
/// Acknowledgements that a rail may have to one peer.
pub(super) const MAX_ACKS: u32 = 2;

/// How a rail to a peer is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailState {
    /// No address of the peer is known on it, and the peer has not connected over it.
    NoAddress,
    /// Not needed yet.
    Idle,
    /// Being connected.
    Connecting,
    /// In use.
    Up,
    /// Dropped.
    Down(RailFault),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    NoAddress,
    /// The engine is still closing what it had with the peer before: nothing could be sent on that.
    Waiting,
    Idle,
    Connecting(Nanos),
    Up,
    /// The engine has refused: it says why with an event that is on its way.
    Ending,
    Down {
        fault: RailFault,
        again: Nanos,
    },
}

#[derive(Debug)]
pub(super) struct Link {
    /// The peer's name in the rail's engine.
    pub(super) id: Option<PeerId>,
    pub(super) addrs: Vec<SocketAddr>,
    pub(super) state: State,
    /// Bytes and pieces that the rail has and has not finished.
    pub(super) bytes: u64,
    pub(super) pieces: u32,
    pub(super) acks: u32,
    /// Parts of one-sided operations that it has and has not finished.
    pub(super) ops: u32,
    /// Since when the peer answers on other rails while this one moves nothing.
    pub(super) suspect: Option<Nanos>,
    /// The pause before the next try.
    pub(super) pause: Nanos,
    /// It was up once.
    pub(super) worked: bool,
    /// It is tried once more, because no other is left.
    pub(super) revived: bool,
}

impl Link {
    pub(super) fn new() -> Link {
        Link {
            id: None,
            addrs: Vec::new(),
            state: State::NoAddress,
            bytes: 0,
            pieces: 0,
            acks: 0,
            ops: 0,
            suspect: None,
            pause: 0,
            worked: false,
            revived: false,
        }
    }

    pub(super) fn public(&self) -> RailState {
        match &self.state {
            State::NoAddress => RailState::NoAddress,
            State::Waiting | State::Idle => RailState::Idle,
            State::Connecting(_) => RailState::Connecting,
            State::Up | State::Ending => RailState::Up,
            State::Down { fault, .. } => RailState::Down(fault.clone()),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether it works, or may.
    pub(super) fn is_hope(&self) -> bool {
        !matches!(self.state, State::NoAddress | State::Down { .. })
    }

    /// Something went through.
    pub(super) fn moved(&mut self) {
        self.suspect = None;
    }

    /// What the rail's engine knew of the peer is over.
    pub(super) fn reset(&mut self) {
        self.id = None;
        (self.bytes, self.pieces, self.acks, self.ops) = (0, 0, 0, 0);
        self.suspect = None;
    }
}

/// What a rail is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// Million bytes a second.
    pub(super) bandwidth: u32,
    /// Nanoseconds.
    pub(super) latency: u32,
}

impl Speed {
    /// When `bytes` would be through, from now, in nanoseconds.
    pub(super) fn finish(self, bytes: u64) -> u64 {
        let time = bytes.saturating_mul(1000) / u64::from(self.bandwidth.max(1));
        time.saturating_add(u64::from(self.latency))
    }
}

/// The rail over which `len` bytes would arrive first, of those that have room.
pub(super) fn choose(
    links: &[Link],
    speeds: impl Iterator<Item = Speed>,
    len: u64,
) -> Option<usize> {
    let usable = links.iter().zip(speeds).enumerate();
    let usable = usable.filter(|(_, (link, _))| link.is_up() && link.pieces < MAX_PIECES);
    let finish = |link: &Link, speed: Speed| speed.finish(link.bytes.saturating_add(len));
    usable.min_by_key(|(_, (link, speed))| finish(link, *speed)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(n: usize) -> Vec<Link> {
        (0..n).map(|_| Link { state: State::Up, ..Link::new() }).collect()
    }

    const QUICK: Speed = Speed { bandwidth: 100, latency: 1_000 };
    const BROAD: Speed = Speed { bandwidth: 300, latency: 5_000 };

    #[test]
    fn short_ones_take_the_quick_rail_and_long_ones_are_divided_by_bandwidth() {
        let speeds = || [QUICK, BROAD].into_iter();
        let mut it = links(2);
        assert_eq!(choose(&it, speeds(), 64), Some(0));
        assert_eq!(choose(&it, speeds(), 60_000), Some(1));
        let mut carried = [0, 0];
        for _ in 0..4000 {
            let at = choose(&it, speeds(), 1000).unwrap();
            (it[at].bytes, carried[at]) = (it[at].bytes + 1000, carried[at] + 1);
        }
        assert!((2950..3050).contains(&carried[1]), "{carried:?}");
    }

    #[test]
    fn rails_without_room_or_not_up_are_left_out() {
        let speeds = || [QUICK, BROAD].into_iter();
        let mut it = links(2);
        it[0].pieces = MAX_PIECES;
        assert_eq!(choose(&it, speeds(), 64), Some(1));
        it[1].state = State::Connecting(0);
        assert_eq!(choose(&it, speeds(), 64), None);
        it[0].pieces = MAX_PIECES - 1;
        assert_eq!(choose(&it, speeds(), 64), Some(0));
    }

    #[test]
    fn nothing_overflows() {
        let slow = Speed { bandwidth: 0, latency: u32::MAX };
        assert_eq!(slow.finish(u64::MAX), u64::MAX);
    }
}
