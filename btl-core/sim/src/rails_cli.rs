//! `btl-sim --rails`.
use crate::{Args, bar, models};
use btl_sim::cover::{Cover, Hit};
use btl_sim::rails::{RailMutant, RailsOptions, notices, run};
use btl_sim::{Model, Outcome};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// What rails must meet in a long sweep.
const REQUIRED: [Hit; 6] =
    [Hit::RailDown, Hit::RailStalled, Hit::RailMoved, Hit::PeerFailed, Hit::NewPeer, Hit::Put];
/// Runs within which a broken rule has to be noticed, from each start.
const WITHIN: u64 = 200;
const STARTS: u64 = 15;
/// Where each rule is broken: where the devices show it.
const MUTANTS: [(RailMutant, Model); 8] = [
    (RailMutant::AnyOrder, Model::Siw),
    (RailMutant::AnyOrder, Model::Rnr),
    (RailMutant::NoDedup, Model::Siw),
    (RailMutant::NoDedup, Model::Rnr),
    (RailMutant::NoResend, Model::Siw),
    (RailMutant::NoResend, Model::LateCq),
    (RailMutant::NoFence, Model::SharedWq),
    (RailMutant::NoFence, Model::Siw),
];

/// Whether all was as it should be.
pub(crate) fn main(args: &Args, single: bool) -> bool {
    match (args.mutants, single) {
        (true, _) => mutants(args),
        (false, true) => replay(args),
        (false, false) => sweep(args),
    }
}

fn replay(args: &Args) -> bool {
    let mut good = true;
    for model in models(args) {
        let opt = RailsOptions::draw(args.seed.unwrap_or(0), model, args.mutant);
        println!("{opt:#?}");
        let out = run(&opt, args.trace.is_some());
        report(opt.net.seed, model, args.mutant, &out);
        good &= out.violations.is_empty();
    }
    good
}

fn report(seed: u64, model: Model, mutant: Option<RailMutant>, out: &Outcome) {
    if out.violations.is_empty() {
        println!(
            "seed {seed} on {model}: {} events, {} ms, all good",
            out.events,
            out.time / 1_000_000
        );
        return;
    }
    println!("seed {seed} on {model} FAILED; the last events:");
    out.last.iter().for_each(|line| println!("  {line}"));
    for found in &out.violations {
        println!("{:?} ({}): {}", found.invariant, found.invariant.meaning(), found.what);
    }
    let broken = mutant.map_or(String::new(), |it| format!(" --break {it}"));
    println!("again: cargo xtask sim -- --rails --seed {seed} --model {model}{broken}");
}

#[derive(Default)]
struct Sum {
    next: AtomicU64,
    stop: AtomicBool,
    events: AtomicU64,
    messages: AtomicU64,
    faults: AtomicU64,
    cover: Mutex<Cover>,
    failed: Mutex<Vec<(u64, Model, Outcome)>>,
}

fn sweep(args: &Args) -> bool {
    let models = models(args);
    let total = args.seeds * models.len() as u64;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (sum, bar, start) = (Sum::default(), bar(total), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.unwrap_or(cpus).max(1) {
            scope.spawn(|| {
                let mut cover = Cover::default();
                while !sum.stop.load(Ordering::Relaxed) {
                    let n = sum.next.fetch_add(1, Ordering::Relaxed);
                    if n >= total {
                        break;
                    }
                    one(args, &models, n, &sum, &mut cover);
                    bar.inc(1);
                }
                sum.cover.lock().unwrap_or_else(|e| e.into_inner()).merge(&cover);
            });
        }
    });
    bar.finish_and_clear();
    let failed = sum.failed.into_inner().unwrap_or_else(|e| e.into_inner());
    if let Some((seed, model, out)) = failed.first() {
        report(*seed, *model, args.mutant, out);
        failed.iter().skip(1).for_each(|(seed, model, out)| {
            println!("seed {seed} on {model}: {:?}", out.violations.first());
        });
        println!("{} passed, {} failed", total - failed.len() as u64, failed.len());
        return false;
    }
    let cover = sum.cover.into_inner().unwrap_or_else(|e| e.into_inner());
    cover.lines().iter().for_each(|line| println!("{line}"));
    println!(
        "{total} runs over rails, {} messages, {:.1} million events, {:.1} faults a run: all good, in {:.0} s",
        sum.messages.into_inner(),
        sum.events.into_inner() as f64 / 1e6,
        sum.faults.into_inner() as f64 / total as f64,
        start.elapsed().as_secs_f64(),
    );
    let missing = REQUIRED.iter().filter(|hit| total >= 1000 && !cover.has(**hit)).count();
    if missing > 0 {
        println!("something that must be met was not");
    }
    println!("{total} passed, {missing} failed");
    missing == 0
}

fn one(args: &Args, models: &[Model], n: u64, sum: &Sum, cover: &mut Cover) {
    let model = models[(n % models.len() as u64) as usize];
    let seed = args.seed.unwrap_or(0) + n / models.len() as u64;
    let opt = RailsOptions::draw(seed, model, args.mutant);
    let out = run(&opt, false);
    cover.merge(&out.cover);
    sum.events.fetch_add(out.events, Ordering::Relaxed);
    sum.messages.fetch_add(out.messages, Ordering::Relaxed);
    sum.faults.fetch_add(out.faults, Ordering::Relaxed);
    if !out.violations.is_empty() {
        let mut failed = sum.failed.lock().unwrap_or_else(|e| e.into_inner());
        failed.push((seed, model, out));
        sum.stop.store(!args.keep_going || failed.len() >= 100, Ordering::Relaxed);
    }
}

/// Breaks each rule in turn.
fn mutants(args: &Args) -> bool {
    let (mut passed, mut failed) = (0, 0);
    println!("| rule broken | model | median | worst |\n|---|---|---|---|");
    for (mutant, model) in MUTANTS {
        if args.mutant.is_some_and(|wanted| wanted != mutant) {
            continue;
        }
        let noticed = |start: u64| {
            let run =
                |n| run(&RailsOptions::draw(start * 1_000_003 + n, model, Some(mutant)), false);
            (0..WITHIN).find(|n| notices(mutant, &run(*n))).map(|n| n + 1)
        };
        let mut runs: Vec<u64> = (0..STARTS).filter_map(noticed).collect();
        runs.sort_unstable();
        let good = runs.len() as u64 == STARTS;
        *(if good { &mut passed } else { &mut failed }) += 1;
        let text = |n: Option<&u64>| n.map_or("escaped".to_owned(), u64::to_string);
        let worst = if good { runs.last() } else { None };
        println!("| {mutant} | {model} | {} | {} |", text(runs.get(runs.len() / 2)), text(worst));
    }
    println!("{passed} passed, {failed} failed");
    failed == 0
}
