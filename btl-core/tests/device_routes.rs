//! On a real device: the routes of credits, a process as its own peer, reports, and what peers pin. `RDMA_TEST_DEVICE` and
//! `RDMA_TEST_ADDR` name the device; without one the tests fail.
#![allow(missing_docs)]
#[path = "../examples/active_messages.rs"]
#[allow(dead_code, unreachable_pub)]
mod active;
mod device_support;

use btl_core::error::Error;
use btl_core::report::RouteWhy;
use btl_core::verbs::{self, OpenError, Transport};
use btl_core::{Config, CreditRoute, Event, PeerId, PeerReport, Role};
use device_support::{JOB, Node, check, name, selection};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Overrides what is known about loopback: see `rdma_cm`.
const LOOPBACK: &str = rdma_cm::LOOPBACK_VARIABLE;

/// One test at a time: they are about one device, and some count what the process has pinned.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(rank: u32, route: CreditRoute, force: bool) -> Config {
    let mut config = Config::new(name(rank), JOB);
    config.credit_route = route;
    config.force_credit_route = force;
    for lane in &mut config.lanes {
        lane.send_slots = 16;
    }
    config
}

/// Two engines of this process that know each other.
fn pair(routes: [CreditRoute; 2], force: bool) -> ([Node; 2], [PeerId; 2]) {
    let mut nodes = [0, 1].map(|n| Node::open(&selection(), &config(n, routes[n as usize], force)));
    let addrs = [nodes[0].addr(), nodes[1].addr()];
    let peers = [0, 1].map(|n| {
        let other = 1 - n as usize;
        nodes[n as usize].engine.add_peer(name(1 - n), &[addrs[other]]).expect("a peer")
    });
    (nodes, peers)
}

/// What a node is to send and has got, by class.
#[derive(Default)]
struct Talk {
    sent: [u64; 2],
    done: u64,
    got: [u64; 2],
}

/// One step: sends what can be sent of `n` messages a class, and handles an event.
fn step(node: &mut Node, peer: PeerId, from: u8, n: u64, talk: &mut Talk) -> bool {
    for class in 0..2 {
        while talk.sent[class] < n {
            let len = if class == 0 { 100 } else { 20_000 };
            let seq = talk.sent[class] * 2 + class as u64;
            let Some(buf) = node.message(node.rank as u8, seq, len) else { break };
            node.send(peer, class as u8, buf, 0);
            talk.sent[class] += 1;
        }
    }
    let Some(event) = node.poll() else { return false };
    match event {
        Event::Message { tag, buf, .. } => {
            let class = usize::from(tag);
            assert!(check(&buf, from, talk.got[class] * 2 + class as u64), "wrong bytes");
            talk.got[class] += 1;
            node.engine.release(buf);
        }
        Event::Sent { buf, result, .. } => {
            result.expect("it left");
            node.engine.free(buf.expect("its buffer"));
            talk.done += 1;
        }
        Event::PeerConnected { .. } | Event::NewPeer { .. } => {}
        other => panic!("{other:?}"),
    }
    true
}

/// `n` messages of each class both ways, every byte checked.
fn exchange(nodes: &mut [Node; 2], peers: [PeerId; 2], n: u64) {
    let mut talks = [Talk::default(), Talk::default()];
    let end = Instant::now() + Duration::from_secs(60);
    let over = |talk: &Talk| talk.got == [n; 2] && talk.done == 2 * n;
    while !talks.iter().all(over) {
        for me in 0..2 {
            step(&mut nodes[me], peers[me], 1 - me as u8, n, &mut talks[me]);
        }
        if Instant::now() > end {
            panic!("no end: {} and {}", nodes[0].report(), nodes[1].report());
        }
    }
}

/// Both close; each needs the other one to poll.
fn close(mut nodes: [Node; 2]) {
    let mut closed = [false; 2];
    let end = Instant::now() + Duration::from_secs(20);
    let start = Instant::now();
    for node in &mut nodes {
        node.engine.close(0);
    }
    while closed != [true; 2] {
        for (node, closed) in nodes.iter_mut().zip(&mut closed) {
            match node.engine.poll(start.elapsed().as_nanos() as u64) {
                Some(Event::Closed) => *closed = true,
                Some(Event::Message { buf, .. }) => node.engine.release(buf),
                Some(Event::Sent { buf: Some(buf), .. }) => node.engine.free(buf),
                Some(Event::PeerFailed { fault, .. }) => panic!("{fault}"),
                _ => std::thread::yield_now(),
            }
        }
        assert!(Instant::now() < end, "no end of the close");
    }
}

