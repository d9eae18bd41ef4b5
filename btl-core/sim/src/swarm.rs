//! Which faults a run has, how strong they are, and whom they hit: drawn from the seed before
//! anything else happens, so that some runs have none and some have many.
use crate::options::{MS, US};
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use btl_core::{Nanos, SECOND};

/// Something that goes wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This rank never listens.
    NeverThere(u32),
    /// This rank's process dies at that time; the kernel of its host ends its connections.
    Dies(u32, Nanos),
    /// This rank's host is gone at that time, without a word to anyone. Nobody's device can know;
    /// after a while the others are told, and remove it.
    Vanishes(u32, Nanos),
    /// This rank closes at that time, in the middle of everything.
    ClosesEarly(u32, Nanos),
    /// One queue pair of this rank breaks at that time.
    Breaks(u32, Nanos),
    /// All queue pairs of this rank break at that time: a fatal event of its device.
    DeviceFatal(u32, Nanos),
    /// The device of this rank is removed at that time (DEVICE_REMOVAL).
    Removed(u32, Nanos),
    /// This rank sends what it must not.
    Byzantine(u32, Trick),
    /// Nothing passes between two ranks for a while.
    Cut(Cut),
    /// This rank's process stands still for a while; its device does not.
    Pause(u32, Nanos, Nanos),
}

/// A link that is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// From this rank
    pub from: u32,
    /// to that one nothing passes.
    pub to: u32,
    /// Nor the other way.
    pub both: bool,
    /// From when.
    pub at: Nanos,
    /// For how long.
    pub len: Nanos,
    /// Longer than the devices try.
    pub breaks: bool,
}

/// What a Byzantine rank does to its messages, now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trick {
    /// Another version in the header.
    Version,
    /// An unknown kind of message.
    Kind,
    /// Less than a header.
    Short,
    /// The header claims more than there is.
    Length,
    /// As many credits as the field holds.
    Credits,
    /// A few credits too many.
    FewCredits,
    /// Hello is left out.
    NoHello,
    /// Hello comes twice.
    TwoHellos,
    /// The Hello is of another connection.
    WrongHello,
    /// Messages come many times over.
    Flood,
    /// Bytes at random.
    Noise,
    /// Bye, and more behind it.
    EarlyBye,
    /// Longer than the largest message.
    TooLong,
    /// Acknowledges more than it was sent.
    Acks,
    /// Its Hello claims to have what it was never sent.
    Resume,
}

impl Trick {
    /// All of them.
    pub const ALL: [Trick; 15] = [
        Trick::Version,
        Trick::Kind,
        Trick::Short,
        Trick::Length,
        Trick::Credits,
        Trick::FewCredits,
        Trick::NoHello,
        Trick::TwoHellos,
        Trick::WrongHello,
        Trick::Flood,
        Trick::Noise,
        Trick::EarlyBye,
        Trick::TooLong,
        Trick::Acks,
        Trick::Resume,
    ];
}

impl Fault {
    /// Whether peers may fail of it.
    pub fn is_failure(&self) -> bool {
        match self {
            Fault::Cut(cut) => cut.breaks,
            Fault::Pause(..) => false,
            _ => true,
        }
    }

    /// The ranks it is about.
    pub fn ranks(&self) -> [u32; 2] {
        match *self {
            Fault::NeverThere(rank)
            | Fault::Dies(rank, _)
            | Fault::Vanishes(rank, _)
            | Fault::ClosesEarly(rank, _)
            | Fault::Breaks(rank, _)
            | Fault::DeviceFatal(rank, _)
            | Fault::Removed(rank, _)
            | Fault::Byzantine(rank, _)
            | Fault::Pause(rank, ..) => [rank, rank],
            Fault::Cut(cut) => [cut.from, cut.to],
        }
    }
}

/// When a rank is told that another one is gone, after it happened.
pub(crate) fn obituary(fault: Fault) -> Option<(u32, Nanos)> {
    match fault {
        Fault::Vanishes(rank, at) => Some((rank, at + 120 * SECOND)),
        Fault::Byzantine(rank, _) => Some((rank, 120 * SECOND)),
        _ => None,
    }
}

