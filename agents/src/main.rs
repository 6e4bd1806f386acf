//! `millrace-agent`: runs a whole job on this machine, or one of its roles.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(exit) = millrace_agents::role_process() {
        return exit;
    }
    millrace_agents::cli::main(std::env::args_os())
}
