//! What processes tell their launcher on standard output: the coordinator in its first line where it can be reached,
//! the others whether they are part of the job.

use serde::{Deserialize, Serialize};

const WORD: &str = "listening ";

/// Addresses of a coordinator, each `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    /// Agents join here.
    pub control: String,
    /// Whoever runs the job follows it and gives commands here.
    pub journal: String,
    /// `/metrics` and probes; empty where they are not served.
    #[serde(default)]
    pub metrics: String,
}

/// Prints the line that tells the launcher `listening`; the first thing a coordinator prints.
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

/// Prints the line that tells the launcher whether this process is part of its job.
pub fn announce_ready(ready: bool) {
    use std::io::Write;
    // A launcher that is gone ends this process in another way.
    let _ = writeln!(std::io::stdout().lock(), "{}", if ready { READY } else { WAITING });
}

/// Reads the line of [`announce_ready`].
pub(super) fn parse_ready(line: &str) -> Option<bool> {
    match line.trim_end() {
        READY => Some(true),
        WAITING => Some(false),
        _ => None,
    }
}

impl Listening {
    /// Reads the line of [`announce`].
    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(WORD)?).ok()
    }
}
