//! Statistics of the database: connections, bytes, failures.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::sql::{RowColumns, sql};
use crate::{Inner, Store};

/// Number of connections to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Connections with a running call.
    pub busy: u32,
    /// Open connections without a call.
    pub idle: u32,
}

/// Kinds of failures, in the order of [`failures`].
const FAILURE_KINDS: [&str; 5] = ["busy", "broken", "no_space", "damaged", "refused"];

/// Failed calls of this process, by kind.
static FAILURE_COUNTS: [AtomicU64; FAILURE_KINDS.len()] = [const { AtomicU64::new(0) }; FAILURE_KINDS.len()];

/// Returns the number of failed calls of this process by kind.
pub fn failures() -> [(&'static str, u64); FAILURE_KINDS.len()] {
    std::array::from_fn(|at| (FAILURE_KINDS[at], FAILURE_COUNTS[at].load(Ordering::Relaxed)))
}

/// Counts a failed call, and classifies its error.
pub(crate) fn count_failure(error: sqlx::Error) -> Error {
    let error = Error::from_sqlx(error);
    let kind = match &error {
        Error::Busy => 0,
        Error::ConnectionLost(_) => 1,
        Error::NoSpace(_) => 2,
        Error::Damaged(_) => 3,
        _ => 4,
    };
    FAILURE_COUNTS[kind].fetch_add(1, Ordering::Relaxed);
    error
}

impl Store {
    /// Returns the number of open connections.
    pub fn connections(&self) -> ConnectionCounts {
        let Inner { read, write, one_pool, .. } = &*self.inner;
        let pools = [Some(read), Some(write).filter(|_| !one_pool)];
        let (mut open, mut idle) = (0, 0);
        for pool in pools.into_iter().flatten() {
            open += pool.size();
            idle += u32::try_from(pool.num_idle()).unwrap_or(u32::MAX);
        }
        ConnectionCounts { busy: open.saturating_sub(idle), idle }
    }

    /// Returns the bytes of the database, without what is only in SQLite's write-ahead log.
    ///
    /// # Errors
    /// [`Error::Busy`] or [`Error::ConnectionLost`] if it does not respond.
    pub async fn size_bytes(&self) -> Result<u64> {
        let row = sql(self.inner.size).first(&self.inner.read).await?;
        row.map_or(Ok(0), |row| row.number("bytes"))
    }
}
