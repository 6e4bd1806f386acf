//! The lines that processes print for their launcher on standard output: the coordinator its addresses, the others
//! whether they are ready.

use serde::{Deserialize, Serialize};

const LISTENING_PREFIX: &str = "listening ";

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
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{LISTENING_PREFIX}{}", serde_json::to_string(listening)?)?;
    out.flush()
}

const READY_LINE: &str = "ready";
const NOT_READY_LINE: &str = "waiting";

/// Prints the line that reports whether this process has joined its job and is ready.
pub fn announce_ready(ready: bool) {
    use std::io::Write;
    // If the launcher has ended, this process ends when its standard input closes.
    let _ = writeln!(std::io::stdout().lock(), "{}", if ready { READY_LINE } else { NOT_READY_LINE });
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
