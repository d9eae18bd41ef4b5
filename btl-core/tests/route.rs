//! The credit route FirstLane: who gets it, what travels, and what a peer can do wrong with it.
#![allow(missing_docs)]
mod common;
use btl_core::error::{Error, FaultKind, ProtocolFault};
use btl_core::port::PortInfo;
use btl_core::report::RouteWhy;
use btl_core::route::RouteRefused;
use btl_core::{CreditRoute, Event, PeerReport};
use common::*;

const LARGE: [u8; 900] = [7; 900];

fn routes(first: CreditRoute, second: CreditRoute) -> (Shared, Vec<Eng>) {
    two_with(|side, config| config.credit_route = [first, second][side])
}

/// Sends large messages one way, more than a window at a time; all arrive, and no rule was broken.
fn flood(net: &Shared, all: &mut [Eng], from: usize, n: u64) {
    let before = all[1 - from].stats().messages_received;
    for cookie in 0..n {
        while !send(&mut all[from], 1 - from, &LARGE, cookie) {
            drain(net, all);
        }
    }
    let rest = drain(net, all);
    let failed = |e: &Ev| !matches!(e, Event::PeerConnected { .. });
    assert!(!rest.iter().flatten().any(failed), "{rest:?}");
    assert_eq!(all[1 - from].stats().messages_received - before, n);
    assert_eq!((net.borrow().overruns, net.borrow().early), (0, 0));
}

fn report(engine: &Eng) -> PeerReport {
    engine.report().pop().expect("one peer")
}

#[test]
fn own_is_the_default_and_nothing_travels_elsewhere() {
    let (net, mut all) = engines(2);
    flood(&net, &mut all, 0, 100);
    let stats = all[1].stats();
    assert!(stats.credits_alone > 50 && stats.credits_on_first_lane == 0, "{stats:?}");
    let report = report(&all[1]);
    assert_eq!((report.route, report.route_why), (CreditRoute::OwnLane, RouteWhy::Default));
}

#[test]
fn first_where_both_ask_for_it() {
    let (net, mut all) = routes(CreditRoute::FirstLane, CreditRoute::FirstLane);
    for round in 0..4 {
        flood(&net, &mut all, round % 2, 100);
    }
    for engine in &all {
        let stats = engine.stats();
        assert!(stats.credits_on_first_lane > 50, "{stats:?}");
        let report = report(engine);
        assert_eq!((report.route, report.route_why), (CreditRoute::FirstLane, RouteWhy::BothAsked));
    }
    let (owed, credits) = credits(&mut all[0], 1, 1);
    assert!(owed < 2 && credits > 1, "{owed} owed, {credits} credits");
}

#[test]
fn if_either_says_own_it_is_own() {
    use CreditRoute::{FirstLane, OwnLane};
    for (first, second) in [(FirstLane, OwnLane), (OwnLane, FirstLane)] {
        for from in 0..2 {
            let (net, mut all) = routes(first, second);
            assert_eq!(report(&all[0]).route, OwnLane);
            flood(&net, &mut all, from, 60);
            for (engine, asked) in all.iter().zip([first, second]) {
                assert_eq!(engine.stats().credits_on_first_lane, 0);
                let why = match asked {
                    OwnLane => RouteWhy::Default,
                    FirstLane => RouteWhy::PeerWantsOwn,
                };
                assert_eq!((report(engine).route, report(engine).route_why), (OwnLane, why));
            }
        }
    }
}

#[test]
fn a_device_that_races_is_refused_with_the_reason_unless_forced() {
    let refused = |shared_work_queue, iwarp, force| {
        let net = net(1);
        let device = "cx0:1".to_owned();
        net.borrow_mut().info =
            PortInfo { device, shared_work_queue, iwarp, ..PortInfo::default() };
        let mut config = config(0);
        config.credit_route = CreditRoute::FirstLane;
        config.force_credit_route = force;
        try_engine(&net, 0, config).err()
    };
    let device = || "cx0:1".to_owned();
    let shared = Error::CreditRoute(RouteRefused::SharedWorkQueue { device: device() });
    assert_eq!(refused(true, true, false), Some(shared));
    assert_eq!(
        refused(false, true, false),
        Some(Error::CreditRoute(RouteRefused::Iwarp { device: device() }))
    );
    assert_eq!(refused(false, false, false), None);
    assert_eq!(refused(true, true, true), None);
}

#[test]
fn the_report_says_that_it_was_forced() {
    let net = net(2);
    let device = "cx0:1".to_owned();
    net.borrow_mut().info = PortInfo { device, iwarp: true, ..PortInfo::default() };
    let make = |side| {
        let mut config = config(side);
        config.credit_route = CreditRoute::FirstLane;
        config.force_credit_route = true;
        engine(&net, side, config)
    };
    let mut all = vec![make(0), make(1)];
    for (side, engine) in all.iter_mut().enumerate() {
        engine.add_peer(name(1 - side), &[addr(1 - side)]).unwrap();
    }
    assert!(matches!(report(&all[0]).route_why, RouteWhy::NotAgreed));
    flood(&net, &mut all, 0, 20);
    let line = report(&all[0]).to_string();
    assert!(line.contains("credit route first (forced, though cx0:1 is iWARP"), "{line}");
}

