//! Whole engines over an in-memory fabric.
#![allow(missing_docs)]
mod common;
use btl_core::error::{FaultKind, ProtocolFault, SendErrorKind};
use btl_core::{Event, SECOND};
use common::*;

/// A small generator of pseudo-random numbers.
struct Rng(u64);
impl Rng {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % below
    }
}

/// What message `n` of `side` looks like.
fn message(side: usize, n: u64) -> Vec<u8> {
    let mut rng = Rng(n * 2 + side as u64);
    let len = 8 + if rng.next(4) == 0 { rng.next(1000) } else { rng.next(240) };
    let mut bytes: Vec<u8> = (0..len).map(|_| rng.next(256) as u8).collect();
    bytes[..8].copy_from_slice(&n.to_le_bytes());
    bytes
}

/// One side of a soak: sends while it may, receives, releases late.
struct Side {
    me: usize,
    total: u64,
    sent: u64,
    completed: Vec<bool>,
    /// Last message number, by lane class.
    last: [Option<u64>; 2],
    got: u64,
    held: Vec<btl_core::RecvBuf<Slot>>,
}

impl Side {
    fn new(me: usize, total: u64) -> Side {
        let completed = vec![false; total as usize];
        Side { me, total, sent: 0, completed, last: [None; 2], got: 0, held: Vec::new() }
    }

    fn send(&mut self, engine: &mut Eng) {
        if self.sent < self.total
            && send(engine, 1 - self.me, &message(self.me, self.sent), self.sent)
        {
            self.sent += 1;
        }
    }

