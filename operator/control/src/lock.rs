//! Locks the mutexes of the control loop.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex that only ever contains complete values, so that its value is consistent after any panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
