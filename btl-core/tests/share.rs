//! What one peer can take from the others: nothing.
#![allow(missing_docs)]
mod common;
use btl_core::Event;
use common::*;

/// One peer fills everything that it may fill, and none of it is released; another one gets through as if alone.
#[test]
fn share_of_a_flood_is_its_own() {
    let (net, mut all) = engines(3);
    let mut held = Vec::new();
    let (mut flood, mut got) = (0u64, 0u64);
    for round in 0..200u64 {
        while send(&mut all[0], 1, &flood.to_le_bytes(), flood) {
            flood += 1;
        }
        assert!(send(&mut all[2], 1, &round.to_le_bytes(), round));
        for (side, events) in settle(&net, &mut all).into_iter().enumerate() {
            for event in events {
                match event {
                    Event::Message { peer, buf, .. } if all[1].peer_name(peer) == Some(name(0)) => {
                        held.push(buf);
                    }
                    Event::Message { buf, .. } => {
                        assert_eq!((side, &*buf), (1, &got.to_le_bytes()[..]), "in order");
                        got += 1;
                        all[1].release(buf);
                    }
                    Event::Sent { buf: Some(buf), result: Ok(()), .. } => all[side].free(buf),
                    Event::PeerConnected { .. } | Event::NewPeer { .. } => {}
                    other => panic!("side {side}: {other:?}"),
                }
            }
        }
        assert_eq!(got, round + 1, "the other peer's message did not come through");
    }
    // The flood got its own window, to the last receive, and no more.
    let depth = usize::from(config(1).lanes[0].depth);
    assert!(held.len() <= depth && held.len() + 1 >= depth, "{} of {depth}", held.len());
    assert!(flood > depth as u64, "the rest of the flood waits at its sender");
    assert_eq!((net.borrow().overruns, net.borrow().early), (0, 0));
    held.into_iter().for_each(|buf| all[1].release(buf));
}
