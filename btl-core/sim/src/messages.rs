//! The book of all messages of a run (S8, S9): who sent what to whom, and what became of it.
use crate::check::{Invariant, Violation};
use crate::onesided::RmaBook;
use crate::rng;
use std::collections::VecDeque;

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    Pending,
    Left,
    Failed,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// The sending rank.
    pub src: u32,
    /// The receiving rank.
    pub dst: u32,
    /// Lane class.
    pub class: u8,
    /// Bytes of payload.
    pub len: usize,
    /// The tag; its two high bits are the class.
    pub tag: u8,
    /// How often it is still to be answered.
    pub hops: u32,
}

/// The tag of a message.
pub fn tag_for(class: u8, id: u64) -> u8 {
    class << 6 | (rng::mix(id) as u8 & 63)
}

/// All messages.
#[derive(Debug)]
pub struct MessageBook {
    seed: u64,
    ranks: u32,
    messages: Vec<Message>,
    states: Vec<SendState>,
    /// Under way, by source, destination and class.
    queues: Vec<VecDeque<u64>>,
    /// Pairs that may lose messages.
    disturbed: Vec<bool>,
    /// By source and destination.
    undelivered: Vec<u64>,
    unsent: u64,
    /// The message delivered last.
    last: u64,
    /// Pairs, by source and destination, whose sends end only when the peer has them.
    pub acknowledged: Vec<bool>,
    arrived: Vec<bool>,
    /// One-sided operations.
    pub rma: RmaBook,
}

const CLASSES: u32 = 4;

impl MessageBook {
    /// Nothing was sent yet.
    pub fn new(seed: u64, ranks: u32) -> MessageBook {
        let pairs = (ranks * ranks) as usize;
        let queues = (0..ranks * ranks * CLASSES).map(|_| VecDeque::new()).collect();
        MessageBook {
            seed,
            ranks,
            messages: Vec::new(),
            states: Vec::new(),
            queues,
            disturbed: vec![false; pairs],
            undelivered: vec![0; pairs],
            unsent: 0,
            last: 0,
            acknowledged: vec![false; pairs],
            arrived: Vec::new(),
            rma: RmaBook::default(),
        }
    }

    fn pair(&self, src: u32, dst: u32) -> usize {
        (src * self.ranks + dst) as usize
    }

    /// From now on messages between the two may fail.
    pub fn disturb(&mut self, a: u32, b: u32) {
        for pair in [self.pair(a, b), self.pair(b, a)] {
            self.disturbed[pair] = true;
            self.undelivered[pair] = 0;
        }
    }

    /// From now on messages from and to a rank may fail.
    pub fn disturb_all(&mut self, rank: u32) {
        (0..self.ranks).for_each(|other| self.disturb(rank, other));
    }

    /// The number of the next message; [`fill`](rng::fill) gives its bytes.
    pub fn next_id(&self) -> u64 {
        self.messages.len() as u64
    }

    /// Whether messages between the two may fail.
    pub fn is_disturbed(&self, a: u32, b: u32) -> bool {
        self.disturbed[self.pair(a, b)]
    }

    fn queue(&mut self, src: u32, dst: u32, class: u8) -> &mut VecDeque<u64> {
        let at = (src * self.ranks + dst) * CLASSES + u32::from(class);
        &mut self.queues[at as usize]
    }

    /// The engine took the next message.
    pub fn accepted(&mut self, message: Message) {
        let id = self.next_id();
        self.queue(message.src, message.dst, message.class).push_back(id);
        self.unsent += 1;
        if !self.is_disturbed(message.src, message.dst) {
            let pair = self.pair(message.src, message.dst);
            self.undelivered[pair] += 1;
        }
        self.messages.push(message);
        self.arrived.push(false);
        self.states.push(SendState::Pending);
    }

    /// A message arrived.
    ///
    /// # Errors
    /// It is not the one that has to come next.
    pub fn delivered(
        &mut self,
        src: u32,
        dst: u32,
        tag: u8,
        data: &[u8],
    ) -> Result<Message, Violation> {
        let seed = self.seed;
        let disturbed = self.is_disturbed(src, dst);
        let bad = |what| {
            let what = format!("rank {src} to rank {dst}, class {}: {what}", tag >> 6);
            Violation { invariant: Invariant::S8, what }
        };
        loop {
            let Some(id) = self.queue(src, dst, tag >> 6).pop_front() else {
                return Err(bad(format!("a message of {} bytes nobody sent", data.len())));
            };
            let message = self.messages[id as usize];
            let same = message.tag == tag && message.len == data.len();
            if same && rng::matches(seed, id, data) {
                let pair = self.pair(src, dst);
                self.undelivered[pair] -= u64::from(!disturbed);
                self.last = id;
                self.arrived[id as usize] = true;
                return Ok(message);
            }
            if !disturbed {
                let len = data.len();
                return Err(bad(format!("not message {id}, but one of {len} bytes")));
            }
        }
    }

