//! What was sent, so that what is received can be compared with it.

use std::collections::BTreeMap;

/// Messages on their way. Each carries a number that no other has.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    next: u64,
    /// By number: sender, length, and whether it was received.
    sent: BTreeMap<u64, (u64, usize, bool)>,
}

/// Bytes that a message needs to be told from others.
const NUMBERED: usize = 8;

fn byte(number: u64, at: usize) -> u8 {
    (number as u8).wrapping_mul(31).wrapping_add(at as u8)
}

impl Messages {
    /// Fills in the next message; returns its number.
    pub(crate) fn write(&mut self, bytes: &mut [u8]) -> u64 {
        self.next += 1;
        for (i, b) in bytes.iter_mut().enumerate() {
            *b = byte(self.next, i);
        }
        if let Some(head) = bytes.get_mut(..NUMBERED) {
            head.copy_from_slice(&self.next.to_le_bytes());
        }
        self.next
    }

    /// The message was posted on this queue pair.
    pub(crate) fn sent(&mut self, number: u64, sender: u64, len: usize) {
        self.sent.insert(number, (sender, len, false));
    }

    /// Checks a message received from `sender`, and that it comes for the first time.
    pub(crate) fn received(&mut self, bytes: &[u8], sender: u64) {
        let Some(head) = bytes.get(..NUMBERED) else { return };
        let number = u64::from_le_bytes(head.try_into().unwrap());
        let Some((from, len, seen)) = self.sent.get_mut(&number) else {
            panic!("message {number} was never sent");
        };
        assert_eq!((*from, *len), (sender, bytes.len()), "message {number}");
        assert!(!std::mem::replace(seen, true), "message {number} came twice");
        for (i, b) in bytes.iter().enumerate().skip(NUMBERED) {
            assert_eq!(*b, byte(number, i), "byte {i} of message {number}");
        }
    }
}

/// How often what, over all programs of one test: so that a test whose programs do nothing fails.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) posted: u64,
    pub(crate) refused: u64,
    pub(crate) failed_posts: u64,
    pub(crate) redeemed: u64,
    pub(crate) not_redeemed: u64,
    /// Messages compared with what was sent.
    pub(crate) received: u64,
    pub(crate) reclaimed: u64,
    pub(crate) routed: u64,
    pub(crate) closed_with_slots: u64,
    pub(crate) panics: u64,
    pub(crate) programs_with_leaks: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, o: Tally) {
        self.posted += o.posted;
        self.refused += o.refused;
        self.failed_posts += o.failed_posts;
        self.redeemed += o.redeemed;
        self.not_redeemed += o.not_redeemed;
        self.received += o.received;
        self.reclaimed += o.reclaimed;
        self.routed += o.routed;
        self.closed_with_slots += o.closed_with_slots;
        self.panics += o.panics;
        self.programs_with_leaks += o.programs_with_leaks;
    }
}
