//! Connections from programs that do not keep the protocol.
use crate::device_support::{JOB, Node, die, name, selection, watchdog};
use crate::stranger::{LIMIT, Stranger, greeting};
use btl_core::error::FaultKind;
use btl_core::wire::{PrivateData as Greet, RejectReason};
use btl_core::{Config, Event, SECOND};
use rdma_cm::ConnectError;
use std::time::{Duration, Instant};

fn config() -> Config {
    let mut config = Config::new(name(0), JOB);
    config.t_first = 2 * SECOND;
    config
}

pub(crate) fn garbage_request() {
    watchdog(Duration::from_secs(60), "garbage request");
    let mut node = Node::open(&selection(), &config());
    for garbage in [&b""[..], b"x", &[0xff; 56], b"GET / HTTP/1.1\r\n"] {
        match Stranger::new().connect(node.addr(), garbage) {
            Err(ConnectError::Rejected { private_data, .. }) => {
                let reason = RejectReason::decode(&Greet::from_slice(private_data.as_bytes()));
                assert_eq!(reason, Some(RejectReason::Garbage));
            }
            other => die(&format!("{other:?}")),
        }
    }
    assert!(node.poll().is_none(), "the engine heard of it");
    node.close();
}

/// Connects, says nothing; is dropped after `t_first`.
pub(crate) fn no_hello() {
    watchdog(Duration::from_secs(60), "no Hello");
    let config = config();
    let mut node = Node::open(&selection(), &config);
    let mut stranger = Stranger::new();
    let connected = stranger.connect(node.addr(), greeting(9, &config).as_slice());
    connected.unwrap_or_else(|e| die(&e.to_string()));
    let start = Instant::now();
    let fault = node.wait("the fault", LIMIT, |_, event| match event {
        Event::NewPeer { name: n, .. } if n == name(9) => None,
        Event::PeerFailed { fault, .. } => Some(fault),
        other => die(&format!("unexpected {other:?}")),
    });
    assert_eq!(fault.kind, FaultKind::NoHello { seconds: 2 });
    assert!(start.elapsed() >= Duration::from_millis(1500), "too early: {:?}", start.elapsed());
    node.close();
}

pub(crate) fn garbage_hello() {
    watchdog(Duration::from_secs(60), "garbage Hello");
    let config = config();
    let mut node = Node::open(&selection(), &config);
    for (rank, garbage) in [(3, &b"x"[..]), (4, &[0xff; 64]), (5, &[0x13; 200])] {
        let mut stranger = Stranger::new();
        let connected = stranger.connect(node.addr(), greeting(rank, &config).as_slice());
        connected.unwrap_or_else(|e| die(&e.to_string()));
        stranger.send(garbage);
        let fault = node.wait("the fault", LIMIT, |_, event| match event {
            Event::NewPeer { .. } => None,
            Event::PeerFailed { fault, .. } => Some(fault),
            other => die(&format!("unexpected {other:?}")),
        });
        assert_eq!(fault.peer, name(rank));
        assert!(matches!(fault.kind, FaultKind::Protocol(_)), "{fault}");
    }
    node.close();
}

/// Rule 1 on a device: our side has a message to send, the connection is established, and nothing
/// is sent until the other side has.
pub(crate) fn acceptor_waits() {
    watchdog(Duration::from_secs(60), "acceptor waits");
    let config = Config::new(name(0), JOB);
    let mut node = Node::open(&selection(), &config);
    let mut stranger = Stranger::new();
    let connected = stranger.connect(node.addr(), greeting(9, &config).as_slice());
    connected.unwrap_or_else(|e| die(&e.to_string()));
    let peer = node.wait("the stranger", LIMIT, |_, event| match event {
        Event::NewPeer { peer, .. } => Some(peer),
        other => die(&format!("unexpected {other:?}")),
    });
    let Some(buf) = node.message(0, 1, 100) else { die("no buffer") };
    node.send(peer, 0, buf, 0);
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        assert!(node.poll().is_none(), "something happened before Hello");
        assert_eq!(stranger.received(), 0, "the acceptor sent before it received");
    }
    let closed = node.engine.stats().lanes_closed;
    assert_eq!(closed, 0, "the connection did not stand");
    drop(stranger);
    node.wait("the fault", LIMIT, |node, event| match event {
        Event::Sent { buf: Some(buf), .. } => {
            node.engine.free(buf);
            None
        }
        Event::PeerFailed { .. } => Some(()),
        other => die(&format!("unexpected {other:?}")),
    });
    node.close();
}
