//! Tests of the in-flight tables.

use super::*;

fn sends(depth: u32) -> InFlight {
    InFlight::new(1, depth, 0)
}

fn nothing() -> Payload {
    Payload::other(None)
}

fn counts(s: &InFlight) -> (u32, u32, u32) {
    (s.used().0, s.unsignalled, s.lazy - s.unsignalled)
}

#[test]
fn an_id_is_redeemed_once() {
    let mut r = InFlight::new(5, 3, 2);
    let a = r.put_recv(nothing()).unwrap();
    let b = r.put_recv(nothing()).unwrap();
    assert!(r.put_recv(nothing()).is_err(), "full");
    assert_eq!((kind_of(a), serial_of(a)), (Some(Kind::Recv), 5));
    assert_eq!((r.used(), r.room()), ((0, 2), (3, 0)));
    assert!(r.redeem(b).is_some());
    assert!(r.redeem(b).is_none(), "spent");
    assert!(r.redeem(a).is_some());
    let c = r.put_recv(nothing()).unwrap();
    assert_ne!(c, a, "same entry, next generation");
    assert!(r.redeem(a).is_none(), "stale");
    assert!(r.redeem(c).is_some());
}

#[test]
fn foreign_ids_are_refused() {
    let mut r = InFlight::new(5, 4, 4);
    let id = r.put_recv(nothing()).unwrap();
    let mut other = InFlight::new(6, 4, 4);
    other.put_recv(nothing()).unwrap();
    assert!(other.redeem(id).is_none(), "another queue pair's");
    let mut shared = InFlight::shared(5, 8);
    let theirs: Vec<_> = (0..8).map(|_| shared.put_recv(nothing()).unwrap()).collect();
    assert!(shared.redeem(id).is_none(), "another kind's");
    assert!(theirs.iter().all(|t| r.redeem(*t).is_none() && is_shared(*t)));
    let send = r.put_send(None, true).unwrap();
    assert!(is_send(send) && !is_send(id));
    for id in [NO_ID, u64::MAX, id | INDEX_MASK, id ^ GENERATION_ONE, send ^ KIND_MASK] {
        assert!(r.redeem(id).is_none());
    }
    assert!(InFlight::new(5, 4, 4).redeem(NO_ID).is_none());
}

#[test]
fn generations_wrap_without_touching_kind_or_serial() {
    let mut r = InFlight::new(SERIAL_MAX - 1, 1, 1);
    for _ in 0..200 {
        let id = r.put_send(None, true).unwrap();
        assert_eq!((kind_of(id), serial_of(id)), (Some(Kind::Send), SERIAL_MAX - 1));
        assert!(r.redeem(id).is_some());
    }
}

#[test]
fn both_queues_of_the_deepest_pair_have_their_own_entries() {
    let mut r = InFlight::new(1, DEPTH_MAX, DEPTH_MAX);
    let mut ids: Vec<_> = (0..DEPTH_MAX).map(|_| r.put_send(None, true).unwrap()).collect();
    ids.extend((0..DEPTH_MAX).map(|_| r.put_recv(nothing()).unwrap()));
    assert!(r.put_send(None, true).is_err() && r.put_recv(nothing()).is_err());
    for id in ids {
        assert!(r.redeem(id).is_some());
    }
    assert_eq!(r.used(), (0, 0));
}

#[test]
fn a_completion_finishes_the_unsignalled_before_it() {
    let mut s = sends(8);
    let ids: Vec<_> = [false, false, true, false, true]
        .iter()
        .map(|sig| s.put_send(None, *sig).unwrap())
        .collect();
    assert_eq!(s.used().0, 5);
    // Redeemed out of order: the later one takes only what lies behind the earlier signalled one.
    assert!(s.redeem(ids[4]).is_some());
    assert_eq!(s.used().0, 3);
    assert!(s.redeem(ids[2]).is_some());
    assert_eq!(s.used().0, 0);
    assert!(s.redeem(ids[0]).is_none(), "swept entries are spent");
}

/// A finished send that owned something other than a slot waits for its reclaim as a slot does.
#[test]
fn finished_sends_are_reclaimed_oldest_first() {
    let mut s = sends(4);
    for token in [1, 2] {
        s.put_other(Some(Payload::token(token)), Op::Write, false).unwrap();
    }
    let last = s.put_other(Some(Payload::token(3)), Op::Read, true).unwrap();
    assert!(s.reclaim().is_none(), "nothing is finished");
    let token = |p: Option<Payload>| p.map(|p| format!("{:?}", p.into_kind()));
    assert_eq!(token(s.redeem(last).unwrap()).as_deref(), Some("Token(3)"));
    assert_eq!(s.op_of(last), Op::Read);
    assert_eq!(token(s.reclaim()).as_deref(), Some("Token(1)"));
    assert_eq!(token(s.reclaim()).as_deref(), Some("Token(2)"));
    assert!(s.reclaim().is_none());
    assert_eq!(counts(&s), (0, 0, 0));
}

#[test]
fn undone_posts_leave_no_trace() {
    let mut s = InFlight::new(1, 3, 3);
    let kept = s.put_send(None, false).unwrap();
    s.put_other(Some(Payload::token(1)), Op::Write, false).unwrap();
    s.put_other(Some(Payload::token(2)), Op::Write, true).unwrap();
    let back: Vec<_> =
        s.unput_sends(2).into_iter().map(|p| format!("{:?}", p.into_kind())).collect();
    assert_eq!(back, ["Token(1)", "Token(2)"]);
    assert_eq!(counts(&s), (1, 1, 0));
    let next = s.put_send(None, true).unwrap();
    assert!(s.redeem(next).is_some());
    assert!(s.redeem(kept).is_none(), "finished by the one after it");
    s.put_recv(Payload::token(1)).unwrap();
    let kept = s.put_recv(Payload::token(2)).unwrap();
    let last = s.put_recv(Payload::token(3)).unwrap();
    assert_eq!(s.unput_recvs([last].into_iter()).len(), 1);
    assert!(s.redeem(kept).is_some());
    assert_eq!(s.used(), (0, 1));
}

