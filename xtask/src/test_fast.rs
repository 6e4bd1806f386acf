//! `cargo xtask test-fast`: what to run before each commit.

use std::time::Instant;

use anyhow::Result;

use crate::command::{WORKSPACE, cargo, run};

/// Runs the unit tests of all crates and those integration tests that need neither an optimized build nor anything
/// installed: part `unit` of `tests/run` without examples in documentation, and without mutated inputs for the fuzz
/// targets. `arguments` are passed to `cargo test`.
pub fn run_tests(arguments: &[&str]) -> Result<()> {
    let start = Instant::now();
    let mut command = cargo(["test"].into_iter().chain(WORKSPACE).chain(["--tests"]));
    command.args(arguments);
    if std::env::var_os("MILLRACE_FUZZ_SECONDS").is_none() {
        command.env("MILLRACE_FUZZ_SECONDS", "0");
    }
    run(&mut command)?;
    println!("test-fast passed in {} s", start.elapsed().as_secs());
    Ok(())
}
