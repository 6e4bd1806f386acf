//! What stands in the journal.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{logs::Record, metrics::Point};

/// One numbered entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Rises over all attempts, from 1.
    pub seq: u64,
    /// The attempt that wrote it.
    pub attempt: u64,
    /// When it was written, milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    /// What happened.
    pub event: Event,
}

/// What happened. A reader leaves out kinds of later versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A step was committed, or an evaluation ended.
    Metric(Point),
    /// A role said something.
    Log(Record),
    /// The job is in another state.
    State {
        /// Its name, as in the job's status: `Starting`, `Training`, `Evaluating`.
        state: String,
        /// What else there is to say, by key: `epoch`, `num_csx`, `message`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        detail: BTreeMap<String, String>,
    },
    /// A checkpoint is whole.
    Checkpoint {
        /// The step it holds.
        step: u64,
        /// blake3 of its parameters.
        digest: String,
    },
    /// The attempt is over: its last entry.
    Outcome(Outcome),
}

impl Event {
    /// Whether it must be on the disk before anybody sees it.
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Metric(_) | Self::Log(_) => false,
            Self::State { .. } | Self::Checkpoint { .. } | Self::Outcome(_) => true,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The exit code of the run: 0 done, 1 failed, 2 bad input, 130 interrupted.
    pub exit_code: u8,
    /// One word: `Succeeded`, `Interrupted`, or the cause of failure.
    pub reason: String,
    /// One sentence for people.
    #[serde(default)]
    pub message: String,
    /// The last committed step.
    pub step: u64,
    /// blake3 of the parameters of that step, where a checkpoint of it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The agent that failed first, if one did: `cs2-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_agent: Option<String>,
}
