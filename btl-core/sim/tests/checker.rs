//! The checker itself: traces made by hand that break one invariant each.
use btl_sim::check::{Invariant, LaneChecker};

const HELLO: u8 = 0x21;
const ACK: u8 = 0x22;
const DATA: u8 = 0x23;
const BYE: u8 = 0x25;
const STRAY: u8 = 0x2f;

fn frame(kind: u8, credits: u16) -> [u8; 8] {
    let [a, b] = credits.to_le_bytes();
    [kind, 0, a, b, 0, 0, 0, 0]
}

/// The two ends of one lane: 0 dialled, 1 accepted; all receives are posted.
fn lane(depth: u16) -> LaneChecker {
    let mut check = LaneChecker::default();
    for (qp, name) in ["initiator", "acceptor"].into_iter().enumerate() {
        check.add((qp as u32, 0), qp == 1, name.to_owned(), depth, 4);
        (0..depth).for_each(|_| check.on_post_recv(qp as u32));
    }
    check
}

/// `from` sends, and the other end polls it.
fn pass(check: &mut LaneChecker, from: u32, kind: u8, credits: u16) {
    let bytes = frame(kind, credits);
    check.on_post_send(from, &bytes);
    check.on_polled(from, true, None);
    check.on_polled(1 - from, false, Some(&bytes));
}

fn open(depth: u16) -> LaneChecker {
    let mut check = lane(depth);
    pass(&mut check, 0, HELLO, depth - 1);
    check.on_post_recv(1);
    pass(&mut check, 1, ACK, depth);
    check.on_post_recv(0);
    check
}

fn found(check: &LaneChecker) -> Vec<Invariant> {
    check.violations().iter().map(|v| v.invariant).collect()
}

#[test]
fn a_proper_start_is_clean() {
    let mut check = open(4);
    pass(&mut check, 0, DATA, 1);
    check.on_post_recv(1);
    let rest = (check.at_rest(0, 1), check.at_rest(1, 0));
    assert_eq!(found(&check), []);
    let (out, back) = (rest.0.expect("a sum"), rest.1.expect("a sum"));
    assert_eq!((out.receives, out.usable, out.untold), (4, 3, 1));
    assert_eq!((back.receives, back.usable, back.untold), (4, 4, 0));
}

#[test]
fn an_acceptor_that_speaks_first_is_seen() {
    let mut check = lane(4);
    check.on_post_send(1, &frame(ACK, 0));
    assert_eq!(found(&check), [Invariant::S1]);
}

#[test]
fn data_before_hello_is_seen() {
    let mut check = lane(4);
    check.on_post_send(0, &frame(DATA, 0));
    assert_eq!(found(&check), [Invariant::S1]);
}

#[test]
fn a_credit_without_a_receive_is_seen() {
    let mut check = lane(4);
    check.on_post_send(0, &frame(HELLO, 4));
    assert_eq!(found(&check), [Invariant::S2]);
}

#[test]
fn a_send_without_a_credit_is_seen() {
    let mut check = lane(4);
    pass(&mut check, 0, HELLO, 3);
    check.on_post_send(0, &frame(DATA, 0));
    assert_eq!(found(&check), [Invariant::S2]);
}

/// Credits that came on another lane are none.
#[test]
fn a_stray_credit_does_not_count() {
    let mut check = open(4);
    check.add((0, 0), false, "other initiator".to_owned(), 4, 4);
    check.add((1, 0), true, "other acceptor".to_owned(), 4, 4);
    for qp in [2, 3] {
        (0..4).for_each(|_| check.on_post_recv(qp));
    }
    check.on_post_send(2, &frame(HELLO, 0));
    let stray = frame(STRAY, 3);
    check.on_post_send(1, &stray);
    check.on_polled(0, false, Some(&stray));
    assert_eq!(found(&check), []);
    check.on_post_send(2, &frame(DATA, 0));
    assert_eq!(found(&check), [Invariant::S2]);
}

#[test]
fn too_much_posted_work_is_seen() {
    let mut check = lane(4);
    check.on_post_recv(0);
    assert_eq!(found(&check), [Invariant::S5]);
    let mut check = open(8);
    (0..5).for_each(|_| check.on_post_send(0, &frame(DATA, 0)));
    assert_eq!(found(&check), [Invariant::S5]);
}

#[test]
fn lost_credits_are_seen_at_rest() {
    let mut check = open(4);
    // Two messages whose receives are posted again and never told.
    for _ in 0..2 {
        pass(&mut check, 0, DATA, 0);
        check.on_post_recv(1);
    }
    check.at_rest(0, 1);
    assert_eq!(found(&check), [Invariant::S4]);
}

#[test]
fn a_lost_message_and_a_lost_receive_are_seen_at_rest() {
    let mut check = open(4);
    check.on_post_send(0, &frame(DATA, 1));
    check.at_rest(0, 1);
    assert_eq!(found(&check), [Invariant::S4]);
    let mut check = open(4);
    pass(&mut check, 0, DATA, 1);
    check.at_rest(0, 1);
    assert_eq!(found(&check), [Invariant::S4]);
}

#[test]
fn a_message_after_bye_and_a_broken_header_are_seen() {
    let mut check = open(4);
    pass(&mut check, 0, BYE, 1);
    check.on_post_send(0, &frame(DATA, 0));
    assert_eq!(found(&check), [Invariant::S8]);
    let mut check = lane(4);
    check.on_post_send(0, &[HELLO; 3]);
    assert_eq!(found(&check), [Invariant::S8]);
}

