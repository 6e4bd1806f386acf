//! The next entries of a journal.

use sqlx::AnyConnection;

use super::curve::{Curve, revise};
use super::thin::ENTRY_BYTES;
use super::{Entry, Mode};
use crate::error::{Error, Result};
use crate::sql::{Columns, Value, insert, signed, sql};
use crate::{Store, What};

impl Store {
    /// Adds entries, which rise in number, and gives the number of the newest. Those that are not beyond the newest that is
    /// there already are left out: a copy that is not sure how far it came begins a little earlier. Numbers may be missing.
    ///
    /// # Errors
    /// [`Error::NoSuchJob`], [`Error::TooLarge`]; otherwise as [`Store::replace_job`]. Then none of them was added.
    pub async fn append(&self, uid: &str, entries: &[Entry]) -> Result<u64> {
        let mut transaction = self.begin().await?;
        let before = hold(&mut transaction, uid).await?;
        let fresh = beyond(before, entries);
        let Some(newest) = fresh.last().map(|entry| entry.number) else { return Ok(before) };
        let rows = fresh.iter().map(|entry| row(uid, entry)).collect::<Result<_>>()?;
        let into = "INSERT INTO entries (uid, number, attempt, at_ms, kind, mode, step, agent, level, body)";
        insert(&mut transaction, into, rows).await?;
        for (mode, curve) in Mode::ALL.into_iter().zip(revise(&fresh)) {
            draw(&mut transaction, uid, mode, &curve).await?;
        }
        let bytes = |entry: &&Entry| ENTRY_BYTES.saturating_add_unsigned(entry.body.len() as u64);
        sql("UPDATE numbers SET entry = $1, bytes = bytes + $3 WHERE uid = $2")
            .bind(signed("the number", newest)?)
            .bind(uid)
            .bind(fresh.iter().map(bytes).fold(0, i64::saturating_add))
            .execute(&mut *transaction)
            .await?;
        self.commit(transaction, uid, What::Entries).await?;
        Ok(newest)
    }
}

/// The number of the newest entry; nobody else adds to this journal until the transaction ends.
async fn hold(on: &mut AnyConnection, uid: &str) -> Result<u64> {
    // An update that changes nothing locks the row in both databases; SELECT ... FOR UPDATE is PostgreSQL's alone.
    let held = sql("UPDATE numbers SET entry = entry WHERE uid = $1 RETURNING entry").bind(uid).first(on).await?;
    held.ok_or_else(|| Error::NoSuchJob(uid.to_owned()))?.number("entry")
}

/// Those that rise in number beyond `newest`.
fn beyond(mut newest: u64, entries: &[Entry]) -> Vec<&Entry> {
    let mut fresh = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry.number > newest {
            newest = entry.number;
            fresh.push(entry);
        }
    }
    fresh
}

fn row(uid: &str, entry: &Entry) -> Result<[Value; 10]> {
    let maybe = |what, number: Option<u64>| number.map(|number| signed(what, number)).transpose();
    Ok([
        uid.into(),
        signed("the number", entry.number)?.into(),
        signed("the attempt", entry.attempt)?.into(),
        entry.at_ms.into(),
        entry.kind.as_str().into(),
        entry.mode.map(Mode::as_str).into(),
        maybe("the step", entry.step)?.into(),
        entry.agent.as_deref().into(),
        entry.level.map(i64::from).into(),
        entry.body.as_str().into(),
    ])
}

/// Brings a curve up to date.
async fn draw(on: &mut AnyConnection, uid: &str, mode: Mode, curve: &Curve) -> Result<()> {
    // No point is beyond the largest step.
    if let Some(from) = curve.replaced_from.and_then(|from| signed("the step", from).ok()) {
        sql("DELETE FROM points WHERE uid = $1 AND mode = $2 AND step >= $3")
            .bind(uid)
            .bind(mode.as_str())
            .bind(from)
            .execute(&mut *on)
            .await?;
    }
    let row = |(&step, &number): (&u64, &u64)| -> Result<[Value; 4]> {
        let (step, number) = (signed("the step", step)?, signed("the number", number)?);
        Ok([uid.into(), mode.as_str().into(), step.into(), number.into()])
    };
    let rows = curve.points.iter().map(row).collect::<Result<_>>()?;
    insert(on, "INSERT INTO points (uid, mode, step, number)", rows).await
}