fn report(node: &Node) -> PeerReport {
    node.engine.report().pop().expect("a peer")
}

fn is_iwarp() -> bool {
    let found = verbs::find(&selection()).expect("a port");
    found[0].info(&selection()).iwarp
}

#[test]
fn own_lane_is_the_default_and_the_report_names_everything() {
    let _alone = alone();
    let (mut nodes, peers) = pair([CreditRoute::OwnLane; 2], false);
    exchange(&mut nodes, peers, 200);
    let published = nodes[0].published.clone();
    for node in &nodes {
        let report = report(node);
        assert_eq!(report.device, format!("{}:{}", published.device, published.port));
        let transport = if published.transport == Transport::Iwarp { "iWARP" } else { "RoCE" };
        assert_eq!((&*report.transport, &report.route_why), (transport, &RouteWhy::Default));
        let stats = report.stats;
        assert_eq!((stats.messages_sent, stats.messages_received), (400, 400));
        assert_eq!((stats.bytes_sent, stats.credits_on_first_lane), (200 * 20_100, 0));
        println!("{report}");
    }
    let roles =
        |node| report(node).lanes.iter().map(|l| l.up.expect("up").role).collect::<Vec<_>>();
    for (one, other) in roles(&nodes[0]).into_iter().zip(roles(&nodes[1])) {
        assert_ne!(one, other);
    }
    close(nodes);
}

/// On RoCE it can be had; on iWARP it is refused with the reason, and works when it is forced on a device that can use a
/// receive at once.
#[test]
fn first_lane_where_both_ask_for_it() {
    let _alone = alone();
    let iwarp = is_iwarp();
    if iwarp {
        let refused = verbs::open(&selection(), &config(0, CreditRoute::FirstLane, false));
        let error = refused.err().expect("refused");
        assert!(matches!(&error, OpenError::Config(Error::CreditRoute(_))), "{error}");
        assert!(
            error.to_string().contains("is iWARP, where a message that finds no receive"),
            "{error}"
        );
    }
    let (mut nodes, peers) = pair([CreditRoute::FirstLane; 2], iwarp);
    exchange(&mut nodes, peers, 300);
    for node in &nodes {
        let report = report(node);
        assert_eq!(report.route, CreditRoute::FirstLane);
        assert_eq!(matches!(report.route_why, RouteWhy::Forced(_)), iwarp, "{}", report.route_why);
        assert!(report.stats.credits_alone >= report.stats.credits_on_first_lane);
    }
    close(nodes);
}

/// Large messages one way only: their credits have nothing to ride on.
#[test]
fn credits_travel_on_the_first_lane_of_a_one_way_flood() {
    let _alone = alone();
    for (routes, elsewhere) in [
        ([CreditRoute::FirstLane; 2], true),
        ([CreditRoute::FirstLane, CreditRoute::OwnLane], false),
    ] {
        let (mut nodes, peers) = pair(routes, true);
        let (mut one, mut other) = (Talk { sent: [400, 0], ..Talk::default() }, Talk::default());
        let end = Instant::now() + Duration::from_secs(60);
        while other.got[1] < 400 {
            step(&mut nodes[0], peers[0], 1, 400, &mut one);
            step(&mut nodes[1], peers[1], 0, 0, &mut other);
            assert!(Instant::now() < end, "{} and {}", nodes[0].report(), nodes[1].report());
        }
        let stats = nodes[1].engine.stats();
        assert!(stats.credits_alone > 300, "{stats:?}");
        assert_eq!(stats.credits_on_first_lane > 300, elsewhere, "{stats:?}");
        assert_eq!(stats.credits_on_first_lane == 0, !elsewhere, "{stats:?}");
        close(nodes);
    }
}

#[test]
fn messages_to_oneself_arrive_in_order() {
    let _alone = alone();
    let mut node = Node::open(&selection(), &config(0, CreditRoute::OwnLane, false));
    let addr = node.addr();
    let me = node.engine.add_peer(name(0), &[addr]).expect("its own peer");
    for _ in 0..2 {
        let mut talk = Talk::default();
        let end = Instant::now() + Duration::from_secs(60);
        while talk.got != [500; 2] || talk.done != 1000 {
            step(&mut node, me, 0, 500, &mut talk);
            assert!(Instant::now() < end, "no end: {}", node.report());
        }
    }
    let report = report(&node);
    assert_eq!((report.stats.messages_sent, report.stats.messages_received), (2000, 2000));
    assert_eq!(report.lanes[0].up.map(|up| up.role), Some(Role::Initiator));
    assert_eq!(node.engine.gauges().lanes, 4);
    node.close();
}

