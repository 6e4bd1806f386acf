//! Statistics of the database: connections and bytes.

use crate::error::Result;
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
    /// [`Busy`](crate::Error::Busy) or [`ConnectionLost`](crate::Error::ConnectionLost) if it does not respond.
    pub async fn size_bytes(&self) -> Result<u64> {
        let row = sql(self.inner.size).first(&self.inner.read).await?;
        row.map_or(Ok(0), |row| row.number("bytes"))
    }
}
