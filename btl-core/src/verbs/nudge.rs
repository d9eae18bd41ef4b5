//! Makes a peer on soft iWARP look at what it has received.
//!
//! The kernel's siw accepts a connection in this order (Linux 7.2,
//! drivers/infiniband/sw/siw/siw_cm.c, `siw_accept`): `siw_send_mpareqrep` sends the MPA reply,
//! then `siw_qp_socket_assoc` installs the callback that feeds the queue pair. What the
//! initiator sends in between meets `siw_cm_llp_data_ready`, which ignores it in the state
//! SIW_EPSTATE_RDMA_MODE, and nobody looks at the socket again until more bytes come: the first
//! message stays there, and both sides wait for ever (about one connect in twenty between two
//! busy processes). Connections with an RTR message, where `siw_rtr_data_ready` is installed
//! instead, have the same gap; siw never asks for one.
//!
//! So an initiator that has said Hello and heard nothing sends an empty RDMA write now and then.
//! It may: an initiator may send anything once it has read the reply (RFC 5044 7.1.2), and the
//! Hello was first. It consumes no receive and tells the peer nothing, but the peer's kernel
//! reads the stream again.
//!
//! Nudges are sent from the engine's poll. While this side's application computes, an acceptor
//! whose kernel missed the Hello waits; nothing is lost by that, and it ends with the next poll.
use crate::names::LaneId;
use std::time::{Duration, Instant};

/// Pause before the first nudge of a lane; it doubles with each.
const FIRST: Duration = Duration::from_millis(2);
/// Pauses double up to `FIRST << DOUBLINGS`, two seconds. By then the silence is most likely
/// that of the peer's process, which computes; but a peer whose kernel got no CPU for so long
/// must not wait for ever.
const DOUBLINGS: u32 = 10;

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
            silent.nudged = (silent.nudged + 1).min(DOUBLINGS);
            silent.next = now + FIRST * (1 << silent.nudged);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nudges_slow_down_and_go_on_until_something_is_received() {
        let lane = LaneId { index: 3, generation: 1 };
        let mut nudges = Nudges::default();
        nudges.add(lane);
        let (start, mut at, mut times) = (Instant::now(), Instant::now(), Vec::new());
        for _ in 0..60_000 {
            at += Duration::from_millis(1);
            if nudges.due(at) == [lane] {
                times.push(at - start);
            }
        }
        let pauses: Vec<Duration> = times.windows(2).map(|w| w[1] - w[0]).collect();
        let (slower, steady) = pauses.split_at(DOUBLINGS as usize);
        assert!(slower.windows(2).all(|w| w[1] > w[0]), "{pauses:?}");
        assert!(steady.len() > 20 && steady.iter().all(|p| *p == slower[9]), "{pauses:?}");
        nudges.remove(lane);
        assert!(nudges.is_empty());
    }
}