/// A device that is said not to loop back: this test starts itself again, with that in the environment.
#[test]
fn a_device_without_loopback_refuses_oneself_with_the_reason() {
    let _alone = alone();
    const NAME: &str = "a_device_without_loopback_refuses_oneself_with_the_reason";
    if std::env::var_os(LOOPBACK).is_none() {
        let device = selection().device.expect("a device");
        let exe = std::env::current_exe().expect("this program");
        let said = format!("{device}=no # a test says so");
        let status = Command::new(exe).args(["--exact", NAME]).env(LOOPBACK, said).status();
        assert!(status.expect("started").success());
        return;
    }
    let mut node = Node::open(&selection(), &config(0, CreditRoute::OwnLane, false));
    let addr = node.addr();
    let error = node.engine.add_peer(name(0), &[addr]).expect_err("it cannot");
    assert!(matches!(error, Error::SelfPeer { .. }), "{error}");
    assert!(error.to_string().contains("a test says so"), "{error}");
    node.close();
}

/// The example of active messages as a program: this process is its own peer there too.
#[test]
fn the_example_of_active_messages_counts_to_a_thousand() {
    let _alone = alone();
    let device = selection().device.expect("a device");
    let mut node = active::Node::new(
        {
            let config = config(0, CreditRoute::OwnLane, false);
            let (port, cm, published) = verbs::open(&selection(), &config).expect("a port");
            assert_eq!(published.device, device);
            let mut engine = btl_core::Engine::new(config, port, cm).expect("an engine");
            engine.add_peer(name(0), &published.addrs).expect("its own peer");
            engine
        },
        (0, Vec::new()),
        vec![active::add, active::keep],
    );
    let me = node.engine.report()[0].peer;
    (1..=1000_u64).for_each(|n| node.send(me, (0, n.to_le_bytes().to_vec())));
    let start = Instant::now();
    while node.state.1.len() < 1000 {
        if !node.step(start.elapsed().as_nanos() as u64).expect("no failure") {
            std::thread::yield_now();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", node.engine.report());
    }
    assert_eq!((node.state.0, node.state.1[999]), (500_500, 500_500));
}

/// Bytes of this process that devices have pinned.
fn pinned() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").expect("its status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("VmPin");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

/// Twelve peers, all of whose lanes are up, pin at most half a mebibyte each at either end. They need more completion
/// queues than one of this depth, and get them.
#[test]
fn connected_peers_pin_half_a_mebibyte_and_get_completion_queues() {
    let _alone = alone();
    const PEERS: u32 = 12;
    let mut selection = selection();
    selection.cq_depth = 128;
    let open = |rank| {
        let mut config = config(rank, CreditRoute::OwnLane, false);
        config.lanes.iter_mut().for_each(|lane| lane.send_slots = 2);
        Node::open(&selection, &config)
    };
    let mut hub = open(0);
    assert_eq!(hub.engine.port().queues(), 1);
    let mut leaves: Vec<Node> = (1..=PEERS).map(open).collect();
    let before = pinned();
    assert!(before > 0, "the device pins nothing, or VmPin does not count it");
    let peers: Vec<PeerId> = leaves
        .iter()
        .zip(1..)
        .map(|(leaf, rank)| hub.engine.add_peer(name(rank), &[leaf.addr()]).expect("a peer"))
        .collect();
    let end = Instant::now() + Duration::from_secs(60);
    let (mut todo, mut got) = (peers.iter().flat_map(|p| [(*p, 10), (*p, 20_000)]), 0);
    let mut next = todo.next();
    while got < 2 * PEERS {
        if let Some((peer, len)) = next
            && let Some(buf) = hub.message(0, 0, len)
        {
            hub.send(peer, 0, buf, 0);
            next = todo.next();
        }
        if let Some(Event::Sent { buf: Some(buf), .. }) = hub.poll() {
            hub.engine.free(buf);
        }
        for leaf in &mut leaves {
            if let Some(Event::Message { buf, .. }) = leaf.poll() {
                leaf.engine.release(buf);
                got += 1;
            }
        }
        assert!(Instant::now() < end, "no end: {}", hub.report());
    }
    let each = (pinned() - before) / (2 * PEERS as usize);
    println!("{each} bytes pinned a peer; {} completion queues", hub.engine.port().queues());
    assert!((448 << 10..=512 << 10).contains(&each), "{each} bytes pinned a peer");
    // Lane 0 takes 33 of 128, lane 1 takes 13: so many of both need at least this many queues.
    assert!(hub.engine.port().queues() >= PEERS as usize * (33 + 13) / 128);
}
