//! What a run is like: everything here is drawn from the seed.
use crate::check::Invariant;
use crate::rng::{Delay, Rng, mix};
use crate::sabotage::Sabotage;
use crate::swarm::{self, Fault};
use btl_core::{CreditRoute, LaneConfig, Nanos, SECOND};

/// A device model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Model {
    /// iWARP with one work queue per queue pair: a receive can be used only when the device has
    /// popped it, behind earlier sends of the same queue pair.
    SharedWq,
    /// iWARP that checks MPA's start-up: an acceptor's message before it received one may break
    /// the connect. Receives can be used at once.
    StrictMpa,
    /// RoCE: a message without a receive is refused and retried after a timer.
    Rnr,
    /// Soft iWARP: receives can be used at once, an acceptor's message that is there when the
    /// initiator reads the reply ends the connect, and what is posted on a broken queue pair is
    /// taken and never completes.
    Siw,
    /// InfiniBand with a completion queue that is written late: completions of all queue pairs
    /// come in bursts and interleaved, those of dead queue pairs too; it can overflow.
    LateCq,
}

impl Model {
    /// All models.
    pub const ALL: [Model; 5] =
        [Model::SharedWq, Model::StrictMpa, Model::Rnr, Model::Siw, Model::LateCq];

    /// Whether its connections are TCP streams with MPA.
    pub fn is_iwarp(self) -> bool {
        !matches!(self, Model::Rnr | Model::LateCq)
    }
}

impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Model::SharedWq => "shared-wq",
            Model::StrictMpa => "strict-mpa",
            Model::Rnr => "rnr",
            Model::Siw => "siw",
            Model::LateCq => "late-cq",
        })
    }
}

/// What the ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// A few senders, each to one receiver, as fast as possible.
    Flood,
    /// Pairs that answer each message.
    PingPong,
    /// Bursts of more messages than there are credits, from everyone to everyone.
    Bursts,
    /// Messages far apart.
    IdleThenTalk,
    /// Everyone sends to everyone at the same instant: all connects cross.
    AllAtOnce,
    /// A message is sent from inside the receive callback, before the release.
    Echo,
}

const WORKLOADS: [Workload; 6] = [
    Workload::Flood,
    Workload::PingPong,
    Workload::Bursts,
    Workload::IdleThenTalk,
    Workload::AllAtOnce,
    Workload::Echo,
];

/// How the connection manager behaves.
#[derive(Clone, Copy, Debug)]
pub struct CmOptions {
    /// A request, reply or reject under way.
    pub wire: Delay,
    /// Between an event and the step of the CM side that handles it.
    pub step: Delay,
    /// Between LaneUp on the CM side and the engine's poll that sees it.
    pub hand_over: Delay,
    /// Between the arrival of the reply and the moment the initiator's device has read it.
    pub read_reply: Delay,
    /// One in how many requests is lost: the dial runs into its deadline. 0: none.
    pub lose_request: u64,
    /// One in how many requests is refused by the transport. 0: none.
    pub refuse: u64,
    /// The first address announced is wrong: nobody there, or another rank.
    pub bad_address_first: Option<BadAddress>,
    /// Requests that are not of a peer.
    pub intruders: u64,
    /// One in how many requests arrives twice. 0: none.
    pub duplicate: u64,
    /// One in how many connections sees events that mean nothing to it (ADDR_CHANGE,
    /// TIMEWAIT_EXIT). 0: none.
    pub noise: u64,
}

/// What is wrong with the first address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadAddress {
    /// Connects are refused.
    Nobody,
    /// Another rank listens there.
    OtherRank,
}

