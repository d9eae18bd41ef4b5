//! Each switch of feature `sabotage` breaks its rule, and the fabric notices; with none, nothing.
#![allow(missing_docs)]
mod common;
use btl_core::Event;
use btl_core::config::Sabotage;
use common::*;

/// Traffic of both classes both ways; returns what the fabric counted, and messages received.
fn run(sabotage: Sabotage, acceptor_first: bool) -> (u32, u32, u64) {
    let net = net(2);
    let mut all: Vec<Eng> = (0..2)
        .map(|side| {
            let mut config = config(side);
            config.sabotage = sabotage;
            engine(&net, side, config)
        })
        .collect();
    // Side 0 dials.
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    all[0].poll(0);
    let mut got = 0;
    for round in 0..200u64 {
        for me in if acceptor_first { [1, 0] } else { [0, 1] } {
            for _ in 0..6 {
                send(&mut all[me], 1 - me, &[1; 8], round);
                send(&mut all[me], 1 - me, &[1; 900], round);
            }
            while let Some(event) = all[me].poll(0) {
                match event {
                    Event::Message { buf, .. } => {
                        got += 1;
                        all[me].release(buf);
                    }
                    Event::Sent { buf: Some(buf), .. } => all[me].free(buf),
                    _ => {}
                }
            }
        }
    }
    let net = net.borrow();
    (net.early, net.overruns, got)
}

#[test]
fn without_sabotage_nothing_is_broken() {
    for acceptor_first in [false, true] {
        let (early, overruns, got) = run(Sabotage::default(), acceptor_first);
        assert_eq!((early, overruns), (0, 0));
        assert!(got > 1000, "{got}");
    }
}

#[test]
fn an_acceptor_that_sends_at_once_is_early() {
    let sabotage = Sabotage { acceptor_sends_at_once: true, ..Sabotage::default() };
    assert!(run(sabotage, true).0 > 0);
}

#[test]
fn without_a_hello_on_every_lane_an_acceptor_is_early() {
    let sabotage = Sabotage { hello_on_lane_0_only: true, ..Sabotage::default() };
    assert!(run(sabotage, true).0 > 0);
}

#[test]
fn a_receive_told_before_it_is_posted_is_overrun() {
    let sabotage = Sabotage { advertise_before_post: true, ..Sabotage::default() };
    let (.., got) = run(sabotage, false);
    // The fabric moves messages at once but runs one side at a time, so nothing overtakes the
    // post here; only the simulator's device models can see it. Traffic goes on.
    assert!(got > 1000, "{got}");
}

#[test]
fn credits_of_lane_1_travel_on_lane_0() {
    let sabotage = Sabotage { credits_on_lane_0: true, ..Sabotage::default() };
    let (early, overruns, got) = run(sabotage, false);
    assert_eq!((early, overruns), (0, 0));
    assert!(got > 1000, "both lanes go on: {got}");
}
