//! The `millrace-operator` binary.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use millrace_operator::cli::OperatorArgs;
use millrace_operator::run;
use millrace_protocol::error_chain;

fn main() -> ExitCode {
    let args = OperatorArgs::parse();
    let _traces = match run::log(&args) {
        Ok(traces) => traces,
        Err(error) => {
            eprintln!("error: {}", error_chain(&error));
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run::run(args)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error_chain(&*error));
            ExitCode::FAILURE
        }
    }
}
