//! Events of jobs, as in `kubectl get events`, kept as long as the job's history.

use sqlx::any::AnyRow;
use sqlx::{Any, Transaction};

use crate::error::{Error, Result};
use crate::limits::MAX_SAFE_INTEGER;
use crate::sql::{RowColumns, rows, signed, sql};
use crate::{ChangedPart, Store};

/// A new event of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Time of the event, in ms.
    pub at_ms: i64,
    /// Whether it is a warning.
    pub warning: bool,
    /// Reason for programs, one word.
    pub reason: String,
    /// Message, one sentence.
    pub message: String,
}

/// A recorded event of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// Number of the event among those of the job, from 1.
    pub number: u64,
    pub event: NewEvent,
}

impl EventRecord {
    fn read(row: &AnyRow) -> Result<Self> {
        Self::from_columns(row).map_err(|error| error.in_table("events"))
    }

    fn from_columns(row: &AnyRow) -> Result<Self> {
        let event = NewEvent {
            at_ms: row.time("at_ms")?,
            warning: row.number("warning")? != 0,
            reason: row.text("reason")?,
            message: row.text("message")?,
        };
        Ok(Self { number: row.number("number")?, event })
    }
}

impl Store {
    /// Adds an event and returns its number.
    ///
    /// # Errors
    /// [`Error::JobNotFound`]; those of [`Store::replace_job`].
    pub async fn add_event(&self, uid: &str, event: &NewEvent) -> Result<u64> {
        let (number, transaction) = self.next_event_number(uid).await?;
        self.insert(transaction, uid, number, event).await?;
        Ok(number)
    }

    /// Adds an event that was published elsewhere, unless the same one is recorded already, because it was seen again
    /// after a restart or by another server. Returns false if it is.
    ///
    /// # Errors
    /// Those of [`Store::add_event`].
    pub async fn insert_event_if_new(&self, uid: &str, event: &NewEvent) -> Result<bool> {
        let (number, mut transaction) = self.next_event_number(uid).await?;
        let duplicate = sql("SELECT number FROM events WHERE uid = $1 AND at_ms = $2 AND reason = $3 AND message = $4");
        let duplicate = duplicate.bind(uid).bind(event.at_ms).bind(&event.reason).bind(&event.message);
        if duplicate.first(&mut *transaction).await?.is_some() {
            return Ok(false);
        }
        self.insert(transaction, uid, number, event).await?;
        Ok(true)
    }

    /// Returns the next event number of a job. Its row stays locked until the commit, so that events become visible in
    /// the order of their numbers.
    async fn next_event_number(&self, uid: &str) -> Result<(u64, Transaction<'static, Any>)> {
        let mut transaction = self.begin().await?;
        let raised = sql("UPDATE numbers SET event = event + 1 WHERE uid = $1 RETURNING event");
        let raised = raised.bind(uid).first(&mut *transaction).await?;
        let number = raised.ok_or_else(|| Error::JobNotFound(uid.to_owned()))?.number("event")?;
        Ok((number, transaction))
    }

    async fn insert(
        &self,
        mut transaction: Transaction<'static, Any>,
        uid: &str,
        number: u64,
        event: &NewEvent,
    ) -> Result<()> {
        sql("INSERT INTO events (uid, number, at_ms, warning, reason, message) VALUES ($1, $2, $3, $4, $5, $6)")
            .bind(uid)
            .bind(signed("the number", number)?)
            .bind(event.at_ms)
            .bind(event.warning)
            .bind(&event.reason)
            .bind(&event.message)
            .execute(&mut *transaction)
            .await?;
        self.commit(transaction, uid, ChangedPart::Events).await
    }

    /// Returns the first `limit` events of a job with a number above `after`, ordered by number.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn events(&self, uid: &str, after: u64, limit: u32) -> Result<Vec<EventRecord>> {
        sql("SELECT number, at_ms, warning, reason, message FROM events WHERE uid = $1 AND number > $2 ORDER BY number LIMIT $3")
            .bind(uid)
            // No number is above the largest.
            .bind(signed("the number", after).unwrap_or(MAX_SAFE_INTEGER))
            .bind(rows(limit, 0))
            .all(&self.inner.read, EventRecord::read)
            .await
    }

    /// Whether a job has an event with this reason.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn has_event(&self, uid: &str, reason: &str) -> Result<bool> {
        let statement = sql("SELECT number FROM events WHERE uid = $1 AND reason = $2 LIMIT 1");
        Ok(statement.bind(uid).bind(reason).first(&self.inner.read).await?.is_some())
    }
}
