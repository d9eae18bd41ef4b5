//! Which port of a peer belongs to which of ours.
//!
//! Both sides must find the same pairs, because each rail is an engine of its own: so they are found in an order that
//! both see alike, from what both have published. The rails of the process with the lower name are gone through first to
//! last; each takes the first free rail of the other process with the same transport that shares a network with it. With
//! `allow_different_subnets` what is left then pairs by transport alone. A rail without a partner stays unused.

use crate::modex::{Carrier, Rail, RailAddr};
use crate::params::Net;
use btl_core::ProcName;
use btl_core::wire::HEADER;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// What this process is, for all its rails.
pub(crate) struct Host {
    /// This process.
    pub(crate) me: ProcName,
    /// Our rails as published, in order.
    pub(crate) rails: Vec<Rail>,
    /// Every address of this host.
    pub(crate) mine: Vec<IpAddr>,
    /// Whether peers in other networks are reached over routers.
    pub(crate) any_subnet: bool,
}

/// What is known of a peer.
pub(crate) struct Them<'a> {
    /// Its rails as published.
    pub(crate) rails: &'a [Rail],
    /// Whether it runs on this node.
    pub(crate) on_node: bool,
    /// Whether its name is lower than ours.
    pub(crate) lower: bool,
}

/// The peer's side of a rail of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partner {
    /// Where it listens, best address first; not empty.
    pub(crate) addrs: Vec<SocketAddr>,
    /// Bytes of its buffers by lane.
    pub(crate) lanes: Vec<u32>,
}

/// Why a rail of ours has no partner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoPairing {
    /// The peer has no port of this transport.
    Carrier {
        /// What ours is.
        ours: Carrier,
        /// What it has, in words.
        theirs: String,
    },
    /// All addresses of its ports are also this host's.
    OnlyMine {
        /// One of them.
        addr: IpAddr,
    },
    /// No port of the transport shares a network with ours.
    Network {
        /// Networks of ours, in words.
        ours: String,
        /// Networks of the peer's, in words.
        theirs: String,
    },
    /// Other rails of ours have all the ports that would do.
    Taken,
    /// It is on this node, and its device cannot connect to its own address.
    NoLoopback,
    /// A message sent in one piece does not fit the buffers of the other side.
    Room {
        /// Whose message: the peer's, or ours.
        theirs: bool,
        /// Bytes of the largest buffers of the other side.
        largest: u32,
        /// Bytes of the message.
        needed: u32,
    },
}

impl fmt::Display for NoPairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Carrier { ours, theirs } => write!(f, "it has no {ours} port ({theirs})"),
            Self::OnlyMine { addr } => write!(
                f,
                "its address {addr} is also one of this host, though it runs on another: leave such addresses out with \
                 btl_verbs_ipaddr_exclude there"
            ),
            Self::Network { ours, theirs } => write!(
                f,
                "it shares no network with this port: {theirs} there, {ours} here; where routers join them, set \
                 btl_verbs_allow_different_subnets to 1 in all processes"
            ),
            Self::Taken => f.write_str(
                "it has fewer such ports than this process, whose other ports have them all",
            ),
            Self::NoLoopback => f.write_str(
                "it runs on this node, and its device lacks the flag LOOPBACK: it cannot connect to its own address. If \
                 it can, say so there with btl_verbs_loopback",
            ),
            Self::Room { theirs, largest, needed } => {
                let (buffers, from) =
                    if *theirs { ("buffers here", "there") } else { ("buffers there", "here") };
                write!(
                    f,
                    "the largest {buffers} have {largest} bytes, but an eager message from {from} takes up to {needed}: \
                     lower btl_verbs_eager_limit and btl_verbs_rndv_eager_limit {from} to {}, or make the buffers larger \
                     with btl_verbs_receive_queues",
                    largest.saturating_sub(HEADER as u32)
                )
            }
        }
    }
}

/// The partner of rail `index` of ours.
///
/// # Errors
/// [`NoPairing`] says why there is none.
pub(crate) fn pair(us: &Host, index: usize, them: &Them<'_>) -> Result<Partner, NoPairing> {
    let theirs = usable(them.rails, &us.mine, them.on_node);
    let ours = shown_to(us, them);
    let (low, high) = if them.lower { (&theirs, &ours) } else { (&ours, &theirs) };
    let pairs = pairs(low, high, us.any_subnet);
    let partner = pairs.iter().find_map(|(l, h)| {
        let (mine, other) = if them.lower { (*h, *l) } else { (*l, *h) };
        (mine == index).then_some(other)
    });
    let found = partner.and_then(|other| Some((us.rails.get(index)?, theirs.get(other)?)));
    match found {
        Some((own, other)) => {
            if them.on_node && !other.loopback {
                return Err(NoPairing::NoLoopback);
            }
            room(own, other, false)?;
            room(other, own, true)?;
            Ok(Partner { addrs: ordered(own, other), lanes: other.lanes.clone() })
        }
        None => Err(why_not(us, index, them, &theirs)),
    }
}

