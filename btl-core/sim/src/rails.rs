//! Runs of [`btl_core::rails`]: several devices a process, faults on one of them or on all.
//!
//! Each rail of a process is a host of the fabric with an engine, a device and a connection machine of its own; one
//! [`Rails`](btl_core::rails::Rails) of the process owns the engines. On top of what the lanes must keep (S1 to S7, as
//! ever), the book of this module wants:
//!
//! | | holds |
//! |---|---|
//! | S8 | each message arrives once, in order whatever rails it took, unchanged; each send ends once; what is acknowledged arrived |
//! | S9 | while one rail between two processes is sound, the peer does not fail |
//! | S13 | the bytes of a put are in place, on all its rails, when it is done |
//! | L1 | what was sent is acknowledged, or its peer has failed |
mod book;
mod proc;
mod world;

use crate::options::{MS, Options, US};
use crate::rng::{Delay, Rng, mix};
use crate::run::Outcome;
use crate::{Model, check::Invariant};
use btl_core::rails::{RailsConfig, RailsSabotage};
use btl_core::{Nanos, SECOND};

pub use world::run;

/// What goes wrong with a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailTrouble {
    /// A queue pair breaks.
    Breaks,
    /// All queue pairs of a device break.
    DeviceFatal,
    /// A device is removed.
    Removed,
    /// Nothing passes between two devices, for longer than they try.
    Cut,
    /// Nothing passes for a long time, and the devices go on trying, as TCP does.
    Stall,
}

/// A fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailFault {
    /// When.
    pub at: Nanos,
    /// What.
    pub what: RailTrouble,
    /// Which process.
    pub process: u32,
    /// Which rail.
    pub rail: u32,
}

/// A rule of rails to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum RailMutant {
    /// Messages are delivered as they arrive.
    AnyOrder,
    /// Duplicates are delivered.
    NoDedup,
    /// What a failed rail had is not sent again.
    NoResend,
    /// A put is done when the devices say so.
    NoFence,
}

impl RailMutant {
    /// All of them.
    pub const ALL: [RailMutant; 4] =
        [RailMutant::AnyOrder, RailMutant::NoDedup, RailMutant::NoResend, RailMutant::NoFence];

    fn switch(self) -> RailsSabotage {
        let mut it = RailsSabotage::default();
        match self {
            RailMutant::AnyOrder => it.any_order = true,
            RailMutant::NoDedup => it.no_dedup = true,
            RailMutant::NoResend => it.no_resend = true,
            RailMutant::NoFence => it.no_fence = true,
        }
        it
    }

    /// The invariants that notice it.
    pub fn noticed_by(self) -> &'static [Invariant] {
        match self {
            RailMutant::AnyOrder | RailMutant::NoDedup => &[Invariant::S8],
            RailMutant::NoResend => &[Invariant::L1, Invariant::S8],
            RailMutant::NoFence => &[Invariant::S13],
        }
    }
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct RailsOptions {
    /// Of the fabric; its ranks are the devices of all processes.
    pub net: Options,
    /// Processes.
    pub processes: u32,
    /// Rails of each.
    pub rails: u32,
    /// Of each rail: million bytes a second and nanoseconds, as claimed.
    pub speeds: Vec<(u32, u32)>,
    /// One rail on which the announced addresses are wrong.
    pub nobody: Option<u32>,
    /// The other processes add a peer only when it has connected.
    pub one_sided: bool,
    /// Settings of the rails.
    pub config: RailsConfig,
    /// What goes wrong.
    pub faults: Vec<RailFault>,
    /// Faults hit more than one rail: peers may fail.
    pub all_rails: bool,
    /// Puts of each process.
    pub puts: u32,
    /// Messages of each process.
    pub messages: u32,
    /// Bytes of the longest message.
    pub longest: u64,
}

