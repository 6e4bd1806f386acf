//! The number of failed calls of this process.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

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
