//! What happened: a hash of everything, and the last events for a report.
use btl_core::Nanos;
use std::fmt;

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Nanos,
    what: &'static str,
    args: [u64; 3],
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.args;
        let (us, ns) = (self.at / 1000, self.at % 1000);
        write!(f, "{us:>10}.{ns:03} us  {:<18} {a} {b} {c}", self.what)
    }
}

const KEPT: usize = 64;

/// The trace of a run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    count: u64,
    ring: Vec<Entry>,
    print: bool,
}

impl Trace {
    /// `print`: every event goes to standard output.
    pub fn new(print: bool) -> Trace {
        Trace { hash: 0xcbf2_9ce4_8422_2325, count: 0, ring: Vec::new(), print }
    }

    /// Enters an event.
    pub fn note(&mut self, at: Nanos, what: &'static str, a: u64, b: u64, c: u64) {
        let mut mixed = at ^ (what.len() as u64) << 56;
        for x in [u64::from(what.as_bytes()[0]), a, b, c] {
            mixed = (mixed.rotate_left(23) ^ x).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.hash = (self.hash ^ mixed).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5);
        let entry = Entry { at, what, args: [a, b, c] };
        if self.print {
            println!("{entry}");
        }
        if self.ring.len() < KEPT {
            self.ring.push(entry);
        } else {
            self.ring[self.count as usize % KEPT] = entry;
        }
        self.count += 1;
    }

    /// Equal for two runs in which the same happened.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How much happened.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last events, oldest first.
    pub fn last(&self) -> Vec<String> {
        let start = if self.ring.len() < KEPT { 0 } else { self.count as usize % KEPT };
        self.ring[start..].iter().chain(&self.ring[..start]).map(Entry::to_string).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_sees_every_argument_and_the_order() {
        let hash = |entries: &[(u64, u64)]| {
            let mut trace = Trace::new(false);
            for (a, b) in entries {
                trace.note(1, "x", *a, *b, 0);
            }
            trace.hash()
        };
        assert_eq!(hash(&[(1, 2), (3, 4)]), hash(&[(1, 2), (3, 4)]));
        assert_ne!(hash(&[(1, 2), (3, 4)]), hash(&[(3, 4), (1, 2)]));
        assert_ne!(hash(&[(1, 2)]), hash(&[(2, 1)]));
    }

    #[test]
    fn the_last_events_come_oldest_first() {
        let mut trace = Trace::new(false);
        for i in 0..100 {
            trace.note(i, "x", i, 0, 0);
        }
        let last = trace.last();
        assert_eq!(last.len(), KEPT);
        assert!(last[0].contains(" 36 ") && last[KEPT - 1].contains(" 99 "));
    }
}