impl RailsOptions {
    /// Draws everything from the seed.
    pub fn draw(seed: u64, model: Model, broken: Option<RailMutant>) -> RailsOptions {
        let rng = &mut Rng::new(mix(seed ^ 0x7261_696c) ^ model as u64);
        let (processes, rails) = (rng.range(2, 3) as u32, rng.pick(&[1, 2, 2, 2, 3]) as u32);
        let rails = if broken.is_some() { rails.max(2) } else { rails };
        let mut net = Options::draw(seed, model, None);
        net.ranks = processes * rails;
        net.depths = vec![net.lanes.iter().map(|lane| lane.depth).collect(); net.ranks as usize];
        net.listen_at = vec![0; net.ranks as usize];
        net.faults.clear();
        (net.rma, net.one_sided, net.max_unknown) = (0, false, 1024);
        (net.cm.intruders, net.cm.duplicate, net.cm.lose_request) = (0, 0, 0);
        net.cm.bad_address_first = None;
        net.t_conn = net.t_conn.min(4 * SECOND);
        net.compute_for = net.compute_for.min(500 * MS);
        let all_rails = broken.is_none() && rng.chance(1, 3);
        let victim = rng.below(u64::from(rails)) as u32;
        let n = match broken {
            Some(RailMutant::NoResend | RailMutant::NoDedup) => 3,
            Some(_) => 0,
            None if rails == 1 && !all_rails => 0,
            None => rng.pick(&[0, 1, 1, 2, 3]),
        };
        let mut faults: Vec<RailFault> =
            (0..n).map(|_| draw_fault(rng, processes, rails, victim, all_rails)).collect();
        // The model forgets the end of a stream whose device is removed while that end waits for a link.
        let breaks =
            |it: &RailFault| matches!(it.what, RailTrouble::Breaks | RailTrouble::DeviceFatal);
        if faults.iter().any(|it| it.what == RailTrouble::Removed) {
            faults.retain(|it| !breaks(it));
        }
        let nobody =
            (n == 0 && rails > 1 && broken.is_none() && rng.chance(1, 4)).then_some(victim);
        let longest = net.max_payload(net.lanes.len() - 1) as u64 * rng.range(1, 20);
        RailsOptions {
            processes,
            rails,
            speeds: (0..rails)
                .map(|_| (rng.log_range(10, 10_000) as u32, rng.log_range(500, 20_000) as u32))
                .collect(),
            nobody,
            one_sided: rng.chance(1, 6),
            config: draw_config(rng, broken),
            faults,
            all_rails,
            puts: rng.below(6) as u32 + if broken == Some(RailMutant::NoFence) { 10 } else { 0 },
            messages: rng.log_range(5, 120) as u32,
            longest,
            net,
        }
    }
}

fn draw_fault(rng: &mut Rng, processes: u32, rails: u32, victim: u32, all: bool) -> RailFault {
    let what = rng.pick(&[
        RailTrouble::Breaks,
        RailTrouble::Breaks,
        RailTrouble::DeviceFatal,
        RailTrouble::Removed,
        RailTrouble::Cut,
        RailTrouble::Stall,
    ]);
    let rail = if all { rng.below(u64::from(rails)) as u32 } else { victim };
    let process = rng.below(u64::from(processes)) as u32;
    RailFault { at: rng.log_range(US, 100 * MS), what, process, rail }
}

fn draw_config(rng: &mut Rng, broken: Option<RailMutant>) -> RailsConfig {
    RailsConfig {
        max_message: 1 << 20,
        max_queued: rng.log_range(1, 64) as u32,
        stripe_min: if broken.is_some() { 0 } else { rng.pick(&[0, 2_000, 100_000]) },
        t_next_rail: rng.log_range(MS, SECOND),
        t_ack: rng.pick(&[0, 10 * US, MS]),
        t_stall: rng.log_range(8 * SECOND, 20 * SECOND),
        t_rejoin: rng.log_range(10 * MS, 5 * SECOND),
        t_revive: rng.pick(&[0, 0, 0, 10 * SECOND]),
        t_close: 20 * SECOND,
        sabotage: broken.map(RailMutant::switch).unwrap_or_default(),
        ..RailsConfig::default()
    }
}

/// How long a stalled rail stays so.
const STALL: Nanos = 60 * SECOND;
/// Pause between two messages of a process.
const PAUSE: Delay = Delay { min: 1, max: 2 * MS, tail: 20 };

/// Whether a run broke something that the mutant is noticed by.
pub fn notices(mutant: RailMutant, out: &Outcome) -> bool {
    out.violations.first().is_some_and(|found| mutant.noticed_by().contains(&found.invariant))
}

impl std::fmt::Display for RailMutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RailMutant::AnyOrder => "any-order",
            RailMutant::NoDedup => "no-dedup",
            RailMutant::NoResend => "no-resend",
            RailMutant::NoFence => "no-fence",
        })
    }
}
