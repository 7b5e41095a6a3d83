//! libFuzzer on the expander: `cargo +nightly fuzz run expand`, or `fuzz/run.sh`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| ddp_fuzz::expand_text(text));
