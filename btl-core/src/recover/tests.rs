//! A model of two ends and a connection that breaks anywhere: every interleaving of a small one, on the shipped counts.
use super::*;
use crate::frag::Frag;
use std::collections::{BTreeSet, VecDeque};

/// Messages that are sent in all.
const MESSAGES: u64 = 5;
/// Connections that may break.
const BREAKS: u8 = 3;

/// What is under way on a connection, in order.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Wire {
    /// A message with its number, as the sender knows it.
    Data(u64),
    Acks(u16),
}

/// One direction of messages, and its acknowledgements.
#[derive(Clone, PartialEq, Eq, Debug)]
struct World {
    tx: Stream,
    rx: Stream,
    /// The next to be posted.
    next: u64,
    /// What the upper layer got, and what it was told to be over.
    got: u64,
    over: u64,
    out: VecDeque<Wire>,
    back: VecDeque<Wire>,
    breaks: u8,
}

/// What the model's ends do wrong.
#[derive(Clone, Copy, Default, PartialEq)]
struct Wrong {
    no_dedup: bool,
    ack_unsent: bool,
    forget: bool,
}

impl World {
    fn key(&self) -> String {
        format!("{self:?}")
    }

    fn steps(&self, wrong: Wrong) -> Result<Vec<World>, String> {
        let mut all = Vec::new();
        if self.next < MESSAGES && self.tx.open() < 4 {
            let mut w = self.clone();
            w.tx.posted();
            w.out.push_back(Wire::Data(w.next));
            w.next += 1;
            all.push(w);
        }
        if let Some(Wire::Data(n)) = self.out.front() {
            let mut w = self.clone();
            w.out.pop_front();
            if w.rx.arrived() || wrong.no_dedup {
                if w.got != *n {
                    return Err(format!("message {n} is delivered, but {} is next", w.got));
                }
                w.got += 1;
            }
            all.push(w);
        }
        if self.rx.owed() > 0 {
            let mut w = self.clone();
            let n = w.rx.owed();
            w.rx.told(n);
            w.back.push_back(Wire::Acks(n + u16::from(wrong.ack_unsent)));
            all.push(w);
        }
        if let Some(Wire::Acks(n)) = self.back.front() {
            let mut w = self.clone();
            w.back.pop_front();
            w.tx.acknowledged(*n).map_err(|fault| fault.to_string())?;
            w.over += u64::from(*n);
            all.push(w.checked()?);
        }
        if self.breaks > 0 {
            all.extend(self.broken(wrong)?);
        }
        Ok(all)
    }

    /// The connection breaks. The receiver's Hello may be from before the last messages it delivered.
    fn broken(&self, wrong: Wrong) -> Result<Vec<World>, String> {
        let mut all = Vec::new();
        for late in 0..=self.out.len() as u64 {
            let mut w = self.clone();
            w.breaks -= 1;
            w.back.clear();
            let said = w.rx.resume();
            // Some of what was under way is delivered after the Hello was written.
            for item in w.out.drain(..).take(late as usize) {
                if let Wire::Data(n) = item
                    && w.rx.arrived()
                {
                    if w.got != n {
                        return Err(format!("late message {n}"));
                    }
                    w.got += 1;
                }
            }
            w.rx.connected(said.delivered);
            w.tx.connected(0);
            let newly = w.tx.joined(said).map_err(|fault| fault.to_string())?;
            w.over += newly;
            if !wrong.forget {
                w.next = said.delivered;
            }
            all.push(w.checked()?);
        }
        Ok(all)
    }

    /// Nothing is over before it is delivered.
    fn checked(self) -> Result<World, String> {
        match self.over > self.got {
            true => Err(format!("{} are over, {} delivered", self.over, self.got)),
            false => Ok(self),
        }
    }
}

/// All that can be reached; the error of the first state that is wrong.
fn explore(wrong: Wrong) -> Result<usize, String> {
    let start = World {
        tx: Stream::default(),
        rx: Stream::default(),
        next: 0,
        got: 0,
        over: 0,
        out: VecDeque::new(),
        back: VecDeque::new(),
        breaks: BREAKS,
    };
    let (mut seen, mut todo) = (BTreeSet::from([start.key()]), vec![start]);
    while let Some(world) = todo.pop() {
        let next = world.steps(wrong)?;
        if next.is_empty() && (world.got, world.over) != (MESSAGES, MESSAGES) {
            return Err(format!("the end with {} delivered, {} over", world.got, world.over));
        }
        todo.extend(next.into_iter().filter(|w| seen.insert(w.key())));
    }
    Ok(seen.len())
}

#[test]
fn every_interleaving_delivers_each_message_once_and_ends_it_after() {
    let states = explore(Wrong::default()).unwrap();
    assert!(states > 1_000, "{states}");
}

