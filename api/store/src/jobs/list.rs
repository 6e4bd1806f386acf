//! Lists of jobs, newest first, by pages.

use super::{JobRecord, NamespaceVersion, PageCursor, select};
use crate::Store;
use crate::error::Result;
use crate::sql::{Sql, rows};

/// Selects jobs; by default all live ones. All conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// In one of these namespaces; `None` means all.
    pub namespaces: Option<Vec<String>>,
    pub name: Option<String>,
    /// In this state. A deleted job matches only if it had finished in this state, or if this is `held_state`.
    pub state: Option<String>,
    pub submitted_by: Option<String>,
    /// If true, only finished or deleted jobs; if false, only the others.
    pub finished: Option<bool>,
    pub include_deleted: bool,
    /// Includes deleted jobs that have not finished and are in this state: finalizers hold them, so they still exist.
    pub held_state: Option<String>,
    /// For deleted jobs in these namespaces: only those of the namespaces as they are now, not of predecessors of the
    /// same name.
    pub incarnations: Vec<NamespaceVersion>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPage {
    /// The jobs, newest first.
    pub items: Vec<JobRecord>,
    /// Position of the next page; `None` on the last one.
    pub next: Option<PageCursor>,
}

impl Store {
    /// Returns the first `limit` jobs (at least 1), newest first, after the end of an earlier page. A job that is
    /// created meanwhile does not move others to another page.
    ///
    /// # Errors
    /// Those of [`Store::job`].
    pub async fn jobs(&self, filter: &JobFilter, after: Option<&PageCursor>, limit: u32) -> Result<JobPage> {
        let limit = limit.max(1);
        let mut query = filter_clause(filter);
        if let Some(PageCursor { created_ms, uid }) = after {
            query = query.push(" AND (created_ms < ").value(*created_ms);
            query = query.push(" OR (created_ms = ").value(*created_ms).push(" AND uid < ").value(uid).push("))");
        }
        // One more row shows whether there is a next page.
        query = query.push(" ORDER BY created_ms DESC, uid DESC LIMIT ").value(rows(limit, 1));
        let mut items = query.all(&self.inner.read, JobRecord::read).await?;
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let end = |job: &JobRecord| PageCursor { created_ms: job.created_ms, uid: job.uid.clone() };
        Ok(JobPage { next: items.last().filter(|_| more).map(end), items })
    }
}

fn filter_clause(filter: &JobFilter) -> Sql {
    let mut query = match (filter.include_deleted, &filter.held_state) {
        (true, _) => select().push("1 = 1"),
        (false, None) => select().push("deleted_ms IS NULL"),
        (false, Some(held)) => {
            select().push("(deleted_ms IS NULL OR (finished_ms IS NULL AND state = ").value(held).push("))")
        }
    };
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
    for NamespaceVersion { namespace, uid, since_ms } in &filter.incarnations {
        query = query.push(" AND (deleted_ms IS NULL OR namespace <> ").value(namespace);
        query = query.push(" OR namespace_uid = ").value(uid);
        query = query.push(" OR (namespace_uid IS NULL AND created_ms >= ").value(*since_ms).push("))");
    }
    if filter.state.is_some() && filter.state != filter.held_state {
        // The state of a job that was deleted before its end is no longer true.
        query = query.push(" AND (deleted_ms IS NULL OR finished_ms IS NOT NULL)");
    }
    match filter.finished {
        Some(true) => query.push(" AND (finished_ms IS NOT NULL OR deleted_ms IS NOT NULL)"),
        Some(false) => query.push(" AND finished_ms IS NULL AND deleted_ms IS NULL"),
        None => query,
    }
}
