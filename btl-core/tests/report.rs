//! What an engine says of its peers.
#![allow(missing_docs)]
mod common;
use btl_core::port::PortInfo;
use btl_core::report::PeerState;
use btl_core::stats::Stats;
use btl_core::{CreditRoute, PeerReport, Role};
use common::*;

fn of(all: &[Eng], me: usize, peer: usize) -> PeerReport {
    let found = all[me].report().into_iter().find(|it| it.name == name(peer));
    found.expect("a peer")
}

#[test]
fn every_peer_has_a_record_of_its_own() {
    let (net, mut all) = engines(3);
    let device = "x0:1".to_owned();
    net.borrow_mut().info =
        PortInfo { device, transport: "smoke".to_owned(), ..PortInfo::default() };
    for _ in 0..3 {
        assert!(send(&mut all[0], 1, &[0; 100], 0));
    }
    assert!(send(&mut all[0], 2, &[0; 600], 0));
    assert_eq!(of(&all, 0, 1).state, PeerState::Connecting);
    assert_eq!(of(&all, 1, 2).state, PeerState::Idle);
    drain(&net, &mut all);
    let (one, two) = (of(&all, 0, 1), of(&all, 0, 2));
    assert_eq!((one.stats.messages_sent, one.stats.bytes_sent, one.stats.lanes_up), (3, 300, 1));
    assert_eq!((two.stats.messages_sent, two.stats.bytes_sent, two.stats.lanes_up), (1, 600, 2));
    assert_eq!(one.stats.stalls.connect, 3);
    assert_eq!((one.state.clone(), one.route), (PeerState::Connected, CreditRoute::OwnLane));
    assert_eq!((&*one.device, &*one.transport), ("x0:1", "smoke"));
    let lanes: Vec<_> = one.lanes.iter().map(|lane| (lane.buffer_size, lane.depth)).collect();
    assert_eq!(lanes, [(256, 8), (1024, 4)]);
    assert_eq!(one.lanes[0].up.map(|up| up.role), Some(Role::Initiator));
    assert_eq!(one.lanes[1].up, None);
    assert_eq!(of(&all, 1, 0).lanes[0].up.map(|up| up.role), Some(Role::Acceptor));
    let got = of(&all, 2, 0).stats;
    assert_eq!((got.messages_received, got.bytes_received, got.messages_sent), (1, 600, 0));
}

#[test]
fn the_line_says_all_of_it() {
    let (net, mut all) = connected();
    net.borrow_mut().info = PortInfo {
        device: "x0:1".to_owned(),
        transport: "smoke".to_owned(),
        ..PortInfo::default()
    };
    let line = of(&all, 0, 1).to_string();
    assert!(!line.contains('\n'), "{line}");
    for part in [
        "rank 1 of job 5: connected, smoke over x0:1",
        "lanes 0: 256 B x 8 initiator, 1: 1024 B x 4 not up",
        "credit route own (default)",
        "sent 1 messages (8 B), received 1 (8 B)",
        "waited for: connect 1",
    ] {
        assert!(line.contains(part), "{part} is not in: {line}");
    }
    let qp = net.borrow().alive(0)[0];
    net.borrow_mut().cut(qp);
    drain(&net, &mut all);
    let line = of(&all, 0, 1).to_string();
    assert!(line.contains("failed (lane 0 was disconnected"), "{line}");
}

/// The sum of all peers is what the engine did, whatever became of lanes and peers.
#[test]
fn sums_stay_when_lanes_and_peers_go() {
    let (net, mut all) = engines(3);
    let data = |all: &[Eng]| {
        let Stats { messages_sent, bytes_sent, lanes_up, .. } = all[0].stats();
        (messages_sent, bytes_sent, lanes_up)
    };
    for peer in 1..3 {
        (0..5).for_each(|_| assert!(send(&mut all[0], peer, &[0; 10], 0)));
    }
    drain(&net, &mut all);
    assert_eq!(data(&all), (10, 100, 2));
    let peer = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    assert_eq!(all[0].report_of(peer).map(|it| it.stats.messages_sent), Some(5));
    all[0].remove_peer(peer);
    drain(&net, &mut all);
    assert!(all[0].report_of(peer).is_none() && all[0].report().len() == 1);
    assert_eq!((data(&all), all[0].stats().lanes_closed), ((10, 100, 2), 1));
    assert!(send(&mut all[0], 1, &[0; 10], 0));
    drain(&net, &mut all);
    assert_eq!((data(&all), of(&all, 0, 1).stats.messages_sent), ((11, 110, 3), 1));
}

#[test]
fn what_the_device_refused_counts_for_the_lane_it_refused() {
    let (net, mut all) = connected();
    net.borrow_mut().refuse = 1;
    assert!(send(&mut all[0], 1, &[0; 10], 0));
    drain(&net, &mut all);
    let stats = of(&all, 0, 1).stats;
    assert_eq!((stats.stalls.device, stats.retries), (1, 1));
    assert_eq!(of(&all, 1, 0).stats.retries, 0);
}
