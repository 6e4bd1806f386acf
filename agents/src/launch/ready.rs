//! The coordinator's first line: where it can be reached.

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

impl Listening {
    /// Reads the line of [`announce`].
    pub(super) fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(WORD)?).ok()
    }
}
