//! What the ranks send, drawn from the seed.
use crate::options::{Options, Workload};
use crate::rng::Rng;
use btl_core::Nanos;

/// A message to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Not before.
    pub at: Nanos,
    /// To whom.
    pub dst: u32,
    /// Bytes of payload.
    pub len: usize,
    /// How often it is to be answered.
    pub hops: u32,
    /// The put it tells of.
    pub notice: Option<u64>,
}

const MS: Nanos = 1_000_000;

/// What each rank sends, by rank and in order of time.
pub fn draw(opt: &Options, rng: &mut Rng) -> Vec<Vec<Item>> {
    let mut plans = vec![Vec::new(); opt.ranks as usize];
    let n = opt.messages;
    let mut put = |rng: &mut Rng, src: u32, dst: u32, at: Nanos, hops: u32| {
        let len = draw_len(opt, rng);
        plans[src as usize].push(Item { at, dst, len, hops, notice: None });
    };
    match opt.workload {
        Workload::Flood => {
            for _ in 0..rng.range(1, u64::from(opt.ranks)) {
                let (src, dst) = draw_pair(opt, rng);
                (0..n / 2).for_each(|_| put(rng, src, dst, 0, 0));
            }
        }
        Workload::PingPong | Workload::Echo => {
            let pairs = rng.range(1, 4);
            let parallel = if opt.workload == Workload::Echo { rng.range(2, 20) } else { 1 };
            for _ in 0..pairs {
                let (src, dst) = draw_pair(opt, rng);
                let hops = (n / pairs / parallel) as u32;
                (0..parallel).for_each(|_| put(rng, src, dst, 0, hops));
            }
        }
        Workload::Bursts => {
            let mut at = 0;
            for _ in 0..n / 20 + 1 {
                let (src, dst) = draw_pair(opt, rng);
                (0..rng.range(1, 40)).for_each(|_| put(rng, src, dst, at, 0));
                at += rng.below(2 * MS);
            }
        }
        Workload::IdleThenTalk => {
            let mut at = 0;
            for _ in 0..n / 8 + 1 {
                let (src, dst) = draw_pair(opt, rng);
                let hops = rng.below(3) as u32;
                put(rng, src, dst, at, hops);
                at += rng.log_range(1, 500 * MS);
            }
        }
        Workload::AllAtOnce => {
            for src in 0..opt.ranks {
                for dst in (0..opt.ranks).filter(|dst| *dst != src) {
                    let each = n / u64::from(opt.ranks * opt.ranks) + 1;
                    (0..each).for_each(|_| put(rng, src, dst, 0, 0));
                }
            }
        }
    }
    if opt.oneself {
        let rng = &mut Rng::new(opt.seed ^ 0x7365_6c66);
        for src in 0..opt.ranks {
            for _ in 0..rng.range(1, n / u64::from(opt.ranks) + 1) {
                let (at, hops) = (rng.log_range(1, 100 * MS), rng.below(3) as u32);
                put(rng, src, src, at, hops);
            }
        }
    }
    for plan in &mut plans {
        plan.sort_by_key(|item| item.at);
    }
    plans
}

fn draw_pair(opt: &Options, rng: &mut Rng) -> (u32, u32) {
    let src = rng.below(u64::from(opt.ranks)) as u32;
    let step = rng.range(1, u64::from(opt.ranks) - 1) as u32;
    let dst = (src + step) % opt.ranks;
    // Who does not know its peers can only answer.
    if opt.one_sided { (src.min(dst), src.max(dst)) } else { (src, dst) }
}

/// Sizes from nothing to the largest, of all classes alike, often at a limit.
fn draw_len(opt: &Options, rng: &mut Rng) -> usize {
    let class = rng.below(opt.lanes.len() as u64) as usize;
    let max = opt.max_payload(class);
    match rng.below(8) {
        0 => 0,
        1 => max,
        2 if class > 0 => opt.max_payload(class - 1) + 1,
        3..=5 => rng.below(65) as usize,
        _ => rng.below(max as u64 + 1) as usize,
    }
}
