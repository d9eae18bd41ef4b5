//! Random orders: connections are taken to any stage, and then ids, channels, queue pairs and completion queues go in any
//! order, on any thread, dropped, forgotten or unwound, with events pending.

mod common;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{LIMIT, Side, addr, device};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rdma_cm::{ConnParams, Event, EventChannel, Listener};

const CASES: usize = 48;
const AT_ONCE: usize = 12;
const SEED: u64 = 0x5eed;

/// How far one connection is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Resolved,
    Asked,
    Heard,
    Accepted,
    Established,
}

const STAGES: [Stage; 5] =
    [Stage::Resolved, Stage::Asked, Stage::Heard, Stage::Accepted, Stage::Established];

/// What becomes of one thing.
#[derive(Debug, Clone, Copy)]
enum End {
    Dropped,
    OnAnotherThread,
    ByAPanic,
    /// It leaks, and must break nothing.
    Forgotten,
}

#[derive(Debug, Clone)]
struct Program {
    stages: Vec<Stage>,
    /// Which of what is left goes next, and how.
    ends: Vec<(u8, End)>,
    reads_events: bool,
}

fn program(forgets: bool) -> impl Strategy<Value = Program> {
    let forgotten = u32::from(forgets);
    let end = prop_oneof![
        6 => Just(End::Dropped),
        2 => Just(End::OnAnotherThread),
        2 => Just(End::ByAPanic),
        forgotten => Just(End::Forgotten),
    ];
    let stages = proptest::collection::vec(proptest::sample::select(&STAGES[..]), 1..3);
    let ends = proptest::collection::vec((any::<u8>(), end), 40);
    (stages, ends, any::<bool>()).prop_map(|(stages, ends, reads_events)| Program {
        stages,
        ends,
        reads_events,
    })
}

/// A thing that can go.
type Thing = Box<dyn Any + Send>;

/// The request of an attempt on this listener.
fn request(channel: &mut EventChannel, listener: &Listener) -> rdma_cm::ConnectRequest {
    channel.wait_request(listener, LIMIT).unwrap().expect("a request comes")
}

/// Takes one connection to its stage; what there is of it.
fn connect(
    dialling: &mut EventChannel,
    serving: &mut EventChannel,
    listener: &Listener,
    stage: Stage,
) -> Vec<Thing> {
    let (mut active, mut passive) = (Side::new(), Side::new());
    let params = ConnParams::default();
    let mut things: Vec<Thing> = Vec::new();
    let connector = dialling.resolve(None, listener.local_addr(), LIMIT).unwrap();
    dialling.init_qp(&connector, &mut active.qp).unwrap();
    active.post_recv();
    'stages: {
        if stage == Stage::Resolved {
            things.push(Box::new(connector));
            break 'stages;
        }
        let attempt = dialling.begin_connect(connector, &mut active.qp, &params, LIMIT).unwrap();
        if stage == Stage::Asked {
            things.push(Box::new(attempt));
            break 'stages;
        }
        let heard = request(serving, listener);
        serving.init_qp(&heard, &mut passive.qp).unwrap();
        passive.post_recv();
        if stage == Stage::Heard {
            things.extend([Box::new(attempt) as Thing, Box::new(heard)]);
            break 'stages;
        }
        let accepting = serving.accept(heard, &mut passive.qp, &params).unwrap();
        if stage == Stage::Accepted {
            things.extend([Box::new(attempt) as Thing, Box::new(accepting)]);
            break 'stages;
        }
        let one = dialling.finish_connect(attempt, &mut active.qp, LIMIT).unwrap();
        let two = serving.wait_established(accepting, LIMIT).unwrap();
        active.send(b"in flight");
        things.extend([Box::new(one) as Thing, Box::new(two)]);
    }
    for side in [active, passive] {
        let Side { qp, cq, pd, context, .. } = side;
        things.extend([Box::new(qp) as Thing, Box::new(cq), Box::new(pd), Box::new(context)]);
    }
    things
}

fn end(thing: Thing, how: End) {
    match how {
        End::Dropped => drop(thing),
        End::OnAnotherThread => std::thread::scope(|s| {
            s.spawn(move || drop(thing)).join().unwrap();
        }),
        End::ByAPanic => {
            let unwound = catch_unwind(AssertUnwindSafe(move || {
                let _owned = thing;
                resume_unwind(Box::new("of the test"));
            }));
            assert!(unwound.is_err());
        }
        End::Forgotten => std::mem::forget(thing),
    }
}

fn run(program: Program) {
    let mut dialling = EventChannel::new().unwrap();
    let mut serving = EventChannel::new().unwrap();
    let listener = serving.listen(addr(0), 8).unwrap();
    let mut things: Vec<Thing> = Vec::new();
    for stage in program.stages {
        // One that nobody has answered stands before the next in the listener's queue.
        let waits = stage == Stage::Asked;
        things.extend(connect(&mut dialling, &mut serving, &listener, stage));
        if waits {
            break;
        }
    }
    let mut kept: Vec<Option<Event>> = Vec::new();
    if program.reads_events {
        for channel in [&mut dialling, &mut serving] {
            kept.push(channel.next_event(Some(Duration::ZERO)).unwrap());
        }
    }
    things.extend([Box::new(dialling) as Thing, Box::new(serving), Box::new(listener)]);
    let mut ends = program.ends.into_iter().cycle();
    while !things.is_empty() {
        let (n, how) = ends.next().unwrap();
        let at = usize::from(n) % things.len();
        end(things.swap_remove(at), how);
    }
    // An event that outlives its id, its channel and everything else is only a value.
    for event in kept.into_iter().flatten() {
        assert!(!format!("{event:?}").is_empty());
    }
}

/// Queue pairs, ids and open descriptors.
fn resources() -> (usize, usize, usize) {
    let out =
        Command::new("rdma").args(["resource", "show", &device()]).output().expect("rdma runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let count = |key: &str| {
        let mut words = text.split_whitespace().skip_while(|word| *word != key);
        words.nth(1).and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no {key} in: {text}"))
    };
    (count("qp"), count("cm_id"), std::fs::read_dir("/proc/self/fd").unwrap().count())
}

/// Some at a time: soft iWARP holds an id that nobody answered for 10 s.
fn run_all(forgets: bool) {
    println!("{CASES} programs from the seed {SEED}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&SEED.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let made = program(forgets);
    let programs: Vec<Program> =
        (0..CASES).map(|_| made.new_tree(&mut runner).unwrap().current()).collect();
    for some in programs.chunks(AT_ONCE) {
        std::thread::scope(|s| {
            let all: Vec<_> = some.iter().map(|p| (p, s.spawn(|| run(p.clone())))).collect();
            for (program, thread) in all {
                assert!(thread.join().is_ok(), "{program:?}");
            }
        });
    }
}

/// One test, because the resources are everybody's.
#[test]
fn random_orders_of_dropping_leave_nothing() {
    // librdmacm opens the device with its first id, and closes it with the last.
    let mut channel = EventChannel::new().unwrap();
    let _kept_open = channel.listen(addr(0), 1).unwrap();
    let before = resources();
    run_all(false);
    let end = Instant::now() + LIMIT;
    while resources() != before {
        assert!(Instant::now() < end, "{:?} is left, expected {before:?}", resources());
        std::thread::yield_now();
    }
    run_all(true);
    // What was forgotten holds nobody up: a connection like any other.
    run(Program {
        stages: vec![Stage::Established],
        ends: vec![(0, End::Dropped)],
        reads_events: true,
    });
}
