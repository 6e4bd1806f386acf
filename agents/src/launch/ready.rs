//! The lines that processes print for their launcher on standard output: the coordinator its addresses and, on a
//! terminal, its failure, and agents that do not respond; the others whether they are ready.

use std::io::Write;

use millrace_engine::types::AgentId;
use millrace_protocol::launch::FAILURE_ON_STDOUT_ENV;
use serde::{Deserialize, Serialize};

const LISTENING_PREFIX: &str = "listening ";
const FAILED_PREFIX: &str = "failed ";
const UNRESPONSIVE_PREFIX: &str = "unresponsive ";

/// Addresses of a coordinator, each `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenAddresses {
    /// Agents join here.
    pub control: String,
    /// Clients follow and control the run here.
    pub journal: String,
    /// `/metrics` and probes; empty if they are not served.
    #[serde(default)]
    pub metrics: String,
}

/// Prints the line with the addresses, the first output of a coordinator.
///
/// # Errors
/// Standard output is closed.
pub fn announce(listening: &ListenAddresses) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{LISTENING_PREFIX}{}", serde_json::to_string(listening)?)?;
    out.flush()
}

/// Prints the line that reports an agent that the coordinator counts as lost and that has not joined again. Its process
/// may run, but can do nothing for the job.
pub fn announce_unresponsive(agent: AgentId) {
    // If the launcher has ended, this process ends when its standard input closes.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{UNRESPONSIVE_PREFIX}{agent}").and_then(|()| out.flush());
}

const READY_LINE: &str = "ready";
const NOT_READY_LINE: &str = "waiting";

/// Prints the line that reports whether this process has joined its job and is ready.
pub fn announce_ready(ready: bool) {
    // If the launcher has ended, this process ends when its standard input closes.
    let _ = writeln!(std::io::stdout().lock(), "{}", if ready { READY_LINE } else { NOT_READY_LINE });
}

/// Prints why this process fails: to standard error, or on standard output if its launcher copies that. Two pipes have
/// no common order, so the failure would otherwise appear before lines that were printed earlier.
pub fn print_failure(text: &str) {
    let for_launcher = || {
        std::env::var_os(FAILURE_ON_STDOUT_ENV)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", failure_line(text)?).and_then(|()| out.flush()).ok()
    };
    if for_launcher().is_none() {
        eprintln!("{text}");
    }
}

/// Returns the line with a failure, whose text may have several lines.
fn failure_line(text: &str) -> Option<String> {
    Some(format!("{FAILED_PREFIX}{}", serde_json::to_string(text).ok()?))
}

/// Parses a line of [`print_failure`]; returns `None` for other lines.
pub(super) fn parse_failure(line: &[u8]) -> Option<String> {
    serde_json::from_slice(line.strip_prefix(FAILED_PREFIX.as_bytes())?).ok()
}

/// Parses a line of [`announce_unresponsive`]; returns `None` for other lines.
pub(super) fn parse_unresponsive(line: &[u8]) -> Option<AgentId> {
    std::str::from_utf8(line.strip_prefix(UNRESPONSIVE_PREFIX.as_bytes())?)
        .ok()
        .and_then(|name| AgentId::parse(name.trim_end()))
}

/// Parses a line of [`announce_ready`]; returns `None` for other lines.
pub(super) fn parse_ready(line: &str) -> Option<bool> {
    match line.trim_end() {
        READY_LINE => Some(true),
        NOT_READY_LINE => Some(false),
        _ => None,
    }
}

impl ListenAddresses {
    /// Parses a line of [`announce`]; returns `None` for other lines.
    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(LISTENING_PREFIX)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use millrace_engine::types::Role;

    use super::*;

    #[test]
    fn only_names_of_agents_are_unresponsive() {
        assert_eq!(parse_unresponsive(b"unresponsive cs2-12\n"), Some(AgentId::new(Role::Cs2, 12)));
        for other in ["unresponsive", "unresponsive cs3-1", "ready"] {
            assert_eq!(parse_unresponsive(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn failure_of_several_lines_is_one_line_for_the_launcher() {
        let text = "error: coordinator-0: \"x.yaml\" is bad\nhint: mend it";
        let line = failure_line(text).unwrap();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(parse_failure(format!("{line}\n").as_bytes()).as_deref(), Some(text));
        for other in ["failed", "failed to open", "listening {}", "\"x\""] {
            assert_eq!(parse_failure(other.as_bytes()), None, "{other}");
        }
    }
}
