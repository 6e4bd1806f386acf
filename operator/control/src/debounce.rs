//! Combines changes of an object within an interval into one reconcile.
//!
//! ```text
//! changes      x  x x  x x x x x x
//! reconciles         v      v      v
//!              |<--->|             the interval, from the first change after the last reconcile
//! ```
//!
//! A reconcile is never postponed. A debounce that waits for a pause, like kube's, would not reconcile the ledger of an
//! appliance for as long as its jobs change without a pause.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The times at which changed objects are due.
pub struct Debouncer {
    interval: Duration,
    first_at_once: bool,
    objects: Mutex<HashMap<String, Option<Instant>>>,
}

impl Debouncer {
    /// Combines changes within `interval`.
    pub fn new(interval: Duration) -> Self {
        Self { interval, first_at_once: false, objects: Mutex::default() }
    }

    /// Like [`Debouncer::new`], but the first reconcile of an object is due at once.
    pub fn with_immediate_first(interval: Duration) -> Self {
        Self { first_at_once: true, ..Self::new(interval) }
    }

    /// Begins a reconcile of the object `key`. Call it at each change of the object, and again when the returned time
    /// has elapsed.
    ///
    /// # Errors
    /// The reconcile is not due: the time to wait from `now` on.
    pub fn begin_reconcile(&self, key: &str, now: Instant) -> Result<(), Duration> {
        let mut objects = self.objects();
        let due = match objects.get(key) {
            None if self.first_at_once => now,
            Some(Some(due)) => *due,
            None | Some(None) => now + self.interval,
        };
        let result = if due <= now { Ok(()) } else { Err(due - now) };
        objects.insert(key.to_owned(), result.is_err().then_some(due));
        result
    }

    /// Removes all objects but these.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        self.objects().retain(|key, _| is_kept(key));
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<String, Option<Instant>>> {
        // The map holds times only, so it is consistent after any panic.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(50);

    /// Returns the milliseconds at which an object is reconciled that changes at `changes`, and is requeued as
    /// requested.
    fn visits(gathering: &Debouncer, changes: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let (epoch, mut reconciles) = (Instant::now(), Vec::new());
        let mut due: std::collections::BTreeSet<u64> = changes.into_iter().collect();
        while let Some(millis) = due.pop_first() {
            match gathering.begin_reconcile("object", epoch + Duration::from_millis(millis)) {
                Ok(()) => reconciles.push(millis),
                Err(wait) => drop(due.insert(millis + u64::try_from(wait.as_millis()).unwrap())),
            }
        }
        reconciles
    }

    #[test]
    fn continuous_changes_do_not_delay_a_reconcile() {
        assert_eq!(visits(&Debouncer::new(INTERVAL), (0..200).step_by(10)), [50, 110, 170, 230]);
        assert_eq!(visits(&Debouncer::new(INTERVAL), [0, 1, 2, 300]), [50, 350]);
    }

    #[test]
    fn new_object_is_reconciled_immediately() {
        let gathering = Debouncer::with_immediate_first(INTERVAL);
        assert_eq!(visits(&gathering, [0, 5, 10, 100]), [0, 55, 150]);
        assert_eq!(gathering.begin_reconcile("another", Instant::now()), Ok(()));
        gathering.retain(|key| key == "another");
        assert_eq!(gathering.objects().len(), 1);
    }
}
