//! The lines that processes print for their launcher on standard output: the coordinator its addresses, the others
//! whether they are ready.

use serde::{Deserialize, Serialize};

const WORD: &str = "listening ";

/// Addresses of a coordinator, each `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
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
pub fn announce(listening: &Listening) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{WORD}{}", serde_json::to_string(listening)?)?;
    out.flush()
}

const READY: &str = "ready";
const WAITING: &str = "waiting";

/// Prints the line that reports whether this process has joined its job and is ready.
pub fn announce_ready(ready: bool) {
    use std::io::Write;
    // If the launcher has ended, this process ends when its standard input closes.
    let _ = writeln!(std::io::stdout().lock(), "{}", if ready { READY } else { WAITING });
}

/// Parses a line of [`announce_ready`]; returns `None` for other lines.
pub(super) fn parse_ready(line: &str) -> Option<bool> {
    match line.trim_end() {
        READY => Some(true),
        WAITING => Some(false),
        _ => None,
    }
}

impl Listening {
    /// Parses a line of [`announce`]; returns `None` for other lines.
    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(WORD)?).ok()
    }
}
