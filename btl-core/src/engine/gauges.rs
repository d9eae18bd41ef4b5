//! How much an engine holds at the moment, for reports and for tests of its limits.
use super::Engine;
use crate::endpoint::Link;
use crate::port::{Cm, Port};

/// What an engine holds at the moment. Everything here is bounded by the configuration and by the number of peers that
/// were added or met, whatever a peer does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Peers, failed and closing ones included.
    pub peers: usize,
    /// Lanes that are up.
    pub lanes: usize,
    /// Messages that wait for a connection, a credit or a place in a send queue.
    pub waiting: u32,
    /// Entries of the message table: one for each message that can be under way, one for each lane that was ever up at
    /// the same time.
    pub table: u32,
    /// Events that [`Engine::poll`] has not reported yet.
    pub events: usize,
    /// Lanes on which the device refused something for the moment.
    pub retries: usize,
    /// Lanes that are over and not closed yet.
    pub hangups: usize,
    /// Receives that the device did not take yet.
    pub unposted: usize,
    /// Lanes asked for and not there yet.
    pub connecting: u32,
    /// Messages that the device is done with and the peer has not acknowledged.
    pub held: u32,
}

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// What the engine holds at the moment. Looks at every lane: not for the message path.
    pub fn gauges(&self) -> Gauges {
        let lanes = || self.lanes.iter().filter_map(|entry| entry.lane.as_ref());
        Gauges {
            peers: self.names.len(),
            lanes: lanes().count(),
            waiting: self.io.queued,
            table: self.io.frags.size(),
            events: self.io.events.len(),
            retries: self.io.retry.len(),
            hangups: self.io.hangups.len(),
            unposted: lanes().map(|lane| lane.unposted.len()).sum(),
            connecting: self.connecting,
            held: lanes().map(|lane| lane.rec.held.len()).sum(),
        }
    }

    /// Whether what is counted is what is there: messages that wait, and lanes asked for. For tests.
    pub fn is_consistent(&self) -> bool {
        let endpoints = || self.peers.iter().filter_map(|entry| entry.endpoint.as_ref());
        let waiting: u32 = endpoints().map(|endpoint| endpoint.waiting()).sum();
        let classes = endpoints().flat_map(|endpoint| endpoint.classes.iter());
        let connecting = classes.filter(|class| class.link == Link::Connecting).count();
        waiting == self.io.queued && connecting == self.connecting as usize
    }
}
