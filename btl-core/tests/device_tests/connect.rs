//! How connections come up and go.
use crate::device_support::{
    JOB, Node, Other, check, die, lines_of, name, progress, selection, tell, watchdog,
};
use btl_core::{Config, Event};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

fn parse<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| die(&format!("{text:?} is not what was expected")))
}

/// Sends one message on each lane and computes.
fn send_and_compute(node: &mut Node, rank: u32, addr: SocketAddr, time: Duration) {
    let peer = node.engine.add_peer(name(rank), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    let me = node.rank as u8;
    let large = node.engine.max_payload(1);
    for (tag, len) in [(0, 64), (1, large)] {
        let Some(buf) = node.message(me, tag, len) else { die("no buffer") };
        node.send(peer, tag as u8, buf, tag);
    }
    let end = Instant::now() + time;
    while Instant::now() < end {
        progress();
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// After the pause both messages arrive soon.
fn receive_both(node: &mut Node) {
    let (from, mut got, mut sent) = (1 - node.rank as u8, 0, 0);
    let limit = Duration::from_secs(5);
    node.wait("the messages after computing", limit, |node, event| {
        match event {
            Event::Message { tag, buf, .. } => {
                assert!(check(&buf, from, u64::from(tag)));
                node.engine.release(buf);
                got += 1;
            }
            Event::Sent { buf: Some(buf), result: Ok(()), .. } => {
                node.engine.free(buf);
                sent += 1;
            }
            Event::PeerConnected { .. } | Event::NewPeer { .. } => {}
            other => die(&format!("unexpected {other:?}")),
        }
        (got == 2 && sent == 2).then_some(())
    });
}

/// Both sides ask for a connection and then call nothing for longer than any device waits for an
/// accept (ten seconds on siw).
pub(crate) fn both_compute() {
    watchdog(Duration::from_secs(60), "computing");
    let mut node = Node::open(&selection(), &Config::new(name(0), JOB));
    let mut other = Other::peer(&["compute", &node.addr().to_string(), "15"]);
    let addr = other.hear_addr();
    send_and_compute(&mut node, 1, addr, Duration::from_secs(15));
    let cm = node.engine.cm_mut().stats();
    assert_eq!((cm.dials_failed, cm.accepts_failed), (0, 0), "{cm:?}");
    receive_both(&mut node);
    other.say("end");
    node.close();
    other.finish(Duration::from_secs(20));
}

pub(crate) fn compute_peer(addr: &str, seconds: &str) {
    let mut node = Node::open(&selection(), &Config::new(name(1), JOB));
    tell(&node.addr().to_string());
    send_and_compute(&mut node, 0, parse(addr), Duration::from_secs(parse(seconds)));
    receive_both(&mut node);
    // The first process may still be reading what was sent.
    let _ = lines_of(std::io::stdin()).recv_timeout(Duration::from_secs(20));
    node.close();
}

fn exchange_one(node: &mut Node, rank: u32, addr: SocketAddr, round: u64) {
    let peer = node.engine.add_peer(name(rank), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    let me = node.rank as u8;
    let Some(buf) = node.message(me, round, 200) else { die("no buffer") };
    node.send(peer, 0, buf, 0);
    let (mut got, mut sent) = (false, false);
    node.wait("a round", Duration::from_secs(20), |node, event| {
        match event {
            Event::Message { buf, .. } => {
                assert!(check(&buf, 1 - me, round));
                node.engine.release(buf);
                got = true;
            }
            Event::Sent { buf: Some(buf), result: Ok(()), .. } => {
                node.engine.free(buf);
                sent = true;
            }
            Event::PeerConnected { .. } | Event::NewPeer { .. } => {}
            other => die(&format!("round {round}: unexpected {other:?}")),
        }
        (got && sent).then_some(())
    });
    node.engine.remove_peer(peer);
    progress();
}

fn all_closed(node: &mut Node) {
    node.run(
        "closing the lanes",
        Duration::from_secs(20),
        |node| node.engine.stats().lanes_up == node.engine.stats().lanes_closed,
        |_, event| match event {
            Event::PeerConnected { .. } | Event::NewPeer { .. } => {}
            other => die(&format!("unexpected {other:?}")),
        },
    );
}

/// Orderly close and a new connection, in turns initiated by both.
pub(crate) fn again_and_again() {
    watchdog(Duration::from_secs(60), "again");
    let mut node = Node::open(&selection(), &Config::new(name(0), JOB));
    let mut other = Other::peer(&["again", &node.addr().to_string(), "50"]);
    let addr = other.hear_addr();
    for round in 0..50 {
        other.say("go");
        exchange_one(&mut node, 1, addr, round);
        all_closed(&mut node);
        assert_eq!(other.hear(Duration::from_secs(20)), "closed");
    }
    node.close();
    other.finish(Duration::from_secs(20));
}

pub(crate) fn again_peer(addr: &str, rounds: &str) {
    let mut node = Node::open(&selection(), &Config::new(name(1), JOB));
    tell(&node.addr().to_string());
    let lines = lines_of(std::io::stdin());
    for round in 0..parse(rounds) {
        let _ = node.wait_line(&lines);
        exchange_one(&mut node, 0, parse(addr), round);
        all_closed(&mut node);
        tell("closed");
    }
    node.close();
}