/// Draws the faults of a run.
pub(crate) fn draw(rng: &mut Rng, ranks: u32, sabotage: Option<Sabotage>) -> Vec<Fault> {
    if let Some(sabotage) = sabotage {
        return for_sabotage(rng, ranks, sabotage);
    }
    let mut faults = Vec::new();
    let failures = rng.pick(&[0, 0, 0, 1, 1, 2]);
    for _ in 0..failures {
        faults.push(draw_failure(rng, ranks));
    }
    // Who waits a minute for a peer gives up on others too, where the patience is short.
    let longest = if failures > 0 { 2 * SECOND } else { 60 * SECOND };
    if rng.chance(1, 5) {
        let who = rng.below(u64::from(ranks)) as u32;
        faults.push(Fault::Pause(who, rng.log_range(US, SECOND), rng.log_range(MS, longest)));
    }
    for _ in 0..rng.pick(&[0, 0, 0, 1, 3]) {
        let cut = draw_cut(rng, ranks, false);
        faults.push(Fault::Cut(cut));
    }
    faults
}

/// Connections that are lost where they are made anew: one after the other, at both sides at once, while the last loss
/// is not over yet, all of a device, and with a link that is down for long.
pub(crate) fn draw_losses(
    rng: &mut Rng,
    ranks: u32,
    faults: &mut Vec<Fault>,
    sabotage: Option<Sabotage>,
) {
    for fault in faults.iter_mut() {
        // As where other failures are drawn.
        if let Fault::Pause(_, _, len) = fault {
            *len = (*len).min(2 * SECOND);
        }
    }
    let mut at = rng.log_range(US, 50 * MS);
    for _ in 0..rng.pick(&[1, 2, 3, 5]) {
        let who = rng.below(u64::from(ranks)) as u32;
        faults.push(match rng.below(8) {
            0 => Fault::DeviceFatal(who, at),
            1 if sabotage.is_none() => {
                let mut cut = draw_cut(rng, ranks, true);
                (cut.at, cut.len) = (at, rng.log_range(100 * MS, 30 * SECOND));
                Fault::Cut(cut)
            }
            _ => Fault::Breaks(who, at),
        });
        at += rng.pick(&[0, US, 50 * US, MS, 20 * MS]);
    }
}

fn draw_failure(rng: &mut Rng, ranks: u32) -> Fault {
    let (who, when) = (rng.below(u64::from(ranks)) as u32, rng.log_range(US, 100 * MS));
    match rng.below(13) {
        0 => Fault::NeverThere(who),
        1 => Fault::Dies(who, when),
        2 => Fault::Vanishes(who, when),
        3 => Fault::ClosesEarly(who, when),
        4 | 5 => Fault::Breaks(who, when),
        6 => Fault::DeviceFatal(who, when),
        7 => Fault::Removed(who, when),
        8 => Fault::Cut(draw_cut(rng, ranks, true)),
        _ => Fault::Byzantine(who, rng.pick(&Trick::ALL)),
    }
}

fn draw_cut(rng: &mut Rng, ranks: u32, breaks: bool) -> Cut {
    let from = rng.below(u64::from(ranks)) as u32;
    let to = (from + rng.range(1, u64::from(ranks) - 1) as u32) % ranks;
    let at = rng.log_range(US, SECOND);
    let len = if breaks { 30 * SECOND } else { rng.log_range(10 * US, 500 * MS) };
    Cut { from, to, both: rng.chance(1, 2), at, len, breaks }
}

/// With a broken rule only what it needs to show: nothing else may be noticed.
fn for_sabotage(rng: &mut Rng, ranks: u32, sabotage: Sabotage) -> Vec<Fault> {
    let (who, when) = (rng.below(u64::from(ranks)) as u32, rng.log_range(US, 20 * MS));
    match sabotage {
        Sabotage::OldGenerations | Sabotage::FlushLost => {
            (0..3).map(|n| Fault::Breaks(who, when + n * 5 * MS)).collect()
        }
        Sabotage::CreditsUnchecked => {
            let trick = rng.pick(&[Trick::Credits, Trick::FewCredits]);
            vec![Fault::Byzantine(who, trick)]
        }
        Sabotage::LengthUnchecked => vec![Fault::Byzantine(who, Trick::Length)],
        it if it.is_about_recovery() => {
            (0..3).map(|n| Fault::Breaks(who, when + n * 5 * MS)).collect()
        }
        _ => Vec::new(),
    }
}