/// What the devices do wrong, within their rights.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// Base time to pop one work request; scaled per queue pair.
    pub pop: Delay,
    /// Largest factor between a slow queue pair and a fast one.
    pub spread: u64,
    /// A message under way.
    pub wire: Delay,
    /// Between the end of a work request and its completion's place in the CQ.
    pub completion: Delay,
    /// One in how many posts fails with ENOMEM. 0: none.
    pub enomem: u64,
    /// The retry count of RNR NAKs, 0 to 7; 7 is for ever.
    pub rnr_retry: u8,
    /// Until the next try after an RNR NAK.
    pub rnr_timer: Nanos,
    /// Until a packet to a queue pair that is not ready is sent again.
    pub ack_timeout: Nanos,
    /// Between two bursts of completions, where they come in bursts.
    pub burst: Delay,
    /// One in how many completions of a dead queue pair shows up late. 0: none.
    pub stale: u64,
    /// How long TCP tries in vain.
    pub tcp_patience: Nanos,
    /// Whether a destroyed iWARP queue pair loses what is still under way (RST instead of FIN).
    pub reset_loses: bool,
}

/// A device that lies, to try the checker on whole runs: no device does this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Havoc {
    /// Now and then a bit of a payload is flipped.
    FlipBit,
    /// Now and then a message arrives twice.
    Double,
    /// Now and then the credits of a message are set to nothing.
    LoseCredits,
}

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed.
    pub seed: u64,
    /// The device model.
    pub model: Model,
    /// The rule to break.
    pub sabotage: Option<Sabotage>,
    /// A device that lies.
    pub havoc: Option<Havoc>,
    /// Violations of these do not end the run, only what follows from them: shows what a device
    /// makes of a broken rule.
    pub tolerate: &'static [Invariant],
    /// Number of ranks.
    pub ranks: u32,
    /// Lanes; the depths of a rank may be smaller, see `depths`.
    pub lanes: Vec<LaneConfig>,
    /// Receive depth by rank and class.
    pub depths: Vec<Vec<u16>>,
    /// Where the ranks want credits to travel that have no message to ride on. All of them but the last; that one may
    /// disagree.
    pub route: CreditRoute,
    /// What the last rank wants.
    pub last_route: CreditRoute,
    /// Every rank is its own peer too.
    pub oneself: bool,
    /// What the ranks do.
    pub workload: Workload,
    /// Messages in all, roughly.
    pub messages: u64,
    /// Puts, gets, atomics and fences in all, roughly.
    pub rma: u64,
    /// Reads and atomics that each connection allows at a time.
    pub max_reads: u16,
    /// One in how many received buffers is held for long. 0: none.
    pub hold: u64,
    /// How long it is held.
    pub hold_for: Delay,
    /// Time between two polls of a busy rank.
    pub poll: Delay,
    /// One in how many polls is followed by a long computation. 0: none.
    pub compute: u64,
    /// How long that takes.
    pub compute_for: Nanos,
    /// When each rank starts to listen.
    pub listen_at: Vec<Nanos>,
    /// Peers are removed before the close.
    pub remove_first: bool,
    /// Only some ranks are told of their peers' addresses; the others learn of them when they
    /// are connected to.
    pub one_sided: bool,
    /// The connection manager.
    pub cm: CmOptions,
    /// The devices.
    pub dev: DeviceOptions,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Accepts at a time.
    pub max_accepting: u32,
    /// Lanes of ranks that were not announced.
    pub max_unknown: u32,
    /// Limit of one dial.
    pub t_conn: Nanos,
    /// Which ranks recover lanes that fail.
    pub recover: Vec<bool>,
}

pub(crate) const US: Nanos = 1_000;
pub(crate) const MS: Nanos = 1_000_000;