#[test]
fn wrong_counts_are_found() {
    let wrong = |wrong| explore(wrong).unwrap_err();
    assert!(wrong(Wrong { no_dedup: true, ..Wrong::default() }).contains("is next"));
    assert!(!wrong(Wrong { ack_unsent: true, ..Wrong::default() }).is_empty());
    assert!(!wrong(Wrong { forget: true, ..Wrong::default() }).is_empty());
}

#[test]
fn a_peer_that_lies_about_what_it_has_is_found_out() {
    let mut stream = Stream::default();
    (0..3).for_each(|_| stream.posted());
    assert_eq!(
        stream.acknowledged(4),
        Err(ProtocolFault::Acks { claimed: 4, sent: 3 }),
        "more than was sent"
    );
    stream.acknowledged(2).unwrap();
    let said = |delivered| Resume { delivered, ..Resume::default() };
    for wrong in [0, 1, 4, u64::MAX] {
        let claimed = wrong;
        let fault = ProtocolFault::Resume { claimed, acked: 2, sent: 3 };
        assert_eq!(stream.joined(said(wrong)), Err(fault));
    }
    assert_eq!(stream.joined(said(3)), Ok(1));
    assert_eq!((stream.open(), stream.sent(), stream.acked()), (0, 3, 3));
}

#[test]
fn who_said_goodbye_may_begin_anew_and_nobody_else() {
    let mut old = Stream::default();
    old.posted();
    assert!(old.arrived());
    assert!(!old.resume().fresh);
    old.acknowledged(1).unwrap();
    let mut new = Stream::default();
    assert!(new.resume().fresh);
    assert!(old.clone().joined(new.resume()).is_err(), "no goodbye");
    assert!(new.clone().joined(old.resume()).is_err(), "no goodbye");
    old.parted();
    let mut open = old.clone();
    open.posted();
    assert!(open.joined(new.resume()).is_err(), "a message would be lost");
    assert_eq!((new.joined(old.resume()), old.joined(new.resume())), (Ok(0), Ok(0)));
    assert_eq!((&old, &new), (&Stream::default(), &Stream::default()));
}

#[test]
fn more_than_a_header_holds_is_acknowledged_in_several() {
    let mut stream = Stream::default();
    (0..3000).for_each(|_| assert!(stream.arrived()));
    assert_eq!(stream.owed(), MAX_ACKS);
    stream.told(MAX_ACKS);
    assert_eq!(stream.owed(), 3000 - MAX_ACKS);
    stream.told(3000 - MAX_ACKS);
    assert_eq!((stream.owed(), stream.delivered(), stream.through()), (0, 3000, 3000));
}

fn frag(cookie: u64, one_sided: bool) -> Frag<u8> {
    Frag { slot: None, addr: 0, cookie, len: 0, max: 0, tag: 0, class: 0, one_sided }
}

fn list(table: &mut Table<u8>, cookies: &[u64], one_sided: bool) -> Fifo {
    let mut fifo = Fifo::default();
    for cookie in cookies {
        let i = table.insert(frag(*cookie, one_sided)).unwrap();
        table.push(&mut fifo, i);
    }
    fifo
}

fn cookies(table: &mut Table<u8>, mut fifo: Fifo) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(i) = table.pop(&mut fifo) {
        all.push(table.remove(i).unwrap().cookie);
    }
    all
}

#[test]
fn acknowledgements_may_overtake_the_device() {
    let table = &mut Table::new(8);
    let mut flushed = list(table, &[1, 2, 3, 4], false);
    let mut held = Held::default();
    let first = table.pop(&mut flushed).unwrap();
    assert!(!held.done(table, first));
    assert_eq!(held.acknowledged(table), Some(first));
    // Two acknowledged that the device still has; it returns one of them.
    assert_eq!(held.acknowledged(table), None);
    assert_eq!(held.acknowledged(table), None);
    let second = table.pop(&mut flushed).unwrap();
    assert!(held.done(table, second));
    assert_eq!(held.len(), 0);
    let mut over = Fifo::default();
    let left = held.take(table, &mut flushed, &mut over);
    assert_eq!((cookies(table, over), cookies(table, left)), (vec![3], vec![4]));
    assert!(flushed.is_empty());
}

#[test]
fn operations_come_between_the_messages_they_were_posted_between() {
    let merged = |messages: &[u64], ops: &[u64]| {
        let table = &mut Table::new(16);
        let (mut m, mut o) = (list(table, messages, false), list(table, ops, true));
        // An operation's cookie is 100 times the number of the message behind it.
        let all = merge(table, 5, &mut m, &mut o, |t, i| t.get_mut(i).unwrap().cookie / 100);
        cookies(table, all)
    };
    assert_eq!(merged(&[5, 6, 7], &[500, 601, 602, 800]), [500, 5, 601, 602, 6, 7, 800]);
    assert_eq!(merged(&[5], &[300, 900]), [300, 5, 900]);
    assert_eq!(merged(&[], &[300, 900]), [300, 900]);
    assert!(merged(&[], &[]).is_empty());
}
