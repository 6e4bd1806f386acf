//! How an attempt ended: the journal's last entry, and the last report that a process leaves behind.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The most bytes of [`Outcome::last_report`]: what Kubernetes takes of a termination message.
pub const LAST_REPORT_BYTES: usize = 4096;

/// Why an attempt ended, in one word. This is the list of all there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Everything the job asks for is done. Exit code 0.
    Succeeded,
    /// Somebody asked it to stop; what was committed is saved. Exit code 130.
    Interrupted,
    /// The params, the launch document, the data or the checkpoint to begin with can't be used, or the job does not fit.
    /// Trying again does not help. Exit code 2.
    BadParams,
    /// Another run is writing into model_dir. Exit code 2.
    ModelDirInUse,
    /// A later attempt of the job has taken model_dir. Exit code 1.
    Superseded,
    /// A loss or a gradient is not finite; a run from the same checkpoint comes to the same end. Exit code 1.
    NonFiniteLoss,
    /// The disk of model_dir, or the quota on it, is full. Exit code 1.
    OutOfSpace,
    /// A MemoryX shard is gone, and with it the parameters since the last checkpoint. Exit code 1.
    ShardLost,
    /// Anything else, and what a later version calls otherwise. Exit code 1.
    #[default]
    Failed,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::Succeeded,
        Self::Interrupted,
        Self::BadParams,
        Self::ModelDirInUse,
        Self::Superseded,
        Self::NonFiniteLoss,
        Self::OutOfSpace,
        Self::ShardLost,
        Self::Failed,
    ];

    /// The word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Interrupted => "Interrupted",
            Self::BadParams => "BadParams",
            Self::ModelDirInUse => "ModelDirInUse",
            Self::Superseded => "Superseded",
            Self::NonFiniteLoss => "NonFiniteLoss",
            Self::OutOfSpace => "OutOfSpace",
            Self::ShardLost => "ShardLost",
            Self::Failed => "Failed",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// A word that is not known reads as [`Reason::Failed`].
impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(Self::ALL.into_iter().find(|reason| reason.as_str() == word).unwrap_or_default())
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The exit code of the run: 0 done, 1 failed, 2 bad input, 130 interrupted.
    pub exit_code: u8,
    /// In one word.
    pub reason: Reason,
    /// One sentence for people, and a hint on a line of its own where there is one.
    #[serde(default)]
    pub message: String,
    /// The last committed step; 0 where the attempt ended before that was known.
    pub step: u64,
    /// blake3 of the parameters of that step, where a checkpoint of it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The agent that failed first, if one did: `cs2-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_agent: Option<String>,
}

impl Outcome {
    /// The outcome as one line of JSON of at most [`LAST_REPORT_BYTES`], line feed included. A message that is too long
    /// for that is cut.
    ///
    /// # Errors
    /// None: an outcome has nothing that JSON would refuse.
    pub fn last_report(&self) -> serde_json::Result<String> {
        let line = |message: String| serde_json::to_string(&Self { message, ..self.clone() }).map(|line| line + "\n");
        let whole = line(self.message.clone())?;
        if whole.len() <= LAST_REPORT_BYTES {
            return Ok(whole);
        }
        let room = LAST_REPORT_BYTES.saturating_sub(line(CUT.to_owned())?.len());
        line(format!("{}{CUT}", beginning(&self.message, room)))
    }

    /// Reads a [`Outcome::last_report`].
    ///
    /// # Errors
    /// It is something else, such as a log's last lines.
    pub fn parse_last_report(report: &str) -> serde_json::Result<Self> {
        serde_json::from_str(report.trim_end())
    }
}

/// Ends a message that was cut.
const CUT: &str = "…";

/// As much of `message` as takes at most `room` bytes in JSON.
fn beginning(message: &str, room: usize) -> &str {
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

    fn outcome(message: String) -> Outcome {
        let digest = Some("ab".repeat(32));
        Outcome {
            exit_code: 2,
            reason: Reason::BadParams,
            message,
            step: 7,
            digest,
            failed_agent: Some("cs2-1".into()),
        }
    }

    #[test]
    fn a_last_report_is_one_line_that_fits_and_reads_back() {
        for message in ["short\nhint: be brief", ""] {
            let whole = outcome(message.to_owned());
            assert_eq!(Outcome::parse_last_report(&whole.last_report().unwrap()).unwrap(), whole);
        }
        // Characters of one to four bytes, and some that JSON spells with six.
        for piece in ["a", "é", "…", "🌾", "\"", "\n", "\u{1}", "a\u{1}🌾é"] {
            let whole = outcome(piece.repeat(LAST_REPORT_BYTES));
            let report = whole.last_report().unwrap();
            assert!((LAST_REPORT_BYTES - 12..=LAST_REPORT_BYTES).contains(&report.len()), "{piece:?}");
            assert_eq!(report.lines().count(), 1);
            let read = Outcome::parse_last_report(&report).unwrap();
            let kept = read.message.strip_suffix(CUT).unwrap();
            assert!(whole.message.starts_with(kept) && !kept.is_empty(), "{piece:?}");
            assert_eq!(Outcome { message: String::new(), ..read }, outcome(String::new()));
        }
    }

    #[test]
    fn reasons_are_words_that_read_back_and_those_of_later_versions_are_failures() {
        for reason in Reason::ALL {
            let word = serde_json::to_string(&reason).unwrap();
            assert!(word.trim_matches('"').chars().all(char::is_alphabetic), "{word}");
            assert_eq!(serde_json::from_str::<Reason>(&word).unwrap(), reason);
        }
        assert_eq!(serde_json::from_str::<Reason>("\"Evaporated\"").unwrap(), Reason::Failed);
    }
}
