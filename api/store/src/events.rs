//! Events of jobs: what `kubectl get events` tells, kept as long as the job's history.

use sqlx::any::AnyRow;

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
        let mut transaction = self.begin().await?;
        // Whoever raises the number holds its row until the commit, so that events appear in the order of their numbers.
        let raised = sql("UPDATE numbers SET event = event + 1 WHERE uid = $1 RETURNING event");
        let raised = raised.bind(uid).first(&mut *transaction).await?;
        let number = raised.ok_or_else(|| Error::NoSuchJob(uid.to_owned()))?.number("event")?;
        sql("INSERT INTO events (uid, number, at_ms, warning, reason, message) VALUES ($1, $2, $3, $4, $5, $6)")
            .bind(uid)
            .bind(signed("the number", number)?)
            .bind(event.at_ms)
            .bind(event.warning)
            .bind(&event.reason)
            .bind(&event.message)
            .execute(&mut *transaction)
            .await?;
        self.commit(transaction, uid, What::Events).await?;
        Ok(number)
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
}