/// What is wrong with what `from` sends after a proper start.
fn hostile(frames: &[&[u8]]) -> Option<String> {
    let mut check = open(4);
    check.hostile = true;
    check.join(0, 1);
    for bytes in frames {
        check.on_polled(1, false, Some(bytes));
    }
    check.broken_by_peer(1)
}

#[test]
fn what_a_hostile_peer_sends_is_known_for_what_it_is() {
    assert_eq!(hostile(&[&frame(DATA, 0)]), None);
    let told = |bytes: &[&[u8]], what: &str| {
        let found = hostile(bytes);
        assert!(found.as_ref().is_some_and(|found| found.contains(what)), "{what}: {found:?}");
    };
    told(&[&frame(DATA, 5)], "credits");
    told(&[&frame(HELLO, 0)], "another");
    told(&[&frame(BYE, 0), &frame(DATA, 0)], "after Bye");
    told(&[&frame(0x13, 0)], "version");
    told(&[&frame(0x2e, 0)], "kind");
    told(&[&[DATA; 5]], "shorter");
    told(&[&[DATA, 0, 0, 0, 0, 9, 0, 0]], "length");
    let mut check = lane(4);
    check.hostile = true;
    check.on_polled(1, false, Some(&frame(DATA, 0)));
    assert!(check.broken_by_peer(1).is_some_and(|what| what.contains("first")));
}

#[test]
fn a_send_to_who_broke_the_protocol_is_seen() {
    let mut check = open(4);
    check.hostile = true;
    check.join(0, 1);
    check.on_polled(0, false, Some(&frame(DATA, 5)));
    assert_eq!(found(&check), []);
    check.on_post_send(0, &frame(DATA, 0));
    assert_eq!(found(&check), [Invariant::S12]);
}

/// Operations need no credit, but the gate, a place in the send queue and, if they read, one of the agreed reads.
#[test]
fn one_sided_operations_keep_rule_1_and_fit_the_queue() {
    let mut check = lane(4);
    check.on_post_rma(1, false, 4);
    assert_eq!(found(&check), [Invariant::S1]);
    let mut check = lane(4);
    check.on_post_rma(0, false, 4);
    assert_eq!(found(&check), [Invariant::S1]);
    let mut check = open(4);
    (0..4).for_each(|_| check.on_post_rma(0, false, 4));
    assert_eq!(found(&check), []);
    check.on_rma_polled(0, false);
    check.on_post_rma(0, true, 1);
    assert_eq!(found(&check), []);
    check.on_post_send(0, &frame(DATA, 0));
    assert_eq!(found(&check), [Invariant::S5]);
    let mut check = open(4);
    (0..3).for_each(|_| check.on_post_rma(0, true, 2));
    assert_eq!(found(&check), [Invariant::S5]);
    let mut check = open(4);
    pass(&mut check, 0, BYE, 1);
    check.on_post_rma(0, false, 4);
    assert_eq!(found(&check), [Invariant::S8]);
}

/// A Hello or its answer, of a connection's first dial.
fn greeting(kind: u8, class: u8, credits: u16) -> Vec<u8> {
    let mut bytes = frame(kind, credits).to_vec();
    bytes[5] = 20;
    bytes.extend([0, 0, 0, 0, 2, class, 0, 0, 1, 0, 0, 0]);
    bytes.extend([0; 8]);
    bytes
}

/// Two lanes between two ranks, both dialled by rank 0: queue pairs 0 and 1, 2 and 3.
fn two_lanes() -> LaneChecker {
    let mut check = LaneChecker::default();
    for (class, qp) in [(0, 0), (0, 1), (1, 2), (1, 3)] {
        check.add((qp % 2, class), qp % 2 == 1, format!("lane {class} of {}", qp % 2), 4, 4);
        (0..4).for_each(|_| check.on_post_recv(qp));
    }
    for (class, a, b) in [(0, 0, 1), (1, 2, 3)] {
        check.join(a, b);
        for (from, to, kind, credits) in [(a, b, HELLO, 3), (b, a, ACK, 4)] {
            let bytes = greeting(kind, class, credits);
            check.on_post_send(from, &bytes);
            check.on_polled(from, true, None);
            check.on_polled(to, false, Some(&bytes));
            check.on_post_recv(to);
        }
    }
    check
}

/// Rank 1 tells `credits` of its receives on lane 1 on lane 0; `generation` of that lane, dialled by rank 0.
fn tell_elsewhere(check: &mut LaneChecker, generation: u8, credits: u8) {
    let mut bytes = frame(0x28, 0).to_vec();
    bytes[5] = 8;
    bytes.extend([1, 0, credits, 0, generation, 0, 0, 0]);
    check.on_post_send(1, &bytes);
    check.on_polled(0, false, Some(&bytes));
}

#[test]
fn credits_on_the_first_lane_count_for_the_lane_they_name() {
    let mut check = two_lanes();
    for _ in 0..3 {
        let bytes = frame(DATA, 0);
        check.on_post_send(2, &bytes);
        check.on_polled(2, true, None);
        check.on_polled(3, false, Some(&bytes));
        check.on_post_recv(3);
    }
    tell_elsewhere(&mut check, 1, 3);
    let rest = check.at_rest(2, 3).expect("a sum");
    assert_eq!((found(&check), rest.usable, rest.untold), (vec![], 4, 0));
}

#[test]
fn credits_on_the_first_lane_for_no_receive_or_no_lane_are_seen() {
    let mut more = two_lanes();
    tell_elsewhere(&mut more, 1, 2);
    assert_eq!(found(&more), [Invariant::S2]);
    let mut nobody = two_lanes();
    tell_elsewhere(&mut nobody, 2, 1);
    assert_eq!(found(&nobody), [Invariant::S2]);
}
