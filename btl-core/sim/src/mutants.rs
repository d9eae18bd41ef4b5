//! The table of mutants: each broken rule must be noticed, and the controls must be clean.
use crate::check::Invariant;
use crate::cover::Hit;
use crate::options::{Model, Options};
use crate::run::run;
use crate::sabotage::Sabotage;
use std::collections::BTreeMap;

/// One line of the table: a rule is broken on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The broken rule.
    pub sabotage: Sabotage,
    /// The device.
    pub model: Model,
    /// Not looked at, so that only what comes of it can be noticed.
    pub blind: &'static [Invariant],
}

/// The books of rule 1 are closed: what is left is what the device makes of it.
const NO_S1: &[Invariant] = &[Invariant::S1];
/// The same for rule 2. A sabotaged engine also loses count (S4), credits that travel beside
/// their lane may run dry (L1), and a receive told before it was posted may get lost (S6).
const NO_BOOKS: &[Invariant] = &[Invariant::S2, Invariant::S4, Invariant::S6, Invariant::L1];
/// The checker does not compare counters with what it knows.
const NO_S7: &[Invariant] = &[Invariant::S7];
/// What a send's end says is not looked at, only whether its message comes.
const NO_S14: &[Invariant] = &[Invariant::S14];
/// All mutants.
pub const MUTANTS: [Mutant; 43] = [
    mutant(Sabotage::AcceptorSends, Model::StrictMpa, &[]),
    mutant(Sabotage::AcceptorSends, Model::StrictMpa, NO_S1),
    mutant(Sabotage::AcceptorSends, Model::Siw, NO_S1),
    mutant(Sabotage::HelloLane0, Model::StrictMpa, &[]),
    mutant(Sabotage::HelloLane0, Model::SharedWq, &[]),
    mutant(Sabotage::CreditsLane0, Model::SharedWq, &[]),
    mutant(Sabotage::CreditsLane0, Model::SharedWq, NO_BOOKS),
    mutant(Sabotage::AdvertiseFirst, Model::SharedWq, &[]),
    mutant(Sabotage::AdvertiseFirst, Model::SharedWq, NO_BOOKS),
    mutant(Sabotage::AdvertiseFirst, Model::Rnr, &[]),
    mutant(Sabotage::PrivateCredits, Model::SharedWq, &[]),
    mutant(Sabotage::PrivateCredits, Model::SharedWq, NO_BOOKS),
    mutant(Sabotage::CreditTwice, Model::Siw, &[]),
    mutant(Sabotage::CreditTwice, Model::Siw, NO_BOOKS),
    mutant(Sabotage::CreditLost, Model::Rnr, &[]),
    mutant(Sabotage::NoReserve, Model::SharedWq, &[]),
    mutant(Sabotage::DeafToGrants, Model::StrictMpa, &[]),
    mutant(Sabotage::DeafToHello, Model::StrictMpa, &[]),
    mutant(Sabotage::OldGenerations, Model::LateCq, &[]),
    mutant(Sabotage::OldGenerations, Model::LateCq, NO_S7),
    mutant(Sabotage::BothKeep, Model::Rnr, &[]),
    mutant(Sabotage::BothDrop, Model::Rnr, &[]),
    mutant(Sabotage::SendQueueOff, Model::LateCq, &[]),
    mutant(Sabotage::FlushLost, Model::Siw, &[]),
    mutant(Sabotage::FlushLost, Model::LateCq, &[]),
    mutant(Sabotage::CreditsUnchecked, Model::SharedWq, &[]),
    mutant(Sabotage::LengthUnchecked, Model::Siw, &[]),
    mutant(Sabotage::LengthUnchecked, Model::Rnr, &[]),
    mutant(Sabotage::ReleaseEarly, Model::Siw, &[]),
    mutant(Sabotage::ReleaseEarly, Model::Rnr, NO_BOOKS),
    mutant(Sabotage::PutsAside, Model::SharedWq, &[]),
    mutant(Sabotage::PutsAside, Model::StrictMpa, &[]),
    mutant(Sabotage::PutsAside, Model::Siw, &[]),
    mutant(Sabotage::FirstLane, Model::SharedWq, &[]),
    mutant(Sabotage::ForgetDelivered, Model::Siw, &[]),
    mutant(Sabotage::ForgetDelivered, Model::LateCq, &[]),
    mutant(Sabotage::AckedTooEarly, Model::Siw, &[]),
    mutant(Sabotage::AckedTooEarly, Model::Siw, NO_S14),
    mutant(Sabotage::AckedTooEarly, Model::LateCq, &[]),
    mutant(Sabotage::ResendNothing, Model::Siw, &[]),
    mutant(Sabotage::ResendNothing, Model::Rnr, &[]),
    mutant(Sabotage::RepeatPuts, Model::Siw, &[]),
    mutant(Sabotage::NoTailAcks, Model::Rnr, &[]),
];

