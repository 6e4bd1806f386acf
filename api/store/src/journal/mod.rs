//! Copies of the coordinators' journals, entry by entry under the numbers they have there.

mod append;
mod curve;
mod read;
mod thin;

use sqlx::any::AnyRow;

pub use read::Query;
pub use thin::RECENT_STEPS;

use crate::Store;
use crate::error::{Error, Result};
use crate::sql::{Columns, sql};

/// One entry of a job's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Rises over all attempts of the job, from 1; some may be missing.
    pub number: u64,
    /// The attempt that wrote it.
    pub attempt: u64,
    /// When it was written, ms.
    pub at_ms: i64,
    /// What kind of thing happened.
    pub kind: Kind,
    /// Of a metric: what was measured.
    pub mode: Option<Mode>,
    /// The step it belongs to, where it belongs to one.
    pub step: Option<u64>,
    /// Of a log line: who said it, such as `cs2-0`.
    pub agent: Option<String>,
    /// Of a log line: how grave it is, a number that rises with it. What each means is the caller's.
    pub level: Option<u8>,
    /// What happened, JSON.
    pub body: String,
}

/// The kinds of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A step was committed, or an evaluation ended.
    Metric,
    /// An agent said something.
    Log,
    /// The run does something else than before.
    State,
    /// A checkpoint is whole.
    Checkpoint,
    /// The attempt is over.
    Outcome,
}

/// What a metric measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A training step.
    Train,
    /// An evaluation.
    Eval,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Metric, Self::Log, Self::State, Self::Checkpoint, Self::Outcome];

    /// Its name in the database, and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Metric => "metric",
            Self::Log => "log",
            Self::State => "state",
            Self::Checkpoint => "checkpoint",
            Self::Outcome => "outcome",
        }
    }

    fn read(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| Error::Damaged(format!("an entry is of the kind {name:?}")))
    }
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Train, Self::Eval];

    /// Its name in the database, and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }

    fn read(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mode| mode.as_str() == name);
        found.ok_or_else(|| Error::Damaged(format!("a metric is of the mode {name:?}")))
    }
}

/// All of an entry; more must follow.
const SELECT: &str =
    "SELECT e.number, e.attempt, e.at_ms, e.kind, e.mode, e.step, e.agent, e.level, e.body FROM entries e";

impl Entry {
    fn read(row: &AnyRow) -> Result<Self> {
        let level = row.maybe_number("level")?;
        Ok(Self {
            number: row.number("number")?,
            attempt: row.number("attempt")?,
            at_ms: row.time("at_ms")?,
            kind: Kind::read(&row.text("kind")?)?,
            mode: row.maybe_text("mode")?.map(|mode| Mode::read(&mode)).transpose()?,
            step: row.maybe_number("step")?,
            agent: row.maybe_text("agent")?,
            level: level
                .map(|level| level.try_into().map_err(|_| Error::Damaged(format!("a level is {level}"))))
                .transpose()?,
            body: row.text("body")?,
        })
    }
}

impl Store {
    /// The number of the newest entry of a job's journal: where a copy goes on. 0 where there is none.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn newest_entry(&self, uid: &str) -> Result<u64> {
        let newest = sql("SELECT entry FROM numbers WHERE uid = $1").bind(uid).first(&self.inner.read).await?;
        newest.map_or(Ok(0), |row| row.number("entry"))
    }
}