impl Options {
    /// Draws everything from the seed.
    pub fn draw(seed: u64, model: Model, sabotage: Option<Sabotage>) -> Options {
        let rng = &mut Rng::new(mix(seed) ^ model as u64);
        let rma_rng = &mut Rng::new(mix(seed ^ 0x726d_6121) ^ model as u64);
        let recover_rng = &mut Rng::new(mix(seed ^ 0x7265_636f) ^ model as u64);
        let ranks = rng.range(2, 4) as u32;
        let lanes = draw_lanes(rng, sabotage);
        let depths = (0..ranks).map(|_| draw_depths(rng, &lanes)).collect();
        let workload = rng.pick(&WORKLOADS);
        let late = rng.chance(1, 4);
        let listen_at =
            (0..ranks).map(|_| if late { rng.log_range(US, 3 * SECOND) } else { 0 }).collect();
        let mut faults = swarm::draw(rng, ranks, sabotage);
        let recover = draw_recover(recover_rng, ranks, sabotage);
        if recover.contains(&true) {
            swarm::draw_losses(recover_rng, ranks, &mut faults, sabotage);
        }
        let mut cm = draw_cm(rng, ranks);
        let mut longest = 60 * SECOND;
        if faults.iter().any(Fault::is_failure) {
            // The give-up time is short in these runs, and the others must not run into it.
            cm.lose_request = 0;
            longest = 8 * SECOND;
        }
        let one_sided = rng.chance(1, 6);
        if one_sided {
            // A request that nobody is behind makes a peer that nobody can call back: no fault of the engine's.
            cm.duplicate = 0;
        }
        let mut dev = draw_device(rng);
        if sabotage == Some(Sabotage::CreditsLane0) {
            // Credits beside their lane may reach its successor: beside the point, so lanes are
            // made once.
            (dev.enomem, cm.lose_request) = (0, 0);
        }
        let (route, last_route) = draw_routes(seed, model, sabotage);
        // Ranks that are never told of their peers must take everyone.
        let max_unknown = if one_sided { 1024 } else { rng.pick(&[0, 1, 1024]) };
        Options {
            seed,
            model,
            sabotage,
            havoc: None,
            tolerate: &[],
            ranks,
            lanes,
            depths,
            route,
            last_route,
            oneself: sabotage.is_none() && Rng::new(mix(seed ^ 0x7365_6c66)).chance(1, 4),
            workload,
            messages: rng.log_range(40, 400),
            rma: if sabotage.is_none_or(Sabotage::has_rma) { rma_rng.log_range(8, 100) } else { 0 },
            max_reads: rma_rng.log_range(1, 16) as u16,
            hold: rng.pick(&[0, 0, 2, 10]),
            hold_for: Delay { min: US, max: rng.log_range(10 * US, 20 * MS), tail: 8 },
            poll: Delay { min: 100, max: rng.log_range(500, 20 * US), tail: rng.pick(&[0, 20]) },
            compute: rng.pick(&[0, 0, 0, 100, 1000]),
            compute_for: rng.log_range(MS, 20 * SECOND),
            listen_at,
            remove_first: rng.chance(1, 3),
            one_sided,
            cm,
            dev,
            faults,
            max_accepting: rng.pick(&[1, 2, 256]),
            max_unknown,
            t_conn: rng.log_range(2 * SECOND, longest),
            recover,
        }
    }

    /// Whether someone is gone for good, or a connection is broken: peers may fail.
    pub fn has_failures(&self) -> bool {
        self.faults.iter().any(Fault::is_failure)
    }

    /// Whether lanes between two ranks are made anew. Those of a rank to itself are not.
    pub fn recovers(&self, a: u32, b: u32) -> bool {
        let on = |rank: u32| self.recover.get(rank as usize) == Some(&true);
        a != b && on(a) && on(b)
    }

    /// Bytes of payload of the largest message of a class.
    pub fn max_payload(&self, class: usize) -> usize {
        self.lanes[class].buffer_size as usize - 8
    }
}

/// Credits on the first lane: now and then where that is safe, and always where it is what is tried.
fn draw_routes(seed: u64, model: Model, sabotage: Option<Sabotage>) -> (CreditRoute, CreditRoute) {
    use CreditRoute::{FirstLane, OwnLane};
    let rng = &mut Rng::new(mix(seed ^ 0x726f_7574_6573) ^ model as u64);
    let (wanted, disagrees) = (rng.chance(1, 4), rng.chance(1, 4));
    match sabotage {
        Some(Sabotage::FirstLane) => (FirstLane, FirstLane),
        None if model != Model::SharedWq && wanted => {
            (FirstLane, if disagrees { OwnLane } else { FirstLane })
        }
        _ => (OwnLane, OwnLane),
    }
}

