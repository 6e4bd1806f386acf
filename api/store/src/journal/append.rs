//! Appends entries to a journal.

use sqlx::AnyConnection;

use super::curve::{CurveUpdate, curve_updates};
use super::thin::ENTRY_OVERHEAD_BYTES;
use super::{JournalRecord, MetricMode};
use crate::error::{Error, Result};
use crate::sql::{RowColumns, SqlValue, insert, signed, sql};
use crate::{ChangedPart, Store};

impl Store {
    /// Appends entries in ascending order of their numbers, and returns the number of the newest entry. Entries whose
    /// number is not above the newest stored one are skipped, so that a copy may begin earlier than necessary. Numbers
    /// may have gaps.
    /// # Errors
    /// [`Error::JobNotFound`], [`Error::TooLarge`]; those of [`Store::replace_job`]. Nothing is added then.
    pub async fn append(&self, uid: &str, entries: &[JournalRecord]) -> Result<u64> {
        let mut transaction = self.begin().await?;
        let before = lock_row(&mut transaction, uid).await?;
        let fresh = newer_than(before, entries);
        let Some(newest) = fresh.last().map(|entry| entry.number) else { return Ok(before) };
        let rows = fresh.iter().map(|entry| row(uid, entry)).collect::<Result<_>>()?;
        let into = "INSERT INTO entries (uid, number, attempt, at_ms, kind, mode, step, agent, level, body)";
        insert(&mut transaction, into, rows).await?;
        for (mode, curve) in MetricMode::ALL.into_iter().zip(curve_updates(&fresh)) {
            update_curve(&mut transaction, uid, mode, &curve).await?;
        }
        let bytes = |entry: &&JournalRecord| ENTRY_OVERHEAD_BYTES.saturating_add_unsigned(entry.body.len() as u64);
        sql("UPDATE numbers SET entry = $1, bytes = bytes + $3 WHERE uid = $2")
            .bind(signed("the number", newest)?)
            .bind(uid)
            .bind(fresh.iter().map(bytes).fold(0, i64::saturating_add))
            .execute(&mut *transaction)
            .await?;
        self.commit(transaction, uid, ChangedPart::Entries).await?;
        Ok(newest)
    }
}

/// Returns the number of the newest entry, and locks the journal for other writers until the transaction ends.
async fn lock_row(on: &mut AnyConnection, uid: &str) -> Result<u64> {
    // An update that changes nothing locks the row in both databases; only PostgreSQL has SELECT ... FOR UPDATE.
    let held = sql("UPDATE numbers SET entry = entry WHERE uid = $1 RETURNING entry").bind(uid).first(on).await?;
    held.ok_or_else(|| Error::JobNotFound(uid.to_owned()))?.number("entry")
}

/// Returns the entries with ascending numbers above `newest`.
fn newer_than(mut newest: u64, entries: &[JournalRecord]) -> Vec<&JournalRecord> {
    let mut fresh = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry.number > newest {
            newest = entry.number;
            fresh.push(entry);
        }
    }
    fresh
}

fn row(uid: &str, entry: &JournalRecord) -> Result<[SqlValue; 10]> {
    let maybe = |what, number: Option<u64>| number.map(|number| signed(what, number)).transpose();
    Ok([
        uid.into(),
        signed("the number", entry.number)?.into(),
        signed("the attempt", entry.attempt)?.into(),
        entry.at_ms.into(),
        entry.kind.as_str().into(),
        entry.mode.map(MetricMode::as_str).into(),
        maybe("the step", entry.step)?.into(),
        entry.agent.as_deref().into(),
        entry.level.map(i64::from).into(),
        entry.body.as_str().into(),
    ])
}

async fn update_curve(on: &mut AnyConnection, uid: &str, mode: MetricMode, curve: &CurveUpdate) -> Result<()> {
    // No point has a larger step than the largest.
    if let Some(from) = curve.replaced_from.and_then(|from| signed("the step", from).ok()) {
        sql("DELETE FROM points WHERE uid = $1 AND mode = $2 AND step >= $3")
            .bind(uid)
            .bind(mode.as_str())
            .bind(from)
            .execute(&mut *on)
            .await?;
    }
    let row = |(&step, &number): (&u64, &u64)| -> Result<[SqlValue; 4]> {
        let (step, number) = (signed("the step", step)?, signed("the number", number)?);
        Ok([uid.into(), mode.as_str().into(), step.into(), number.into()])
    };
    let rows = curve.points.iter().map(row).collect::<Result<_>>()?;
    insert(on, "INSERT INTO points (uid, mode, step, number)", rows).await
}
