//! Records the work of a controller: which objects are queued for a reconcile, which are being reconciled, and since
//! when.
//!
//! kube's controllers do not expose their queue. The loop therefore records when changes arrive and when reconciles
//! begin and end. `/metrics` shows the records as the metrics of a work queue, and the liveness probe uses them to
//! decide whether the controller makes progress.
//!
//! ```text
//!   change ──► waiting ──► visited ──► removed
//!                 ▲           │
//!                 └───────────┘ the reconcile was not due yet
//! ```

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_telemetry::prometheus::DurationHistogram;

/// The records of one controller, whose objects are identified by `K`.
pub struct ControllerActivity<K> {
    /// Times that objects were queued.
    queued: DurationHistogram,
    notes: Mutex<ActivityState<K>>,
}

struct ActivityState<K> {
    waiting: HashMap<K, Instant>,
    visited: HashMap<K, Instant>,
    /// When a reconcile last began or ended, or the first object was queued after an idle time.
    progress: Instant,
}

/// The state of a controller at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus {
    /// Number of objects that are queued for a reconcile.
    pub waiting: usize,
    /// Number of objects that are being reconciled.
    pub visited: usize,
    /// Duration of the longest running reconcile.
    pub longest_reconcile: Duration,
    /// Time since a reconcile last began or ended; zero if there is no work.
    pub without_progress: Duration,
}

impl ControllerStatus {
    /// Returns whether there is work, but no reconcile has begun or ended for longer than `bound`, or one has run for
    /// longer.
    pub fn is_stuck(&self, bound: Duration) -> bool {
        self.longest_reconcile > bound || self.without_progress > bound
    }
}

/// Marks an object as being reconciled until it is dropped.
pub struct ReconcileGuard<'a, K: Hash + Eq> {
    activity: &'a ControllerActivity<K>,
    key: Option<K>,
}

impl<K: Hash + Eq> Drop for ReconcileGuard<'_, K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let mut notes = self.activity.notes();
            notes.visited.remove(&key);
            notes.progress = Instant::now();
        }
    }
}

impl<K: Hash + Eq + Clone> ControllerActivity<K> {
    /// Creates records without work; the times that objects are queued are added to `queued`.
    pub fn new(queued: DurationHistogram) -> Self {
        let notes = ActivityState { waiting: HashMap::new(), visited: HashMap::new(), progress: Instant::now() };
        Self { queued, notes: Mutex::new(notes) }
    }

    /// Records that an object has changed and is queued.
    pub fn changed(&self, key: K) {
        let (mut notes, now) = (self.notes(), Instant::now());
        if notes.waiting.is_empty() && notes.visited.is_empty() {
            notes.progress = now;
        }
        notes.waiting.entry(key).or_insert(now);
    }

    /// Records the begin of a reconcile, which lasts until the result is dropped.
    pub fn begin(&self, key: K) -> ReconcileGuard<'_, K> {
        let (mut notes, now) = (self.notes(), Instant::now());
        if let Some(since) = notes.waiting.remove(&key) {
            self.queued.add(now - since);
        }
        notes.visited.insert(key.clone(), now);
        notes.progress = now;
        ReconcileGuard { activity: self, key: Some(key) }
    }

    /// Returns the controller's state. Queued objects that no longer exist are removed, because they are never
    /// reconciled.
    pub fn status(&self, exists: impl Fn(&K) -> bool) -> ControllerStatus {
        let (mut notes, now) = (self.notes(), Instant::now());
        notes.waiting.retain(|key, _| exists(key));
        let busy = !notes.waiting.is_empty() || !notes.visited.is_empty();
        ControllerStatus {
            waiting: notes.waiting.len(),
            visited: notes.visited.len(),
            longest_reconcile: notes.visited.values().map(|since| now - *since).max().unwrap_or_default(),
            without_progress: if busy { now - notes.progress } else { Duration::ZERO },
        }
    }
}

impl<K> ControllerActivity<K> {
    fn notes(&self) -> MutexGuard<'_, ActivityState<K>> {
        // The maps hold complete values only, so they are consistent after any panic.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use millrace_telemetry::prometheus::Registry;

    use super::*;

    #[test]
    fn objects_are_queued_reconciled_and_removed() {
        let activity: ControllerActivity<&str> =
            ControllerActivity::new(Registry::new().metric("wait_seconds", "Waits."));
        let counts = |activity: &ControllerActivity<&str>| {
            let status = activity.status(|key| *key != "deleted");
            (status.waiting, status.visited)
        };
        assert_eq!(activity.status(|_| true), ControllerStatus::default());
        activity.changed("a");
        activity.changed("a");
        activity.changed("b");
        activity.changed("deleted");
        assert_eq!(counts(&activity), (2, 0), "an object waits once, a deleted one not at all");
        let visit = activity.begin("a");
        activity.changed("a");
        assert_eq!(counts(&activity), (2, 1), "an object that changes during its reconcile is reconciled again");
        assert!(activity.status(|_| true).is_stuck(Duration::ZERO));
        drop(visit);
        drop((activity.begin("a"), activity.begin("b")));
        assert_eq!(activity.status(|_| true), ControllerStatus::default());
        assert!(!activity.status(|_| true).is_stuck(Duration::ZERO), "an idle controller is never stuck");
    }
}
