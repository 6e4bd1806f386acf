//! The entries of the journal.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::AttemptOutcome;
use crate::logs::LogRecord;
use crate::metrics_log::MetricPoint;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// Number of the entry, from 1, increasing over all attempts.
    pub seq: u64,
    /// The attempt that wrote the entry.
    pub attempt: u64,
    /// Time of writing, in milliseconds since 1970-01-01 UTC.
    pub unix_ms: u64,
    pub event: JournalEvent,
}

/// An event of a run. Readers skip kinds that were added in later versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEvent {
    /// A step was committed, or an evaluation finished.
    Metric(MetricPoint),
    /// An agent logged a record.
    Log(LogRecord),
    /// The state of the run changed.
    State(RunState),
    /// A checkpoint is complete.
    Checkpoint {
        /// The step of the checkpoint.
        step: u64,
        /// blake3 of the checkpoint's parameters.
        digest: String,
    },
    /// A checkpoint could not be written; the run continues.
    CheckpointFailed {
        /// The step that the checkpoint would have had.
        step: u64,
        /// The error and its consequence.
        message: String,
    },
    /// Events were dropped, without getting a number, because the journal could not be written for a long time. Since
    /// 0.2.0.
    Dropped(Dropped),
    /// The attempt ended. This is its last entry.
    Outcome(AttemptOutcome),
}

/// Numbers of events dropped since the previous entry, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Metrics of steps and evaluations.
    #[serde(default)]
    pub metrics: u64,
    #[serde(default)]
    pub logs: u64,
    #[serde(default)]
    pub others: u64,
}

impl Dropped {
    /// Counts one event.
    pub const fn count(&mut self, event: &JournalEvent) {
        match event {
            JournalEvent::Metric(_) => self.metrics += 1,
            JournalEvent::Log(_) => self.logs += 1,
            _ => self.others += 1,
        }
    }

    /// Adds the numbers of `other`.
    pub const fn add(&mut self, other: Self) {
        self.metrics += other.metrics;
        self.logs += other.logs;
        self.others += other.others;
    }

    /// Returns the number of dropped events of all kinds.
    pub const fn total(&self) -> u64 {
        self.metrics + self.logs + self.others
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// The current stage.
    pub state: RunPhase,
    /// Number of updates made. In a run that only evaluates: updates in the checkpoint being evaluated.
    #[serde(default)]
    pub step: u64,
    /// The step at which training ends; `None` in a run that only evaluates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Systems in use; before the first epoch, systems that the run waits for.
    #[serde(default)]
    pub num_csx: u32,
    /// Systems that the run is to use. After a resize to fewer, the old number until no other system takes part;
    /// `None` from 0.1.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_csx: Option<u32>,
    /// The epoch as `attempt.number`; `None` before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Agents that the coordinator counts as lost, such as `cs2-1`, and since when, in milliseconds since 1970; since
    /// 0.2.0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lost_agents: BTreeMap<String, u64>,
    /// Agents that work much more slowly than the others of their role, such as `cs2-1`; since 0.2.0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub slow_agents: BTreeMap<String, SlowAgent>,
    /// The write that the storage of model_dir does not respond to; `None` while it responds. Since 0.2.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_stall: Option<StorageStall>,
    /// Where the run resumed, if it did; since 0.2.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<ResumePoint>,
    /// A sentence about what the run has been doing for a while, if nothing else has happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How slow an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowAgent {
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Its speed in percent of the median of the others of its role, when it was found to be slow.
    pub speed_percent: u32,
}

/// A write that has not returned for long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageStall {
    /// The file, or the directory of a checkpoint.
    pub file: String,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
}

/// The point at which a run resumes training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    /// Number of updates in the parameters that the run starts with; 0 without a checkpoint.
    pub step: u64,
    /// Number of steps after that point which an earlier attempt made and this run repeats.
    pub repeated_steps: u64,
}

/// What a run is currently doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RunPhase {
    /// Waits for agents, parameters or links, at the start or after a change of membership.
    Starting,
    Training,
    Evaluating,
}

impl JournalEvent {
    /// Returns the kind of the event: its key in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Metric(_) => "metric",
            Self::Log(_) => "log",
            Self::State(_) => "state",
            Self::Checkpoint { .. } => "checkpoint",
            Self::CheckpointFailed { .. } => "checkpoint_failed",
            Self::Dropped(_) => "dropped",
            Self::Outcome(_) => "outcome",
        }
    }

    /// Returns the topic of the event. For a client that only wants the current state, an event replaces earlier events
    /// of its topic. `None` for events that are not part of the state.
    pub(super) const fn replaces_topic(&self) -> Option<&'static str> {
        match self {
            Self::Metric(MetricPoint::Train(_)) => Some("train"),
            Self::Metric(MetricPoint::Eval(_)) => Some("eval"),
            Self::Log(_) | Self::Dropped(_) => None,
            // A failure and a success share a topic: the later one counts.
            Self::CheckpointFailed { .. } => Some("checkpoint"),
            Self::State(_) | Self::Checkpoint { .. } | Self::Outcome(_) => Some(self.kind()),
        }
    }

    /// Returns whether the event must be on disk before followers see it, unless the disk is full.
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Metric(_) | Self::Log(_) | Self::CheckpointFailed { .. } | Self::Dropped(_) => false,
            Self::State(_) | Self::Checkpoint { .. } | Self::Outcome(_) => true,
        }
    }
}