fn draw_lanes(rng: &mut Rng, sabotage: Option<Sabotage>) -> Vec<LaneConfig> {
    let drawn = rng.pick(&[1, 2, 2, 2, 3, 4]);
    // With one lane there is nothing to be wrong about.
    let least = match sabotage {
        Some(
            Sabotage::HelloLane0
            | Sabotage::CreditsLane0
            | Sabotage::PutsAside
            | Sabotage::FirstLane,
        ) => 2,
        _ => 1,
    };
    let n = drawn.max(least);
    let mut size = 256;
    (0..n)
        .map(|_| {
            let lane = LaneConfig {
                buffer_size: size + rng.below(u64::from(size)) as u32,
                depth: rng.log_range(4, 64) as u16,
                send_depth: rng.log_range(2, 64) as u16,
                send_slots: rng.log_range(2, 128) as u32,
            };
            size *= 2;
            lane
        })
        .collect()
}

/// How many receives a rank posts on each lane.
fn draw_depths(rng: &mut Rng, lanes: &[LaneConfig]) -> Vec<u16> {
    let same = rng.chance(3, 4);
    let draw = |lane: &LaneConfig| if same { lane.depth } else { rng.log_range(4, 64) as u16 };
    lanes.iter().map(draw).collect()
}

/// Half of the runs recover; in some of these not everyone.
fn draw_recover(rng: &mut Rng, ranks: u32, sabotage: Option<Sabotage>) -> Vec<bool> {
    let some = match sabotage {
        None => rng.chance(1, 2),
        Some(sabotage) => sabotage.is_about_recovery(),
    };
    let all = sabotage.is_some() || rng.chance(7, 8);
    (0..ranks).map(|_| some && (all || rng.chance(1, 2))).collect()
}

fn draw_cm(rng: &mut Rng, ranks: u32) -> CmOptions {
    let slow = rng.log_range(5 * US, 50 * MS);
    let bad = match rng.below(12) {
        0 => Some(BadAddress::Nobody),
        1 if ranks > 2 => Some(BadAddress::OtherRank),
        _ => None,
    };
    CmOptions {
        wire: Delay { min: US, max: slow, tail: rng.pick(&[0, 10]) },
        step: Delay { min: 200, max: rng.log_range(US, 2 * MS), tail: rng.pick(&[0, 20]) },
        hand_over: Delay { min: 100, max: rng.log_range(US, 5 * MS), tail: 10 },
        read_reply: Delay { min: 100, max: rng.log_range(US, 200 * US), tail: 0 },
        lose_request: rng.pick(&[0, 0, 0, 5]),
        refuse: rng.pick(&[0, 0, 0, 4]),
        bad_address_first: bad,
        intruders: match rng.below(16) {
            0 => rng.range(20, 60),
            1..=4 => rng.range(1, 8),
            _ => 0,
        },
        duplicate: rng.pick(&[0, 0, 1, 4]),
        noise: rng.pick(&[0, 1, 3]),
    }
}

fn draw_device(rng: &mut Rng) -> DeviceOptions {
    DeviceOptions {
        pop: Delay { min: 50, max: rng.log_range(100, 2 * US), tail: rng.pick(&[0, 50]) },
        spread: rng.pick(&[1, 4, 30, 200]),
        wire: Delay { min: 500, max: rng.log_range(US, 50 * US), tail: rng.pick(&[0, 50]) },
        completion: Delay { min: 50, max: rng.log_range(100, 100 * US), tail: rng.pick(&[0, 20]) },
        enomem: rng.pick(&[0, 0, 5, 10, 100]),
        rnr_retry: rng.range(0, 7) as u8,
        rnr_timer: rng.log_range(10 * US, 655 * MS),
        ack_timeout: rng.log_range(500 * US, 500 * MS),
        burst: Delay { min: US, max: rng.log_range(10 * US, 5 * MS), tail: rng.pick(&[0, 20]) },
        stale: rng.pick(&[0, 1, 2, 8]),
        tcp_patience: rng.log_range(2 * SECOND, 20 * SECOND),
        reset_loses: rng.chance(1, 2),
    }
}
