//! The table of mutants: each broken rule must be noticed, and the controls must be clean.
use crate::check::Invariant;
use crate::options::{Model, Options};
use crate::run::run;
use crate::sabotage::Sabotage;
use std::collections::BTreeMap;

/// One line of the table: a rule is broken on a model.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// The broken rule.
    pub sabotage: Sabotage,
    /// The device.
    pub model: Model,
    /// Not looked at, so that only what the device makes of it can be noticed.
    pub blind: &'static [Invariant],
    /// Runs within which it must be noticed.
    pub within: u64,
}

/// The books of rule 1 are closed: what is left is what the device makes of it.
const NO_S1: &[Invariant] = &[Invariant::S1];
/// The same for rule 2. A sabotaged engine also loses count (S4), credits that travel beside
/// their lane may run dry (L1), and a receive told before it was posted may get lost (S6).
const NO_BOOKS: &[Invariant] = &[Invariant::S2, Invariant::S4, Invariant::S6, Invariant::L1];

/// All mutants.
pub const MUTANTS: [Mutant; 9] = [
    mutant(Sabotage::AcceptorSends, Model::StrictMpa, &[], 10),
    mutant(Sabotage::AcceptorSends, Model::StrictMpa, NO_S1, 100),
    mutant(Sabotage::HelloLane0, Model::StrictMpa, &[], 10),
    mutant(Sabotage::HelloLane0, Model::SharedWq, &[], 10),
    mutant(Sabotage::CreditsLane0, Model::SharedWq, &[], 20),
    mutant(Sabotage::CreditsLane0, Model::SharedWq, NO_BOOKS, 1_000),
    mutant(Sabotage::AdvertiseFirst, Model::SharedWq, &[], 20),
    mutant(Sabotage::AdvertiseFirst, Model::SharedWq, NO_BOOKS, 1_000),
    mutant(Sabotage::AdvertiseFirst, Model::Rnr, &[], 20),
];

const fn mutant(
    sabotage: Sabotage,
    model: Model,
    blind: &'static [Invariant],
    within: u64,
) -> Mutant {
    Mutant { sabotage, model, blind, within }
}

/// How a mutant was noticed.
#[derive(Clone, Debug)]
pub struct Caught {
    /// For each start, the number of runs until it was noticed; `None`: not within the limit.
    pub runs: Vec<Option<u64>>,
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

    /// Whether it was noticed from every start.
    pub fn always(&self) -> bool {
        self.runs.iter().all(Option::is_some)
    }
}

impl Mutant {
    /// Runs it from `starts` seeds that are far apart, until it is noticed.
    pub fn hunt(&self, starts: u64) -> Caught {
        let mut caught = Caught { runs: Vec::new(), by: BTreeMap::new() };
        for start in 0..starts {
            let found = (0..self.within).find_map(|n| {
                let mut opt = Options::draw(start * 1_000_003 + n, self.model, Some(self.sabotage));
                opt.tolerate = self.blind;
                let seen = run(&opt, false).violations;
                let first = seen.iter().find(|v| !self.blind.contains(&v.invariant))?;
                Some((n + 1, first.invariant))
            });
            caught.runs.push(found.map(|(n, _)| n));
            if let Some((_, invariant)) = found {
                *caught.by.entry(invariant).or_default() += 1;
            }
        }
        caught
    }
}

/// A control: what must not be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Nothing is broken.
    Clean,
    /// Credits on lane 0 on a device that can use a receive at once: the bookkeeping of S2 sees
    /// it, but nothing may come of it.
    CreditsLane0,
}

/// The result of a control.
#[derive(Clone, Debug)]
pub struct ControlResult {
    /// Runs made.
    pub runs: u64,
    /// Of these, how many in which S2 was seen.
    pub s2: u64,
    /// The first failure: seed and what.
    pub failed: Option<(u64, String)>,
}

impl Control {
    /// Runs it on seeds from `first` on.
    pub fn check(self, model: Model, first: u64, runs: u64) -> ControlResult {
        let mut result = ControlResult { runs, s2: 0, failed: None };
        for seed in first..first + runs {
            let mut opt = match self {
                Control::Clean => Options::draw(seed, model, None),
                Control::CreditsLane0 => Options::draw(seed, model, Some(Sabotage::CreditsLane0)),
            };
            opt.tolerate = if self == Control::CreditsLane0 { NO_BOOKS } else { &[] };
            let out = run(&opt, false);
            let s2 = out.violations.iter().any(|v| v.invariant == Invariant::S2);
            result.s2 += u64::from(s2);
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
