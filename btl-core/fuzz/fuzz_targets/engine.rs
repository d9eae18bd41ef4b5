//! A hostile peer against engines that talk to each other.
#![no_main]
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/fuzz/engine.rs"]
mod engine;

libfuzzer_sys::fuzz_target!(|data: &[u8]| engine::check(data));
