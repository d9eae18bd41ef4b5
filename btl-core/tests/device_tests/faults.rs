//! Peers that die, are somebody else, or are not there.
use crate::device_support::{
    JOB, Node, Other, check, die, lines_of, name, selection, tell, watchdog,
};
use btl_core::error::{ConnectFault, FaultKind, PeerFault};
use btl_core::wire::RejectReason;
use btl_core::{Config, Event, SECOND};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

/// Short limits, to be told soon.
fn impatient(rank: u32) -> Config {
    let mut config = Config::new(name(rank), JOB);
    config.t_conn = 2 * SECOND;
    config.t_give_up = 3 * SECOND;
    config
}

/// Sends to a peer and waits until it is reported failed; its message must come back first.
fn fault_of(node: &mut Node, rank: u32, addr: SocketAddr, limit: Duration) -> PeerFault {
    let peer = node.engine.add_peer(name(rank), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    let Some(buf) = node.message(0, 1, 100) else { die("no buffer") };
    node.send(peer, 0, buf, 5);
    let mut came_back = false;
    node.wait("the fault", limit, |node, event| match event {
        Event::Sent { cookie: 5, buf: Some(buf), result: Err(_), .. } => {
            node.engine.free(buf);
            came_back = true;
            None
        }
        Event::PeerFailed { fault, .. } => {
            assert!(came_back, "the message did not come back before");
            Some(fault)
        }
        other => die(&format!("unexpected {other:?}")),
    })
}

/// A process that only listens, with the job and rank it is told.
pub(crate) fn listen_peer(job: &str, rank: &str) {
    let (Ok(job), Ok(rank)) = (job.parse(), rank.parse()) else { die("bad arguments") };
    let mut node = Node::open(&selection(), &Config::new(name(rank), job));
    tell(&node.addr().to_string());
    let lines = lines_of(std::io::stdin());
    loop {
        match node.poll() {
            Some(Event::Message { buf, .. }) => {
                assert!(check(&buf, 0, 1));
                node.engine.release(buf);
                tell("message");
            }
            Some(Event::PeerFailed { fault, .. }) => tell(&format!("fault {fault}")),
            Some(_) => {}
            None if matches!(
                lines.try_recv(),
                Err(std::sync::mpsc::TryRecvError::Disconnected)
            ) =>
            {
                return;
            }
            None => {}
        }
    }
}

pub(crate) fn killed_peer() {
    watchdog(Duration::from_secs(60), "killed peer");
    let mut node = Node::open(&selection(), &impatient(0));
    let mut other = Other::peer(&["listen", &JOB.to_string(), "1"]);
    let addr = other.hear_addr();
    let peer = node.engine.add_peer(name(1), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    let Some(buf) = node.message(0, 1, 100) else { die("no buffer") };
    node.send(peer, 0, buf, 0);
    let (sent, connected, mut heard) = (Cell::new(false), Cell::new(false), false);
    node.run(
        "the first message",
        Duration::from_secs(20),
        |_| {
            heard |= other.heard().is_some();
            sent.get() && connected.get() && heard
        },
        |node, event| match event {
            Event::Sent { buf: Some(buf), result: Ok(()), .. } => {
                node.engine.free(buf);
                sent.set(true);
            }
            Event::PeerConnected { .. } => connected.set(true),
            other => die(&format!("unexpected {other:?}")),
        },
    );
    other.kill();
    let killed = Instant::now();
    let fault = node.wait("the fault", Duration::from_secs(10), |_, event| match event {
        Event::PeerFailed { fault, .. } => Some(fault),
        other => die(&format!("unexpected {other:?}")),
    });
    eprintln!("reported after {:?}: {fault}", killed.elapsed());
    assert!(
        matches!(fault.kind, FaultKind::Disconnected { .. } | FaultKind::Lane { .. }),
        "{fault}"
    );
    // It stays failed: a later message is refused with the same fault.
    let Some(buf) = node.message(0, 2, 100) else { die("no buffer") };
    match node.engine.send(peer, 0, buf, 0) {
        Err(e) => node.engine.free(e.buf),
        Ok(sent) => die(&format!("a message to a failed peer was {sent:?}")),
    }
    node.close();
}

pub(crate) fn wrong_job() {
    watchdog(Duration::from_secs(60), "wrong job");
    let mut node = Node::open(&selection(), &impatient(0));
    let mut other = Other::peer(&["listen", "12345", "1"]);
    let addr = other.hear_addr();
    let fault = fault_of(&mut node, 1, addr, Duration::from_secs(10));
    let expected = FaultKind::Connect(ConnectFault::Rejected(RejectReason::Job));
    assert_eq!(fault.kind, expected, "{fault}");
    assert!(fault.to_string().contains("another job"), "{fault}");
    node.close();
    other.finish(Duration::from_secs(10));
}

/// Another process of the job listens at the address.
pub(crate) fn wrong_process() {
    watchdog(Duration::from_secs(60), "wrong process");
    let mut node = Node::open(&selection(), &impatient(0));
    let mut other = Other::peer(&["listen", &JOB.to_string(), "2"]);
    let addr = other.hear_addr();
    let fault = fault_of(&mut node, 1, addr, Duration::from_secs(10));
    assert!(fault.to_string().contains("another process listens"), "{fault}");
    node.close();
    other.finish(Duration::from_secs(10));
}

fn own_ip(node: &Node) -> IpAddr {
    node.addr().ip()
}

pub(crate) fn nobody_listening() {
    watchdog(Duration::from_secs(60), "nobody listening");
    let mut node = Node::open(&selection(), &impatient(0));
    let addr = SocketAddr::new(own_ip(&node), 9);
    let start = Instant::now();
    let fault = fault_of(&mut node, 1, addr, Duration::from_secs(8));
    assert!(start.elapsed() >= Duration::from_secs(2), "it was not tried again");
    let text = fault.to_string();
    assert!(matches!(fault.kind, FaultKind::Connect(ConnectFault::GaveUp { .. })), "{text}");
    assert!(text.contains("refused") && text.contains(&addr.to_string()), "{text}");
    node.close();
}

/// An address on the device's network whose host has a hardware address and never answers.
fn silent(node: &Node) -> SocketAddr {
    let IpAddr::V4(own) = own_ip(node) else { die("the test's address must be IPv4") };
    let [a, b, c, _] = own.octets();
    let ip = IpAddr::from([a, b, c, 222]);
    let done = Command::new("ip")
        .args(["neigh", "replace", &ip.to_string(), "lladdr", "02:00:00:00:02:22", "nud"])
        .args(["permanent", "dev", &node.published.netdev])
        .status();
    assert!(done.is_ok_and(|s| s.success()), "ip neigh replace");
    SocketAddr::new(ip, 7777)
}

pub(crate) fn silent_host() {
    watchdog(Duration::from_secs(60), "silent host");
    let mut node = Node::open(&selection(), &impatient(0));
    let addr = silent(&node);
    // Two dials of two seconds, a pause between them.
    let fault = fault_of(&mut node, 1, addr, Duration::from_secs(8));
    let text = fault.to_string();
    assert!(matches!(fault.kind, FaultKind::Connect(ConnectFault::GaveUp { .. })), "{text}");
    assert!(text.contains(&addr.to_string()), "{text}");
    node.close();
}

pub(crate) fn drop_while_dialling() {
    watchdog(Duration::from_secs(60), "drop while dialling");
    let mut config = Config::new(name(0), JOB);
    config.t_conn = 60 * SECOND;
    let mut node = Node::open(&selection(), &config);
    let addr = silent(&node);
    for rank in 1..12 {
        let peer =
            node.engine.add_peer(name(rank), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
        let Some(buf) = node.message(0, 1, 100) else { die("no buffer") };
        node.send(peer, 0, buf, 0);
    }
    let mut polls = 0;
    node.run(
        "a second",
        Duration::from_secs(30),
        |_| {
            polls += 1;
            std::thread::sleep(Duration::from_millis(10));
            polls > 100
        },
        |_, event| die(&format!("unexpected {event:?}")),
    );
    let start = Instant::now();
    drop(node);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "dropping the engine took {took:?}");
}
