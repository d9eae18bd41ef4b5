//! Runs the simulator: `cargo xtask sim --help`.
#![forbid(unsafe_code)]

mod rails_cli;

use btl_sim::cover::Cover;
use btl_sim::mutants::{CONTROLS, HEAD, MUTANTS, Mutant, UNMEASURED, limit_of};
use btl_sim::rails::RailMutant;
use btl_sim::simplify::{Simpler, shrink};
use btl_sim::{Model, Options, Outcome, Sabotage, draw, run};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Runs the shipped engine over simulated devices, from seeds.
#[derive(Parser, Clone)]
#[command(name = "btl-sim")]
struct Args {
    /// Runs per model
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// First seed; alone: runs only this one
    #[arg(long)]
    seed: Option<u64>,
    /// Threads [default: one per CPU]
    #[arg(long)]
    jobs: Option<usize>,
    /// Device model [default: all]
    #[arg(long)]
    model: Option<Model>,
    /// Break a rule; it must be noticed
    #[arg(long)]
    sabotage: Option<Sabotage>,
    /// Several devices a process, with faults on one rail or on all
    #[arg(long)]
    rails: bool,
    /// With --rails: break a rule of rails
    #[arg(long = "break", requires = "rails")]
    mutant: Option<RailMutant>,
    /// Break each rule in turn and print how soon it was noticed
    #[arg(long)]
    mutants: bool,
    /// With --mutants: measure anew, and write the table into MUTANTS.md
    #[arg(long, requires = "mutants")]
    write: bool,
    /// Do not stop at the first failure; list the seeds that failed
    #[arg(long)]
    keep_going: bool,
    /// Print every event (of one seed), or draw its messages into this SVG file
    #[arg(long, value_name = "FILE.svg", num_args = 0..=1)]
    trace: Option<Option<PathBuf>>,
    /// Make the run (of one seed) simpler, as a report of a failure says
    #[arg(long, value_delimiter = ',')]
    simplify: Vec<Simpler>,
    /// Draw at most this many messages
    #[arg(long, default_value_t = 400)]
    trace_limit: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let single = args.seed.is_some() && !std::env::args().any(|arg| arg.starts_with("--seeds"));
    let good = match (args.mutants, single) {
        _ if args.rails => rails_cli::main(&args, single),
        (true, _) => mutants(&args),
        (false, true) => replay(&args),
        (false, false) => sweep(&args),
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn models(args: &Args) -> Vec<Model> {
    args.model.map_or_else(|| Model::ALL.to_vec(), |model| vec![model])
}

/// Runs one seed and tells all about it.
fn replay(args: &Args) -> bool {
    let mut good = true;
    for model in models(args) {
        let mut opt = Options::draw(args.seed.unwrap_or(0), model, args.sabotage);
        for simpler in &args.simplify {
            simpler.apply(&mut opt);
        }
        println!("{opt:#?}");
        let out = match &args.trace {
            Some(Some(file)) => picture(args, &opt, file),
            print => run(&opt, print.is_some()),
        };
        good &= out.violations.is_empty();
        if out.violations.is_empty() {
            let (events, ms) = (out.events, out.time / 1_000_000);
            println!("seed {} on {model}: {events} events, {ms} ms, all good", opt.seed);
        } else {
            report(&opt, &out, &args.simplify);
        }
    }
    good
}

/// Most runs spent on making a failure smaller.
const SHRINK_RUNS: u32 = 300;

/// Tells of a failure found by a sweep: the simplest run that fails alike.
fn report_shrunk(opt: &Options, out: &Outcome) {
    let Some(first) = out.violations.first() else { return };
    println!("seed {} on {}: {:?} {}", opt.seed, opt.model, first.invariant, first.what);
    let (small, how) = shrink(opt, first.invariant, SHRINK_RUNS);
    let small_out = run(&small, false);
    println!("made simpler: {} events instead of {}", small_out.events, out.events);
    report(&small, &small_out, &how);
}

/// Runs one seed and draws it; with several models, each into a file of its own.
fn picture(args: &Args, opt: &Options, file: &Path) -> Outcome {
    let (out, picture) = draw(opt, args.trace_limit);
    let file = match args.model {
        Some(_) => file.to_path_buf(),
        None => file.with_extension(format!("{}.svg", opt.model)),
    };
    let sabotage =
        opt.sabotage.map_or(String::new(), |s| format!(", broken on purpose: {}", s.name()));
    let title = format!("seed {} on {}{sabotage}", opt.seed, opt.model);
    match std::fs::write(&file, picture.svg(&title)) {
        Ok(()) => println!("drawn into {}", file.display()),
        Err(e) => println!("cannot write {}: {e}", file.display()),
    }
    out
}

fn report(opt: &Options, out: &Outcome, how: &[Simpler]) {
    println!("seed {} on {} FAILED; the last events:", opt.seed, opt.model);
    for line in &out.last {
        println!("  {line}");
    }
    for found in &out.violations {
        println!("{:?} ({}): {}", found.invariant, found.invariant.meaning(), found.what);
    }
    let sabotage = opt.sabotage.map_or(String::new(), |s| format!(" --sabotage {}", s.name()));
    let how: Vec<String> = how.iter().map(Simpler::to_string).collect();
    let how = if how.is_empty() { String::new() } else { format!(" --simplify {}", how.join(",")) };
    println!("again: cargo xtask sim --seed {} --model {}{sabotage}{how}", opt.seed, opt.model);
    println!("as a picture: the same with --trace FILE.svg");
}

/// Faults a run must have on average.
const FAULTS: f64 = 10.0;

/// What all threads of a sweep add to.
#[derive(Default)]
struct Sum {
    next: AtomicU64,
    stop: AtomicBool,
    ran: AtomicU64,
    events: AtomicU64,
    messages: AtomicU64,
    faults: AtomicU64,
    cover: Mutex<Cover>,
    failed: Mutex<Vec<(Options, Outcome)>>,
}

/// Runs many seeds on all CPUs.
fn sweep(args: &Args) -> bool {
    let models = models(args);
    let first = args.seed.unwrap_or(0);
    let total = args.seeds * models.len() as u64;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = args.jobs.unwrap_or(cpus).max(1);
    let bar = bar(total);
    let (sum, start) = (Sum::default(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| worker(args, &models, first, total, &sum, &bar));
        }
    });
    bar.finish_and_clear();
    let failed = sum.failed.into_inner().unwrap_or_else(|e| e.into_inner());
    if let Some((opt, out)) = failed.first() {
        report_shrunk(opt, out);
        for (opt, out) in failed.iter().skip(1) {
            if let Some(found) = out.violations.first() {
                println!(
                    "seed {} on {}: {:?} {}",
                    opt.seed, opt.model, found.invariant, found.what
                );
            }
        }
        let ran = sum.ran.into_inner();
        println!("{} passed, {} failed", ran.saturating_sub(failed.len() as u64), failed.len());
        return false;
    }
    let cover = sum.cover.into_inner().unwrap_or_else(|e| e.into_inner());
    for line in cover.lines() {
        println!("{line}");
    }
    let seconds = start.elapsed().as_secs_f64();
    let events = sum.events.into_inner() as f64 / 1e6;
    println!(
        "{total} runs, {} messages, {events:.1} million events: all good; {:.0} runs/s and \
         {:.2} million events/s and thread on {jobs} threads",
        sum.messages.into_inner(),
        total as f64 / seconds,
        events / seconds / jobs as f64,
    );
    let faults = sum.faults.into_inner() as f64 / total as f64;
    println!("{faults:.1} faults injected per run");
    let missing = cover.missing(total);
    let all = total >= 10_000 && args.sabotage.is_none() && args.model.is_none();
    if all && (!missing.is_empty() || faults < FAULTS) {
        missing.iter().for_each(|hit| println!("in fewer than 1 % of the runs: {}", hit.text()));
        println!("{FAULTS} faults a run are wanted");
        println!("{total} passed, {} failed", missing.len().max(1));
        return false;
    }
    println!("{total} passed, 0 failed");
    true
}