const fn mutant(sabotage: Sabotage, model: Model, blind: &'static [Invariant]) -> Mutant {
    Mutant { sabotage, model, blind }
}

/// The published table; [`limit`](Mutant::limit) reads the limits from it.
pub const TABLE: &str = include_str!("../MUTANTS.md");
/// Runs after which a mutant that was never measured has escaped.
pub const UNMEASURED: u64 = 3_000;
/// Starts that may need more runs than the limit, of fifteen; each at most three times as many.
/// By chance one in a thousand starts needs more than ten times the median.
const LATE: usize = 1;

/// How a mutant was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// For each start, the number of runs until it was noticed; `None`: not within three limits.
    pub runs: Vec<Option<u64>>,
    /// The limit.
    pub limit: u64,
    /// Which invariant was the first, and how often.
    pub by: BTreeMap<Invariant, u64>,
}

impl Caught {
    /// The median number of runs; `None`: it escaped more than half of the time.
    pub fn median(&self) -> Option<u64> {
        let mut runs: Vec<u64> = self.runs.iter().map(|n| n.unwrap_or(u64::MAX)).collect();
        runs.sort_unstable();
        runs.get(runs.len() / 2).copied().filter(|n| *n < u64::MAX)
    }

    /// The largest number of runs; `None`: it escaped.
    pub fn worst(&self) -> Option<u64> {
        self.runs.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Whether it was noticed from every start, and in time.
    pub fn always(&self) -> bool {
        let late = self.runs.iter().flatten().filter(|n| **n > self.limit).count();
        self.runs.iter().all(Option::is_some) && late <= LATE
    }
}

impl Mutant {
    /// Names it in the table.
    pub fn row(&self) -> String {
        let blind = match self.blind {
            [] => "-".to_owned(),
            blind => blind.iter().map(|inv| format!("{inv:?}")).collect::<Vec<_>>().join(" "),
        };
        let (row, name) = (self.sabotage.row(), self.sabotage.name());
        format!("| {row} | {name} | {} | {blind} |", self.model)
    }

    /// Its limit in the published table.
    pub fn limit(&self) -> Option<u64> {
        let line = TABLE.lines().find(|line| line.starts_with(&self.row()))?;
        line.trim_end_matches(" |").rsplit(' ').next()?.parse().ok()
    }

    /// Runs it from `starts` seeds that are far apart, until it is noticed; its limit as published.
    pub fn hunt(&self, starts: u64) -> Caught {
        self.hunt_within(starts, self.limit().unwrap_or(UNMEASURED))
    }

    /// The same with another limit.
    pub fn hunt_within(&self, starts: u64, limit: u64) -> Caught {
        let mut caught = Caught { runs: Vec::new(), limit, by: BTreeMap::new() };
        for start in 0..starts {
            let found = (0..3 * limit).find_map(|n| {
                let mut opt = Options::draw(start * 1_000_003 + n, self.model, Some(self.sabotage));
                opt.tolerate = self.blind;
                let seen = run(&opt, false).violations;
                let first = seen.iter().find(|v| !self.blind.contains(&v.invariant))?;
                Some((n + 1, first.invariant))
            });
            caught.runs.push(found.map(|(n, _)| n));
            if let Some((_, invariant)) = found {
                *caught.by.entry(invariant).or_default() += 1;
            } else {
                break;
            }
        }
        caught
    }

    /// Its line in the table, as measured.
    pub fn line(&self, caught: &Caught) -> String {
        let by: Vec<String> = caught.by.iter().map(|(inv, n)| format!("{inv:?} ×{n}")).collect();
        let number = |n: Option<u64>| n.map_or("escaped".to_owned(), |n| n.to_string());
        let (median, worst) = (number(caught.median()), number(caught.worst()));
        format!("{} {} | {median} | {worst} | {} |", self.row(), by.join(", "), caught.limit)
    }
}

/// Ten times the median, and no less than ten.
pub fn limit_of(caught: &Caught) -> u64 {
    caught.median().map_or(UNMEASURED, |median| median.saturating_mul(10))
}

/// The table's head.
pub const HEAD: &str = "\
| row | rule broken | model | not looked at | noticed by | median | worst | N |\n\
|---|---|---|---|---|---|---|---|";

/// A control: what must not be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Nothing is broken.
    Clean,
    /// Credits on lane 0 on a device that can use a receive at once: the bookkeeping of S2 sees
    /// it, but nothing may come of it.
    CreditsLane0,
    /// Puts beside their messages on a device whose completed puts are in place.
    PutsAside,
    /// The credit route FirstLane on a device that can use a receive at once: all books are kept.
    FirstLane,
}

/// The result of a control.
#[derive(Clone, Debug)]
pub struct ControlResult {
    /// Runs made.
    pub runs: u64,
    /// Of these, how many in which S2 was seen.
    pub s2: u64,
    /// Credits that went on the first lane of a peer.
    pub elsewhere: u64,
    /// The first failure: seed and what.
    pub failed: Option<(u64, String)>,
}

