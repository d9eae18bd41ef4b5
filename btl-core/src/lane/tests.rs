//! What a lane's account lets through, one rule at a time. Every interleaving is in `model.rs`.
use super::*;
use crate::port::RefusedWhy;
use crate::wire::heard_for_test;

/// A queue pair that takes `room` posts.
struct Few {
    room: u32,
    sent: Vec<Vec<u8>>,
}

impl SetupQp for Few {
    type Slot = Vec<u8>;

    fn post_recv(&mut self, slot: Vec<u8>) -> Result<(), Refused<Vec<u8>>> {
        if self.room == 0 {
            return Err(Refused { why: RefusedWhy::Again, slot: Some(slot) });
        }
        self.room -= 1;
        Ok(())
    }

    fn post_send(
        &mut self,
        permit: SendPermit<'_>,
        slot: Vec<u8>,
        len: usize,
    ) -> Result<Posted, Refused<Vec<u8>>> {
        self.sent.push(slot.get(..len).unwrap_or_default().to_vec());
        Ok(permit.posted())
    }
}

/// An acceptor's lane that has heard the Hello, with four receives on each side.
fn open(send_depth: u16) -> LaneAcct {
    let mut acct = LaneAcct::new(Role::Acceptor, 4, send_depth);
    let mut qp = Few { room: 4, sent: Vec::new() };
    for n in 0..4 {
        assert!(acct.post_setup_recv(&mut qp, Vec::new(), n == 0).is_ok());
    }
    assert_eq!(qp.room, 0);
    acct.set_window(4);
    acct.heard(&heard_for_test());
    acct
}

fn why(acct: &mut LaneAcct, kind: Kind) -> Option<Refusal> {
    acct.admit(kind).err()
}

#[test]
fn only_a_hello_opens_the_gate_of_an_initiator() {
    let mut acct = LaneAcct::new(Role::Initiator, 4, 4);
    assert_eq!(why(&mut acct, Kind::Data), Some(Refusal::Gate));
    assert!(!acct.is_open());
    // The one credit that needs no telling may be used with nothing to tell only by nobody.
    assert_eq!(why(&mut acct, Kind::Hello), Some(Refusal::LastCredit));
    let mut qp = Few { room: 2, sent: Vec::new() };
    assert!(acct.post_setup_recv(&mut qp, Vec::new(), true).is_ok());
    assert_eq!(acct.owed(), 0);
    assert!(acct.post_setup_recv(&mut qp, Vec::new(), false).is_ok());
    assert_eq!(acct.owed(), 1);
    let refused = acct.post_setup_recv(&mut qp, vec![1], false);
    assert!(refused.is_err_and(|refused| refused.slot == Some(vec![1])));
    assert_eq!(acct.owed(), 1);
    let frame = Frame { kind: Kind::Hello, tag: 0, acks: 0, len: 0 };
    assert!(transmit_setup(&mut acct, &mut qp, frame, vec![0; 8]).is_ok());
    assert_eq!(qp.sent, [[0x21, 0, 1, 0, 0, 0, 0, 0]]);
    assert!(acct.is_open());
    assert_eq!((acct.owed(), acct.credits()), (0, 0));
    // Once.
    assert_eq!(why(&mut acct, Kind::Hello), Some(Refusal::Gate));
    // What is one-sided needs no credit, and waits for the answer all the same.
    assert_eq!(acct.admit_rma(false).err(), Some(Refusal::Gate));
    acct.heard(&heard_for_test());
    assert!(acct.admit_rma(false).is_ok());
}

#[test]
fn a_permit_says_what_it_carries_and_where() {
    let mut acct = open(4);
    acct.set_id(LaneId { index: 7, generation: 3 });
    let permit = acct.admit(Kind::HelloAck).unwrap();
    assert_eq!((permit.credits(), permit.lane()), (3, LaneId { index: 7, generation: 3 }));
    assert_eq!(permit.posted().told, 3);
    assert_eq!((acct.owed(), acct.credits()), (0, 0));
    assert_eq!(why(&mut acct, Kind::Data), Some(Refusal::Credit));
}

#[test]
fn a_grant_is_taken_up_to_the_window() {
    let mut acct = open(4);
    assert_eq!(acct.credits(), 1);
    assert_eq!(acct.grant(3), Ok(()));
    assert_eq!(acct.credits(), 4);
    assert_eq!(acct.grant(1), Err(Overgrant { held: 5, window: 4 }));
}

#[test]
fn credits_alone_go_at_half_the_window() {
    let mut acct = open(4);
    assert_eq!(acct.grant(3), Ok(()));
    assert!(acct.credits_due());
    let _ = acct.admit(Kind::Credit).unwrap().posted();
    assert!(!acct.credits_due());
    assert_eq!(why(&mut acct, Kind::Credit), Some(Refusal::NotDue));
    // Other messages go all the same.
    assert_eq!(why(&mut acct, Kind::Data), None);
    assert_eq!(why(&mut acct, Kind::Bye), None);
}

#[test]
fn the_last_place_of_the_send_queue_is_not_for_data() {
    let mut acct = open(2);
    assert_eq!(acct.grant(3), Ok(()));
    let _ = acct.admit(Kind::Data).unwrap().posted();
    assert_eq!(why(&mut acct, Kind::Data), Some(Refusal::SendQueue));
    let _ = acct.admit(Kind::Bye).unwrap().posted();
    assert_eq!(why(&mut acct, Kind::Bye), Some(Refusal::SendQueue));
    acct.send_done();
    assert_eq!(why(&mut acct, Kind::Data), Some(Refusal::SendQueue));
    assert_eq!(why(&mut acct, Kind::Bye), None);
    acct.send_done();
    assert_eq!(why(&mut acct, Kind::Data), None);
}

#[test]
fn a_lane_that_is_shut_sends_nothing() {
    let mut acct = open(4);
    assert!(acct.is_open());
    acct.shut();
    assert!(!acct.is_open());
    for kind in [Kind::Hello, Kind::HelloAck, Kind::Data, Kind::Credit, Kind::Bye] {
        assert_eq!(why(&mut acct, kind), Some(Refusal::Gate));
    }
}
