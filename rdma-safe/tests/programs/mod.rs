//! Random programs over the whole interface, and a model that says what each step must lead to.
//!
//! The same programs run on the fake provider, with its faults, and on real devices.

#![allow(dead_code)] // each test binary uses its part

pub(crate) mod fabric;
mod memory;
mod message;
mod model;
mod ops;
mod posting;
mod world;

pub(crate) use memory::{Ledger, Watch};
pub(crate) use message::Tally;
pub(crate) use model::{Alive, Failing};
pub(crate) use ops::{Fault, Mood, Step, program};
pub(crate) use world::World;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A number from the environment, or the default.
fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")),
        Err(_) => default,
    }
}

/// Runs `cases` programs from a fixed seed: `RDMA_TEST_SEED` and `RDMA_TEST_CASES` choose others. A failure is shrunk where
/// a run has no effects outside, and printed.
pub(crate) fn run_all(
    cases: u32,
    longest: usize,
    mood: Mood,
    shrink: u32,
    run: impl Fn(Vec<Step>) -> Tally,
) -> (u64, Tally) {
    let seed = number("RDMA_TEST_SEED", 0x5eed);
    let cases = u32::try_from(number("RDMA_TEST_CASES", cases.into())).expect("few cases");
    println!("{cases} programs of up to {longest} steps from RDMA_TEST_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: shrink, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let tally = std::cell::Cell::new(Tally::default());
    let one = |steps| {
        let mut sum = tally.get();
        sum += run(steps);
        tally.set(sum);
        Ok(())
    };
    let outcome = match shrink {
        0 => runner.run(&program(longest, mood).no_shrink(), one).map_err(|e| e.to_string()),
        _ => runner.run(&program(longest, mood), one).map_err(|e| e.to_string()),
    };
    if let Err(e) = outcome {
        panic!("{e}\nRDMA_TEST_SEED={seed}");
    }
    let tally = tally.get();
    println!("{tally:?}");
    (cases.into(), tally)
}
