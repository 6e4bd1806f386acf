//! Lists of jobs, newest first, a page at a time.

use super::{Cursor, Incarnation, Job, select};
use crate::Store;
use crate::error::Result;
use crate::sql::{Sql, rows};

/// Which jobs; those that live, by default all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of these namespaces.
    pub namespaces: Option<Vec<String>>,
    /// Those of this name.
    pub name: Option<String>,
    /// Those in this STATE, of deleted ones those that had ended so.
    pub state: Option<String>,
    /// Those that this user asked for.
    pub submitted_by: Option<String>,
    /// Those that are over, deleted ones among them, or those that are not.
    pub finished: Option<bool>,
    /// Deleted ones, too.
    pub include_deleted: bool,
    /// Of deleted ones in these namespaces those alone that were in the namespaces as they are now.
    pub incarnations: Vec<Incarnation>,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The jobs, newest first.
    pub items: Vec<Job>,
    /// Where the next page begins; none after the last.
    pub next: Option<Cursor>,
}

impl Store {
    /// The first `limit` jobs (at least 1), newest first, after the end of an earlier page. A job that is made meanwhile
    /// moves no other to another page.
    ///
    /// # Errors
    /// As [`Store::job`].
    pub async fn jobs(&self, filter: &Filter, after: Option<&Cursor>, limit: u32) -> Result<Page> {
        let limit = limit.max(1);
        let mut query = only(filter);
        if let Some(Cursor { created_ms, uid }) = after {
            query = query.push(" AND (created_ms < ").value(*created_ms);
            query = query.push(" OR (created_ms = ").value(*created_ms).push(" AND uid < ").value(uid).push("))");
        }
        // One more tells whether there are more.
        query = query.push(" ORDER BY created_ms DESC, uid DESC LIMIT ").value(rows(limit, 1));
        let mut items = query.all(&self.inner.read, Job::read).await?;
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let end = |job: &Job| Cursor { created_ms: job.created_ms, uid: job.uid.clone() };
        Ok(Page { next: items.last().filter(|_| more).map(end), items })
    }
}

fn only(filter: &Filter) -> Sql {
    let mut query = select().push(if filter.include_deleted { "1 = 1" } else { "deleted_ms IS NULL" });
    if let Some(namespaces) = &filter.namespaces {
        query = query.push(" AND namespace IN ").list(namespaces);
    }
    let equal = [
        (" AND name = ", &filter.name),
        (" AND state = ", &filter.state),
        (" AND submitted_by = ", &filter.submitted_by),
    ];
    for (text, value) in equal {
        if let Some(value) = value {
            query = query.push(text).value(value);
        }
    }
    for Incarnation { namespace, uid, since_ms } in &filter.incarnations {
        query = query.push(" AND (deleted_ms IS NULL OR namespace <> ").value(namespace);
        query = query.push(" OR namespace_uid = ").value(uid);
        query = query.push(" OR (namespace_uid IS NULL AND created_ms >= ").value(*since_ms).push("))");
    }
    if filter.state.is_some() {
        // What a job was doing that was deleted meanwhile it does no more.
        query = query.push(" AND (deleted_ms IS NULL OR finished_ms IS NOT NULL)");
    }
    match filter.finished {
        Some(true) => query.push(" AND (finished_ms IS NOT NULL OR deleted_ms IS NOT NULL)"),
        Some(false) => query.push(" AND finished_ms IS NULL AND deleted_ms IS NULL"),
        None => query,
    }
}
