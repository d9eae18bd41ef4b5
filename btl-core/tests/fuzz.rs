//! The fuzz targets' checks on inputs from proptest, and on the corpora that the fuzzer has found (`fuzz/`).
#![allow(missing_docs)]
mod common;
#[path = "fuzz/engine.rs"]
mod engine;
#[path = "fuzz/wire.rs"]
mod wire;

use proptest::collection::vec;
use proptest::prelude::*;
use std::path::Path;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hostile_peer_hurts_only_itself(data in vec(any::<u8>(), 0..600)) {
        engine::check(&data);
    }

    /// Steps that matter more often: the kind of a step and its argument, small numbers first.
    #[test]
    fn a_hostile_peer_with_a_plan_hurts_only_itself(steps in vec((0u8..=255, 0u8..8), 0..300)) {
        let data: Vec<u8> = steps.into_iter().flat_map(|(a, b)| [a, b]).collect();
        engine::check(&data);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_fool_a_reader(data in vec(any::<u8>(), 0..200)) {
        wire::check(&data);
    }

    /// Nearly right: what we write, with some bytes changed.
    #[test]
    fn no_change_of_a_byte_fools_a_reader(
        seed in 0usize..3,
        changes in vec((0usize..64, any::<u8>()), 0..4),
    ) {
        let mut data = nearly(seed);
        for (at, byte) in changes {
            if let Some(b) = data.get_mut(at) {
                *b = byte;
            }
        }
        wire::check(&data);
    }
}

/// What a correct peer says.
fn nearly(seed: usize) -> Vec<u8> {
    use btl_core::wire::{Greeting, RejectReason};
    let from = common::name(0);
    let greeting = Greeting {
        job: common::JOB,
        from,
        to: common::name(1),
        class: 0,
        generation: 1,
        buffer_size: 256,
        depth: 8,
        route: Default::default(),
        recover: false,
        lost: None,
    };
    match seed {
        0 => greeting.encode().as_slice().to_vec(),
        1 => RejectReason::Busy.encode().as_slice().to_vec(),
        _ => b"[x]\nvendor_id = 0x1425\nvendor_part_id = 1,2\ncredit_route = own\nmtu = 1024\n"
            .to_vec(),
    }
}

/// Every file of a corpus.
fn corpus(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).expect("a corpus") {
        let path = entry.expect("an entry").path();
        check(&std::fs::read(&path).expect("a file"));
        files += 1;
    }
    assert!(files > 0, "{} is empty", folder.display());
}

#[test]
fn the_corpus_of_wire_passes() {
    corpus("wire", wire::check);
}

#[test]
fn the_corpus_of_engine_passes() {
    corpus("engine", engine::check);
}
