//! Runs the target named by MILLRACE_FUZZ_TARGET under libFuzzer.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("MILLRACE_FUZZ_TARGET").unwrap_or_default();
    millrace_fuzz::target(&name).unwrap_or_else(|| panic!("MILLRACE_FUZZ_TARGET is {name:?}, which names no target"))
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
