//! The outcome of an attempt: the journal's last entry, and the last report of its process.

use millrace_outcome::OutcomeReason;
use serde::{Deserialize, Serialize};

/// Maximum bytes of [`AttemptOutcome::to_termination_report`]: the limit of a Kubernetes termination message.
pub const MAX_TERMINATION_REPORT_BYTES: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptOutcome {
    /// Exit code of the run: 0 finished, 1 failed, 2 bad input, 130 interrupted.
    pub exit_code: u8,
    pub reason: OutcomeReason,
    /// One sentence for users, followed by a hint on a separate line if there is one.
    #[serde(default)]
    pub message: String,
    /// The last committed step; 0 if the attempt ended before it was known.
    pub step: u64,
    /// blake3 of the parameters of that step, if a checkpoint of it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The agent that failed first, if one did: `cs2-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_agent: Option<String>,
}

impl AttemptOutcome {
    /// Returns the outcome as one line of JSON of at most [`MAX_TERMINATION_REPORT_BYTES`], including the line feed. A
    /// message that is too long is truncated.
    ///
    /// # Errors
    /// None: all fields can be represented in JSON.
    pub fn to_termination_report(&self) -> serde_json::Result<String> {
        let line = |message: String| serde_json::to_string(&Self { message, ..self.clone() }).map(|line| line + "\n");
        let whole = line(self.message.clone())?;
        if whole.len() <= MAX_TERMINATION_REPORT_BYTES {
            return Ok(whole);
        }
        let room = MAX_TERMINATION_REPORT_BYTES.saturating_sub(line(ELLIPSIS.to_owned())?.len());
        line(format!("{}{ELLIPSIS}", truncate_to_json_bytes(&self.message, room)))
    }

    /// Parses the text written by [`AttemptOutcome::to_termination_report`].
    ///
    /// # Errors
    /// The text is anything else, such as the last lines of a log.
    pub fn from_termination_report(report: &str) -> serde_json::Result<Self> {
        serde_json::from_str(report.trim_end())
    }
}

/// Marks the end of a truncated message.
const ELLIPSIS: &str = "…";

/// Returns the longest prefix of `message` that takes at most `room` bytes in JSON.
fn truncate_to_json_bytes(message: &str, room: usize) -> &str {
    let mut bytes = 0;
    let end = message.char_indices().find(|&(_, character)| {
        bytes += match character {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            control if control < ' ' => 6,
            other => other.len_utf8(),
        };
        bytes > room
    });
    end.map_or(message, |(at, _)| message.get(..at).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(message: String) -> AttemptOutcome {
        let digest = Some("ab".repeat(32));
        AttemptOutcome {
            exit_code: 2,
            reason: OutcomeReason::BadParams,
            message,
            step: 7,
            digest,
            failed_agent: Some("cs2-1".into()),
        }
    }

    #[test]
    fn last_report_is_one_line_and_round_trips() {
        for message in ["short\nhint: be brief", ""] {
            let whole = outcome(message.to_owned());
            assert_eq!(
                AttemptOutcome::from_termination_report(&whole.to_termination_report().unwrap()).unwrap(),
                whole
            );
        }
        // Characters of one to four bytes, and some that JSON escapes with six.
        for piece in ["a", "é", "…", "🌾", "\"", "\n", "\u{1}", "a\u{1}🌾é"] {
            let whole = outcome(piece.repeat(MAX_TERMINATION_REPORT_BYTES));
            let report = whole.to_termination_report().unwrap();
            assert!(
                (MAX_TERMINATION_REPORT_BYTES - 12..=MAX_TERMINATION_REPORT_BYTES).contains(&report.len()),
                "{piece:?}"
            );
            assert_eq!(report.lines().count(), 1);
            let read = AttemptOutcome::from_termination_report(&report).unwrap();
            let kept = read.message.strip_suffix(ELLIPSIS).unwrap();
            assert!(whole.message.starts_with(kept) && !kept.is_empty(), "{piece:?}");
            assert_eq!(AttemptOutcome { message: String::new(), ..read }, outcome(String::new()));
        }
    }
}
