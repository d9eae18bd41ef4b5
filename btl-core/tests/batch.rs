//! What had to wait goes with one doorbell; credits travel with messages wherever there are some.
#![allow(missing_docs)]
mod common;
use btl_core::Event;
use btl_core::error::FaultKind;
use common::*;

/// The window of lane 0 in these tests.
const WINDOW: u32 = 8;

/// Two engines that wait for credits only: their send queues are deep.
fn connected() -> (Shared, Vec<Eng>) {
    let net = net(2);
    let with = |side| {
        let mut config = config(side);
        config.lanes[0].send_depth = 64;
        config
    };
    let mut all: Vec<Eng> = (0..2).map(|side| engine(&net, side, with(side))).collect();
    for (me, to) in [(0, 1), (1, 0)] {
        assert!(send(&mut all[me], to, &[1; 8], 0));
        drain(&net, &mut all);
    }
    (net, all)
}

/// Sends without polling: the first ones leave, the others wait for credits.
fn flood(engine: &mut Eng, count: u64) {
    for cookie in 0..count {
        assert!(send(engine, 1, &[9; 8], cookie));
    }
}

#[test]
fn what_waited_goes_with_one_doorbell() {
    let (net, mut all) = connected();
    let before = net.borrow().doorbells;
    flood(&mut all[0], 40);
    let at_once = net.borrow().doorbells - before;
    assert!(at_once <= WINDOW, "{at_once} went at once");
    drain(&net, &mut all);
    let doorbells = net.borrow().doorbells - before;
    let credits = all.iter().map(|e| e.stats().credit_only_sent as u32).sum::<u32>();
    // Each message of credits lets half a window go.
    assert!(doorbells <= at_once + 2 * credits, "{doorbells} doorbells, {credits} for credits");
    assert_eq!(all[1].stats().messages_received, 41);
    let (net, pooled) = (net.borrow(), all[0].port().pooled(0));
    assert_eq!((net.overruns, net.early, pooled), (0, 0, 64));
}

#[test]
fn a_doorbell_that_fails_half_way_loses_no_buffer_and_no_report() {
    for taken in [0, 1, 3] {
        let (net, mut all) = connected();
        flood(&mut all[0], 40);
        net.borrow_mut().ring_fails_after = Some(taken);
        let mut seen = [0; 40];
        let mut faults = 0;
        for me in [1, 0].into_iter().cycle().take(60) {
            while let Some(event) = all[me].poll(0) {
                match event {
                    Event::Message { buf, .. } => all[me].release(buf),
                    Event::Sent { cookie, buf, .. } if me == 0 => {
                        seen[cookie as usize] += 1;
                        all[0].free(buf.unwrap());
                    }
                    Event::PeerFailed { fault, .. } if me == 0 => {
                        faults += 1;
                        let text = fault.to_string();
                        assert!(matches!(fault.kind, FaultKind::Lane { .. }), "{text}");
                        assert!(text.contains("the doorbell is stuck"), "{text}");
                    }
                    _ => {}
                }
            }
        }
        assert_eq!((seen, faults), ([1; 40], 1), "{taken} taken");
        assert_eq!(all[0].port().pooled(0), 64, "{taken} taken");
        assert_eq!(net.borrow().overruns, 0);
    }
}

/// One way, at most one message in half a window carries nothing but credits.
#[test]
fn a_flood_needs_one_message_of_credits_for_half_a_window() {
    let (net, mut all) = connected();
    let before = all[1].stats().credit_only_sent;
    let mut sent = 0;
    for _ in 0..100 {
        for _ in 0..4 {
            sent += u64::from(send(&mut all[0], 1, &[3; 8], 0));
        }
        drain(&net, &mut all);
    }
    let alone = all[1].stats().credit_only_sent - before;
    assert!(alone <= sent / u64::from(WINDOW / 2) + 1, "{alone} for {sent} messages");
    assert_eq!(all[0].stats().credit_only_sent, 0);
}

/// Messages both ways carry all credits.
#[test]
fn an_exchange_needs_no_message_of_credits() {
    let (net, mut all) = connected();
    let before: Vec<u64> = all.iter().map(|e| e.stats().credit_only_sent).collect();
    for round in 0..200 {
        // In turns, then both at once.
        let first = round % 2;
        for me in [first, 1 - first] {
            assert!(send(&mut all[me], 1 - me, &[4; 8], 0));
            if round < 100 {
                drain(&net, &mut all);
            }
        }
        drain(&net, &mut all);
    }
    let after: Vec<u64> = all.iter().map(|e| e.stats().credit_only_sent).collect();
    assert_eq!(before, after);
    assert!(all.iter().all(|e| e.stats().credits_piggybacked >= 200));
}
