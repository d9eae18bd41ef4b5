//! How connections, peers and engines end.
#![allow(missing_docs)]
mod common;
use btl_core::error::FaultKind;
use btl_core::{Event, SECOND};
use common::*;

#[test]
fn a_broken_connection_fails_the_peer_once_and_everything_comes_home() {
    let (net, mut all) = connected();
    // Nobody polls: 5 are posted (one place is for control messages), the rest waits.
    for n in 0..20 {
        assert!(send(&mut all[0], 1, &[2; 8], n));
    }
    let qp = net.borrow().alive(0)[0];
    net.borrow_mut().cut(qp);
    let events = settle(&net, &mut all);
    let mut cookies = Vec::new();
    let mut failures = 0;
    for event in events.into_iter().next().unwrap() {
        match event {
            Event::Sent { cookie, result, buf, .. } => {
                assert_eq!(failures, 0, "nothing comes after the report");
                assert!(result.is_err());
                cookies.push(cookie);
                all[0].free(buf.unwrap());
            }
            Event::PeerFailed { fault, .. } => {
                failures += 1;
                assert!(matches!(fault.kind, FaultKind::Disconnected { class: 0 }), "{fault}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((failures, cookies), (1, (0..20).collect()));
    assert_eq!(all[0].port().pooled(0), 64);
    assert!(!all[0].busy());
}

#[test]
fn an_idle_connection_that_breaks_is_reported_too() {
    let (net, mut all) = connected();
    let qp = net.borrow().alive(0)[0];
    net.borrow_mut().cut(qp);
    for events in settle(&net, &mut all) {
        assert!(matches!(&events[..], [Event::PeerFailed { .. }]), "{events:?}");
    }
}

#[test]
fn a_connection_that_breaks_before_its_hello_is_made_again() {
    let (net, mut all) = engines(2);
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    // The dial, the accept, and the hand-over on the acceptor's side.
    all[0].poll(0);
    all[1].poll(0);
    assert_eq!(net.borrow().alive(1).len(), 0);
    net.borrow_mut().cut(1);
    let events = drain(&net, &mut all);
    assert!(
        events.iter().flatten().all(|e| matches!(e, Event::PeerConnected { .. })),
        "{events:?}"
    );
    assert_eq!(all[1].stats().messages_received, 1);
}

/// Such a connection is one that was dialled and, when it stood, not wanted any more.
#[test]
fn a_connection_that_carried_nothing_but_greetings_may_break() {
    let (net, mut all) = engines(2);
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    let mut heard = false;
    for _ in 0..20 {
        // The acceptor answers the Hello, and the initiator does not look.
        heard |=
            matches!(all[1].poll(0), Some(Event::NewPeer { .. } | Event::PeerConnected { .. }));
        if heard {
            break;
        }
        if net.borrow().alive(0).is_empty() {
            all[0].poll(0);
        }
    }
    assert!(heard);
    while all[1].poll(0).is_some() {}
    let qp = net.borrow().alive(1)[0];
    net.borrow_mut().cut(qp);
    let events = drain(&net, &mut all);
    // The initiator had put its message on the connection by then, and says so.
    assert!(events[0].iter().any(|e| matches!(e, Event::PeerFailed { .. })), "{events:?}");
    assert!(!events[1].iter().any(|e| matches!(e, Event::PeerFailed { .. })), "{events:?}");
}

#[test]
fn orderly_close_from_either_side_or_both() {
    for (first, second) in [(0, 1), (1, 0)] {
        for both in [false, true] {
            let (net, mut all) = connected();
            assert!(send(&mut all[0], 1, &[1; 900], 0));
            drain(&net, &mut all);
            assert!(send(&mut all[first], second, &[3; 8], 1));
            all[first].close(0);
            if both {
                all[second].close(0);
            }
            let events = drain(&net, &mut all);
            assert!(matches!(&events[first][..], [Event::Closed]), "{events:?}");
            assert_eq!(events[second].len(), usize::from(both), "{events:?}");
            assert_eq!(all[second].stats().messages_received, 1 + u64::from(second == 1) + 1);
            assert!(net.borrow().alive(0).is_empty() && net.borrow().stopped[first]);
            all[second].close(0);
            assert!(both || matches!(&drain(&net, &mut all)[second][..], [Event::Closed]));
            assert_eq!(all[first].port().pooled(0), 64);
        }
    }
}

#[test]
fn close_ends_although_the_peer_does_not_answer() {
    let (net, mut all) = connected();
    all[0].close(0);
    let mut one = all.split_off(1);
    for now in [0, 1, 5 * SECOND] {
        net.borrow_mut().now = now;
        assert!(settle(&net, &mut all)[0].is_empty());
    }
    net.borrow_mut().now = 6 * SECOND;
    assert!(matches!(&settle(&net, &mut all)[0][..], [Event::Closed]));
    // The other side hears the Bye that was sent, and then the end: no failure.
    assert!(drain(&net, &mut one)[0].is_empty());
}

#[test]
fn a_lane_that_is_replaced_unseen_ends_before_its_successor_is_judged() {
    let (net, mut all) = connected();
    all[1].cm_mut().silent = true;
    // The peer's process dies unnoticed, and another one takes its name.
    net.borrow_mut().fail_dials = 1;
    all[0] = engine(&net, 0, config(0));
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    all[0].poll(0);
    net.borrow_mut().now += SECOND;
    let now = net.borrow().now;
    all[0].poll(now);
    let events = settle(&net, &mut all[1..]).remove(0);
    assert!(matches!(events[..], [Event::PeerFailed { .. }]), "{events:?}");
    // The successor is not adopted for a peer that has just failed.
    let stats = all[1].stats();
    assert_eq!((stats.lanes_up, stats.lanes_closed, stats.peers_failed), (1, 1, 1));
}

#[test]
fn traffic_without_end_does_not_keep_a_refused_post_waiting() {
    let net = net(3);
    let mut all: Vec<Eng> = (0..3).map(|side| engine(&net, side, deep(side))).collect();
    assert!(send(&mut all[0], 1, &[1; 8], 0) && send(&mut all[2], 0, &[1; 8], 0));
    drain(&net, &mut all);
    net.borrow_mut().refuse = 1;
    assert!(send(&mut all[0], 1, &[2; 8], 1));
    assert_eq!((net.borrow().refuse, all[0].stats().stalls.device), (0, 1));
    // Far fewer than fill the window, so there is never nothing to do.
    for n in 0..200 {
        while send(&mut all[2], 0, &[1; 8], n) {}
        while let Some(event) = all[2].poll(0) {
            if let Event::Sent { buf: Some(buf), .. } = event {
                all[2].free(buf);
            }
        }
        match all[0].poll(0) {
            Some(Event::Message { buf, .. }) => all[0].release(buf),
            Some(Event::Sent { cookie: 1, result: Ok(()), .. }) => return,
            other => panic!("{other:?}"),
        }
    }
    panic!("it was never tried again");
}

#[test]
fn limits_count_from_the_first_look_at_the_clock_after_a_long_computation() {
    // An orderly close: the clock still shows the time before the computation.
    let (net, mut all) = connected();
    let peer = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    all[0].remove_peer(peer);
    settle(&net, &mut all[..1]);
    net.borrow_mut().now = 60 * SECOND;
    settle(&net, &mut all[..1]);
    assert_eq!(net.borrow().alive(0).len(), 1, "closed before its time");
    assert!(drain(&net, &mut all)[1].is_empty());
    assert!(net.borrow().alive(0).is_empty());
    // A stranger whose connection came up meanwhile, and whose Hello is still to come.
    let net = common::net(2);
    let mut all: Vec<Eng> = (0..2).map(|side| engine(&net, side, config(side))).collect();
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    all[0].poll(0);
    settle(&net, &mut all[1..]);
    net.borrow_mut().now = 60 * SECOND;
    let events = settle(&net, &mut all[1..]);
    assert!(events[0].is_empty(), "{events:?}");
    drain(&net, &mut all);
    assert_eq!(all[1].stats().messages_received, 1);
}

#[test]
fn a_removed_peer_can_come_back() {
    let (net, mut all) = connected();
    let peer = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    all[0].remove_peer(peer);
    assert!(drain(&net, &mut all).iter().all(|events| events.is_empty()));
    assert!(net.borrow().alive(0).is_empty() && !all[0].busy());
    let again = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    assert_ne!(peer, again);
    assert!(all[0].peer_name(peer).is_none());
    assert!(send(&mut all[1], 0, &[1; 8], 0));
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    drain(&net, &mut all);
    assert_eq!((all[0].stats().messages_received, all[1].stats().messages_received), (2, 2));
}

#[test]
fn a_peer_that_closes_while_messages_wait_is_a_failure() {
    let (net, mut all) = connected();
    for n in 0..20 {
        assert!(send(&mut all[0], 1, &[2; 8], n));
    }
    all[1].close(0);
    net.borrow_mut().now = SECOND;
    // Side 1 gives up before it ever polls for them.
    let mut one = all.split_off(1);
    let mut closed = false;
    for _ in 0..4 {
        let now = net.borrow().now;
        while let Some(event) = one[0].poll(now) {
            closed |= matches!(event, Event::Closed);
            if let Event::Message { buf, .. } = event {
                std::mem::forget(buf);
            }
        }
        net.borrow_mut().now = now + 6 * SECOND;
    }
    assert!(closed);
    let events = drain(&net, &mut all);
    let failed = events[0].iter().filter(|e| matches!(e, Event::Sent { result: Err(_), .. }));
    assert!(failed.count() > 0);
    assert!(matches!(events[0].last(), Some(Event::PeerFailed { .. })), "{events:?}");
}

/// Lane 0 comes first, though nothing waits for it.
#[test]
fn a_peer_that_is_removed_before_it_is_connected_gets_its_large_messages() {
    let (net, mut all) = engines(2);
    for cookie in 0..3 {
        assert!(send(&mut all[0], 1, &[1; 900], cookie));
    }
    let peer = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    all[0].remove_peer(peer);
    let rest = drain(&net, &mut all);
    assert!(rest.iter().flatten().all(|e| matches!(e, Event::PeerConnected { .. })), "{rest:?}");
    assert_eq!(all[1].stats().messages_received, 3);
    assert_eq!(all[0].gauges().peers, 0);
}
