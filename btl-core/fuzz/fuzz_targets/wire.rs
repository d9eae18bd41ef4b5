//! Everything that reads bytes of a peer or of a file: headers, Hello, private data, the modex, ini files.
#![no_main]
#[path = "../../../btl-ompi/src/modex.rs"]
#[allow(dead_code)]
mod modex;
#[path = "../../../btl-ompi/src/modex_check.rs"]
mod modex_check;
#[path = "../../tests/fuzz/wire.rs"]
mod wire;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    wire::check(data);
    modex_check::check(data);
});