/// The peer's rails without addresses that cannot lead to it from here: on another node those that are also ours.
fn usable(rails: &[Rail], mine: &[IpAddr], on_node: bool) -> Vec<Rail> {
    let kept = |addr: &&RailAddr| on_node || !mine.contains(&addr.at.ip());
    let cut = |rail: &Rail| Rail {
        addrs: rail.addrs.iter().filter(kept).copied().collect(),
        ..rail.clone()
    };
    rails.iter().map(cut).collect()
}

/// Our rails as the peer uses them.
fn shown_to(us: &Host, them: &Them<'_>) -> Vec<Rail> {
    let theirs: Vec<IpAddr> =
        them.rails.iter().flat_map(|rail| rail.addrs.iter().map(|addr| addr.at.ip())).collect();
    usable(&us.rails, &theirs, them.on_node)
}

/// Pairs of places in both lists.
fn pairs(low: &[Rail], high: &[Rail], any_subnet: bool) -> Vec<(usize, usize)> {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    for near in [true, false] {
        if !near && !any_subnet {
            break;
        }
        for (l, lower) in low.iter().enumerate() {
            if pairs.iter().any(|(taken, _)| *taken == l) {
                continue;
            }
            let free = |h: usize| !pairs.iter().any(|(_, taken)| *taken == h);
            let fits = |upper: &Rail| {
                lower.carrier == upper.carrier
                    && !lower.addrs.is_empty()
                    && !upper.addrs.is_empty()
                    && (!near || share_network(lower, upper))
            };
            if let Some(h) = (0..high.len()).find(|h| free(*h) && high.get(*h).is_some_and(fits)) {
                pairs.push((l, h));
            }
        }
    }
    pairs
}

fn share_network(a: &Rail, b: &Rail) -> bool {
    a.addrs.iter().any(|x| b.addrs.iter().any(|y| same_network(x, y)))
}

/// Whether each is in the other's network.
fn same_network(a: &RailAddr, b: &RailAddr) -> bool {
    let holds = |a: &RailAddr, b: &RailAddr| {
        a.prefix > 0 && Net::of(a.at.ip(), a.prefix).is_some_and(|net| net.has(b.at.ip()))
    };
    holds(a, b) && holds(b, a)
}

/// The partner's addresses, those in our networks first; otherwise its own order is kept.
fn ordered(own: &Rail, other: &Rail) -> Vec<SocketAddr> {
    let mut found: Vec<&RailAddr> = other.addrs.iter().collect();
    found.sort_by_key(|addr| !own.addrs.iter().any(|own| same_network(own, addr)));
    found.into_iter().map(|addr| addr.at).collect()
}

/// Whether what one side sends in one piece fits the buffers of the other: they may differ, but one of the lanes that
/// both have must hold it.
fn room(from: &Rail, to: &Rail, theirs: bool) -> Result<(), NoPairing> {
    let common = to.lanes.iter().take(from.lanes.len());
    let largest = common.max().copied().unwrap_or(0);
    let needed = from.eager;
    if largest >= needed { Ok(()) } else { Err(NoPairing::Room { theirs, largest, needed }) }
}

fn why_not(us: &Host, index: usize, them: &Them<'_>, theirs: &[Rail]) -> NoPairing {
    let Some(own) = us.rails.get(index) else { return NoPairing::Taken };
    let same = |rail: &&Rail| rail.carrier == own.carrier;
    let published: Vec<&Rail> = them.rails.iter().filter(same).collect();
    if published.is_empty() {
        let theirs = match them.rails {
            [] => "it has none at all".to_owned(),
            rails => listed(rails.iter().map(|rail| rail.carrier.to_string())),
        };
        return NoPairing::Carrier { ours: own.carrier, theirs };
    }
    let left: Vec<&Rail> =
        theirs.iter().filter(same).filter(|rail| !rail.addrs.is_empty()).collect();
    if left.is_empty() {
        let mut addrs =
            published.iter().flat_map(|rail| rail.addrs.iter().map(|addr| addr.at.ip()));
        return match addrs.next() {
            Some(addr) => NoPairing::OnlyMine { addr },
            None => {
                let theirs = "one without an address that could be published".to_owned();
                NoPairing::Carrier { ours: own.carrier, theirs }
            }
        };
    }
    if us.any_subnet || left.iter().any(|rail| share_network(own, rail)) {
        return NoPairing::Taken;
    }
    NoPairing::Network { ours: networks(&[own]), theirs: networks(&left) }
}

fn networks(rails: &[&Rail]) -> String {
    let name = |addr: &RailAddr| match Net::of(addr.at.ip(), addr.prefix) {
        Some(net) if addr.prefix > 0 => net.to_string(),
        _ => addr.at.ip().to_string(),
    };
    listed(rails.iter().flat_map(|rail| rail.addrs.iter().map(name)))
}

/// Each word once.
fn listed(words: impl Iterator<Item = String>) -> String {
    let mut once: Vec<String> = Vec::new();
    for word in words {
        if !once.contains(&word) {
            once.push(word);
        }
    }
    once.join(", ")
}

#[cfg(test)]
#[path = "pairing_test.rs"]
mod tests;
