//! Rails over simulated devices: clean runs with faults, determinism, and each rule of rails broken.
use btl_sim::Model;
use btl_sim::cover::{Cover, Hit};
use btl_sim::rails::{RailMutant, RailsOptions, notices, run};

/// Seeds per model.
const SEEDS: u64 = 150;

fn clean(model: Model) -> Cover {
    let (mut cover, mut messages) = (Cover::default(), 0);
    for seed in 0..SEEDS {
        let out = run(&RailsOptions::draw(seed, model, None), false);
        let last = out.last.join("\n");
        assert!(
            out.violations.is_empty(),
            "cargo xtask sim --rails --seed {seed} --model {model}: {:?}\n{last}",
            out.violations
        );
        messages += out.messages;
        cover.merge(&out.cover);
    }
    assert!(messages > 10 * SEEDS, "{messages} messages in {SEEDS} runs");
    cover
}

#[test]
fn rails_are_clean_on_every_model() {
    let mut cover = Cover::default();
    for model in Model::ALL {
        cover.merge(&clean(model));
    }
    for hit in
        [Hit::RailDown, Hit::RailStalled, Hit::RailMoved, Hit::PeerFailed, Hit::NewPeer, Hit::Put]
    {
        assert!(cover.has(hit), "never met: {}", hit.text());
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..10 {
        let opt = RailsOptions::draw(seed, Model::Rnr, None);
        assert_eq!(run(&opt, false).hash, run(&opt, false).hash, "seed {seed}");
    }
}

/// Runs until the mutant is noticed, from each of some starts that are far apart.
fn caught(mutant: RailMutant, model: Model, within: u64) {
    for start in 0..3 {
        let n = (0..within).find(|n| {
            let out = run(&RailsOptions::draw(start * 1_000_003 + n, model, Some(mutant)), false);
            assert!(
                out.violations.is_empty() || notices(mutant, &out),
                "{mutant:?} on {model}, noticed otherwise: {:?}",
                out.violations
            );
            notices(mutant, &out)
        });
        assert!(n.is_some(), "{mutant:?} on {model} escaped for {within} runs");
    }
}

#[test]
fn messages_in_any_order_are_noticed() {
    caught(RailMutant::AnyOrder, Model::Siw, 20);
    caught(RailMutant::AnyOrder, Model::Rnr, 20);
}

#[test]
fn duplicates_are_noticed() {
    caught(RailMutant::NoDedup, Model::Siw, 100);
    caught(RailMutant::NoDedup, Model::Rnr, 100);
}

#[test]
fn what_a_failed_rail_had_is_missed() {
    caught(RailMutant::NoResend, Model::Siw, 100);
    caught(RailMutant::NoResend, Model::LateCq, 100);
}

#[test]
fn puts_without_their_fence_are_noticed() {
    caught(RailMutant::NoFence, Model::SharedWq, 50);
    caught(RailMutant::NoFence, Model::Siw, 50);
}
