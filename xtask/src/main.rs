//! The tasks of a contributor: `cargo xtask` lists them.
//!
//! A task only calls Cargo and the scripts of the repository, so that each step can also be run by hand. `check`,
//! `test-fast` and `generate` need nothing but the toolchain. `tests/run` is the whole suite.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

mod bench;
mod command;
mod generate;
mod repository;
mod rules;
mod test_fast;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask TASK

  check                   format, rules of this repository, clippy; builds no program
  test-fast [ARGUMENT]    unit tests and quick integration tests; arguments are those of `cargo test`
  generate [--check]      writes every generated file; with --check only fails if one is stale
  bench [NAME ARGUMENT]   runs tests/bench/NAME; without a name lists the benchmarks

tests/run is the whole suite, see CONTRIBUTING.md.
";

fn run(arguments: &[String]) -> Result<()> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["check"] => rules::check_everything(),
        ["test-fast", rest @ ..] => test_fast::run_tests(rest),
        ["generate"] => generate::write(),
        ["generate", "--check"] => generate::check(),
        ["bench"] => bench::list(),
        ["bench", name, rest @ ..] => bench::run(name, rest),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => bail!("unknown task {:?}\n\n{USAGE}", arguments.join(" ")),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