/// What was sent before the peer is removed is still sent, though the first lane says goodbye long before.
#[test]
fn the_other_lanes_go_on_when_the_first_one_has_said_goodbye() {
    let (net, mut all) = routes(CreditRoute::FirstLane, CreditRoute::FirstLane);
    flood(&net, &mut all, 0, 8);
    for cookie in 0..30 {
        assert!(send(&mut all[0], 1, &LARGE, cookie));
    }
    let peer = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    all[0].remove_peer(peer);
    let rest = drain(&net, &mut all);
    assert!(rest.iter().all(|events| events.is_empty()), "{rest:?}");
    assert_eq!(all[1].stats().messages_received, 38);
    assert_eq!(net.borrow().overruns, 0);
}

/// A message on the first lane that tells `credits` of lane `class`, generation `generation`, which the sender has
/// dialled if `dialled`.
fn foreign(class: u8, dialled: bool, credits: u16, generation: u32) -> Vec<u8> {
    let mut bytes = vec![0x28, 0, 0, 0, 0, 8, 0, 0, class, u8::from(dialled)];
    bytes.extend(credits.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    bytes
}

/// Two engines with both lanes up, dialled by side 0; `bytes` reach side 1 on the lane of `class`. What becomes of it.
fn hear(route: CreditRoute, class: usize, bytes: &[u8]) -> (Option<FaultKind>, u32) {
    let (net, mut all) = routes(route, route);
    flood(&net, &mut all, 0, 2);
    let (_, before) = credits(&mut all[1], 0, 1);
    let qp = net.borrow().alive(0)[class];
    net.borrow_mut().inject(qp, bytes);
    let rest = drain(&net, &mut all);
    let fault = rest[1].iter().find_map(|event| match event {
        Event::PeerFailed { fault, .. } => Some(fault.kind.clone()),
        _ => None,
    });
    match fault {
        Some(kind) => (Some(kind), 0),
        None => (None, credits(&mut all[1], 0, 1).1 - before),
    }
}

#[test]
fn credits_elsewhere_that_cannot_be_are_a_fault_and_late_ones_nothing() {
    use CreditRoute::{FirstLane, OwnLane};
    let fault = |it: ProtocolFault| (Some(FaultKind::Protocol(it)), 0);
    let bad = |what| fault(ProtocolFault::LaneCredit { what });
    // Side 1 knows of all but one of the receives on that lane, or of all.
    let (none, _) = hear(FirstLane, 0, &foreign(1, true, 0, 1));
    assert_eq!(none, None);
    let many = hear(FirstLane, 0, &foreign(1, true, 9, 1)).0;
    assert!(matches!(many, Some(FaultKind::Protocol(ProtocolFault::Credits { .. }))), "{many:?}");
    assert_eq!(hear(FirstLane, 0, &foreign(0, true, 1, 1)), bad("they are for the first lane"));
    assert_eq!(hear(FirstLane, 0, &foreign(2, true, 1, 1)), bad("there is no such lane"));
    let mut short = foreign(1, true, 1, 1);
    short[5] = 7;
    assert_eq!(hear(FirstLane, 0, &short), bad("they are too short"));
    assert_eq!(hear(OwnLane, 0, &foreign(1, true, 1, 1)), bad("they were not agreed on"));
    let got = "credits for another lane";
    assert_eq!(
        hear(FirstLane, 1, &foreign(1, true, 1, 1)),
        fault(ProtocolFault::Unexpected { got })
    );
    // Of another connection of that lane: by its generation, or because this side would have dialled it.
    assert_eq!(hear(FirstLane, 0, &foreign(1, true, 9, 2)), (None, 0));
    assert_eq!(hear(FirstLane, 0, &foreign(1, false, 9, 1)), (None, 0));
}

/// What overtakes the answer to a Hello on another lane would find an engine that does not have the new lane yet.
#[test]
fn the_first_credits_go_with_the_answer_to_hello_whatever_the_device_refuses() {
    let (net, mut all) = routes(CreditRoute::FirstLane, CreditRoute::FirstLane);
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    drain(&net, &mut all);
    assert!(send(&mut all[0], 1, &LARGE, 0));
    let mut large = 0;
    for round in 0..20 {
        // The Hello is there before side 1 has the lane, and side 0 has the lane long after.
        all[0].cm_mut().mute = round < 12;
        all[1].cm_mut().mute = round < 1;
        // What side 1 posts first: twice the Hello's receive and the answer.
        net.borrow_mut().refuse = if round < 10 { 4 } else { 0 };
        for me in [0, 1] {
            while let Some(event) = all[me].poll(0) {
                match event {
                    Event::Message { buf, .. } => {
                        large += 1;
                        all[me].release(buf);
                    }
                    Event::Sent { buf: Some(buf), .. } => all[me].free(buf),
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    drain(&net, &mut all);
    assert_eq!((large, all[1].stats().credits_on_first_lane), (1, 0));
    flood(&net, &mut all, 0, 40);
}

/// Credits that are lost with the first lane are missing on another one for ever.
#[test]
fn a_first_lane_that_carried_only_credits_of_others_is_not_lost_without_a_word() {
    let (net, mut all) = routes(CreditRoute::FirstLane, CreditRoute::FirstLane);
    flood(&net, &mut all, 0, 40);
    assert_eq!(all[0].report()[0].stats.messages_sent, 40);
    let first = net.borrow().alive(0)[0];
    net.borrow_mut().cut(first);
    let rest = drain(&net, &mut all);
    for events in &rest {
        assert!(matches!(events.as_slice(), [Event::PeerFailed { .. }]), "{rest:?}");
    }
}