#[test]
fn a_failed_unsignalled_send_counts_once() {
    let mut s = sends(4);
    let a = s.put_send(None, false).unwrap();
    let b = s.put_send(None, true).unwrap();
    assert!(s.redeem(a).is_some(), "its own error completion");
    assert!(s.redeem(b).is_some());
    assert_eq!(counts(&s), (0, 0, 0));
}

/// In a full queue the newest send is the neighbour of the oldest.
#[test]
fn a_completion_finishes_nothing_newer() {
    for turn in 0..4 {
        let mut s = sends(4);
        for _ in 0..turn {
            let id = s.put_send(None, true).unwrap();
            assert!(s.redeem(id).is_some());
        }
        let signals = [false, true, true, false];
        let ids: Vec<_> = signals.iter().map(|sig| s.put_send(None, *sig).unwrap()).collect();
        assert!(s.redeem(ids[1]).is_some());
        assert_eq!(counts(&s), (2, 1, 0), "the first two, and not the last");
        assert!(s.redeem(ids[2]).is_some());
        assert_eq!(s.used().0, 1);
        assert!(s.redeem(ids[3]).is_some(), "still in flight: it can fail by itself");
        assert_eq!(counts(&s), (0, 0, 0));
    }
}

/// Any mixture, redeemed in any order, against what a send queue that works in order has finished.
#[test]
fn only_what_the_device_has_finished_comes_back() {
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: u64| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x % n
    };
    for depth in 1..9 {
        let mut s = InFlight::new(1, depth, 2);
        // Ids and signals of the posts the device has, oldest first; ids that were completed and not redeemed.
        let (mut device, mut completed) = (Vec::new(), Vec::new());
        for _ in 0..4000 {
            match random(4) {
                0 => {
                    let signalled = random(2) == 0 || s.must_signal();
                    if let Ok(id) = s.put_send(None, signalled) {
                        device.push((id, signalled));
                    }
                }
                1 => {
                    // Receives finish nothing.
                    let id = s.put_recv(nothing()).unwrap();
                    assert!(s.redeem(id).is_some());
                }
                2 if !device.is_empty() => {
                    let (id, signalled) = device.remove(0);
                    if signalled {
                        completed.push(id);
                    }
                }
                _ if !completed.is_empty() => {
                    let id = completed.swap_remove(random(completed.len() as u64) as usize);
                    assert!(s.redeem(id).is_some());
                }
                _ => {}
            }
            let held = |id: u64| s.entries[(id & INDEX_MASK) as usize].id == id;
            assert!(device.iter().all(|(id, _)| held(*id)), "depth {depth}");
            assert!(completed.iter().all(|id| held(*id)), "depth {depth}");
        }
    }
}

#[test]
fn half_a_queue_of_unsignalled_sends_forces_a_signal() {
    let mut s = sends(4);
    s.put_send(None, false).unwrap();
    assert!(!s.must_signal());
    s.put_send(None, false).unwrap();
    assert!(s.must_signal());
    assert!(sends(1).must_signal(), "a queue of one has no later send");
}

/// A shared queue's receives complete in any order, and one may never: the others go on.
#[test]
fn a_shared_queue_steps_over_what_is_still_in_flight() {
    let mut s = InFlight::shared(1, 4);
    let ids: Vec<_> = (0..4).map(|i| s.put_recv(Payload::token(i)).unwrap()).collect();
    assert!(s.put_recv(nothing()).is_err(), "full");
    for round in 0..5 {
        // The first never comes back.
        assert!(s.redeem(ids[2]).is_some() || round > 0);
        let again = s.put_recv(Payload::token(9)).unwrap();
        assert_eq!(s.used(), (0, 4));
        assert!(s.put_recv(nothing()).is_err(), "full again");
        // Undone, the others stay.
        assert_eq!(s.unput_recvs([again].into_iter()).len(), 1);
        assert_eq!(s.used(), (0, 3));
    }
    assert!(s.redeem(ids[1]).is_some() && s.redeem(ids[3]).is_some());
    let more: Vec<_> = (0..3).map(|i| s.put_recv(Payload::token(i)).unwrap()).collect();
    assert!(s.put_recv(nothing()).is_err(), "full with the first");
    assert!(s.redeem(ids[0]).is_some() && more.iter().all(|id| s.redeem(*id).is_some()));
    assert_eq!(s.used(), (0, 0));
}

/// Where a queue works again after a failure, a failed send finishes no other.
#[test]
fn a_failed_send_alone_leaves_the_unsignalled_before_it() {
    let mut s = sends(4);
    let a = s.put_send(None, false).unwrap();
    let b = s.put_send(None, true).unwrap();
    assert!(s.redeem_alone(b).is_some() && s.redeem_alone(b).is_none());
    assert_eq!((counts(&s), s.unsignalled()), ((1, 1, 0), 1));
    assert!(s.redeem_alone(a).is_some(), "its own completion");
    assert_eq!((counts(&s), s.unsignalled()), ((0, 0, 0), 0));
}
