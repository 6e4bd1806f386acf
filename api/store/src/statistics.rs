//! Statistics of the database: connections, bytes, failures.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::sql::{Columns, sql};
use crate::{Inner, Store};

/// Number of connections to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Connections with a running call.
    pub busy: u32,
    /// Open connections without a call.
    pub idle: u32,
}

/// Kinds of failures, in the order of [`failures`].
const KINDS: [&str; 5] = ["busy", "broken", "no_space", "damaged", "refused"];

/// Failed calls of this process, by kind.
static FAILURES: [AtomicU64; KINDS.len()] = [const { AtomicU64::new(0) }; KINDS.len()];

/// Returns the number of failed calls of this process by kind.
pub fn failures() -> [(&'static str, u64); KINDS.len()] {
    std::array::from_fn(|at| (KINDS[at], FAILURES[at].load(Ordering::Relaxed)))
}

/// Counts a failure.
pub(crate) fn count(error: &Error) {
    let kind = match error {
        Error::Busy => 0,
        Error::Broken(_) => 1,
        Error::NoSpace(_) => 2,
        Error::Damaged(_) => 3,
        _ => 4,
    };
    FAILURES[kind].fetch_add(1, Ordering::Relaxed);
}

impl Store {
    /// Returns the number of open connections.
    pub fn connections(&self) -> Connections {
        let Inner { read, write, one_pool, .. } = &*self.inner;
        let pools = [Some(read), Some(write).filter(|_| !one_pool)];
        let (mut open, mut idle) = (0, 0);
        for pool in pools.into_iter().flatten() {
            open += pool.size();
            idle += u32::try_from(pool.num_idle()).unwrap_or(u32::MAX);
        }
        Connections { busy: open.saturating_sub(idle), idle }
    }

    /// Returns the bytes of the database, without what is only in SQLite's write-ahead log.
    ///
    /// # Errors
    /// [`Error::Busy`] or [`Error::Broken`] if it does not respond.
    pub async fn size_bytes(&self) -> Result<u64> {
        let row = sql(self.inner.size).first(&self.inner.read).await?;
        row.map_or(Ok(0), |row| row.number("bytes"))
    }
}
