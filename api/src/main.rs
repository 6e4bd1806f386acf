//! The `millrace-api` binary: the server, and each role of the jobs it runs.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use millrace_agents::role_process;
use millrace_api::cli::{self, ApiArgs};

fn main() -> ExitCode {
    if let Some(exit) = role_process() {
        return exit;
    }
    cli::run(ApiArgs::parse())
}
