//! Reads entries of a journal.

use super::{EntryKind, JournalRecord, MetricMode, SELECT};
use crate::Store;
use crate::error::Result;
use crate::limits::MAX_SAFE_INTEGER;
use crate::sql::{Sql, rows, signed, sql};

/// Selects entries of a journal; by default the first 100. A condition on an attribute does not match entries without
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryQuery {
    /// With a number above this.
    pub after: u64,
    /// Of one of these kinds; empty means all.
    pub kinds: Vec<EntryKind>,
    pub attempt: Option<u64>,
    /// Of this agent, such as `cs2-0`.
    pub agent: Option<String>,
    /// Of the agents of this role, such as `cs2`.
    pub role: Option<String>,
    /// Of at least this severity.
    pub level: Option<u8>,
    /// Applies agent, role and level to log lines only; other entries match regardless of them.
    pub lines_only: bool,
    pub mode: Option<MetricMode>,
    /// Of metrics, only valid points: one for each step of a curve.
    pub curve: bool,
    pub limit: u32,
}

impl Default for EntryQuery {
    fn default() -> Self {
        Self {
            after: 0,
            kinds: Vec::new(),
            attempt: None,
            agent: None,
            role: None,
            level: None,
            lines_only: false,
            mode: None,
            curve: false,
            limit: 100,
        }
    }
}

impl Store {
    /// Returns entries of a job's journal, ordered by number; none if the job does not exist.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn entries(&self, uid: &str, query: &EntryQuery) -> Result<Vec<JournalRecord>> {
        let text = match query.kinds.as_slice() {
            [] => part(sql(""), uid, query, None)?,
            // One subquery for each kind, so that each uses the index: neither database does that for a list of kinds,
            // and rare kinds are far apart in the journal.
            [first, others @ ..] => {
                let mut text = part(sql(""), uid, query, Some(*first))?;
                for kind in others {
                    text = part(text.push(" UNION "), uid, query, Some(*kind))?;
                }
                text
            }
        };
        let text = text.push(" ORDER BY number LIMIT ").value(rows(query.limit, 0));
        text.all(&self.inner.read, JournalRecord::read).await
    }
}

/// Appends a query for entries of one kind, or of all.
fn part(text: Sql, uid: &str, query: &EntryQuery, kind: Option<EntryKind>) -> Result<Sql> {
    // No number is above the largest.
    let after = signed("the number", query.after).unwrap_or(MAX_SAFE_INTEGER);
    let mut text = text.push("SELECT * FROM (").push(SELECT);
    text = text.push(" WHERE e.uid = ").value(uid).push(" AND e.number > ").value(after);
    if let Some(kind) = kind {
        text = text.push(" AND e.kind = ").value(kind.as_str());
    }
    if let Some(attempt) = query.attempt {
        text = text.push(" AND e.attempt = ").value(signed("the attempt", attempt)?);
    }
    let line = |text: Sql| match query.lines_only {
        true => text.push(" AND (e.kind <> ").value(EntryKind::Log.as_str()).push(" OR "),
        false => text.push(" AND ("),
    };
    if let Some(agent) = &query.agent {
        text = line(text).push("e.agent = ").value(agent).push(")");
    }
    if let Some(role) = &query.role {
        // LIKE would treat `_` as any character, and ignores case in SQLite.
        let prefix = format!("{role}-");
        text = line(text).push("substr(e.agent, 1, length(").value(&prefix).push(")) = ").value(&prefix).push(")");
    }
    if let Some(level) = query.level {
        text = line(text).push("e.level >= ").value(i64::from(level)).push(")");
    }
    if let Some(mode) = query.mode {
        text = text.push(" AND e.mode = ").value(mode.as_str());
    }
    if query.curve {
        text = text.push(
            " AND EXISTS (SELECT 1 FROM points p WHERE p.uid = e.uid AND p.mode = e.mode AND p.step = e.step AND p.number = e.number)",
        );
    }
    Ok(text.push(" ORDER BY e.number LIMIT ").value(rows(query.limit, 0)).push(") AS part"))
}
