//! What the guest's script prints, and what follows from it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// What a test measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Time of one way, µs; less is better.
    Latency,
    /// MiB/s; more is better.
    Bandwidth,
}

impl Kind {
    /// Its unit.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Latency => "µs",
            Self::Bandwidth => "MiB/s",
        }
    }
}

/// One pair: ours, and perftest's right after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Run {
    pub(super) ours: f64,
    pub(super) theirs: f64,
}

impl Run {
    /// The pairs of a script's output. One in which perftest could not tell the processor's frequency is left out: on a busy machine it
    /// gives up on that now and then.
    ///
    /// # Errors
    /// Ours failed, or a line is not understood.
    pub(super) fn read_all(output: &str, kind: Kind) -> Result<Vec<Self>> {
        let (mut runs, mut ours, mut scale) = (Vec::new(), None, 1.0);
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["failed", "ours", ..] => bail!("{line}"),
                ["failed", "theirs", ..] | ["theirs"] => ours = None,
                ["ours", rest @ ..] => {
                    let (value, per_us) = own(rest).with_context(|| line.to_owned())?;
                    (ours, scale) = (Some(value / per_us), per_us);
                }
                ["theirs", rest @ ..] => {
                    let theirs = perftest(rest, kind).with_context(|| line.to_owned())?;
                    if let (Some(ours), Some(theirs)) = (ours.take(), theirs) {
                        runs.push(Self { ours, theirs: theirs / scale });
                    }
                }
                _ => bail!("the guest's script printed {line:?}"),
            }
        }
        Ok(runs)
    }
}

/// `median_cycles N cycles_per_us F` or `mib_per_s N`: the value, and what to divide it by.
fn own(words: &[&str]) -> Result<(f64, f64)> {
    match words {
        ["median_cycles", value, "cycles_per_us", per_us] => Ok((value.parse()?, per_us.parse()?)),
        ["mib_per_s", value] => Ok((value.parse()?, 1.0)),
        _ => bail!("not a result of bench-verbs"),
    }
}

/// The columns of perftest: size, iterations, minimum, maximum, typical … or size, iterations, peak, average.
fn perftest(words: &[&str], kind: Kind) -> Result<Option<f64>> {
    let column = match kind {
        Kind::Latency => 4,
        Kind::Bandwidth => 3,
    };
    let value: f64 = words.get(column).context("too few columns")?.parse()?;
    Ok(Some(value).filter(|value| value.is_finite() && *value > 0.0))
}

/// Calls per message of both sides together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Calls {
    pub(super) ours: PerMessage,
    pub(super) theirs: PerMessage,
}

/// Calls of one program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PerMessage {
    /// Of any kind but those that ask for the time.
    pub(super) syscalls: f64,
    /// Writes to the device's file, by which a soft device is told of requests.
    pub(super) doorbells: f64,
}

/// Two runs of a program differ by this per message for reasons of their own: how often credits were told at once.
const SAME: f64 = 0.02;

impl Calls {
    /// Reads `ours|theirs COUNT SYSCALLS DOORBELLS` of runs of two lengths, some of each; the most of each count.
    ///
    /// # Errors
    /// There are not two lengths, because runs failed.
    pub(super) fn read(output: &str) -> Result<Self> {
        let of = |who: &str| -> Result<PerMessage> {
            let mut most: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
            for line in output.lines().filter_map(|line| line.strip_prefix(who)) {
                let words: Vec<&str> = line.split_whitespace().collect();
                let [count, syscalls, doorbells] = words.as_slice() else { bail!("{line:?}") };
                let entry = most.entry(count.parse()?).or_default();
                let (syscalls, doorbells): (f64, f64) = (syscalls.parse()?, doorbells.parse()?);
                *entry = (entry.0.max(syscalls), entry.1.max(doorbells));
            }
            let rows: Vec<_> = most.into_iter().collect();
            let [(n, short), (m, long)] = rows.as_slice() else {
                bail!("{who} did not run in two lengths:\n{output}")
            };
            #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
            let more = (m - n) as f64;
            Ok(PerMessage {
                syscalls: (long.0 - short.0) / more,
                doorbells: (long.1 - short.1) / more,
            })
        };
        Ok(Self { ours: of("ours")?, theirs: of("theirs")? })
    }

