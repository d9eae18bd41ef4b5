//! One peer over all rails.
use super::RailsPeer;
use super::error::{RailFault, RailsFault, TriedRail};
use super::incoming::Incoming;
use super::link::{Link, State};
use super::outgoing::Outgoing;
use crate::names::{Nanos, ProcName};

#[derive(Debug)]
pub(super) enum Life {
    Open,
    /// Being removed here, until then; the deadline is set by the first look at the timers.
    Closing(Option<Nanos>),
    /// Failed, or gone by itself.
    Failed(RailsFault),
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: RailsPeer,
    pub(super) name: ProcName,
    pub(super) life: Life,
    pub(super) links: Vec<Link>,
    pub(super) out: Outgoing,
    pub(super) inc: Incoming,
    /// As the first frame said.
    pub(super) epoch: Option<u32>,
    /// When something came last, and over which rail.
    pub(super) heard: (Nanos, usize),
    /// Pieces not acknowledged, since when, and whether that cannot wait.
    pub(super) owed: u32,
    pub(super) owed_since: Nanos,
    pub(super) urgent: bool,
    /// On the lists of the rails.
    pub(super) in_work: bool,
    pub(super) in_owing: bool,
}

impl Peer {
    pub(super) fn new(id: RailsPeer, name: ProcName, rails: usize) -> Peer {
        Peer {
            id,
            name,
            life: Life::Open,
            links: (0..rails).map(|_| Link::new()).collect(),
            out: Outgoing::default(),
            inc: Incoming::default(),
            epoch: None,
            heard: (0, 0),
            owed: 0,
            owed_since: 0,
            urgent: false,
            in_work: false,
            in_owing: false,
        }
    }

    /// Whether frames may go to it.
    pub(super) fn is_active(&self) -> bool {
        !matches!(self.life, Life::Failed(_))
    }

    /// Whether anything is to be sent.
    pub(super) fn has_work(&self) -> bool {
        !self.out.is_empty() || self.owed > 0
    }

    /// The acknowledgement went.
    pub(super) fn told(&mut self) {
        self.owed = 0;
        self.urgent = false;
    }

    /// Why none of its rails is used.
    pub(super) fn tried(&self, labels: impl Iterator<Item = String>) -> Vec<TriedRail> {
        let fault = |link: &Link| match &link.state {
            State::Down { fault, .. } => fault.clone(),
            _ => RailFault::NoAddress,
        };
        let all = self.links.iter().zip(labels).enumerate();
        all.map(|(rail, (link, label))| TriedRail { rail, label, fault: fault(link) }).collect()
    }
}
