//! Messages both ways, on both lanes, with every byte checked.
use crate::device_support::{
    JOB, Node, Other, check, die, name, progress, selection, tell, watchdog,
};
use btl_core::{Config, Event, PeerId};
use std::net::SocketAddr;
use std::time::Duration;

const WINDOW: u64 = 24;

fn config(rank: u32) -> Config {
    Config::new(name(rank), JOB)
}

fn length(class: usize, seq: u64, max: usize) -> usize {
    match class {
        0 if seq.is_multiple_of(512) => max,
        0 => (seq % 251) as usize,
        _ => max - (seq % 4096) as usize,
    }
}

/// Sends and receives `messages` on lane 0 and a hundredth of that on lane 1.
fn exchange(node: &mut Node, peer: PeerId, messages: u64) {
    let goal = [messages, messages / 100];
    let max = [0, 1].map(|class| node.engine.max_payload(class));
    let me = node.rank as u8;
    let (mut sent, mut done, mut got) = ([0; 2], [0; 2], [0; 2]);
    while done != goal || got != goal {
        for class in 0..2 {
            while sent[class] < goal[class] && sent[class] - done[class] < WINDOW {
                let len = length(class, sent[class], max[class]);
                // Too short a message would go on lane 0.
                let Some(buf) = node.message(me, sent[class] * 2 + class as u64, len) else {
                    break;
                };
                assert_eq!(usize::from(buf.class()), class);
                node.send(peer, class as u8, buf, class as u64);
                sent[class] += 1;
            }
        }
        match node.poll() {
            Some(Event::Message { tag, buf, peer: from }) => {
                let class = usize::from(tag);
                assert_eq!(from, peer);
                assert_eq!(buf.len(), length(class, got[class], max[class]));
                assert!(check(&buf, 1 - me, got[class] * 2 + class as u64), "wrong bytes");
                got[class] += 1;
                node.engine.release(buf);
                progress();
            }
            Some(Event::Sent { cookie, buf, result, .. }) => {
                result.unwrap_or_else(|fault| die(&format!("{fault}")));
                node.engine.free(buf.unwrap_or_else(|| die("no buffer came back")));
                done[cookie as usize] += 1;
            }
            Some(Event::PeerFailed { fault, .. }) => die(&format!("{fault}")),
            _ => {}
        }
    }
}

fn run(messages: u64, cq_depth: u32, queues: usize) {
    watchdog(Duration::from_secs(60), "exchange");
    let mut selection = selection();
    selection.cq_depth = cq_depth;
    let mut node = Node::open(&selection, &config(0));
    let (own, n) = (node.addr().to_string(), messages.to_string());
    let mut other = Other::peer(&["exchange", &own, &n, &cq_depth.to_string()]);
    let addr = other.hear_addr();
    let peer = node.engine.add_peer(name(1), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    // Both send at once, so both dial at once.
    other.say("go");
    exchange(&mut node, peer, messages);
    assert_eq!(node.engine.port().queues(), queues);
    let stats = node.engine.stats();
    assert_eq!(stats.messages_received, messages + messages / 100);
    assert_eq!(stats.peers_failed, 0);
    node.close();
    other.finish(Duration::from_secs(20));
}

pub(crate) fn both_ways() {
    run(100_000, 1024, 1);
}

/// Each lane needs a completion queue of its own.
pub(crate) fn many_queues() {
    run(5_000, 32, 2);
}

pub(crate) fn peer(addr: &str, messages: &str, depth: &str) {
    let mut selection = selection();
    selection.cq_depth = depth.parse().unwrap_or_else(|_| die(depth));
    let mut node = Node::open(&selection, &config(1));
    tell(&node.addr().to_string());
    let addr: SocketAddr = addr.parse().unwrap_or_else(|_| die(addr));
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line);
    let peer = node.engine.add_peer(name(0), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    exchange(&mut node, peer, messages.parse().unwrap_or_else(|_| die(messages)));
    node.close();
}

/// The peer answers every message from the handler, before it releases the message.
pub(crate) fn echo_from_upcalls() {
    watchdog(Duration::from_secs(30), "echo");
    let mut node = Node::open(&selection(), &config(0));
    let mut other = Other::peer(&["echo", &node.addr().to_string()]);
    let addr = other.hear_addr();
    let peer = node.engine.add_peer(name(1), &[addr]).unwrap_or_else(|e| die(&e.to_string()));
    let (rounds, mut sent, mut got, mut free) = (5_000u64, 0u64, 0u64, 8);
    while got < rounds {
        while sent < rounds && free > 0 {
            let Some(buf) = node.message(0, sent, (sent % 300) as usize) else { break };
            node.send(peer, 1, buf, 0);
            (sent, free) = (sent + 1, free - 1);
        }
        match node.poll() {
            Some(Event::Message { buf, tag: 2, .. }) => {
                assert!(buf.len() == (got % 300) as usize && check(&buf, 0, got));
                (got, free) = (got + 1, free + 1);
                node.engine.release(buf);
                progress();
            }
            Some(Event::Sent { buf: Some(buf), result: Ok(()), .. }) => node.engine.free(buf),
            Some(Event::PeerConnected { .. }) | None => {}
            Some(other) => die(&format!("unexpected {other:?}")),
        }
    }
    other.say("end");
    other.finish(Duration::from_secs(20));
    node.close();
}

pub(crate) fn echo_peer(_addr: &str) {
    let mut node = Node::open(&selection(), &config(1));
    tell(&node.addr().to_string());
    let lines = crate::device_support::lines_of(std::io::stdin());
    // Nobody told this process of the other: it learns of it by its connect.
    let mut known = None;
    while lines.try_recv().is_err() {
        match node.poll() {
            Some(Event::NewPeer { peer, name }) => known = Some((peer, name)),
            Some(Event::Message { peer, buf, .. }) => {
                assert_eq!(known, Some((peer, name(0))));
                if let Ok(mut answer) = node.engine.alloc(buf.len()) {
                    answer.copy_from_slice(&buf);
                    node.send(peer, 2, answer, 0);
                } else {
                    die("no buffer for the answer");
                }
                node.engine.release(buf);
                progress();
            }
            Some(Event::Sent { buf: Some(buf), result: Ok(()), .. }) => node.engine.free(buf),
            Some(Event::PeerConnected { .. }) | None => {}
            Some(other) => die(&format!("unexpected {other:?}")),
        }
    }
    node.close();
}