    /// Whether ours makes as many calls as perftest, or fewer.
    pub(super) fn equal(&self) -> bool {
        self.ours.syscalls <= self.theirs.syscalls + SAME
            && self.ours.doorbells <= self.theirs.doorbells + SAME
    }
}

/// Of all pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) kind: Kind,
    /// Medians.
    pub(super) ours: f64,
    pub(super) theirs: f64,
    /// Median of ours / theirs, with its 95 % interval.
    pub(super) ratio: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// What is promised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most that latency may be, of perftest's.
    pub(super) latency: f64,
    /// Least that bandwidth may be, of perftest's.
    pub(super) bandwidth: f64,
}

impl Summary {
    pub(super) fn of(runs: &[Run], kind: Kind) -> Self {
        let sorted = |value: fn(&Run) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(value).collect();
            values.sort_unstable_by(f64::total_cmp);
            values
        };
        let ratios = sorted(|run| run.ours / run.theirs);
        let (low, high) = interval(&ratios);
        Self {
            kind,
            ours: median(&sorted(|run| run.ours)),
            theirs: median(&sorted(|run| run.theirs)),
            ratio: median(&ratios),
            low,
            high,
        }
    }

    /// It falls short only if the whole interval does: perftest against itself differs by more from run to run.
    pub(super) fn met(&self, limits: Limits) -> bool {
        match self.kind {
            Kind::Latency => self.low <= limits.latency,
            Kind::Bandwidth => self.high >= limits.bandwidth,
        }
    }
}

fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The 95 % interval of the median, by order statistics: no assumption about how the values are distributed.
fn interval(sorted: &[f64]) -> (f64, f64) {
    let n = sorted.len();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a few hundred, and not negative"
    )]
    let low = ((n as f64 - 1.96 * (n as f64).sqrt()) / 2.0).floor().max(1.0) as usize;
    let at = |rank: usize| sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN);
    (at(low), at((n + 1).saturating_sub(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_failures_of_perftest_left_out() {
        let output = "ours median_cycles 26000 cycles_per_us 2600.0 \ntheirs 8 1000 1.0 9.0 13000.00 7 -nan 1 1\n\
             ours median_cycles 5200 cycles_per_us 2600.0\nfailed theirs Couldn't\n\
             ours median_cycles 5200 cycles_per_us 2600.0\ntheirs 8 1000 inf inf inf inf -nan inf inf\n";
        let runs = Run::read_all(output, Kind::Latency).expect("pairs");
        assert_eq!(runs, [Run { ours: 10.0, theirs: 5.0 }]);
        let bandwidth = "ours mib_per_s 30.5\ntheirs 65536 100 0.00 61.00 0.1\nours mib_per_s 1\ntheirs 65536 100 0.00 0.00 0.0\n";
        let runs = Run::read_all(bandwidth, Kind::Bandwidth).expect("pairs");
        assert_eq!(runs, [Run { ours: 30.5, theirs: 61.0 }]);
        assert!(Run::read_all("failed ours no route\n", Kind::Bandwidth).is_err());
    }

    #[test]
    fn calls_are_those_of_the_messages_alone() {
        let output = "ours 100 1200 205\ntheirs 100 9000 210\nours 200 1400 405\ntheirs 200 9200 411\nours 200 1300 305\n";
        let calls = Calls::read(output).expect("calls");
        assert_eq!(calls.ours, PerMessage { syscalls: 2.0, doorbells: 2.0 });
        assert!(calls.equal());
        assert!(!Calls { ours: PerMessage { syscalls: 2.1, doorbells: 2.0 }, ..calls }.equal());
        assert!(Calls::read("ours 100 1200 205\nfailed theirs\n").is_err());
    }

    #[test]
    fn the_interval_of_a_median_is_by_rank() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((interval(&values), median(&values)), ((40.0, 61.0), 50.5));
        assert_eq!(interval(&[7.0]), (7.0, 7.0));
        let runs = vec![Run { ours: 1.1, theirs: 1.0 }; 100];
        let limits = Limits { latency: 1.03, bandwidth: 0.97 };
        assert!(!Summary::of(&runs, Kind::Latency).met(limits));
        assert!(Summary::of(&runs, Kind::Bandwidth).met(limits));
    }
}
