//! Making a failed run smaller: the same invariant is broken, and less happens on the way.
use crate::check::Invariant;
use crate::options::Options;
use crate::run::run;
use crate::swarm::Fault;
use std::fmt;
use std::str::FromStr;

/// One way to make a run simpler. On the command line: `--simplify messages=12,no-faults`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simpler {
    /// At most so many messages.
    Messages(u64),
    /// Only two ranks.
    TwoRanks,
    /// Nothing goes wrong.
    NoFaults,
    /// Only the first failure happens.
    OneFault,
    /// Nobody strange connects.
    NoIntruders,
    /// The connection manager loses and refuses nothing, and no address is wrong.
    GoodCm,
    /// Posts do not fail for lack of memory.
    NoEnomem,
    /// Received buffers are given back at once.
    NoHold,
    /// Nobody computes.
    NoCompute,
    /// Everyone listens from the start.
    EarlyListeners,
    /// Everyone knows everyone.
    AllAnnounced,
}

use Simpler::{
    AllAnnounced, EarlyListeners, GoodCm, Messages, NoCompute, NoEnomem, NoFaults, NoHold,
    NoIntruders, OneFault, TwoRanks,
};

const FLAGS: [(&str, Simpler); 10] = [
    ("two-ranks", TwoRanks),
    ("no-faults", NoFaults),
    ("one-fault", OneFault),
    ("no-intruders", NoIntruders),
    ("good-cm", GoodCm),
    ("no-enomem", NoEnomem),
    ("no-hold", NoHold),
    ("no-compute", NoCompute),
    ("early-listeners", EarlyListeners),
    ("all-announced", AllAnnounced),
];

impl fmt::Display for Simpler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Messages(n) => write!(f, "messages={n}"),
            other => {
                let name = FLAGS.iter().find(|(_, flag)| flag == other).map(|(name, _)| *name);
                f.write_str(name.unwrap_or_default())
            }
        }
    }
}

impl FromStr for Simpler {
    type Err = String;

    fn from_str(text: &str) -> Result<Simpler, String> {
        let wrong = || {
            let names: Vec<&str> = FLAGS.iter().map(|(name, _)| *name).collect();
            format!("`{text}` is none of messages=N, {}", names.join(", "))
        };
        if let Some(n) = text.strip_prefix("messages=") {
            return n.parse().map(Messages).map_err(|_| wrong());
        }
        FLAGS.iter().find(|(name, _)| *name == text).map(|(_, flag)| *flag).ok_or_else(wrong)
    }
}

impl Simpler {
    /// Makes the run simpler. `false`: it is so already, or it cannot be.
    pub fn apply(self, opt: &mut Options) -> bool {
        fn set<T: PartialEq>(to: &mut T, value: T) -> bool {
            let differs = *to != value;
            *to = value;
            differs
        }
        match self {
            Messages(n) if n >= opt.messages => false,
            Messages(n) => set(&mut opt.messages, n),
            TwoRanks if opt.ranks <= 2 => false,
            TwoRanks => {
                opt.faults.retain(|fault| fault.ranks().iter().all(|rank| *rank < 2));
                opt.ranks = 2;
                opt.depths.truncate(2);
                opt.listen_at.truncate(2);
                // Another rank's address needs a third one.
                opt.cm.bad_address_first = None;
                true
            }
            NoFaults => set(&mut opt.faults, Vec::new()),
            OneFault => {
                let first = opt.faults.iter().copied().find(Fault::is_failure);
                opt.faults.len() > 1 && set(&mut opt.faults, first.into_iter().collect())
            }
            NoIntruders => set(&mut opt.cm.intruders, 0),
            GoodCm => {
                let lost = set(&mut opt.cm.lose_request, 0) | set(&mut opt.cm.refuse, 0);
                let lost = set(&mut opt.cm.duplicate, 0) | set(&mut opt.cm.noise, 0) | lost;
                set(&mut opt.cm.bad_address_first, None) || lost
            }
            NoEnomem => set(&mut opt.dev.enomem, 0),
            NoHold => set(&mut opt.hold, 0),
            NoCompute => set(&mut opt.compute, 0),
            EarlyListeners => {
                let none = vec![0; opt.listen_at.len()];
                set(&mut opt.listen_at, none)
            }
            AllAnnounced => set(&mut opt.one_sided, false),
        }
    }
}

/// The simplest run found that breaks `invariant` too, and how it was made. Tries for at most `runs` runs.
pub fn shrink(opt: &Options, invariant: Invariant, runs: u32) -> (Options, Vec<Simpler>) {
    let (mut best, mut how) = (opt.clone(), Vec::new());
    let mut left = runs;
    let mut try_it = |best: &mut Options, simpler: Simpler| {
        let mut next = best.clone();
        if left == 0 || !simpler.apply(&mut next) {
            return false;
        }
        left -= 1;
        let fails = run(&next, false).violations.first().is_some_and(|v| v.invariant == invariant);
        if fails {
            *best = next;
        }
        fails
    };
    for (_, flag) in FLAGS {
        if try_it(&mut best, flag) {
            how.push(flag);
        }
    }
    // Halves first, then steps of one.
    let mut messages = None;
    let mut step = best.messages / 2;
    while step > 0 {
        let n = best.messages.saturating_sub(step);
        if n > 0 && try_it(&mut best, Messages(n)) {
            messages = Some(n);
            step = step.min(best.messages / 2).max(1);
        } else {
            step /= 2;
        }
    }
    how.extend(messages.map(Messages));
    (best, how)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Model;
    use crate::sabotage::Sabotage;

    #[test]
    fn names_are_read_back() {
        let all = FLAGS.iter().map(|(_, flag)| *flag).chain([Messages(7)]);
        for simpler in all {
            assert_eq!(simpler.to_string().parse(), Ok(simpler));
        }
        assert!("messages=x".parse::<Simpler>().is_err() && "no".parse::<Simpler>().is_err());
    }

    #[test]
    fn a_failed_run_becomes_smaller_and_fails_alike() {
        let sabotage = Some(Sabotage::CreditsLane0);
        let (opt, found) = (0..100)
            .map(|seed| Options::draw(seed, Model::SharedWq, sabotage))
            .filter(|opt| opt.messages > 100)
            .find_map(|opt| Some((run(&opt, false).violations.first()?.invariant, opt)))
            .map(|(invariant, opt)| (opt, invariant))
            .unwrap();
        let (small, how) = shrink(&opt, found, 200);
        assert!(small.messages < opt.messages, "{how:?}");
        // What the command line would do gives the same run.
        let mut again = opt;
        how.iter().for_each(|simpler| assert!(simpler.apply(&mut again)));
        let (a, b) = (run(&small, false), run(&again, false));
        assert_eq!(a.hash, b.hash);
        assert_eq!(a.violations.first().map(|v| v.invariant), Some(found));
    }
}
