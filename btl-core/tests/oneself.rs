//! A process as its own peer: two queue pairs of one engine on each lane.
#![allow(missing_docs)]
mod common;
use btl_core::error::{Error, FaultKind};
use btl_core::port::PortInfo;
use btl_core::{CreditRoute, Event, PeerId, Role};
use common::*;

fn alone(change: impl FnOnce(&mut btl_core::Config)) -> (Shared, Vec<Eng>, PeerId) {
    let net = net(1);
    let mut config = config(0);
    change(&mut config);
    let mut all = vec![engine(&net, 0, config)];
    let peer = all[0].add_peer(name(0), &[addr(0)]).expect("its own peer");
    (net, all, peer)
}

/// Sends messages of both classes to itself and checks that all arrive once and in the order of their class.
fn talk(net: &Shared, all: &mut [Eng], peer: PeerId, n: u32) {
    let (mut sent, mut got, mut done) = ([0u32; 2], [0u32; 2], 0);
    let mut idle = 0;
    while idle < 4 {
        idle += 1;
        for (class, sent) in sent.iter_mut().enumerate() {
            while *sent < n {
                let len = if class == 0 { 20 } else { 900 };
                let Ok(mut buf) = all[0].alloc(len) else { break };
                buf[..4].copy_from_slice(&sent.to_le_bytes());
                assert!(all[0].send(peer, class as u8, buf, 0).is_ok());
                *sent += 1;
            }
        }
        let now = net.borrow().now;
        while let Some(event) = all[0].poll(now) {
            idle = 0;
            match event {
                Event::Message { peer: from, tag, buf } => {
                    assert_eq!(from, peer);
                    let class = usize::from(tag);
                    assert_eq!(buf[..4], got[class].to_le_bytes());
                    got[class] += 1;
                    all[0].release(buf);
                }
                Event::Sent { buf: Some(buf), result: Ok(()), peer: to, .. } => {
                    assert_eq!(to, peer);
                    done += 1;
                    all[0].free(buf);
                }
                Event::PeerConnected { peer: it, .. } => assert_eq!(it, peer),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((got, done), ([n; 2], 2 * n));
    assert_eq!((net.borrow().overruns, net.borrow().early), (0, 0));
}

#[test]
fn messages_to_oneself_arrive_in_order() {
    let (net, mut all, peer) = alone(|_| {});
    talk(&net, &mut all, peer, 300);
    talk(&net, &mut all, peer, 300);
    assert!(all[0].is_consistent());
    let report = all[0].report();
    let [one] = report.as_slice() else { panic!("{report:?}") };
    let stats = &one.stats;
    assert_eq!((stats.messages_sent, stats.messages_received), (1200, 1200));
    assert_eq!(one.stats, all[0].stats());
    assert_eq!(one.lanes[1].up.map(|up| up.role), Some(Role::Initiator));
    assert_eq!(net.borrow().alive(0).len(), 4);
}

#[test]
fn credits_to_oneself_may_go_on_the_first_lane() {
    let (net, mut all, peer) = alone(|config| config.credit_route = CreditRoute::FirstLane);
    talk(&net, &mut all, peer, 300);
    assert!(all[0].stats().credits_on_first_lane > 0);
}

#[test]
fn others_are_peers_beside_oneself() {
    let (net, mut all) = engines(2);
    let me = all[0].add_peer(name(0), &[addr(0)]).unwrap();
    assert!(send(&mut all[0], 1, &[1; 8], 0) && send(&mut all[0], 0, &[2; 8], 0));
    let mut from = Vec::new();
    for events in settle(&net, &mut all).into_iter().zip(0..) {
        for event in events.0 {
            match event {
                Event::Message { peer, buf, .. } => {
                    from.push((events.1, peer, buf[0]));
                    all[events.1].release(buf);
                }
                Event::Sent { buf: Some(buf), .. } => all[events.1].free(buf),
                _ => {}
            }
        }
    }
    let other = all[1].add_peer(name(0), &[addr(0)]).unwrap();
    assert_eq!(from, [(0, me, 2), (1, other, 1)]);
    assert_eq!(all[0].report().len(), 2);
}

#[test]
fn it_can_be_removed_and_added_again_with_messages_waiting() {
    let (net, mut all, mut peer) = alone(|_| {});
    for round in 0..5 {
        for _ in 0..20 {
            assert!(send(&mut all[0], 0, &[1; 900], 0));
        }
        if round % 2 == 0 {
            drain(&net, &mut all);
        }
        all[0].remove_peer(peer);
        let rest = drain(&net, &mut all);
        assert!(rest[0].iter().all(|e| matches!(e, Event::PeerConnected { .. })), "{rest:?}");
        assert_eq!(all[0].stats().messages_received, 20 * (round + 1));
        assert_eq!(all[0].gauges().peers, 0);
        assert_eq!(all[0].stats().lanes_up, all[0].stats().lanes_closed);
        assert!(all[0].report().is_empty() && all[0].is_consistent());
        peer = all[0].add_peer(name(0), &[addr(0)]).unwrap();
    }
    // Every buffer came home.
    assert_eq!((all[0].port().pooled(0), all[0].port().pooled(1)), (64, 32));
}

#[test]
fn a_broken_lane_fails_it_once_from_either_end() {
    for end in 0..2 {
        let (net, mut all, peer) = alone(|_| {});
        talk(&net, &mut all, peer, 3);
        let qp = net.borrow().alive(0)[end];
        net.borrow_mut().cut(qp);
        let rest = drain(&net, &mut all);
        let faults: Vec<_> = rest[0].iter().collect();
        let [Event::PeerFailed { peer: it, fault }] = faults.as_slice() else { panic!("{rest:?}") };
        assert_eq!(*it, peer);
        assert!(matches!(fault.kind, FaultKind::Disconnected { .. } | FaultKind::Lane { .. }));
        assert_eq!(all[0].report().len(), 1);
        all[0].remove_peer(peer);
        assert!(drain(&net, &mut all)[0].is_empty());
        let peer = all[0].add_peer(name(0), &[addr(0)]).unwrap();
        talk(&net, &mut all, peer, 3);
    }
}

#[test]
fn a_close_ends_both_ends() {
    let (net, mut all, peer) = alone(|_| {});
    talk(&net, &mut all, peer, 3);
    for _ in 0..30 {
        assert!(send(&mut all[0], 0, &[1; 900], 0));
    }
    let now = net.borrow().now;
    all[0].close(now);
    let rest = drain(&net, &mut all);
    assert!(matches!(rest[0].as_slice(), [Event::Closed]), "{rest:?}");
    assert_eq!(all[0].stats().messages_received, 36);
    assert_eq!(all[0].stats().lanes_up, all[0].stats().lanes_closed);
}

#[test]
fn a_device_that_cannot_connect_to_itself_is_named_with_the_reason() {
    let net = net(1);
    net.borrow_mut().info = PortInfo {
        device: "cx0:1".to_owned(),
        no_loopback: Some("the quirk table says so".to_owned()),
        ..PortInfo::default()
    };
    let mut engine = engine(&net, 0, config(0));
    let error = engine.add_peer(name(0), &[addr(0)]).unwrap_err();
    assert!(matches!(&error, Error::SelfPeer { name: it, .. } if *it == name(0)));
    for part in
        ["cx0:1 cannot connect to itself", "the quirk table says so", "--mca btl self,verbs"]
    {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(engine.add_peer(name(1), &[addr(0)]).is_ok());
}
