//! What the store costs and how it does: connections, bytes, failures.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::sql::{Columns, sql};
use crate::{Inner, Store};

/// Connections to the database, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Those with a call under way.
    pub busy: u32,
    /// Those that are open and wait for a call.
    pub idle: u32,
}

/// Kinds of failures, as [`failures`] has them.
const KINDS: [&str; 5] = ["busy", "broken", "no_space", "damaged", "refused"];

/// Calls of this process that failed in the database, by kind.
static FAILURES: [AtomicU64; KINDS.len()] = [const { AtomicU64::new(0) }; KINDS.len()];

/// How many calls of this process have failed in the database: kinds and numbers.
pub fn failures() -> [(&'static str, u64); KINDS.len()] {
    std::array::from_fn(|at| (KINDS[at], FAILURES[at].load(Ordering::Relaxed)))
}

/// Counts a failure, of whatever kind it is.
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
    /// The connections that are open now.
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

    /// Bytes of the database, without what SQLite has in its log only.
    ///
    /// # Errors
    /// [`Error::Busy`] or [`Error::Broken`] where it does not answer.
    pub async fn size_bytes(&self) -> Result<u64> {
        let row = sql(self.inner.size).first(&self.inner.read).await?;
        row.map_or(Ok(0), |row| row.number("bytes"))
    }
}
