//! Put, get, atomics and fences: order, bounds, limits, and how they end.
#![allow(missing_docs)]
mod common;
use btl_core::error::FaultKind;
use btl_core::rma::{Atomic, MAX_LEN, RmaCaps, RmaErrorKind};
use btl_core::{Event, PeerId, RemoteRange, Sent};
use common::*;

fn memory(id: u32, bytes: &[u8]) -> Memory {
    Memory { id, bytes: bytes.to_vec() }
}

fn peer(all: &mut [Eng], me: usize) -> PeerId {
    let to = 1 - me;
    all[me].add_peer(name(to), &[addr(to)]).expect("a peer")
}

fn put(all: &mut [Eng], me: usize, to: RemoteRange, bytes: &[u8], cookie: u64) -> Sent {
    let to_whom = peer(all, me);
    let len = bytes.len() as u64;
    all[me].put(to_whom, memory(cookie as u32, bytes), len, to, cookie).expect("taken")
}

/// Puts, gets, atomics and fences that ended, in order: cookie and whether well.
fn ends(events: &[Ev]) -> Vec<(u64, bool)> {
    let end = |e: &Ev| match e {
        Event::Done { cookie, result, memory, .. } => {
            assert_eq!(memory.as_ref().map(|m| u64::from(m.id)), Some(*cookie), "its own memory");
            Some((*cookie, result.is_ok()))
        }
        Event::Fenced { cookie, result, .. } => Some((*cookie, result.is_ok())),
        _ => None,
    };
    events.iter().filter_map(end).collect()
}