fn worker(args: &Args, models: &[Model], first: u64, total: u64, sum: &Sum, bar: &ProgressBar) {
    let mut cover = Cover::default();
    while !sum.stop.load(Ordering::Relaxed) {
        let n = sum.next.fetch_add(1, Ordering::Relaxed);
        if n >= total {
            break;
        }
        let model = models[(n % models.len() as u64) as usize];
        let opt = Options::draw(first + n / models.len() as u64, model, args.sabotage);
        let mut out = run(&opt, false);
        if n.is_multiple_of(100) && run(&opt, false).hash != out.hash {
            out.violations.push(btl_sim::check::Violation {
                invariant: btl_sim::check::Invariant::S11,
                what: "the same seed gave two different runs".to_owned(),
            });
        }
        cover.merge(&out.cover);
        sum.events.fetch_add(out.events, Ordering::Relaxed);
        sum.messages.fetch_add(out.messages, Ordering::Relaxed);
        sum.faults.fetch_add(out.faults, Ordering::Relaxed);
        if !out.violations.is_empty() {
            let mut failed = sum.failed.lock().unwrap_or_else(|e| e.into_inner());
            failed.push((opt, out));
            let enough = !args.keep_going || failed.len() >= 100;
            sum.stop.store(enough, Ordering::Relaxed);
        }
        sum.ran.fetch_add(1, Ordering::Relaxed);
        bar.inc(1);
    }
    sum.cover.lock().unwrap_or_else(|e| e.into_inner()).merge(&cover);
}

fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {per_sec}, {eta}") {
        bar.set_style(style);
    }
    bar
}

const STARTS: u64 = 15;

/// Breaks each rule in turn, and runs the controls.
fn mutants(args: &Args) -> bool {
    let mut out = Table::default();
    out.line(HEAD.to_owned());
    let wanted = |m: &&Mutant| {
        args.sabotage.is_none_or(|s| s == m.sabotage) && args.model.is_none_or(|it| it == m.model)
    };
    for mutant in MUTANTS.iter().filter(wanted) {
        let mut caught = match args.write {
            true => mutant.hunt_within(STARTS, UNMEASURED),
            false => mutant.hunt(STARTS),
        };
        if args.write {
            caught.limit = limit_of(&caught);
        }
        out.count(caught.always());
        out.line(mutant.line(&caught));
    }
    out.line(String::new());
    out.line("| control | model | runs | result |".to_owned());
    out.line("|---|---|---|---|".to_owned());
    for (control, model) in CONTROLS {
        let result = control.check(model, args.seed.unwrap_or(0), args.seeds);
        let (runs, text) = (result.runs, result.text(control));
        out.count(!text.starts_with("FAILED"));
        out.line(format!("| {} | {model} | {runs} | {text} |", control.name()));
    }
    println!("{} passed, {} failed", out.passed, out.failed);
    let good = out.failed == 0;
    if args.write && good && args.sabotage.is_none() && args.model.is_none() {
        return write_table(&out.text);
    }
    good
}

/// The lines of a table, printed as they come.
#[derive(Default)]
struct Table {
    text: String,
    passed: u32,
    failed: u32,
}

impl Table {
    fn line(&mut self, line: String) {
        println!("{line}");
        self.text.push_str(&line);
        self.text.push('\n');
    }

    fn count(&mut self, good: bool) {
        *(if good { &mut self.passed } else { &mut self.failed }) += 1;
    }
}

/// Writes the published table.
fn write_table(table: &str) -> bool {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/MUTANTS.md");
    match std::fs::write(file, format!("{PREFACE}{table}")) {
        Ok(()) => println!("written into {file}"),
        Err(e) => println!("cannot write {file}: {e}"),
    }
    Path::new(file).exists()
}

const PREFACE: &str = "\
# Every rule switched off, and how soon the simulator notices

Written by `cargo xtask sim --mutants --write`. Each line breaks one rule or check of the engine on
purpose (feature `sabotage`) on one device model and runs seeds until an invariant is broken, from
fifteen starts far apart. *Median* and *worst* count the runs until then. N is ten times the median:
`cargo xtask sim --mutants`, part of `cargo xtask test`, fails if a mutant escapes, or if more than
one start needs more than N runs. *Not looked at* are invariants whose violations do not count, so
that only what comes of the broken rule can be noticed. The rows are those of the plan: M1 and M2
break the first-send rule, M3 to M5 the rule that a credit travels on its lane after the post, M6
and M7 the count of credits, M8 the draining of queues, M9 generations, M10 crossing connects, M11
the size of queues, M12 the way home of buffers, M13 and M14 the checks of what a peer says, M15
the release of a received buffer, M16 the one queue pair for puts and the messages that tell of them;
M17 breaks no rule of the engine: it forces the credit route FirstLane on a device that loses with it.

The controls must be clean: nothing broken, and report 2's rule broken on devices that can use a
receive at once, where the books see it and nothing may come of it; puts beside their messages where
a completed put is in place; the credit route FirstLane on devices that can use a receive at once,
where nothing at all may be noticed.

";
