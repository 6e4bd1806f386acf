//! The database of the API server: jobs with their names and idempotency keys, copies of the coordinators' journals,
//! events, appliances and tokens, in SQLite or PostgreSQL. All SQL of the server is in this crate.
//!
//! ```no_run
//! # async fn example() -> millrace_store::Result<()> {
//! use millrace_store::{JobFilter, Store, StoreOptions};
//!
//! let store = Store::open("sqlite:/var/lib/millrace/millrace.db", StoreOptions::default()).await?;
//! for job in store.jobs(&JobFilter::default(), None, 20).await?.items {
//!     println!("{} {:?}", job.name, job.content.state);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Documents (a TrainJob, an Appliance, the body of an entry) are JSON text that this crate neither reads nor changes,
//! so it depends on no types of the other crates. All times are milliseconds since 1970-01-01 UTC and come from the
//! caller; the crate reads no clock.
//!
//! Guarantees:
//! * The writes of a call are on disk when it returns: they survive `kill -9` and, if the disk honors syncs, a power
//!   failure.
//! * A call is one transaction, applied completely or not at all. ([`Store::delete_job`], [`Store::thin_curves`] and
//!   [`Store::shrink_history`] use several, and can be repeated.)
//! * Each statement and each migration has one text for both databases, except for the query of the database's size.
//! * With SQLite, all writes of a process use one connection, one after the other; readers never wait for them.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

mod appliances;
mod changes;
mod error;
mod events;
mod failures;
mod jobs;
mod journal;
mod limits;
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

pub use appliances::ApplianceRecord;
pub use changes::{ChangeNotice, ChangedPart};
pub use error::{Damage, Error, Result};
pub use events::{EventRecord, NewEvent};
pub use failures::failures;
pub use jobs::{
    CreateResult, IdempotencyKey, JobContent, JobFilter, JobPage, JobRecord, NamespaceVersion, NewJob, PageCursor,
};
pub use journal::{EntryKind, EntryQuery, JournalRecord, MetricMode, UNTHINNED_STEPS};
pub use open::StoreOptions;
pub use statistics::ConnectionCounts;
pub use tokens::TokenRecord;

use failures::count_failure;
use sql::{span, sql};

/// An open database. Clones share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    /// For statements that only read.
    read: AnyPool,
    /// For transactions; the same pool as `read`, except for a SQLite file.
    write: AnyPool,
    /// Whether `write` is the same pool as `read`.
    one_pool: bool,
    /// Query for the bytes of the database.
    size: &'static str,
    /// Statement that begins a writing transaction.
    begin: &'static str,
    /// Validity of an idempotency key, in ms.
    key_life_ms: i64,
    /// The URL without user and password.
    location: String,
    changes: broadcast::Sender<ChangeNotice>,
}

impl Store {
    /// Checks that the database responds.
    ///
    /// # Errors
    /// [`Error::Busy`] or [`Error::ConnectionLost`] if it does not.
    pub async fn ping(&self) -> Result<()> {
        sql("SELECT 1 AS one").first(&self.inner.read).await?;
        Ok(())
    }

    /// Writes a consistent copy of a SQLite database into a new file. Other connections may write meanwhile.
    ///
    /// # Errors
    /// The file exists or can't be written; the database is not SQLite.
    pub async fn copy_to(&self, file: &std::path::Path) -> Result<()> {
        let file = file.to_str().ok_or_else(|| Error::Url(format!("{} is not UTF-8", file.display())))?;
        sql("VACUUM INTO $1").bind(file).execute(&self.inner.write).await?;
        Ok(())
    }

    /// Waits for running calls and closes the database. Later calls fail with [`Error::ConnectionLost`].
    pub async fn close(&self) {
        // The writer is closed last: without readers, it moves the contents of SQLite's write-ahead log into the file.
        self.inner.read.close().await;
        self.inner.write.close().await;
    }

    /// Begins a writing transaction. It changes nothing if it is dropped without a commit.
    async fn begin(&self) -> Result<Transaction<'static, Any>> {
        self.inner.write.begin_with(self.inner.begin).instrument(span("BEGIN")).await.map_err(count_failure)
    }

    /// Commits, and notifies listeners.
    async fn commit(&self, transaction: Transaction<'static, Any>, uid: &str, part: ChangedPart) -> Result<()> {
        transaction.commit().instrument(span("COMMIT")).await.map_err(count_failure)?;
        self.notify(uid, part);
        Ok(())
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("location", &self.inner.location).finish_non_exhaustive()
    }
}