    fn handle(&mut self, engine: &mut Eng, event: Ev) {
        match event {
            Event::Message { buf, tag, .. } => {
                assert_eq!(tag, 7);
                let n = u64::from_le_bytes(buf[..8].try_into().unwrap());
                assert_eq!(&buf[..], &message(1 - self.me, n)[..]);
                let class = usize::from(buf.len() > 248);
                assert!(self.last[class].is_none_or(|last| last < n), "out of order");
                self.last[class] = Some(n);
                self.got += 1;
                // A send from inside the upcall, with the buffer in hand.
                self.send(engine);
                self.held.push(buf);
            }
            Event::Sent { cookie, buf, result, .. } => {
                assert!(result.is_ok());
                assert!(!std::mem::replace(&mut self.completed[cookie as usize], true));
                engine.free(buf.unwrap());
            }
            Event::PeerConnected { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

fn soak(seed: u64, total: u64, hold: usize) {
    let (net, mut all) = engines(2);
    let mut rng = Rng(seed);
    let mut sides = [Side::new(0, total), Side::new(1, total)];
    let mut idle = 0;
    while idle < 200 {
        idle += 1;
        let me = rng.next(2);
        let (engine, side) = (&mut all[me], &mut sides[me]);
        for _ in 0..rng.next(12) {
            side.send(engine);
        }
        for _ in 0..rng.next(20) {
            let Some(event) = engine.poll(0) else { break };
            idle = 0;
            side.handle(engine, event);
        }
        while side.held.len() > hold || (!side.held.is_empty() && rng.next(3) == 0) {
            let at = rng.next(side.held.len());
            engine.release(side.held.swap_remove(at));
            idle = 0;
        }
    }
    for (me, side) in sides.iter().enumerate() {
        assert_eq!((side.sent, side.got), (total, total), "seed {seed} side {me}");
        assert!(side.completed.iter().all(|done| *done));
        assert_eq!((all[me].port().pooled(0), all[me].port().pooled(1)), (64, 32));
    }
    let net = net.borrow();
    assert_eq!((net.overruns, net.early), (0, 0));
    assert_eq!(net.alive(0).len(), 2, "one queue pair a class");
    // Conservation: what one side may send and what the other has not told make the window.
    for (class, depth) in [(0, 8), (1, 4)] {
        let a = credits(&mut all[0], 1, class);
        let b = credits(&mut all[1], 0, class);
        assert_eq!((a.1 + b.0, b.1 + a.0), (depth, depth), "class {class}");
    }
}

#[test]
fn ten_thousand_messages_both_ways() {
    soak(1, 10_000, 2);
}

#[test]
fn many_seeds_with_slow_release() {
    for seed in 2..60 {
        soak(seed, 200, seed as usize % 9);
    }
}

#[test]
fn one_way_flood_costs_one_credit_message_per_half_window() {
    let (net, mut all) = engines(2);
    let (mut sent, mut got) = (0u64, 0u64);
    while got < 4000 {
        while sent < 4000 && send(&mut all[0], 1, &sent.to_le_bytes(), sent) {
            sent += 1;
        }
        for engine in &mut all {
            while let Some(event) = engine.poll(0) {
                match event {
                    Event::Message { buf, .. } => {
                        got += 1;
                        engine.release(buf);
                    }
                    Event::Sent { buf, .. } => engine.free(buf.unwrap()),
                    _ => {}
                }
            }
        }
    }
    assert_eq!(net.borrow().overruns, 0);
    let stats = all[1].stats();
    assert!(stats.credit_only_sent <= 4000 / 4, "{stats:?}");
    assert_eq!(all[0].stats().messages_sent, 4000);
    let stalls = all[0].stats().stalls;
    assert!(stalls.behind > 0 && stalls.connect > 0, "{stalls:?}");
}

#[test]
fn ping_pong_needs_no_credit_messages() {
    let (_net, mut all) = engines(2);
    assert!(send(&mut all[0], 1, &[0; 8], 0));
    let mut rounds = 0;
    while rounds < 1000 {
        for (me, engine) in all.iter_mut().enumerate() {
            while let Some(event) = engine.poll(0) {
                match event {
                    Event::Message { buf, .. } => {
                        rounds += 1;
                        engine.release(buf);
                        assert!(send(engine, 1 - me, &[0; 8], 0));
                    }
                    Event::Sent { buf, .. } => engine.free(buf.unwrap()),
                    _ => {}
                }
            }
        }
    }
    assert_eq!(all[0].stats().credit_only_sent + all[1].stats().credit_only_sent, 0);
}

#[test]
fn lanes_are_lazy_and_lane_0_comes_first() {
    let (net, mut all) = engines(2);
    settle(&net, &mut all);
    assert_eq!(net.borrow().qps.len(), 0);
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    settle(&net, &mut all);
    assert_eq!(net.borrow().qps.len(), 2);
    let (net, mut all) = engines(2);
    assert!(send(&mut all[0], 1, &[1; 800], 0));
    let events = settle(&net, &mut all);
    assert_eq!(net.borrow().qps.len(), 4);
    assert!(matches!(events[1][0], Event::PeerConnected { .. }));
    assert!(matches!(&events[1][1], Event::Message { buf, .. } if buf.len() == 800));
    assert!(!all[0].busy());
}

#[test]
fn crossing_connects_end_in_one_lane() {
    let (net, mut all) = engines(2);
    assert!(send(&mut all[0], 1, &[1; 8], 0) && send(&mut all[1], 0, &[2; 8], 0));
    let events = settle(&net, &mut all);
    assert_eq!(net.borrow().dials, 2);
    assert_eq!((net.borrow().alive(0).len(), net.borrow().alive(1).len()), (1, 1));
    for events in &events {
        assert!(events.iter().any(|e| matches!(e, Event::Message { .. })));
        assert!(!events.iter().any(|e| matches!(e, Event::PeerFailed { .. })));
    }
    assert_eq!(net.borrow().early, 0);
}

#[test]
fn a_failed_dial_is_tried_again_and_then_given_up() {
    let (net, mut all) = engines(2);
    net.borrow_mut().fail_dials = 3;
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    for _ in 0..10 {
        settle(&net, &mut all);
        net.borrow_mut().now += 2 * SECOND;
    }
    assert_eq!(net.borrow().dials, 4);
    assert_eq!(all[1].stats().messages_received, 1);
    let (net, mut all) = engines(2);
    net.borrow_mut().fail_dials = u32::MAX;
    assert!(send(&mut all[0], 1, &[1; 8], 42));
    let mut events = Vec::new();
    for _ in 0..200 {
        events.append(&mut settle(&net, &mut all)[0]);
        net.borrow_mut().now += 2 * SECOND;
    }
    let [
        Event::Sent { cookie: 42, result: Err(_), buf: Some(_), .. },
        Event::PeerFailed { fault, .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    let text = fault.to_string();
    assert!(
        text.contains("rank 1") && text.contains("300 s") && text.contains("refused"),
        "{text}"
    );
    assert!(!send(&mut all[0], 1, &[1; 8], 43));
}

#[test]
fn what_a_device_refuses_for_the_moment_is_tried_again() {
    let (net, mut all) = connected();
    for round in 0..50 {
        net.borrow_mut().refuse = round % 5;
        for n in 0..10 {
            assert!(send(&mut all[0], 1, &[2; 8], n));
            assert!(send(&mut all[1], 0, &[2; 8], n));
        }
        drain(&net, &mut all);
    }
    assert_eq!(net.borrow().refuse, 0);
    assert_eq!(all[0].stats().messages_received, 501);
    assert_eq!(all[1].stats().messages_received, 501);
    assert_eq!(net.borrow().overruns, 0);
    let a = credits(&mut all[0], 1, 0);
    let b = credits(&mut all[1], 0, 0);
    assert_eq!((a.1 + b.0, b.1 + a.0), (8, 8));
}

/// Connects sides 0 and 1, then lets "side 0" say `bytes`; returns what side 1 makes of it.
fn malformed(bytes: &[u8]) -> FaultKind {
    let (net, mut all) = engines(3);
    assert!(send(&mut all[0], 1, &[1; 8], 0) && send(&mut all[2], 1, &[1; 8], 0));
    drain(&net, &mut all);
    let qp = net.borrow().alive(0)[0];
    net.borrow_mut().inject(qp, bytes);
    let events = drain(&net, &mut all);
    let [Event::PeerFailed { fault, .. }] = &events[1][..] else { panic!("{events:?}") };
    assert_eq!(fault.peer, name(0));
    // The other peer goes on.
    assert!(send(&mut all[2], 1, &[1; 8], 0) && send(&mut all[1], 2, &[1; 8], 0));
    assert!(drain(&net, &mut all).iter().all(|events| events.is_empty()));
    fault.kind.clone()
}

#[test]
fn malformed_messages_fail_their_peer_alone() {
    use ProtocolFault as F;
    let header = |first: u8, credits: u16, len: u32| {
        (u64::from(first) | u64::from(credits) << 16 | u64::from(len) << 40).to_le_bytes()
    };
    let cases: [(&[u8], F); 9] = [
        (&[0x23], F::Short { arrived: 1 }),
        (&header(0x13, 0, 0), F::Version { theirs: 1, ours: 2 }),
        (&header(0x20, 0, 0), F::Kind { kind: 0 }),
        (&header(0x2e, 0, 0), F::Kind { kind: 14 }),
        (&header(0x23, 0, 1), F::Length { claimed: 1, arrived: 0 }),
        (&header(0x23, 9, 0), F::Credits { held: 16, window: 8 }),
        (&header(0x21, 0, 0), F::Unexpected { got: "Hello" }),
        (&header(0x22, 0, 0), F::Unexpected { got: "HelloAck" }),
        (&header(0x29, 0, 0), F::Unexpected { got: "acknowledgements" }),
    ];
    for (bytes, expected) in cases {
        let FaultKind::Protocol(fault) = malformed(bytes) else { panic!("{bytes:?}") };
        match (fault, expected) {
            (F::Credits { held, window: 8 }, F::Credits { .. }) => assert!(held > 8),
            (fault, expected) => assert_eq!(fault, expected),
        }
    }
}

#[test]
fn data_before_hello_and_a_bad_hello() {
    for (bytes, text) in [
        (vec![0x23, 0, 0, 0, 0, 0, 0, 0], "data before Hello"),
        (vec![0x25, 0, 0, 0, 0, 0, 0, 0], "Bye before Hello"),
        (vec![0x21, 0, 0, 0, 0, 0, 0, 0], "too short"),
        ([&[0x21, 0, 0, 0, 0, 20, 0, 0][..], &[0; 20]].concat(), "magic"),
    ] {
        let (net, mut all) = engines(2);
        assert!(send(&mut all[0], 1, &[1; 8], 0));
        all[0].poll(0);
        all[1].poll(0);
        // Queue pair 0 is the initiator's; its Hello has not been posted yet.
        net.borrow_mut().qps[0].peer = Some(1);
        net.borrow_mut().inject(0, &bytes);
        let events = settle(&net, &mut all[1..]);
        let [Event::PeerFailed { fault, .. }] = &events[0][..] else { panic!("{events:?}") };
        assert!(fault.to_string().contains(text), "{fault}");
    }
}

#[test]
fn a_process_nobody_announced_is_a_new_peer_but_must_speak() {
    let net = net(2);
    let mut all: Vec<Eng> = (0..2).map(|side| engine(&net, side, config(side))).collect();
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    let events = settle(&net, &mut all);
    assert!(matches!(&events[1][0], Event::NewPeer { name: n, .. } if *n == name(0)));
    assert!(matches!(&events[1][2], Event::Message { .. }));
    let Event::NewPeer { peer, .. } = events[1][0] else { panic!() };
    assert_eq!(all[1].add_peer(name(0), &[addr(0)]).unwrap(), peer);
    // One that says nothing.
    let net = common::net(2);
    let mut all: Vec<Eng> = (0..2).map(|side| engine(&net, side, config(side))).collect();
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    all[0].poll(0);
    let mut one = all.split_off(1);
    settle(&net, &mut one);
    for now in [1, 30 * SECOND] {
        net.borrow_mut().now = now;
        assert!(settle(&net, &mut one)[0].is_empty());
    }
    net.borrow_mut().now = 31 * SECOND;
    let events = settle(&net, &mut one);
    let [Event::PeerFailed { fault, .. }] = &events[0][..] else { panic!("{events:?}") };
    assert_eq!(fault.kind, FaultKind::NoHello { seconds: 30 });
}

#[test]
fn another_job_or_other_lanes_are_refused_with_the_reason() {
    for (change, text) in [(0, "another job"), (1, "buffer sizes")] {
        let net = net(2);
        let mut other = config(0);
        if change == 0 {
            other.job += 1;
        } else {
            other.lanes[0].buffer_size += 8;
        }
        let mut all = vec![engine(&net, 0, other), engine(&net, 1, config(1))];
        assert!(send(&mut all[0], 1, &[1; 8], 0));
        let events = settle(&net, &mut all);
        let Some(Event::PeerFailed { fault, .. }) = events[0].last() else { panic!("{events:?}") };
        assert!(fault.to_string().contains(text), "{fault}");
        let delivered = events[1].iter().any(|event| matches!(event, Event::Message { .. }));
        assert!(!delivered && net.borrow().overruns == 0, "{events:?}");
        assert!(change == 1 || events[1].is_empty(), "the other job is not even heard of");
    }
}

#[test]
fn a_peer_without_addresses_is_none() {
    let (_net, mut all) = engines(2);
    assert!(all[0].add_peer(name(1), &[]).unwrap_err().to_string().contains("no address"));
}

#[test]
fn a_completion_of_a_closed_lane_touches_nothing() {
    let (net, mut all) = connected();
    let peer = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    all[0].remove_peer(peer);
    drain(&net, &mut all);
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    drain(&net, &mut all);
    // The lane that is up now has the index of the closed one.
    assert_eq!(all[0].stats().lanes_up, 2);
    let before = credits(&mut all[0], 1, 0);
    net.borrow_mut().stale = 1;
    assert!(drain(&net, &mut all).iter().all(|events| events.is_empty()));
    assert_eq!(net.borrow().stale, 0);
    assert_eq!((all[0].stats().stale_completions, credits(&mut all[0], 1, 0)), (1, before));
}

#[test]
fn a_removed_device_fails_every_peer() {
    let (net, mut all) = connected();
    for n in 0..20 {
        assert!(send(&mut all[0], 1, &[2; 8], n));
    }
    net.borrow_mut().device_removed = true;
    let events = settle(&net, &mut all[..1]);
    assert_eq!(events[0].len(), 21);
    let Some(Event::PeerFailed { fault, .. }) = events[0].last() else { panic!("{events:?}") };
    assert_eq!(fault.kind, FaultKind::DeviceRemoved);
}

#[test]
fn connections_that_never_get_to_a_hello_are_given_up() {
    let (net, mut all) = engines(2);
    assert!(send(&mut all[0], 1, &[1; 8], 9));
    let mut events = Vec::new();
    for _ in 0..40 {
        let now = net.borrow().now + 2 * SECOND;
        net.borrow_mut().now = now;
        while let Some(event) = all[0].poll(now) {
            events.push(event);
        }
        // Side 1 lets its connection manager accept, and then its lane dies at once.
        all[1].poll(now);
        for qp in net.borrow().alive(1) {
            net.borrow_mut().qps[qp].recvs.clear();
        }
        let qps = net.borrow().qps.len();
        net.borrow_mut().cut(qps - 1);
    }
    let [Event::Sent { cookie: 9, result: Err(_), .. }, Event::PeerFailed { .. }] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert!(net.borrow().dials < 20, "{}", net.borrow().dials);
}

#[test]
fn nothing_may_come_after_bye() {
    let (net, mut all) = connected();
    let qp = net.borrow().alive(0)[0];
    net.borrow_mut().inject(qp, &[0x25, 0, 0, 0, 0, 0, 0, 0]);
    net.borrow_mut().inject(qp, &[0x23, 0, 0, 0, 0, 0, 0, 0]);
    let events = drain(&net, &mut all[1..]);
    let [Event::PeerFailed { fault, .. }] = &events[0][..] else { panic!("{events:?}") };
    assert!(fault.to_string().contains("data after Bye"), "{fault}");
}

#[test]
fn nothing_is_delivered_after_a_broken_message() {
    let (net, mut all) = connected();
    let qp = net.borrow().alive(0)[0];
    net.borrow_mut().inject(qp, &[0]);
    net.borrow_mut().inject(qp, &[0x23, 0, 0, 0, 0, 0, 0, 0]);
    let events = settle(&net, &mut all[1..]);
    assert!(matches!(&events[0][..], [Event::PeerFailed { .. }]), "{events:?}");
}

#[test]
fn what_arrived_before_the_end_is_delivered_before_the_end() {
    let (net, mut all) = connected();
    for n in 0..3 {
        assert!(send(&mut all[0], 1, &[n; 8], 0));
    }
    let qp = net.borrow().alive(0)[0];
    net.borrow_mut().cut(qp);
    let events = settle(&net, &mut all);
    assert_eq!(events[1].len(), 4, "{events:?}");
    assert!(matches!(events[1][3], Event::PeerFailed { .. }));
}

#[test]
fn traffic_without_end_does_not_hide_the_end_of_a_lane() {
    let (net, mut all) = engines(3);
    assert!(send(&mut all[0], 1, &[1; 8], 0) && send(&mut all[2], 0, &[1; 8], 0));
    drain(&net, &mut all);
    let qp = net.borrow().alive(1)[0];
    net.borrow_mut().cut(qp);
    for n in 0..20_000 {
        while send(&mut all[2], 0, &[1; 8], n) {}
        while let Some(event) = all[2].poll(0) {
            if let Event::Sent { buf: Some(buf), .. } = event {
                all[2].free(buf);
            }
        }
        match all[0].poll(0) {
            Some(Event::Message { buf, .. }) => all[0].release(buf),
            Some(Event::PeerFailed { fault, .. }) => {
                assert_eq!(fault.peer, name(1));
                return;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("the end was not reported");
}

#[test]
fn a_stranger_that_is_added_needs_no_hello_in_time() {
    let net = net(2);
    let mut all: Vec<Eng> = (0..2).map(|side| engine(&net, side, config(side))).collect();
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    all[0].poll(0);
    let events = settle(&net, &mut all[1..]);
    assert!(matches!(events[0][..], [Event::NewPeer { .. }]), "{events:?}");
    all[1].add_peer(name(0), &[addr(0)]).unwrap();
    net.borrow_mut().now = 100 * SECOND;
    assert!(settle(&net, &mut all[1..])[0].is_empty());
    drain(&net, &mut all);
    assert_eq!(all[1].stats().messages_received, 1);
}

#[test]
fn one_place_of_the_send_queue_is_kept_for_credits() {
    // Side 1 floods while its own sends do not complete: side 0 must still get credits.
    let (net, mut all) = connected();
    for n in 0..40 {
        send(&mut all[1], 0, &[1; 8], n);
    }
    // Only what side 1 receives completes, its sends do not.
    let qp = net.borrow().alive(1)[0];
    let mut got = 0;
    for n in 0..40 {
        send(&mut all[0], 1, &[1; 8], n);
        let kept = std::mem::take(&mut net.borrow_mut().qps[qp].sends);
        while let Some(event) = all[1].poll(0) {
            if let Event::Message { buf, .. } = event {
                got += 1;
                all[1].release(buf);
            }
        }
        let new = std::mem::replace(&mut net.borrow_mut().qps[qp].sends, kept);
        net.borrow_mut().qps[qp].sends.extend(new);
        while let Some(event) = all[0].poll(0) {
            if let Event::Message { buf, .. } = event {
                all[0].release(buf);
            }
        }
    }
    assert!(got > 8, "{got}");
    assert!(all[1].stats().credit_only_sent > 0);
}

#[test]
fn the_answer_to_the_hello_goes_first_even_if_the_device_refuses_it() {
    let (net, mut all) = engines(2);
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    all[0].poll(0);
    all[1].poll(0);
    // Side 0 reads the accept and posts its Hello; side 1 cannot post its answer.
    all[0].poll(0);
    net.borrow_mut().refuse = 1000;
    while all[1].poll(0).is_some() {}
    net.borrow_mut().refuse = 0;
    assert!(send(&mut all[1], 0, &[2; 8], 0));
    let events = drain(&net, &mut all);
    assert!(
        events.iter().flatten().all(|e| matches!(e, Event::PeerConnected { .. })),
        "{events:?}"
    );
    assert_eq!(all[0].stats().messages_received, 1);
}

#[test]
fn try_send_never_queues() {
    let (net, mut all) = engines(2);
    let peer = all[0].add_peer(name(1), &[addr(1)]).unwrap();
    let try_send = |engine: &mut Eng| {
        let buf = engine.alloc(8).unwrap();
        let refused = engine.try_send(peer, 0, buf, 0).err()?;
        assert_eq!(refused.buf.len(), 8);
        engine.free(refused.buf);
        Some(refused.kind)
    };
    assert_eq!(try_send(&mut all[0]), Some(SendErrorKind::WouldQueue));
    assert_eq!(all[0].port().pooled(0), 64);
    drain(&net, &mut all);
    // The refusal made the connection.
    for _ in 0..5 {
        assert_eq!(try_send(&mut all[0]), None);
    }
    assert_eq!(try_send(&mut all[0]), Some(SendErrorKind::WouldQueue));
    drain(&net, &mut all);
    assert_eq!(all[1].stats().messages_received, 5);
    assert!(!all[0].busy());
    all[0].remove_peer(peer);
    assert_eq!(try_send(&mut all[0]), Some(SendErrorKind::Closing));
}

#[test]
fn a_message_to_a_stranger_waits_until_its_address_is_known() {
    let net = net(2);
    let mut all: Vec<Eng> = (0..2).map(|side| engine(&net, side, config(side))).collect();
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    let events = settle(&net, &mut all);
    let Event::NewPeer { peer, .. } = events[1][0] else { panic!("{events:?}") };
    let buf = all[1].alloc(900).unwrap();
    all[1].send(peer, 0, buf, 0).unwrap();
    assert!(settle(&net, &mut all).iter().all(|events| events.is_empty()));
    all[1].add_peer(name(0), &[addr(0)]).unwrap();
    drain(&net, &mut all);
    assert_eq!(all[0].stats().messages_received, 1);
}

/// Side 0 has sent all it may of `total` to side 1; side 1 has released `n` of what came.
fn blocked(total: u64, n: usize) -> (Shared, Vec<Eng>) {
    let (net, mut all) = connected();
    for n in 0..total {
        assert!(send(&mut all[0], 1, &[2; 8], n));
    }
    drain(&net, &mut all[..1]);
    let sent = all[0].stats().messages_sent;
    let mut events = settle(&net, &mut all[1..]).remove(0);
    for event in events.drain(..n) {
        let Event::Message { buf, .. } = event else { panic!("{event:?}") };
        all[1].release(buf);
    }
    std::mem::forget(events);
    assert_eq!(sent, 1 + 7);
    (net, all)
}

#[test]
fn a_grant_in_a_message_lets_what_waits_go_at_once() {
    let (_net, mut all) = blocked(20, 3);
    assert_eq!((all[0].stats().messages_sent, all[1].stats().credit_only_sent), (8, 0));
    assert!(send(&mut all[1], 0, &[3; 8], 0));
    // The message comes up, and is not released.
    assert!(matches!(all[0].poll(0), Some(Event::Message { .. })));
    assert_eq!(all[0].stats().messages_sent, 8 + 3);
}

#[test]
fn the_receive_that_a_credit_message_used_is_told_by_what_it_lets_go() {
    // One message waits: what it carries can only be that.
    let (_net, mut all) = blocked(8, 4);
    assert_eq!(all[1].stats().credit_only_sent, 1);
    let before = all[0].stats().credits_piggybacked;
    all[0].poll(0);
    assert_eq!(all[0].stats().messages_sent, 9);
    assert_eq!(all[0].stats().credits_piggybacked, before + 1);
}

#[test]
fn nothing_is_sent_after_our_bye() {
    let (net, mut all) = connected();
    let peer = all[1].add_peer(name(0), &[addr(0)]).unwrap();
    all[1].remove_peer(peer);
    net.borrow_mut().hold_sends = true;
    assert!(settle(&net, &mut all[..1])[0].is_empty());
    // Side 0 has answered the Bye, and its answer is under way.
    let before = all[0].stats().messages_sent;
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    assert_eq!(all[0].stats().messages_sent, before);
    net.borrow_mut().hold_sends = false;
    // It goes over a new connection, to a process that does not know this one any more.
    let events = drain(&net, &mut all);
    assert!(matches!(events[1][..], [Event::NewPeer { .. }, Event::PeerConnected { .. }]));
    assert!(events[0].is_empty() && all[1].stats().messages_received == 2, "{events:?}");
}

#[test]
fn a_connection_of_a_peer_removed_meanwhile_is_refused() {
    let net = net(3);
    let mut all: Vec<Eng> = (0..3).map(|side| engine(&net, side, config(side))).collect();
    let two = all[1].add_peer(name(2), &[addr(2)]).unwrap();
    assert!(send(&mut all[0], 1, &[1; 8], 0) && send(&mut all[2], 1, &[1; 8], 0));
    all[0].poll(0);
    all[2].poll(0);
    // Both connections are up, and side 1 has looked at the first one.
    assert!(matches!(all[1].poll(0), Some(Event::NewPeer { name: n, .. }) if n == name(0)));
    all[1].remove_peer(two);
    assert!(settle(&net, &mut all[1..2])[0].is_empty());
    assert_eq!(all[1].stats().lanes_up, 1);
}

#[test]
fn buffers_under_way_come_home_when_a_lane_is_closed_at_once() {
    let (net, mut all) = connected();
    net.borrow_mut().hold_sends = true;
    for n in 0..5 {
        assert!(send(&mut all[0], 1, &[n; 8], n.into()));
    }
    let qp = net.borrow().alive(1)[0];
    net.borrow_mut().inject(qp, &[0]);
    let events = settle(&net, &mut all[..1]).remove(0);
    assert_eq!(events.len(), 6);
    for (n, event) in events.into_iter().enumerate().take(5) {
        let Event::Sent { cookie, buf: Some(buf), result: Err(_), .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!((cookie, &buf[..]), (n as u64, &[n as u8; 8][..]));
        all[0].free(buf);
    }
    assert_eq!(all[0].port().pooled(0), 64);
}

#[test]
fn a_long_queue_is_seen_to_its_end_before_the_lane_ends() {
    let net = net(2);
    let mut all: Vec<Eng> = (0..2).map(|side| engine(&net, side, deep(side))).collect();
    assert!(send(&mut all[0], 1, &[1; 8], 0));
    drain(&net, &mut all);
    for n in 0..250 {
        assert!(send(&mut all[0], 1, &[2; 8], n));
    }
    let qp = net.borrow().alive(0)[0];
    net.borrow_mut().cut(qp);
    let events = settle(&net, &mut all[1..]).remove(0);
    assert_eq!(events.len(), 251);
    assert!(matches!(events[250], Event::PeerFailed { .. }));
}
