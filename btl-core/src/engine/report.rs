//! Counters and records of peers, for people. Nothing here is for the message path.
use super::Engine;
use crate::endpoint::{Endpoint, Link, State};
use crate::names::PeerId;
use crate::port::{Cm, Port, PortInfo};
use crate::report::{LaneReport, LaneUpReport, PeerReport, PeerState, RouteWhy};
use crate::route::CreditRoute;
use crate::stats::Stats;

impl<P: Port, C: Cm<Qp = P::Qp>> Engine<P, C> {
    /// What was done so far, with all peers, removed ones too. Adds up every peer: not for the message path.
    pub fn stats(&self) -> Stats {
        let mut all = self.io.stats;
        for endpoint in self.endpoints() {
            all += endpoint.stats;
        }
        for lane in self.lanes.iter().filter_map(|entry| entry.lane.as_ref()) {
            all += lane.stats;
        }
        all
    }

    /// A record of every peer, in the order of their ids: what carries it, why, and how much. Its `Display` is one
    /// line. Allocates.
    pub fn report(&self) -> Vec<PeerReport> {
        let port = self.io.port.info();
        let known = self.peers.iter().zip(0..).filter(|(_, index)| !self.is_mirror(*index));
        let endpoints = known.filter_map(|(entry, _)| entry.endpoint.as_ref());
        endpoints.map(|endpoint| self.report_on(endpoint, &port)).collect()
    }

    /// The same of one peer.
    pub fn report_of(&self, peer: PeerId) -> Option<PeerReport> {
        let entry = self.peers.get(peer.index()).filter(|p| p.generation == peer.generation)?;
        Some(self.report_on(entry.endpoint.as_ref()?, &self.io.port.info()))
    }

    fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.peers.iter().filter_map(|entry| entry.endpoint.as_ref())
    }

    fn report_on(&self, endpoint: &Endpoint, port: &PortInfo) -> PeerReport {
        let mut stats = endpoint.stats;
        stats += self.mirror_stats(endpoint.name);
        let mut lanes = Vec::with_capacity(endpoint.classes.len());
        // Whether the other lanes that are up agreed on the first one.
        let (mut agreed, mut recovers) = (None, false);
        for (class, (it, config)) in endpoint.classes.iter().zip(&self.config.lanes).enumerate() {
            let lane = if let Link::Up(id) = it.link { self.lane(id) } else { None };
            let up = lane.map(|lane| LaneUpReport {
                role: lane.role,
                credits: lane.acct.credits(),
                owed: lane.acct.owed(),
                generation: lane.hello.generation,
                recovers: self.config.recover.map(|_| lane.rec.on),
            });
            if let Some(lane) = lane {
                stats += lane.stats;
                recovers |= lane.rec.on;
                agreed = if class > 0 { Some(lane.elsewhere.is_some()) } else { agreed };
            }
            lanes.push(LaneReport {
                class: class as u8,
                buffer_size: config.buffer_size,
                depth: config.depth,
                send_depth: config.send_depth,
                up,
            });
        }
        let (route, route_why) = match self.route_of(port, agreed) {
            (CreditRoute::OwnLane, RouteWhy::PeerWantsOwn) if recovers => {
                (CreditRoute::OwnLane, RouteWhy::Recovery)
            }
            found => found,
        };
        PeerReport {
            peer: endpoint.id,
            name: endpoint.name,
            device: port.device.clone(),
            transport: port.transport.clone(),
            state: state_of(endpoint),
            lanes,
            route,
            route_why,
            stats,
        }
    }

    fn route_of(&self, port: &PortInfo, agreed: Option<bool>) -> (CreditRoute, RouteWhy) {
        let asked = self.config.credit_route;
        match (asked, agreed) {
            (CreditRoute::OwnLane, _) => (CreditRoute::OwnLane, RouteWhy::Default),
            (CreditRoute::FirstLane, None) => (CreditRoute::OwnLane, RouteWhy::NotAgreed),
            (CreditRoute::FirstLane, Some(false)) => (CreditRoute::OwnLane, RouteWhy::PeerWantsOwn),
            (CreditRoute::FirstLane, Some(true)) => {
                (asked, asked.check(port).map_or_else(RouteWhy::Forced, |()| RouteWhy::BothAsked))
            }
        }
    }
}

fn state_of(endpoint: &Endpoint) -> PeerState {
    let is = |link: fn(&Link) -> bool| endpoint.classes.iter().any(|class| link(&class.link));
    match &endpoint.state {
        State::Failed(fault) => PeerState::Failed(fault.clone()),
        State::Closing(_) => PeerState::Closing,
        State::Open if is(|link| matches!(link, Link::Up(_))) => PeerState::Connected,
        State::Open if is(|link| *link == Link::Connecting) => PeerState::Connecting,
        State::Open => PeerState::Idle,
    }
}
