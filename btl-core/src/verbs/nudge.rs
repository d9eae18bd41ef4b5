//! Makes a peer on soft iWARP look at what it has received.
//!
//! The kernel's siw accepts a connection in this order: it sends the MPA reply, then it installs
//! the socket callbacks that feed the queue pair. The initiator's first message may arrive in
//! between; then it stays in the socket until more bytes come, and both sides wait for ever
//! (siw_accept; about one connect in twenty between two busy processes). So an initiator that
//! has said Hello and heard nothing sends an empty RDMA write now and then: it consumes no receive
//! and tells the peer nothing, but the peer's kernel reads the stream again.
use crate::names::LaneId;
use std::time::{Duration, Instant};

/// Pause before the first nudge of a lane; it doubles with each.
const FIRST: Duration = Duration::from_millis(2);
/// Nudges of a lane. The last comes after two seconds: what has not been read by then is waiting
/// for the peer's process, not for its kernel.
const MOST: u32 = 10;

/// The lanes whose Hello was posted and on which nothing has been received yet.
#[derive(Debug, Default)]
pub(super) struct Nudges(Vec<Silent>);

#[derive(Debug)]
struct Silent {
    lane: LaneId,
    next: Instant,
    nudged: u32,
}

impl Nudges {
    /// Also for a lane whose time is over.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, lane: LaneId) {
        self.0.push(Silent { lane, next: Instant::now() + FIRST, nudged: 0 });
    }

    /// The lane has received something, or is closed.
    #[cold]
    pub(super) fn remove(&mut self, lane: LaneId) {
        self.0.retain(|silent| silent.lane != lane);
    }

    /// The lanes to nudge now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<LaneId> {
        let mut due = Vec::new();
        for silent in self.0.iter_mut().filter(|silent| silent.next <= now) {
            due.push(silent.lane);
            silent.nudged += 1;
            silent.next = now + FIRST * (1 << silent.nudged);
        }
        self.0.retain(|silent| silent.nudged < MOST);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nudges_slow_down_and_end() {
        let lane = LaneId { index: 3, generation: 1 };
        let mut nudges = Nudges::default();
        nudges.add(lane);
        let (start, mut at, mut times) = (Instant::now(), Instant::now(), Vec::new());
        for _ in 0..20_000 {
            at += Duration::from_millis(1);
            if nudges.due(at) == [lane] {
                times.push(at - start);
            }
        }
        assert_eq!(times.len(), MOST as usize);
        assert!(times.windows(3).all(|w| w[2] - w[1] > w[1] - w[0]), "{times:?}");
        assert!(nudges.is_empty());
        nudges.add(lane);
        nudges.remove(lane);
        assert!(nudges.is_empty());
    }
}
