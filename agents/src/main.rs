//! `millrace-agent`: a whole job on this machine, and every role of it.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(exit) = millrace_agents::launch::role_process() {
        return exit;
    }
    millrace_agents::cli::main(std::env::args_os())
}
