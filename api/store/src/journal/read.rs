//! Reading on in a journal.

use super::{Entry, Kind, Mode, SELECT};
use crate::Store;
use crate::error::Result;
use crate::sql::{LARGEST, Sql, rows, signed, sql};

/// Which entries of a journal; by default the first 100 of all. What an entry does not have, none of its values is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Those beyond this number.
    pub after: u64,
    /// Those of these kinds; of none: of any.
    pub kinds: Vec<Kind>,
    /// Those of this attempt.
    pub attempt: Option<u64>,
    /// Those of this agent, such as `cs2-0`.
    pub agent: Option<String>,
    /// Those of the agents of this role, such as `cs2`.
    pub role: Option<String>,
    /// Those of this level, and graver ones.
    pub level: Option<u8>,
    /// Whether agent, role and level are asked of log lines only, so that all else is there, too.
    pub lines_only: bool,
    /// Those of this mode.
    pub mode: Option<Mode>,
    /// Of metrics those alone that count: of each step the newest attempt's.
    pub curve: bool,
    /// So many at most.
    pub limit: u32,
}

impl Default for Query {
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
    /// Entries of a job's journal, in the order of their numbers. A job that is not there has none.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn entries(&self, uid: &str, query: &Query) -> Result<Vec<Entry>> {
        let text = match query.kinds.as_slice() {
            [] => part(sql(""), uid, query, None)?,
            // Each kind by its index: neither database would read several so, and rare kinds stand far apart.
            [first, others @ ..] => {
                let mut text = part(sql(""), uid, query, Some(*first))?;
                for kind in others {
                    text = part(text.push(" UNION "), uid, query, Some(*kind))?;
                }
                text
            }
        };
        let text = text.push(" ORDER BY number LIMIT ").value(rows(query.limit, 0));
        text.all(&self.inner.read, Entry::read).await
    }
}

/// Appends a query for entries of one kind, or of any.
fn part(text: Sql, uid: &str, query: &Query, kind: Option<Kind>) -> Result<Sql> {
    // Nothing is beyond the largest.
    let after = signed("the number", query.after).unwrap_or(LARGEST);
    let mut text = text.push("SELECT * FROM (").push(SELECT);
    text = text.push(" WHERE e.uid = ").value(uid).push(" AND e.number > ").value(after);
    if let Some(kind) = kind {
        text = text.push(" AND e.kind = ").value(kind.as_str());
    }
    if let Some(attempt) = query.attempt {
        text = text.push(" AND e.attempt = ").value(signed("the attempt", attempt)?);
    }
    let line = |text: Sql| match query.lines_only {
        true => text.push(" AND (e.kind <> ").value(Kind::Log.as_str()).push(" OR "),
        false => text.push(" AND ("),
    };
    if let Some(agent) = &query.agent {
        text = line(text).push("e.agent = ").value(agent).push(")");
    }
    if let Some(role) = &query.role {
        // LIKE would take `_` for any character, and in SQLite not see the case.
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