#[test]
fn bytes_move_both_ways_and_old_values_come_back() {
    let (net, mut all) = connected();
    let there = net.borrow_mut().share(&[7; 32]);
    let to = peer(&mut all, 0);
    assert_eq!(put(&mut all, 0, there.slice(8, 8).unwrap(), &[1; 8], 0), Sent::Posted);
    assert!(all[0].get(to, memory(1, &[0; 24]), 24, there, 1).is_ok());
    let add = Atomic::FetchAdd { add: 5 };
    let word = there.slice(16, 8).unwrap();
    assert!(all[0].atomic(to, memory(2, &[0; 8]), word, add, 2).is_ok());
    let was = u64::from_ne_bytes([7; 8]);
    let swap = Atomic::CompareSwap { compare: was + 5, swap: 99 };
    assert!(all[0].atomic(to, memory(3, &[0; 8]), word, swap, 3).is_ok());
    assert!(all[0].atomic(to, memory(4, &[0; 8]), word, swap, 4).is_ok());
    let events = settle(&net, &mut all).remove(0);
    assert_eq!(ends(&events), (0..5).map(|n| (n, true)).collect::<Vec<_>>());
    let bytes = |n: usize| match &events[n] {
        Event::Done { memory: Some(memory), .. } => memory.bytes.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(bytes(1), [[7; 8], [1; 8], [7; 8]].concat());
    assert_eq!(
        [bytes(2), bytes(3), bytes(4)],
        [was, was + 5, 99].map(|n| n.to_ne_bytes().to_vec())
    );
    assert_eq!(net.borrow().rma.shared[0][16..24], 99u64.to_ne_bytes());
    let stats = all[0].stats();
    assert_eq!((stats.puts, stats.bytes_put, stats.gets, stats.bytes_got), (1, 8, 1, 24));
    assert_eq!(stats.atomics, 3);
}

#[test]
fn what_cannot_be_is_refused_with_the_memory() {
    let (net, mut all) = connected();
    let there = net.borrow_mut().share(&[0; 32]);
    let to = peer(&mut all, 0);
    let mut refused = |len, range: RemoteRange| {
        let error = all[0].put(to, memory(9, &[0; 16]), len, range, 0).unwrap_err();
        assert_eq!(error.memory.id, 9);
        error.kind
    };
    assert_eq!(refused(0, there), RmaErrorKind::Empty);
    assert_eq!(refused(17, there), RmaErrorKind::TooLong { len: 17, max: 16 });
    assert_eq!(refused(33, there), RmaErrorKind::OutOfRange { len: 33, room: 32 });
    assert_eq!(
        refused(MAX_LEN + 1, there),
        RmaErrorKind::TooLong { len: MAX_LEN + 1, max: MAX_LEN }
    );
    let wraps = RemoteRange { addr: u64::MAX - 3, len: 16, rkey: 0 };
    assert_eq!(refused(8, wraps), RmaErrorKind::OutOfRange { len: 8, room: 16 });
    let odd = there.slice(4, 8).unwrap();
    let error = all[0].atomic(to, memory(1, &[0; 8]), odd, Atomic::FetchAdd { add: 1 }, 0);
    assert_eq!(error.unwrap_err().kind, RmaErrorKind::Misaligned { addr: odd.addr });
    assert!(net.borrow().rma.log.iter().all(|(_, what)| *what == "send"));
    // A device without any of it.
    net.borrow_mut().rma.caps = RmaCaps::NONE;
    let kinds = [
        all[0].put(to, memory(1, &[0; 8]), 8, there, 0).unwrap_err().kind,
        all[0].get(to, memory(1, &[0; 8]), 8, there, 0).unwrap_err().kind,
        all[0]
            .atomic(to, memory(1, &[0; 8]), there, Atomic::FetchAdd { add: 1 }, 0)
            .unwrap_err()
            .kind,
    ];
    for (kind, name) in kinds.into_iter().zip(["RDMA writes", "RDMA reads", "atomics"]) {
        assert_eq!(kind, RmaErrorKind::NotSupported { what: name });
        assert!(kind.to_string().contains("rma_caps"), "{kind}");
    }
    assert_eq!(settle(&net, &mut all)[0].len(), 0);
}

/// Rule 1 and lazy lanes: the first thing that is ever said may be a put, on either side.
#[test]
fn a_put_waits_for_the_gate_and_goes_on_lane_0() {
    for first in [0, 1] {
        let (net, mut all) = engines(2);
        let there = net.borrow_mut().share(&[0; 8]);
        assert_eq!(put(&mut all, first, there, &[3; 8], 0), Sent::Queued);
        // The other side, which will accept, wants to put as well.
        assert_eq!(put(&mut all, 1 - first, there, &[3; 8], 0), Sent::Queued);
        let events = settle(&net, &mut all);
        assert_eq!((ends(&events[0]), ends(&events[1])), (vec![(0, true)], vec![(0, true)]));
        let net = net.borrow();
        assert_eq!((net.early, net.overruns, net.alive(0).len()), (0, 0, 1));
        assert_eq!(net.rma.shared[0], [3; 8]);
    }
}

/// No credit is needed, and none is used.
#[test]
fn a_put_goes_although_no_credit_is_left() {
    let (net, mut all) = connected();
    let there = net.borrow_mut().share(&[0; 8]);
    // The other side's receives are held, so no credit comes back.
    let mut n = 0;
    let mut held = Vec::new();
    while credits(&mut all[0], 1, 0).1 > 1 {
        assert!(send(&mut all[0], 1, &[0; 8], n));
        n += 1;
        for event in settle(&net, &mut all).into_iter().flatten() {
            if let Event::Message { .. } = event {
                held.push(event);
            }
        }
    }
    let before = credits(&mut all[0], 1, 0);
    assert_eq!(put(&mut all, 0, there, &[3; 8], 7), Sent::Posted);
    assert_eq!(ends(&settle(&net, &mut all)[0]), [(7, true)]);
    assert_eq!(credits(&mut all[0], 1, 0), before);
    drop(held);
}

/// Lane 0 is one sequence: a message that has to wait keeps the puts behind it, and the other way round.
#[test]
fn messages_and_puts_keep_the_order_of_the_calls() {
    let (net, mut all) = connected();
    net.borrow_mut().rma.caps.max_piece = 4;
    let there = net.borrow_mut().share(&[0; 10]);
    net.borrow_mut().rma.log.clear();
    // Three pieces, one after the other.
    assert_eq!(put(&mut all, 0, there, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0), Sent::Queued);
    assert!(send(&mut all[0], 1, &[0; 8], 1));
    assert_eq!(put(&mut all, 0, there.slice(0, 4).unwrap(), &[9; 4], 2), Sent::Queued);
    assert!(send(&mut all[0], 1, &[0; 8], 3));
    assert_eq!(net.borrow().rma.log.len(), 1, "the second piece waits for the first");
    let events = drain(&net, &mut all);
    assert_eq!(ends(&events[0]), [(0, true), (2, true)]);
    let log: Vec<&str> = net.borrow().rma.log.iter().map(|(_, what)| *what).collect();
    assert_eq!(log, ["put", "put", "put", "send", "put", "send"]);
    assert_eq!(net.borrow().rma.shared[0], [9, 9, 9, 9, 5, 6, 7, 8, 9, 10]);
    let qps: Vec<usize> = net.borrow().rma.log.iter().map(|(qp, _)| *qp).collect();
    assert!(qps.iter().all(|qp| *qp == qps[0]), "one queue pair: {qps:?}");
    assert_eq!(all[0].stats().bytes_put, 14);
    assert!(!all[0].busy());
}

#[test]
fn reads_beyond_the_limit_wait() {
    let (net, mut all) = connected();
    let there = net.borrow_mut().share(&[4; 8]);
    let to = peer(&mut all, 0);
    for n in 0..20 {
        assert!(all[0].get(to, memory(n, &[0; 8]), 8, there, u64::from(n)).is_ok());
    }
    // The fabric checks that no more than 4 are outstanding.
    assert_eq!(net.borrow().rma.log.iter().filter(|(_, what)| *what == "get").count(), 4);
    assert!(all[0].stats().stalls.reads > 0);
    let events = settle(&net, &mut all).remove(0);
    assert_eq!(ends(&events), (0..20).map(|n| (n, true)).collect::<Vec<_>>());
}

#[test]
fn a_connection_without_reads_fails_gets_and_nothing_else() {
    let (net, mut all) = engines(2);
    net.borrow_mut().rma.max_reads = 0;
    let there = net.borrow_mut().share(&[4; 8]);
    let to = peer(&mut all, 0);
    put(&mut all, 0, there, &[5; 8], 0);
    assert!(all[0].get(to, memory(1, &[0; 8]), 8, there, 1).is_ok());
    put(&mut all, 0, there, &[6; 8], 2);
    let mut events = settle(&net, &mut all).remove(0);
    events.sort_by_key(|e| if let Event::Done { cookie, .. } = e { *cookie } else { 9 });
    assert_eq!(ends(&events), [(0, true), (1, false), (2, true)]);
    let Event::Done { result: Err(fault), .. } = &events[1] else { panic!("{events:?}") };
    assert!(fault.kind == FaultKind::NoReads && fault.to_string().contains("rma_reads"), "{fault}");
    assert!(!events.iter().any(|e| matches!(e, Event::PeerFailed { .. })));
}

#[test]
fn no_more_operations_than_configured_and_messages_have_their_own_room() {
    let net = net(2);
    let make = |side| {
        let mut config = config(side);
        config.rma_ops = 5;
        engine(&net, side, config)
    };
    let mut all: Vec<Eng> = (0..2).map(make).collect();
    let there = net.borrow_mut().share(&[0; 8]);
    for n in 0..5 {
        put(&mut all, 0, there, &[5; 8], n);
    }
    let to = peer(&mut all, 0);
    let error = all[0].put(to, memory(77, &[0; 8]), 8, there, 5).unwrap_err();
    assert_eq!((error.kind, error.memory.id), (RmaErrorKind::Busy, 77));
    assert_eq!(all[0].fence(to, 5).unwrap_err().kind, RmaErrorKind::Busy);
    // All 64 send buffers can still be sent.
    for n in 0..64 {
        assert!(send(&mut all[0], 1, &[0; 8], n));
    }
    all[1].add_peer(name(0), &[addr(0)]).expect("a peer");
    let events = drain(&net, &mut all);
    assert_eq!(ends(&events[0]).len(), 5);
    put(&mut all, 0, there, &[5; 8], 6);
}

/// A device that refuses for the moment is asked again, in the same order.
#[test]
fn refused_posts_are_tried_again_in_order() {
    let (net, mut all) = connected();
    let there = net.borrow_mut().share(&[0; 8]);
    net.borrow_mut().rma.log.clear();
    net.borrow_mut().rma.refuse = 3;
    assert_eq!(put(&mut all, 0, there, &[1; 8], 0), Sent::Queued);
    assert!(send(&mut all[0], 1, &[0; 8], 1));
    let events = drain(&net, &mut all);
    assert_eq!(ends(&events[0]), [(0, true)]);
    assert_eq!(net.borrow().rma.log.iter().map(|x| x.1).collect::<Vec<_>>(), ["put", "send"]);
}

/// A broken lane fails each operation once, with its memory, before the peer's failure is reported.
#[test]
fn a_broken_lane_ends_everything_once() {
    for keep in [false, true] {
        let (net, mut all) = connected();
        net.borrow_mut().rma.caps.placed = false;
        net.borrow_mut().rma.caps.max_piece = 4;
        net.borrow_mut().rma.hold = true;
        let there = net.borrow_mut().share(&[0; 8]);
        let to = peer(&mut all, 0);
        put(&mut all, 0, there.slice(0, 4).unwrap(), &[1; 4], 0);
        assert!(all[0].get(to, memory(1, &[0; 4]), 4, there, 1).is_ok());
        // The first of two pieces is under way, the fence and the last put wait.
        put(&mut all, 0, there, &[1; 8], 2);
        assert!(all[0].fence(to, 3).is_ok());
        put(&mut all, 0, there.slice(0, 4).unwrap(), &[1; 4], 4);
        let qp = net.borrow().alive(0)[0];
        if keep {
            // The device never completes nor lets go.
            net.borrow_mut().rma.keep_memory = true;
            all[0].port_mut();
            net.borrow_mut().device_removed = true;
        } else {
            net.borrow_mut().cut(qp);
        }
        let events = settle(&net, &mut all).remove(0);
        assert!(matches!(events.last(), Some(Event::PeerFailed { .. })), "{events:?}");
        let mut seen: Vec<(u64, bool)> = Vec::new();
        for event in &events {
            match event {
                Event::Done { cookie, result, memory, .. } => {
                    assert!(result.is_err());
                    seen.push((*cookie, memory.is_some()));
                }
                Event::Fenced { cookie, result, .. } => {
                    assert!(result.is_err());
                    seen.push((*cookie, true));
                }
                _ => {}
            }
        }
        seen.sort_unstable();
        // What was posted stays with a device that does not let go.
        let back = [!keep, !keep, !keep, true, true];
        assert_eq!(seen, (0..5).zip(back).collect::<Vec<_>>());
        let error = all[0].put(to, memory(5, &[0; 4]), 4, there, 5).unwrap_err();
        assert!(matches!(error.kind, RmaErrorKind::Failed(_)), "{error:?}");
        assert!(matches!(all[0].fence(to, 5).unwrap_err().kind, RmaErrorKind::Failed(_)));
    }
}

/// A wrong key ends the connection of whoever used it.
#[test]
fn what_the_peers_device_refuses_fails_the_lane() {
    let (net, mut all) = connected();
    let wrong = RemoteRange { addr: 4096, len: 8, rkey: 1234 };
    put(&mut all, 0, wrong, &[1; 8], 0);
    let events = settle(&net, &mut all).remove(0);
    assert_eq!(ends(&events), [(0, false)]);
    let Some(Event::PeerFailed { fault, .. }) = events.last() else { panic!("{events:?}") };
    let FaultKind::Lane { class: 0, error } = &fault.kind else { panic!("{fault}") };
    assert_eq!(error.code, 10);
}

/// Bye is the last word: what was put or is being fetched before the close is still done.
#[test]
fn a_close_waits_for_operations() {
    for placed in [true, false] {
        let (net, mut all) = connected();
        net.borrow_mut().rma.caps.placed = placed;
        net.borrow_mut().rma.hold = true;
        let there = net.borrow_mut().share(&[6; 8]);
        let to = peer(&mut all, 0);
        assert!(all[0].get(to, memory(0, &[0; 8]), 8, there, 0).is_ok());
        assert!(all[0].fence(to, 1).is_ok());
        all[0].remove_peer(to);
        assert!(matches!(
            all[0].put(to, memory(2, &[0; 8]), 8, there, 2).unwrap_err().kind,
            RmaErrorKind::Closing
        ));
        for events in settle(&net, &mut all) {
            assert!(events.is_empty(), "{events:?}");
        }
        assert_eq!(net.borrow().alive(0).len(), 1);
        net.borrow_mut().rma.hold = false;
        let events = drain(&net, &mut all);
        assert_eq!(ends(&events[0]), [(0, true), (1, true)]);
        assert_eq!(net.borrow().alive(0).len(), 0);
        assert!(events.iter().flatten().all(|e| !matches!(e, Event::PeerFailed { .. })));
    }
}

/// Without a word from the device about the peer, a fence asks the peer; with one, it does not.
#[test]
fn a_fence_asks_the_peer_only_where_it_must() {
    for placed in [true, false] {
        let (net, mut all) = connected();
        net.borrow_mut().rma.caps.placed = placed;
        net.borrow_mut().rma.hold = true;
        let there = net.borrow_mut().share(&[0; 8]);
        let to = peer(&mut all, 0);
        net.borrow_mut().rma.log.clear();
        put(&mut all, 0, there, &[1; 8], 0);
        assert!(all[0].fence(to, 1).is_ok());
        put(&mut all, 0, there, &[2; 8], 2);
        assert_eq!(ends(&settle(&net, &mut all)[0]), [], "the first put is not done");
        assert_eq!(net.borrow().rma.log.len(), 1, "nothing passes the fence");
        net.borrow_mut().rma.hold = false;
        let mut ended = ends(&settle(&net, &mut all)[0]);
        ended.sort_unstable();
        assert_eq!(ended, [(0, true), (1, true), (2, true)]);
        let sends = net.borrow().rma.log.iter().filter(|(_, what)| *what == "send").count();
        // The question and the answer.
        assert_eq!(sends, if placed { 0 } else { 2 });
        assert_eq!(all[0].stats().fences, 1);
    }
}

/// Many fences on both sides at once: every one is answered, credits included.
#[test]
fn fences_from_both_sides_do_not_block_each_other() {
    let (net, mut all) = connected();
    net.borrow_mut().rma.caps.placed = false;
    let there = net.borrow_mut().share(&[0; 8]);
    for n in 0..100 {
        for me in [0, 1] {
            put(&mut all, me, there, &[1; 8], n);
            let to = peer(&mut all, me);
            assert!(all[me].fence(to, n).is_ok());
            while !send(&mut all[me], 1 - me, &[0; 8], n) {
                drain(&net, &mut all);
            }
        }
    }
    drain(&net, &mut all);
    for engine in &all {
        assert_eq!((engine.stats().fences, engine.stats().puts), (100, 100));
        assert!(!engine.busy());
    }
    assert_eq!(net.borrow().overruns, 0);
}

/// A peer that says Bye answers no more: the fence fails, and the close goes on.
#[test]
fn a_fence_that_the_peer_does_not_answer_any_more_fails() {
    let (net, mut all) = connected();
    net.borrow_mut().rma.caps.placed = false;
    let to = peer(&mut all, 0);
    // The other side's Bye is under way when the fence is asked.
    all[1].close(0);
    assert!(all[0].fence(to, 1).is_ok());
    let events = drain(&net, &mut all);
    assert_eq!(ends(&events[0]), [(1, false)]);
    assert!(matches!(events[0].last(), Some(Event::PeerFailed { fault, .. })
        if matches!(fault.kind, FaultKind::Closed { waiting: 1 })));
    assert!(matches!(events[1][..], [Event::Closed]), "{events:?}");
}

/// An answer to a fence nobody asked breaks the protocol, and hurts only who sent it.
#[test]
fn an_answer_without_a_fence_is_a_protocol_fault() {
    let (net, mut all) = connected();
    let qp = net.borrow().alive(1)[0];
    net.borrow_mut().inject(qp, &[0x27, 0, 0, 0, 0, 0, 0, 0]);
    let events = settle(&net, &mut all);
    let Some(Event::PeerFailed { fault, .. }) = events[0].last() else { panic!("{events:?}") };
    assert!(fault.to_string().contains("answer to a fence"), "{fault}");
}

#[cfg(feature = "sabotage")]
#[test]
fn the_sabotaged_engine_puts_beside_its_messages() {
    let (net, mut all) = engines(2);
    let mut config = config(0);
    config.sabotage.puts_on_last_lane = true;
    all[0] = engine(&net, 0, config);
    let there = net.borrow_mut().share(&[0; 8]);
    put(&mut all, 0, there, &[1; 8], 0);
    settle(&net, &mut all);
    let log = net.borrow().rma.log.clone();
    assert!(send(&mut all[0], 1, &[0; 8], 1));
    settle(&net, &mut all);
    let put = log.iter().find(|(_, what)| *what == "put").unwrap();
    let send = *net.borrow().rma.log.last().unwrap();
    assert!(send.1 == "send" && put.0 != send.0, "{put:?} {send:?}");
}
