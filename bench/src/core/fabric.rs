//! Engines over the fake libibverbs and librdmacm.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use btl_core::verbs::{PortChoice, Selection, open_port};
use btl_core::{Config, Engine, Event, PeerId, ProcName};
use rdma_cm::LocalAddress;
use rdma_safe::Device;

use crate::{Core, JOB, Outcome};

/// Of a block for documentation: no host has it.
const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// For anything that has to come.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Completions of one queue: the fake one has no need of many.
const CQ_DEPTH: u32 = 4096;

/// One process's end of the fabric.
pub(crate) struct Node {
    pub(crate) core: Core,
    pub(crate) name: ProcName,
    pub(crate) addrs: Vec<SocketAddr>,
}

/// The name of a rank.
pub(crate) fn name(rank: u32) -> ProcName {
    ProcName { job: 1, rank }
}

/// An engine without peers, on an open of its own of the fake device.
pub(crate) fn node(rank: u32) -> Outcome<Node> {
    let name = name(rank);
    let config = Config::new(name, JOB);
    let context = Device::by_name("fake0")?.open()?;
    let device = context.name().to_owned();
    let netdev = "fake".to_owned();
    let addr = LocalAddress { device, port: 1, netdev, addr: ADDR, prefix: 24, scope_id: 0 };
    let choice = PortChoice::new(context, 1, vec![addr])?;
    let selection = Selection { cq_depth: CQ_DEPTH, ..Selection::default() };
    let (port, cm, published) = open_port(&choice, &selection, &config)?;
    Ok(Node { core: Engine::new(config, port, cm)?, name, addrs: published.addrs })
}

/// Two connected ends. Both have sent and received; nothing is under way.
pub(crate) fn pair() -> Outcome<[(Core, PeerId); 2]> {
    let (mut a, mut b) = (node(0)?, node(1)?);
    let to_b = a.core.add_peer(b.name, &b.addrs)?;
    let to_a = b.core.add_peer(a.name, &a.addrs)?;
    let hello = a.core.alloc(1)?;
    a.core.send(to_b, 0, hello, 0).map_err(|refused| refused.kind)?;
    let (start, mut left) = (Instant::now(), 4);
    // Connected at both ends, sent, received.
    while left > 0 {
        for core in [&mut a.core, &mut b.core] {
            match core.poll(0) {
                Some(Event::Message { buf, .. }) => {
                    core.release(buf);
                    left -= 1;
                }
                Some(Event::Sent { buf: Some(buf), .. }) => {
                    core.free(buf);
                    left -= 1;
                }
                Some(Event::PeerConnected { .. }) => left -= 1,
                Some(Event::PeerFailed { fault, .. }) => return Err(fault.into()),
                _ => std::thread::yield_now(),
            }
        }
        if start.elapsed() > LIMIT {
            return Err("the two do not connect".into());
        }
    }
    Ok([(a.core, to_b), (b.core, to_a)])
}
