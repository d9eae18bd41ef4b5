//! Rails on the fabric in memory: two of them between two processes.
#![allow(missing_docs)]
mod common;

use btl_core::error::{ConnectFault, FaultKind};
use btl_core::rails::*;
use btl_core::rma::{MAX_LEN, RmaErrorKind};
use btl_core::{Config, RemoteRange, SECOND};
use common::{Eng, LoopCm, LoopPort, Memory, Shared, Slot, addr, config, engine, name, net};

type Both = Rails<LoopPort, LoopCm>;
type Ev = RailsEvent<Slot, Memory>;

/// Where rail `rail` of a process is.
fn side(process: usize, rail: usize) -> usize {
    2 * rail + process
}

fn rail(net: &Shared, process: usize, at: usize, config: Config) -> Rail<LoopPort, LoopCm> {
    let engine: Eng = engine(net, side(process, at), config);
    Rail { label: format!("loop{at}"), engine, bandwidth: 100, latency: 1000 }
}

fn rails_with(net: &Shared, process: usize, settings: RailsConfig) -> Both {
    let mut its = config(process);
    its.t_give_up = 10 * SECOND;
    let all = (0..2).map(|at| rail(net, process, at, its.clone())).collect();
    Rails::new(settings, all).expect("valid")
}

/// Two processes, connected by two rails when something is sent.
fn two(settings: &RailsConfig) -> (Shared, Vec<Both>, RailsPeer) {
    let net = net(4);
    let mut all: Vec<Both> = (0..2).map(|p| rails_with(&net, p, settings.clone())).collect();
    let addrs = |process| vec![vec![addr(side(process, 0))], vec![addr(side(process, 1))]];
    all[1].add_peer(name(0), &addrs(0)).expect("added");
    let peer = all[0].add_peer(name(1), &addrs(1)).expect("added");
    (net, all, peer)
}

/// Polls until nothing happens on any side; messages are copied and released.
fn settle(net: &Shared, all: &mut [Both]) -> (Vec<Vec<u8>>, Vec<Ev>) {
    let (mut messages, mut rest, mut idle) = (Vec::new(), Vec::new(), 0);
    while idle < 8 {
        idle += 1;
        net.borrow_mut().now += 1_000_000;
        let now = net.borrow().now;
        for rails in &mut *all {
            while let Some(event) = rails.poll(now) {
                idle = 0;
                match event {
                    RailsEvent::Message { data, .. } => {
                        messages.push(data.to_vec());
                        rails.release(data);
                    }
                    other => rest.push(other),
                }
            }
        }
    }
    (messages, rest)
}

fn message(n: usize) -> Vec<u8> {
    (0..n * 37 % 9000).map(|at| (at * 7 + n) as u8).collect()
}

fn sent_well(events: &[Ev]) -> Vec<u64> {
    let cookie = |event: &Ev| match event {
        RailsEvent::Sent { cookie, result: Ok(()), .. } => Some(*cookie),
        _ => None,
    };
    events.iter().filter_map(cookie).collect()
}

#[test]
fn messages_of_all_lengths_arrive_in_order_over_both() {
    let (net, mut all, peer) = two(&RailsConfig { stripe_min: 0, ..RailsConfig::default() });
    for n in 0..200 {
        all[0].send(peer, 1, message(n), n as u64).expect("taken");
    }
    let (messages, events) = settle(&net, &mut all);
    assert_eq!(messages, (0..200).map(message).collect::<Vec<_>>());
    assert_eq!(sent_well(&events), (0..200).collect::<Vec<_>>());
    for rail in 0..2 {
        assert_eq!(all[0].rail_state(peer, rail), Some(RailState::Up));
        let bytes = all[0].engine(rail).expect("a rail").stats().bytes_sent;
        assert!(bytes > 100_000, "rail {rail} carried {bytes} bytes");
    }
}

#[test]
fn a_rail_that_fails_loses_nothing() {
    let (net, mut all, peer) = two(&RailsConfig { stripe_min: 0, ..RailsConfig::default() });
    all[0].send(peer, 1, message(100), 0).expect("taken");
    let (_, events) = settle(&net, &mut all);
    assert_eq!(sent_well(&events), [0]);
    // What is on its way on the second rail is not acknowledged when it is cut.
    net.borrow_mut().hold_sends = true;
    for n in 1..50 {
        all[0].send(peer, 1, message(n), n as u64).expect("taken");
    }
    let alive = net.borrow().alive(side(0, 1));
    alive.into_iter().for_each(|qp| net.borrow_mut().cut(qp));
    net.borrow_mut().hold_sends = false;
    let (messages, events) = settle(&net, &mut all);
    assert_eq!(messages, (1..50).map(message).collect::<Vec<_>>());
    assert_eq!(sent_well(&events), (1..50).collect::<Vec<_>>());
    let down = |event: &&Ev| matches!(event, RailsEvent::RailDown { rail: 1, .. });
    assert_eq!(events.iter().filter(down).count(), 2, "once on each side: {events:?}");
    assert!(matches!(all[0].rail_state(peer, 1), Some(RailState::Down(RailFault::Failed(_)))));
    assert!(all[0].stats().resent > 0);
}

