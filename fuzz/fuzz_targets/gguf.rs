//! Feeds the target of this name; see `tests/src/fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cake_tests::fuzz::run("gguf", bytes));
