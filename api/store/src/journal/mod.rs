//! Copies of the coordinators' journals; the entries keep their numbers.

mod append;
mod curve;
mod read;
mod thin;

use sqlx::any::AnyRow;

pub use read::EntryQuery;
pub use thin::UNTHINNED_STEPS;

use crate::Store;
use crate::error::Result;
use crate::sql::{RowColumns, damaged_value, sql};

/// An entry of a job's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRecord {
    /// Ascending over all attempts of the job, from 1; may have gaps.
    pub number: u64,
    /// The attempt that wrote it.
    pub attempt: u64,
    /// Time of writing, in ms.
    pub at_ms: i64,
    pub kind: EntryKind,
    /// For a metric: what it measures.
    pub mode: Option<MetricMode>,
    /// The step that it belongs to, if any.
    pub step: Option<u64>,
    /// For a log line: the agent that logged it, such as `cs2-0`.
    pub agent: Option<String>,
    /// For a log line: its severity, ascending. The caller defines the levels.
    pub level: Option<u8>,
    /// The content as JSON.
    pub body: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// Metrics of a committed step or of an evaluation.
    Metric,
    /// A log line of an agent.
    Log,
    /// A change of the run's state.
    State,
    Checkpoint,
    /// The attempt has ended.
    Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetricMode {
    Train,
    Eval,
}

impl EntryKind {
    const ALL: [Self; 5] = [Self::Metric, Self::Log, Self::State, Self::Checkpoint, Self::Outcome];

    /// Returns the name in the database and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Metric => "metric",
            Self::Log => "log",
            Self::State => "state",
            Self::Checkpoint => "checkpoint",
            Self::Outcome => "outcome",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl MetricMode {
    pub const ALL: [Self; 2] = [Self::Train, Self::Eval];

    /// Returns the name in the database and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == name)
    }
}

/// Selects all columns of an entry; a condition must follow.
const SELECT: &str =
    "SELECT e.number, e.attempt, e.at_ms, e.kind, e.mode, e.step, e.agent, e.level, e.body FROM entries e";

impl JournalRecord {
    fn read(row: &AnyRow) -> Result<Self> {
        Self::from_columns(row).map_err(|error| error.in_table("entries"))
    }

    fn from_columns(row: &AnyRow) -> Result<Self> {
        let (kind, mode, level) = (row.text("kind")?, row.maybe_text("mode")?, row.maybe_number("level")?);
        let bad_mode = |mode: &str| damaged_value(row, "mode", mode, "a mode of a metric");
        let bad_level = |level: u64| damaged_value(row, "level", level, "a level of the log");
        Ok(Self {
            number: row.number("number")?,
            attempt: row.number("attempt")?,
            at_ms: row.time("at_ms")?,
            kind: EntryKind::from_name(&kind).ok_or_else(|| damaged_value(row, "kind", &kind, "a kind of entry"))?,
            mode: mode.map(|mode| MetricMode::from_name(&mode).ok_or_else(|| bad_mode(&mode))).transpose()?,
            step: row.maybe_number("step")?,
            agent: row.maybe_text("agent")?,
            level: level.map(|level| level.try_into().map_err(|_| bad_level(level))).transpose()?,
            body: row.text("body")?,
        })
    }
}

impl Store {
    /// Returns the number of the newest entry of a job's journal, after which a copy continues; 0 if there is none.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn newest_entry(&self, uid: &str) -> Result<u64> {
        let newest = sql("SELECT entry FROM numbers WHERE uid = $1").bind(uid).first(&self.inner.read).await?;
        newest.map_or(Ok(0), |row| row.number("entry"))
    }
}
