//! What stands in the journal.

use serde::{Deserialize, Serialize};

use super::Outcome;
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
    /// The run does something else than before.
    State(State),
    /// A checkpoint is whole.
    Checkpoint {
        /// The step it holds.
        step: u64,
        /// blake3 of its parameters.
        digest: String,
    },
    /// A checkpoint could not be written; the run goes on.
    CheckpointFailed {
        /// The step it would have held.
        step: u64,
        /// Why, and what follows.
        message: String,
    },
    /// The file system refused the journal for so long that events were dropped, which have no number; since 0.2.0.
    Dropped(Dropped),
    /// The attempt is over: its last entry.
    Outcome(Outcome),
}

/// How many events of each kind were dropped since the entry before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Steps and evaluations.
    #[serde(default)]
    pub metrics: u64,
    /// Lines of logs.
    #[serde(default)]
    pub logs: u64,
    /// All others.
    #[serde(default)]
    pub others: u64,
}

impl Dropped {
    /// Counts an event.
    pub(super) const fn count(&mut self, event: &Event) {
        match event {
            Event::Metric(_) => self.metrics += 1,
            Event::Log(_) => self.logs += 1,
            _ => self.others += 1,
        }
    }

    /// All of them.
    pub const fn total(&self) -> u64 {
        self.metrics + self.logs + self.others
    }
}

/// What a run does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// In one word.
    pub state: Stage,
    /// Updates made; those of the checkpoint that is evaluated, where nothing is trained.
    #[serde(default)]
    pub step: u64,
    /// The step it trains to; none where nothing is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Systems it works with; before the first epoch, those it waits for.
    #[serde(default)]
    pub num_csx: u32,
    /// The epoch, `attempt.number`; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<String>,
    /// Where it goes on from, if anything was trained before; since 0.2.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
    /// A sentence about what it has been doing for a while, where nothing else has happened meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Where a run that is not the first goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Updates in the parameters it begins with; 0 without a checkpoint.
    pub step: u64,
    /// Steps that were made after that one, and are run again.
    pub repeated_steps: u64,
}

/// What a run does, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Waits for agents, parameters or links, at the beginning or after a change of membership.
    Starting,
    /// Makes updates.
    Training,
    /// Evaluates.
    Evaluating,
}

impl Event {
    /// What kind of event it is: its key in JSON.
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

    /// Of which other events it takes the place for somebody who only wants to know how things stand; none of a log's
    /// lines.
    pub(super) const fn topic(&self) -> Option<&'static str> {
        match self {
            Self::Metric(Point::Train(_)) => Some("train"),
            Self::Metric(Point::Eval(_)) => Some("eval"),
            Self::Log(_) | Self::Dropped(_) => None,
            // Of the two the later one counts.
            Self::CheckpointFailed { .. } => Some("checkpoint"),
            Self::State(_) | Self::Checkpoint { .. } | Self::Outcome(_) => Some(self.kind()),
        }
    }

    /// Whether it must be on the disk before anybody sees it, while the disk takes it.
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Metric(_) | Self::Log(_) | Self::CheckpointFailed { .. } | Self::Dropped(_) => false,
            Self::State(_) | Self::Checkpoint { .. } | Self::Outcome(_) => true,
        }
    }
}
