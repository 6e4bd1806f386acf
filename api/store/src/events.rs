//! Events of jobs: what `kubectl get events` tells, kept as long as the job's history.

use sqlx::any::AnyRow;
use sqlx::{Any, Transaction};

use crate::error::{Error, Result};
use crate::sql::{Columns, LARGEST, rows, signed, sql};
use crate::{Store, What};

/// Something to be told about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// When it happened, ms.
    pub at_ms: i64,
    /// Whether it is a warning.
    pub warning: bool,
    /// Why, in one word.
    pub reason: String,
    /// What happened, a sentence.
    pub message: String,
}

/// Something that was told about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counts the events of the job, from 1.
    pub number: u64,
    /// What was told.
    pub event: NewEvent,
}

impl Event {
    fn read(row: &AnyRow) -> Result<Self> {
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
    /// Adds an event and gives its number.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`]; otherwise as [`Store::replace_job`].
    pub async fn add_event(&self, uid: &str, event: &NewEvent) -> Result<u64> {
        let (number, transaction) = self.numbered(uid).await?;
        self.insert(transaction, uid, number, event).await?;
        Ok(number)
    }

    /// Notes an event that was told elsewhere, unless it is known already: seen again after a restart, or by another server.
    /// False where nothing of it is new.
    ///
    /// # Errors
    /// As [`Store::add_event`].
    pub async fn put_event(&self, uid: &str, event: &NewEvent) -> Result<bool> {
        let (number, mut transaction) = self.numbered(uid).await?;
        let known = sql("SELECT number FROM events WHERE uid = $1 AND at_ms = $2 AND reason = $3 AND message = $4");
        let known = known.bind(uid).bind(event.at_ms).bind(&event.reason).bind(&event.message);
        if known.first(&mut *transaction).await?.is_some() {
            return Ok(false);
        }
        self.insert(transaction, uid, number, event).await?;
        Ok(true)
    }

    /// The next number under a job. Whoever raises it holds its row until the commit, so that events appear in the order of
    /// their numbers.
    async fn numbered(&self, uid: &str) -> Result<(u64, Transaction<'static, Any>)> {
        let mut transaction = self.begin().await?;
        let raised = sql("UPDATE numbers SET event = event + 1 WHERE uid = $1 RETURNING event");
        let raised = raised.bind(uid).first(&mut *transaction).await?;
        let number = raised.ok_or_else(|| Error::NoSuchJob(uid.to_owned()))?.number("event")?;
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
        self.commit(transaction, uid, What::Events).await
    }

    /// The first `limit` events of a job beyond number `after`, in the order of their numbers.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn events(&self, uid: &str, after: u64, limit: u32) -> Result<Vec<Event>> {
        sql("SELECT number, at_ms, warning, reason, message FROM events WHERE uid = $1 AND number > $2 ORDER BY number LIMIT $3")
            .bind(uid)
            // Nothing is beyond the largest.
            .bind(signed("the number", after).unwrap_or(LARGEST))
            .bind(rows(limit, 0))
            .all(&self.inner.read, Event::read)
            .await
    }

    /// Whether any event of a job has this reason.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn has_event(&self, uid: &str, reason: &str) -> Result<bool> {
        let found = sql("SELECT number FROM events WHERE uid = $1 AND reason = $2 LIMIT 1");
        Ok(found.bind(uid).bind(reason).first(&self.inner.read).await?.is_some())
    }
}
