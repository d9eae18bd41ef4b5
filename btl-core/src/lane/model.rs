//! Every interleaving of one lane with small windows, driven through the shipped accounts.
//!
//! A message arrives when it is sent: later is never worse for an overrun, since the peer can only
//! have posted more receives by then, and it never prevents anything from happening.
use super::LaneAcct;
use crate::names::Role;
use crate::wire::{Kind, heard_for_test};
use std::collections::{HashSet, VecDeque};

/// What is wrong in a negative model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Broken {
    Nothing,
    /// The last credit may be used by any message.
    LastCredit,
    /// Messages of credits alone go as soon as anything is owed.
    Threshold,
    /// They take no credit (so the last credit needs no rule either), and one receive in reserve
    /// that is never told is to catch them.
    Reserve,
    /// A receive is told before it is posted.
    TellFirst,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Side {
    acct: LaneAcct,
    /// Receives posted and free.
    posted: u16,
    /// Arrived messages that were not looked at.
    arrived: VecDeque<(Kind, u16)>,
    /// Buffers the upper layer has.
    held: u16,
    /// Receives told but not posted.
    unposted: u16,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State([Side; 2]);

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    Clean { states: usize },
    Overrun,
    Overgrant,
    Starved,
    Chatter,
}

impl State {
    /// Side 0 is the initiator. `depths`: receives of either side.
    fn new(depths: [u16; 2], broken: Broken) -> State {
        let side = |me: usize, role| {
            let mut acct = LaneAcct::new(role, depths[me], u16::MAX);
            for n in 0..depths[me] {
                let posted = acct.ledger.post((), |()| Ok::<(), ()>(())).unwrap();
                if n == 0 { posted.enter_bootstrap() } else { posted.enter() }
            }
            acct.set_window(depths[1 - me]);
            let posted = depths[me] + u16::from(broken == Broken::Reserve);
            Side { acct, posted, arrived: VecDeque::new(), held: 0, unposted: 0 }
        };
        State([side(0, Role::Initiator), side(1, Role::Acceptor)])
    }

    /// Sends if the rules allow it. `Err`: it found no receive.
    fn send(&mut self, me: usize, kind: Kind, broken: Broken) -> Result<bool, Found> {
        let acct = &mut self.0[me].acct;
        let told = match (broken, kind) {
            (Broken::LastCredit | Broken::Reserve, Kind::Data) if acct.is_open() => {
                let advert = acct.ledger.advert();
                let n = advert.count();
                let Ok(credit) = acct.purse.credit(1) else { return Ok(false) };
                credit.used();
                advert.used();
                n
            }
            (Broken::Threshold, Kind::Credit) if acct.is_open() && acct.owed() > 0 => {
                let advert = acct.ledger.advert();
                let n = advert.count();
                let Ok(credit) = acct.purse.credit(n) else { return Ok(false) };
                credit.used();
                advert.used();
                n
            }
            (Broken::Reserve, Kind::Credit) => {
                if !acct.is_open() || !acct.credits_due() {
                    return Ok(false);
                }
                let advert = acct.ledger.advert();
                let n = advert.count();
                advert.used();
                n
            }
            _ => {
                let Ok(permit) = acct.admit(kind) else { return Ok(false) };
                let n = permit.credits();
                let _ = permit.posted();
                acct.send_done();
                n
            }
        };
        let peer = &mut self.0[1 - me];
        if peer.posted == 0 {
            return Err(Found::Overrun);
        }
        peer.posted -= 1;
        peer.arrived.push_back((kind, told));
        Ok(true)
    }

    fn enter(side: &mut Side) {
        side.acct.ledger.post((), |()| Ok::<(), ()>(())).unwrap().enter();
    }

    /// Looks at the oldest message that arrived.
    fn look(&mut self, me: usize, broken: Broken) -> Result<bool, Found> {
        let side = &mut self.0[me];
        let Some((kind, told)) = side.arrived.pop_front() else { return Ok(false) };
        side.acct.grant(told).map_err(|_| Found::Overgrant)?;
        match kind {
            Kind::Data => side.held += 1,
            Kind::Credit if broken == Broken::Reserve => side.posted += 1,
            _ => {
                side.posted += 1;
                Self::enter(side);
            }
        }
        if kind == Kind::Hello {
            side.acct.heard(&heard_for_test());
            assert!(self.send(me, Kind::HelloAck, broken)?, "the answer is always allowed");
        }
        Ok(true)
    }

