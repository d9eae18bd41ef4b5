//! The example of active messages on the fabric in memory, with itself and with another as its peer.
#![allow(missing_docs)]
mod common;
#[path = "../examples/active_messages.rs"]
#[allow(dead_code, unreachable_pub)]
mod example;

use common::*;
use example::{Node, add, keep};

type State = (u64, Vec<u64>);
type Handlers = Vec<example::Handler<State>>;

fn node(engine: Eng) -> Node<LoopPort, LoopCm, State> {
    let handlers: Handlers = vec![add, keep];
    Node::new(engine, State::default(), handlers)
}

/// Sends 1 to 500, and steps all nodes until nothing happens any more.
fn count(nodes: &mut [Node<LoopPort, LoopCm, State>], peer: btl_core::PeerId) {
    (1..=500_u64).for_each(|n| nodes[0].send(peer, (0, n.to_le_bytes().to_vec())));
    let mut idle = 0;
    while idle < 4 {
        idle += 1;
        for node in &mut *nodes {
            while node.step(0).expect("no peer fails") {
                idle = 0;
            }
        }
    }
}

fn sums() -> Vec<u64> {
    (1..=500_u64).map(|n| n * (n + 1) / 2).collect()
}

#[test]
fn answers_come_back_in_order_from_another_process() {
    let (_net, all) = engines(2);
    let mut nodes: Vec<_> = all.into_iter().map(node).collect();
    let peer = nodes[0].engine.add_peer(name(1), &[addr(1)]).unwrap();
    count(&mut nodes, peer);
    assert_eq!((nodes[0].state.1.clone(), nodes[1].state.0), (sums(), 125_250));
}

#[test]
fn and_from_oneself() {
    let net = net(1);
    let mut nodes = vec![node(engine(&net, 0, config(0)))];
    let me = nodes[0].engine.add_peer(name(0), &[addr(0)]).unwrap();
    count(&mut nodes, me);
    assert_eq!(nodes[0].state, (125_250, sums()));
}

#[test]
fn a_message_for_no_handler_is_an_error() {
    let (_net, all) = engines(2);
    let mut nodes: Vec<_> = all.into_iter().map(node).collect();
    let peer = nodes[0].engine.add_peer(name(1), &[addr(1)]).unwrap();
    nodes[0].send(peer, (7, Vec::new()));
    let mut last = String::new();
    for _ in 0..100 {
        assert!(nodes[0].step(0).is_ok());
        if let Err(error) = nodes[1].step(0) {
            last = error.to_string();
            break;
        }
    }
    assert_eq!(last, "no such handler");
}
