//! Clean runs, determinism, and the table of mutants.
use btl_sim::check::Invariant;
use btl_sim::cover::{Cover, Hit};
use btl_sim::mutants::{Control, MUTANTS};
use btl_sim::options::Havoc;
use btl_sim::{Model, Options, run};

/// Seeds per model.
const SEEDS: u64 = 300;

fn clean(model: Model) -> Cover {
    let (mut cover, mut idle) = (Cover::default(), 0);
    for seed in 0..SEEDS {
        let out = run(&Options::draw(seed, model, None), false);
        let last = out.last.join("\n");
        assert!(
            out.violations.is_empty(),
            "cargo xtask sim --seed {seed} --model {model}: {:?}\n{last}",
            out.violations
        );
        idle += u64::from(out.messages == 0);
        assert_eq!(out.no_buffer, 0);
        cover.merge(&out.cover);
    }
    // A rank that is never there may be the only one with something to say.
    assert!(idle < SEEDS / 20, "{idle} runs of {SEEDS} did nothing");
    cover
}

/// What a few hundred runs of any model meet.
fn assert_met(cover: &Cover, more: &[Hit]) {
    let common = [
        Hit::StallConnect,
        Hit::StallCredit,
        Hit::StallLastCredit,
        Hit::StallSendQueue,
        Hit::CreditAlone,
        Hit::RejectCrossing,
        Hit::RejectBusy,
        Hit::Refused,
        Hit::DialDeadline,
        Hit::Parked,
        Hit::EarlyReceive,
        Hit::Died,
        Hit::Vanished,
        Hit::DeviceRemoved,
        Hit::Paused,
        Hit::CutShort,
        Hit::CutForLong,
        Hit::Duplicate,
        Hit::Phantom,
        Hit::FaultProtocol,
        Hit::Put,
        Hit::Got,
        Hit::Fenced,
        Hit::RmaFailed,
        Hit::StallReads,
        Hit::StallFence,
    ];
    for hit in common.iter().chain(more) {
        assert!(cover.has(*hit), "never met: {}", hit.text());
    }
}

#[test]
fn shared_work_queue_is_clean() {
    assert_met(&clean(Model::SharedWq), &[Hit::LateReceive]);
}

#[test]
fn strict_mpa_is_clean() {
    assert_met(&clean(Model::StrictMpa), &[Hit::ResetLoss]);
}

#[test]
fn rnr_is_clean() {
    assert_met(&clean(Model::Rnr), &[Hit::RetryExceeded]);
}

#[test]
fn soft_iwarp_is_clean() {
    assert_met(&clean(Model::Siw), &[Hit::NeverCompleted]);
}

#[test]
fn late_completions_are_clean() {
    assert_met(&clean(Model::LateCq), &[Hit::Burst, Hit::Stale]);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for model in Model::ALL {
        for seed in 0..20 {
            let opt = Options::draw(seed, model, None);
            let (a, b) = (run(&opt, false), run(&opt, false));
            assert_eq!((a.hash, a.events, a.time), (b.hash, b.events, b.time), "seed {seed}");
        }
        let hash = |seed| run(&Options::draw(seed, model, None), false).hash;
        assert_ne!(hash(1), hash(2));
    }
}

#[test]
fn every_mutant_is_noticed() {
    for mutant in MUTANTS {
        let caught = mutant.hunt(3);
        assert!(caught.always(), "{mutant:?}: {caught:?}");
    }
}

/// A model whose device never bites would let the books alone prove themselves.
#[test]
fn a_broken_rule_breaks_connections() {
    let met = |sabotage, model, blind: &'static [Invariant], hit: Hit, within: u64| {
        (0..within).any(|seed| {
            let mut opt = Options::draw(seed, model, Some(sabotage));
            opt.tolerate = blind;
            run(&opt, false).cover.has(hit)
        })
    };
    use Invariant::{L1, S1, S2, S4, S6};
    use btl_sim::Sabotage::{AcceptorSends, AdvertiseFirst, CreditsLane0};
    assert!(met(AcceptorSends, Model::StrictMpa, &[S1], Hit::MpaConnectError, 100));
    assert!(met(AcceptorSends, Model::StrictMpa, &[S1], Hit::MpaTornDown, 100));
    assert!(met(CreditsLane0, Model::SharedWq, &[S2, S4, L1], Hit::Terminate, 1_000));
    assert!(met(AdvertiseFirst, Model::SharedWq, &[S2, S4, S6, L1], Hit::Terminate, 1_000));
}

/// A device that lies is caught on whole runs, by what the lie is about.
#[test]
fn havoc_is_noticed() {
    use Invariant::{L1, S2, S4, S8, S9};
    for (havoc, by) in [
        (Havoc::FlipBit, &[S8, S9, L1][..]),
        (Havoc::Double, &[S2, S4, S8, S9, L1]),
        (Havoc::LoseCredits, &[S2, S4, L1]),
    ] {
        let first = (0..20).find_map(|seed| {
            let mut opt = Options::draw(seed, Model::SharedWq, None);
            opt.havoc = Some(havoc);
            run(&opt, false).violations.first().map(|v| v.invariant)
        });
        assert!(first.is_some_and(|inv| by.contains(&inv)), "{havoc:?}: {first:?}");
    }
}

#[test]
fn controls_are_clean() {
    for model in [Model::StrictMpa, Model::Rnr] {
        let result = Control::CreditsLane0.check(model, 0, 150);
        assert_eq!(result.failed, None, "{model}");
        assert!(result.s2 > 0, "the broken rule never acted on {model}");
    }
    // Where a completed put is in place, its message may travel beside it.
    for model in [Model::Rnr, Model::LateCq] {
        assert_eq!(Control::PutsAside.check(model, 0, 150).failed, None, "{model}");
    }
}