/// All controls.
pub const CONTROLS: [(Control, Model); 14] = [
    (Control::Clean, Model::SharedWq),
    (Control::Clean, Model::StrictMpa),
    (Control::Clean, Model::Rnr),
    (Control::Clean, Model::Siw),
    (Control::Clean, Model::LateCq),
    (Control::CreditsLane0, Model::StrictMpa),
    (Control::CreditsLane0, Model::Siw),
    (Control::CreditsLane0, Model::Rnr),
    (Control::PutsAside, Model::Rnr),
    (Control::PutsAside, Model::LateCq),
    (Control::FirstLane, Model::StrictMpa),
    (Control::FirstLane, Model::Siw),
    (Control::FirstLane, Model::Rnr),
    (Control::FirstLane, Model::LateCq),
];

impl ControlResult {
    /// In words; begins with FAILED if it is.
    pub fn text(&self, control: Control) -> String {
        match (&self.failed, control) {
            (Some((seed, what)), _) => format!("FAILED at seed {seed}: {what}"),
            // A control in which the broken rule never acts would prove nothing.
            (None, Control::CreditsLane0) if self.s2 == 0 => "FAILED: S2 was never broken".into(),
            (None, Control::CreditsLane0) => format!("clean, S2 broken in {}", self.s2),
            (None, Control::FirstLane) if self.elsewhere == 0 => {
                "FAILED: no credit went on the first lane".into()
            }
            (None, Control::FirstLane) => {
                format!("clean, {} credits on the first lane", self.elsewhere)
            }
            (None, Control::Clean | Control::PutsAside) => "clean".to_owned(),
        }
    }
}

impl Control {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Control::Clean => "nothing broken",
            Control::CreditsLane0 => "credits-lane0",
            Control::PutsAside => "puts-aside",
            Control::FirstLane => "first-lane",
        }
    }

    /// Runs it on seeds from `first` on.
    pub fn check(self, model: Model, first: u64, runs: u64) -> ControlResult {
        let mut result = ControlResult { runs, s2: 0, elsewhere: 0, failed: None };
        for seed in first..first + runs {
            let mut opt = match self {
                Control::Clean => Options::draw(seed, model, None),
                Control::CreditsLane0 => Options::draw(seed, model, Some(Sabotage::CreditsLane0)),
                Control::PutsAside => Options::draw(seed, model, Some(Sabotage::PutsAside)),
                Control::FirstLane => Options::draw(seed, model, Some(Sabotage::FirstLane)),
            };
            opt.tolerate = if self == Control::CreditsLane0 { NO_BOOKS } else { &[] };
            let out = run(&opt, false);
            let s2 = out.violations.iter().any(|v| v.invariant == Invariant::S2);
            result.s2 += u64::from(s2);
            result.elsewhere += out.cover.count(Hit::CreditElsewhere);
            let bad = out.violations.iter().find(|v| !opt.tolerate.contains(&v.invariant));
            if let Some(bad) = bad {
                result.failed = Some((seed, format!("{:?}: {}", bad.invariant, bad.what)));
                break;
            }
            if out.no_buffer > 0 {
                result.failed = Some((seed, "a message found no receive".to_owned()));
                break;
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo xtask sim --mutants --write` writes it anew.
    #[test]
    fn the_published_table_has_every_mutant_and_no_other() {
        let lines: Vec<&str> = TABLE.lines().filter(|line| line.starts_with("| M")).collect();
        assert_eq!(lines.len(), MUTANTS.len());
        for mutant in MUTANTS {
            let limit = mutant.limit();
            assert!(limit.is_some_and(|limit| limit >= 10), "not in MUTANTS.md: {mutant:?}");
        }
    }

    #[test]
    fn every_rule_that_can_be_broken_is_broken() {
        for sabotage in Sabotage::ALL {
            assert!(MUTANTS.iter().any(|m| m.sabotage == *sabotage), "{sabotage:?}");
        }
        for row in 1..=22 {
            let row = format!("M{row}");
            assert!(MUTANTS.iter().any(|m| m.sabotage.row() == row), "{row}");
        }
    }

    #[test]
    fn late_and_escaped_ones_are_told_apart() {
        let caught =
            |runs: &[Option<u64>]| Caught { runs: runs.to_vec(), limit: 10, by: BTreeMap::new() };
        assert!(caught(&[Some(1), Some(30), Some(2)]).always());
        assert!(!caught(&[Some(11), Some(12), Some(2)]).always());
        assert!(!caught(&[Some(1), Some(2), None]).always());
        assert_eq!(caught(&[Some(1), Some(2), None]).worst(), None);
        assert_eq!(limit_of(&caught(&[Some(7), Some(3), Some(90)])), 70);
    }
}