#[test]
fn a_peer_that_no_rail_reaches_is_told_with_each_rail_and_why() {
    let (net, mut all, peer) = two(&RailsConfig::default());
    net.borrow_mut().fail_dials = u32::MAX;
    all[0].send(peer, 1, b"lost".to_vec(), 5).expect("taken");
    let mut events = Vec::new();
    for _ in 0..40 {
        net.borrow_mut().now += SECOND;
        events.extend(settle(&net, &mut all[..1]).1);
    }
    let sent = events.iter().find_map(|event| match event {
        RailsEvent::Sent { cookie: 5, data, result: Err(fault), .. } => {
            Some((data.clone(), fault.clone()))
        }
        _ => None,
    });
    let failed = events.iter().find_map(|event| match event {
        RailsEvent::PeerFailed { fault, .. } => Some(fault.clone()),
        _ => None,
    });
    let (data, fault) = sent.expect("the message comes back");
    assert_eq!((data, Some(&fault)), (b"lost".to_vec(), failed.as_ref()));
    let RailsFaultKind::NoRail { tried } = &fault.kind else { panic!("{fault}") };
    for (at, it) in tried.iter().enumerate() {
        assert_eq!((it.rail, &it.label), (at, &format!("loop{at}")));
        let RailFault::Failed(why) = &it.fault else { panic!("{:?}", it.fault) };
        assert!(matches!(why.kind, FaultKind::Connect(ConnectFault::GaveUp { .. })), "{why}");
    }
    let text = fault.to_string();
    for part in [
        "no rail reaches it",
        "rail 0 (loop0): cannot connect",
        "rail 1 (loop1): cannot",
        "refused",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let after = all[0].send(peer, 1, b"more".to_vec(), 6).unwrap_err();
    assert_eq!((after.data, after.kind), (b"more".to_vec(), RailsSendErrorKind::Failed(fault)));
}

#[test]
fn limits_are_told() {
    let settings = RailsConfig { max_message: 5000, max_queued: 2, ..RailsConfig::default() };
    let (net, mut all, peer) = two(&settings);
    let long = all[0].send(peer, 1, vec![0; 5001], 0).unwrap_err();
    assert_eq!(long.kind, RailsSendErrorKind::TooLong { len: 5001, max: 5000 });
    assert_eq!(long.data.len(), 5001);
    for n in 0..2 {
        all[0].send(peer, 1, vec![1; 5000], n).expect("taken");
    }
    let third = all[0].send(peer, 1, Vec::new(), 2).unwrap_err();
    assert_eq!(third.kind, RailsSendErrorKind::Busy { max: 2 });
    let (messages, events) = settle(&net, &mut all);
    assert_eq!((messages.len(), sent_well(&events)), (2, vec![0, 1]));
    all[0].send(peer, 1, Vec::new(), 2).expect("there is room again");
    for max_message in [0, (1 << 63) + 1] {
        let bad = RailsConfig { max_message, ..RailsConfig::default() };
        let error = Rails::<LoopPort, LoopCm>::new(bad, Vec::new()).err().expect("refused");
        assert!(error.to_string().contains("1 to 2^63 bytes"), "{error}");
    }
}

#[test]
fn a_longer_message_than_agreed_fails_whoever_sends_it() {
    let net = net(4);
    let short = RailsConfig { max_message: 100, ..RailsConfig::default() };
    let mut all = vec![rails_with(&net, 0, RailsConfig::default()), rails_with(&net, 1, short)];
    let peer = all[0].add_peer(name(1), &[vec![addr(side(1, 0))]]).expect("added");
    all[0].send(peer, 1, vec![0; 101], 0).expect("taken");
    let (messages, events) = settle(&net, &mut all);
    assert!(messages.is_empty());
    let fault = RailsFaultKind::Protocol(RailsProtocolFault::TooLong { len: 101, max: 100 });
    let seen = |event: &Ev| match event {
        RailsEvent::PeerFailed { fault, .. } => Some(fault.kind.clone()),
        _ => None,
    };
    assert_eq!(events.iter().find_map(seen), Some(fault));
    let left = events.iter().any(|event| match event {
        RailsEvent::Sent { cookie: 0, result: Err(fault), .. } => {
            fault.kind == RailsFaultKind::Left
        }
        _ => false,
    });
    assert!(left, "the sender hears of it: {events:?}");
}

#[test]
fn rails_that_are_numbered_otherwise_are_a_clear_fault() {
    let net = net(4);
    let mut all: Vec<Both> = (0..2).map(|p| rails_with(&net, p, RailsConfig::default())).collect();
    let peer = all[0].add_peer(name(1), &[vec![addr(side(1, 1))]]).expect("added");
    all[0].send(peer, 1, b"astray".to_vec(), 0).expect("taken");
    let (messages, events) = settle(&net, &mut all);
    assert!(messages.is_empty());
    let fault = events.iter().find_map(|event| match event {
        RailsEvent::PeerFailed { fault, .. } => Some(fault.to_string()),
        _ => None,
    });
    let fault = fault.expect("a fault");
    assert!(fault.contains("its rail 0 reaches rail 1 here"), "{fault}");
}

#[test]
fn what_cannot_be_made_is_refused() {
    let net = net(4);
    let none = Both::new(RailsConfig::default(), Vec::new()).err();
    assert_eq!(none, Some(RailsError::Count { n: 0, max: MAX_RAILS }));
    let strangers = vec![rail(&net, 0, 0, config(0)), rail(&net, 1, 1, config(1))];
    let differs = Both::new(RailsConfig::default(), strangers).err();
    assert_eq!(differs, Some(RailsError::Differs { rail: 1, what: "name" }));
    let mut rails = rails_with(&net, 0, RailsConfig::default());
    let error = rails.add_peer(name(0), &[vec![addr(0)]]).unwrap_err();
    assert_eq!(error, RailsError::Oneself { name: name(0) });
    for given in [0, 3] {
        let addrs = vec![vec![addr(1)]; given];
        let error = rails.add_peer(name(1), &addrs).unwrap_err();
        assert_eq!(error, RailsError::Addresses { name: name(1), given, rails: 2 });
    }
}

#[test]
fn puts_in_parts_end_once_and_say_which_rail_refused() {
    let (net, mut all, peer) = two(&RailsConfig { stripe_min: 0, ..RailsConfig::default() });
    all[0].send(peer, 1, vec![0; 4000], 0).expect("taken");
    settle(&net, &mut all);
    net.borrow_mut().rma.shared = vec![vec![0; 8]; 2];
    let part = |rail, len| {
        let memory = Memory { id: rail as u32, bytes: vec![rail as u8 + 1; 8] };
        Part { rail, memory, len, remote: RemoteRange { addr: 4096, len, rkey: rail as u32 } }
    };
    all[0]
        .put(peer, vec![part(0, 8), part(1, 8), part(1, MAX_LEN + 1), part(7, 8)], 3)
        .expect("taken");
    let (_, events) = settle(&net, &mut all);
    let [RailsEvent::Done { cookie: 3, parts, .. }] = &events[..] else { panic!("{events:?}") };
    let results: Vec<_> = parts.iter().map(|part| part.result.clone()).collect();
    let long = RmaErrorKind::TooLong { len: MAX_LEN + 1, max: MAX_LEN };
    let refused = [Err(PartFault::Refused(long)), Err(PartFault::NotUp { rail: 7 })];
    assert_eq!((&results[..2], &results[2..]), (&[Ok(()), Ok(())][..], &refused[..]));
    assert!(parts.iter().all(|part| part.memory.is_some()), "all memory is back");
    assert_eq!(net.borrow().rma.shared, [vec![1; 8], vec![2; 8]]);
    let none = all[0].put(peer, Vec::new(), 4).unwrap_err();
    assert_eq!(none.kind, PartsErrorKind::Count { n: 0, max: 255 });
    let whole: u64 = all[0].shares(peer, 1 << 63).iter().map(|share| share.len).sum();
    assert_eq!(whole, 1 << 63);
}

#[test]
fn a_close_waits_for_what_was_sent() {
    let (net, mut all, peer) = two(&RailsConfig::default());
    for n in 0..30 {
        all[0].send(peer, 1, message(n), n as u64).expect("taken");
    }
    all[0].close(0);
    assert_eq!(all[0].send(peer, 1, Vec::new(), 99).unwrap_err().kind, RailsSendErrorKind::Closing);
    let (messages, events) = settle(&net, &mut all);
    assert_eq!(messages, (0..30).map(message).collect::<Vec<_>>());
    assert_eq!(sent_well(&events), (0..30).collect::<Vec<_>>());
    assert!(events.iter().any(|event| matches!(event, RailsEvent::PeerLeft { .. })), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, RailsEvent::Closed)), "{events:?}");
}