    /// A send ended.
    ///
    /// # Errors
    /// It ended before, or failed without a cause.
    pub fn sent(&mut self, id: u64, src: u32, left: bool) -> Result<(), Violation> {
        let bad = |invariant, what| Err(Violation { invariant, what });
        let Some(state) = self.states.get_mut(id as usize) else {
            return bad(Invariant::S8, format!("send {id}, which there is not, ended"));
        };
        let message = self.messages[id as usize];
        if *state != SendState::Pending || message.src != src {
            return bad(Invariant::S8, format!("send {id} of rank {src} ended again"));
        }
        *state = if left { SendState::Left } else { SendState::Failed };
        self.unsent -= 1;
        let disturbed = self.is_disturbed(message.src, message.dst);
        let known = self.acknowledged[self.pair(message.src, message.dst)] && !disturbed;
        if left && known && !self.arrived[id as usize] {
            return bad(Invariant::S14, format!("send {id} of rank {src} ended before it arrived"));
        }
        if !left && !self.is_disturbed(message.src, message.dst) {
            return bad(Invariant::L1, format!("send {id} of rank {src} failed"));
        }
        Ok(())
    }

    /// The number of the message that [`delivered`](MessageBook::delivered) found last.
    pub fn delivered_last(&self) -> u64 {
        self.last
    }

    /// The sender is dead: nothing of it ends any more.
    pub fn bury(&mut self, rank: u32) {
        self.rma.bury(rank);
        for (message, state) in self.messages.iter().zip(&mut self.states) {
            if message.src == rank && *state == SendState::Pending {
                *state = SendState::Failed;
                self.unsent -= 1;
            }
        }
    }

    /// Messages that did not arrive, and sends that did not end.
    pub fn open(&self) -> (u64, u64) {
        (self.undelivered.iter().sum(), self.unsent + self.rma.open())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(disturbed: Option<u32>) -> (MessageBook, Vec<Vec<u8>>) {
        let mut book = MessageBook::new(1, 2);
        disturbed.into_iter().for_each(|rank| book.disturb_all(rank));
        let mut bodies = Vec::new();
        for id in 0..3 {
            let mut data = vec![0; 10];
            rng::fill(1, id, &mut data);
            bodies.push(data);
            let tag = tag_for(1, id);
            book.accepted(Message { src: 0, dst: 1, class: 1, len: 10, tag, hops: 0 });
        }
        (book, bodies)
    }

    #[test]
    fn in_order_is_fine() {
        let (mut book, bodies) = book(None);
        for (id, data) in bodies.iter().enumerate() {
            assert!(book.delivered(0, 1, tag_for(1, id as u64), data).is_ok());
            assert!(book.sent(id as u64, 0, true).is_ok());
        }
        assert_eq!(book.open(), (0, 0));
    }

    #[test]
    fn swapped_doubled_changed_and_lost_are_seen() {
        let (mut swapped, bodies) = book(None);
        assert!(swapped.delivered(0, 1, tag_for(1, 1), &bodies[1]).is_err());
        let (mut doubled, bodies) = book(None);
        assert!(doubled.delivered(0, 1, tag_for(1, 0), &bodies[0]).is_ok());
        assert!(doubled.delivered(0, 1, tag_for(1, 0), &bodies[0]).is_err());
        let (mut changed, mut bodies) = book(None);
        bodies[0][9] ^= 1;
        assert!(changed.delivered(0, 1, tag_for(1, 0), &bodies[0]).is_err());
        assert_eq!(book(None).0.open(), (3, 3));
    }

    #[test]
    fn a_send_ends_once_and_for_a_cause() {
        let (mut quiet, _) = book(None);
        assert!(quiet.sent(0, 0, true).is_ok());
        assert!(quiet.sent(0, 0, true).is_err());
        assert!(quiet.sent(1, 0, false).is_err());
        let (mut late, _) = book(None);
        late.disturb(1, 0);
        assert_eq!(late.open(), (0, 3));
        let (mut disturbed, bodies) = book(Some(1));
        assert!(disturbed.sent(0, 0, false).is_ok());
        assert!(disturbed.delivered(0, 1, tag_for(1, 1), &bodies[1]).is_ok());
    }
}
