//! What the API server remembers: jobs with their names and idempotency keys, copies of the coordinators' journals, events,
//! appliances and tokens, in SQLite or PostgreSQL. The only place with SQL.
//!
//! ```no_run
//! # async fn example() -> millrace_store::Result<()> {
//! use millrace_store::{Filter, Options, Store};
//!
//! let store = Store::open("sqlite:/var/lib/millrace/millrace.db", Options::default()).await?;
//! for job in store.jobs(&Filter::default(), None, 20).await?.items {
//!     println!("{} {:?}", job.name, job.content.state);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A document (a TrainJob, an Appliance, what an entry says) is JSON text that is neither read nor changed here, so that this
//! crate knows none of our types. Every time is milliseconds since 1970-01-01 UTC, and the caller's: there is no clock here.
//!
//! Invariants:
//! * What a call has answered is on the disk: it survives `kill -9` and, as far as the disk keeps its word, a power cut.
//! * A call is one transaction: made whole or not at all. ([`Store::forget`] is some, and may be repeated.)
//! * Each statement and each migration has one text for both databases, but for the two that ask how large the database is.
//! * In SQLite all writes of a process go through one connection, in turn; readers never wait for them.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod appliances;
mod changes;
mod error;
mod events;
mod jobs;
mod journal;
mod location;
mod migrations;
mod open;
mod sql;
mod statistics;
mod tokens;

use std::fmt;
use std::sync::Arc;

use sqlx::{Any, AnyPool, Transaction};
use tokio::sync::broadcast;
use tracing::Instrument;

pub use appliances::Appliance;
pub use changes::{Change, What};
pub use error::{Error, Result};
pub use events::{Event, NewEvent};
pub use jobs::{Content, Created, Cursor, Filter, Incarnation, Job, Key, NewJob, Page};
pub use journal::{Entry, Kind, Mode, Query, RECENT_STEPS};
pub use open::Options;
pub use statistics::{Connections, failures};
pub use tokens::Token;

use sql::{span, sql};

/// A database, opened. Clones share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    /// For statements that change nothing.
    read: AnyPool,
    /// For transactions; the same as `read` but for a SQLite file.
    write: AnyPool,
    /// Whether `write` is the same pool as `read`.
    one_pool: bool,
    /// Asks for the bytes of the database.
    size: &'static str,
    /// How a transaction that will write begins.
    begin: &'static str,
    /// How long a key is remembered, ms.
    key_life_ms: i64,
    /// Without user and password.
    location: String,
    changes: broadcast::Sender<Change>,
}

impl Store {
    /// Whether the database answers.
    ///
    /// # Errors
    /// [`Error::Busy`] or [`Error::Broken`] where it does not.
    pub async fn ping(&self) -> Result<()> {
        sql("SELECT 1 AS one").first(&self.inner.read).await?;
        Ok(())
    }

    /// Writes a consistent copy of a SQLite database into a new file, also while others write to it.
    ///
    /// # Errors
    /// The file is there, or can't be written; the database is none of SQLite.
    pub async fn copy_to(&self, file: &std::path::Path) -> Result<()> {
        let file = file.to_str().ok_or_else(|| Error::Url(format!("{} is not UTF-8", file.display())))?;
        sql("VACUUM INTO $1").bind(file).execute(&self.inner.write).await?;
        Ok(())
    }

    /// Waits for the calls under way and closes the database. Every later call fails with [`Error::Broken`].
    pub async fn close(&self) {
        // The writer last: it folds SQLite's log into the file once nobody reads.
        self.inner.read.close().await;
        self.inner.write.close().await;
    }

    /// Begins a transaction that will write. Dropped without a commit it changes nothing.
    async fn begin(&self) -> Result<Transaction<'static, Any>> {
        Ok(self.inner.write.begin_with(self.inner.begin).instrument(span("BEGIN")).await?)
    }

    /// Commits, and tells who listens.
    async fn commit(&self, transaction: Transaction<'static, Any>, uid: &str, what: What) -> Result<()> {
        transaction.commit().instrument(span("COMMIT")).await?;
        self.tell(uid, what);
        Ok(())
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("location", &self.inner.location).finish_non_exhaustive()
    }
}