    fn release(&mut self, me: usize, broken: Broken) -> bool {
        let side = &mut self.0[me];
        if side.held == 0 {
            return false;
        }
        side.held -= 1;
        Self::enter(side);
        if broken == Broken::TellFirst {
            side.unposted += 1
        } else {
            side.posted += 1
        }
        true
    }

    fn post_late(&mut self, me: usize) -> bool {
        let side = &mut self.0[me];
        if side.unposted == 0 {
            return false;
        }
        side.unposted -= 1;
        side.posted += 1;
        true
    }

    /// Everything that happens by itself, until nothing does: then every side that talks must be
    /// able to.
    fn must_flow(&self, talks: [bool; 2], broken: Broken) -> Result<(), Found> {
        let mut it = self.clone();
        for _ in 0..200 {
            let mut moved = false;
            for me in 0..2 {
                moved |= it.look(me, broken)? | it.release(me, broken) | it.post_late(me);
                moved |= it.send(me, Kind::Credit, broken)?;
            }
            if moved {
                continue;
            }
            for (me, talks) in talks.into_iter().enumerate() {
                if talks && !it.send(me, Kind::Data, broken)? {
                    return Err(Found::Starved);
                }
            }
            return Ok(());
        }
        Err(Found::Chatter)
    }
}

fn explore(depths: [u16; 2], talks: [bool; 2], broken: Broken) -> Found {
    let mut start = State::new(depths, broken);
    assert!(start.send(0, Kind::Hello, broken).unwrap(), "the Hello is always allowed");
    let mut seen = HashSet::from([start.clone()]);
    let mut queue = VecDeque::from([start]);
    while let Some(state) = queue.pop_front() {
        for (me, talks) in talks.into_iter().enumerate() {
            for step in 0..5 {
                let mut next = state.clone();
                let moved = match step {
                    0 if talks => next.send(me, Kind::Data, broken),
                    1 => next.send(me, Kind::Credit, broken),
                    2 => next.look(me, broken),
                    3 => Ok(next.release(me, broken)),
                    4 => Ok(next.post_late(me)),
                    _ => Ok(false),
                };
                match moved {
                    Err(found) => return found,
                    Ok(false) => {}
                    Ok(true) => {
                        if seen.insert(next.clone()) {
                            queue.push_back(next);
                        }
                    }
                }
            }
        }
        if let Err(found) = state.must_flow(talks, broken) {
            return found;
        }
    }
    Found::Clean { states: seen.len() }
}

const BOTH: [bool; 2] = [true, true];

#[test]
fn the_rules_are_clean_for_small_windows() {
    for depths in [[4, 4], [4, 5], [5, 4], [4, 6], [5, 5], [6, 6], [8, 4]] {
        for talks in [BOTH, [true, false], [false, true], [false, false]] {
            let found = explore(depths, talks, Broken::Nothing);
            let Found::Clean { states } = found else { panic!("{depths:?} {talks:?} {found:?}") };
            println!("windows {depths:?} talks {talks:?}: {states} states");
        }
    }
}

#[test]
fn without_the_last_credit_rule_both_sides_starve() {
    assert_eq!(explore([4, 4], BOTH, Broken::LastCredit), Found::Starved);
}

#[test]
fn credits_told_at_once_are_answered_for_ever() {
    assert_eq!(explore([4, 4], BOTH, Broken::Threshold), Found::Chatter);
}

#[test]
fn a_reserve_of_one_that_is_never_told_overruns() {
    assert_eq!(explore([4, 4], BOTH, Broken::Reserve), Found::Overrun);
}

#[test]
fn telling_a_receive_before_it_is_posted_overruns() {
    assert_eq!(explore([4, 4], BOTH, Broken::TellFirst), Found::Overrun);
}
