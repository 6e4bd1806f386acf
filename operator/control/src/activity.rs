//! What a controller has to do and does: which objects wait for a visit, which are being visited, and since when.
//!
//! kube's controllers keep their queue to themselves, so the loop takes notes where changes go in and visits begin and
//! end. `/metrics` shows the notes as the metrics of a work queue, and the liveness probe reads from them whether the
//! controller still makes progress.
//!
//! ```text
//!   change ──► waiting ──► visited ──► gone from here
//!                 ▲           │
//!                 └───────────┘ the visit was not due yet
//! ```

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_telemetry::prometheus::Durations;

/// The notes about one controller, whose objects are named by `K`.
pub struct Activity<K> {
    /// How long objects waited.
    queued: Durations,
    notes: Mutex<Notes<K>>,
}

struct Notes<K> {
    waiting: HashMap<K, Instant>,
    visited: HashMap<K, Instant>,
    /// When a visit last began or ended, or the first object came after a time without any.
    progress: Instant,
}

/// A controller at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Objects that wait for a visit.
    pub waiting: usize,
    /// Objects that are being visited.
    pub visited: usize,
    /// For how long the longest of these visits has been going on.
    pub longest_visit: Duration,
    /// How long ago a visit last began or ended; zero where there is nothing to do.
    pub without_progress: Duration,
}

impl Standing {
    /// Whether nothing has moved for longer than `bound` although there is something to do.
    pub fn is_stuck(&self, bound: Duration) -> bool {
        self.longest_visit > bound || self.without_progress > bound
    }
}

/// A visit, until it is dropped.
pub struct Visit<'a, K: Hash + Eq> {
    activity: &'a Activity<K>,
    key: Option<K>,
}

impl<K: Hash + Eq> Drop for Visit<'_, K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            let mut notes = self.activity.notes();
            notes.visited.remove(&key);
            notes.progress = Instant::now();
        }
    }
}

impl<K: Hash + Eq + Clone> Activity<K> {
    /// Nothing to do; how long objects wait is added to `queued`.
    pub fn new(queued: Durations) -> Self {
        let notes = Notes { waiting: HashMap::new(), visited: HashMap::new(), progress: Instant::now() };
        Self { queued, notes: Mutex::new(notes) }
    }

    /// An object has changed and is to be visited.
    pub fn changed(&self, key: K) {
        let (mut notes, now) = (self.notes(), Instant::now());
        if notes.waiting.is_empty() && notes.visited.is_empty() {
            notes.progress = now;
        }
        notes.waiting.entry(key).or_insert(now);
    }

    /// A visit begins, and lasts until what is returned is dropped.
    pub fn begin(&self, key: K) -> Visit<'_, K> {
        let (mut notes, now) = (self.notes(), Instant::now());
        if let Some(since) = notes.waiting.remove(&key) {
            self.queued.add(now - since);
        }
        notes.visited.insert(key.clone(), now);
        notes.progress = now;
        Visit { activity: self, key: Some(key) }
    }

    /// How the controller stands. Objects that wait and do not exist any more are forgotten: nobody visits them.
    pub fn standing(&self, exists: impl Fn(&K) -> bool) -> Standing {
        let (mut notes, now) = (self.notes(), Instant::now());
        notes.waiting.retain(|key, _| exists(key));
        let busy = !notes.waiting.is_empty() || !notes.visited.is_empty();
        Standing {
            waiting: notes.waiting.len(),
            visited: notes.visited.len(),
            longest_visit: notes.visited.values().map(|since| now - *since).max().unwrap_or_default(),
            without_progress: if busy { now - notes.progress } else { Duration::ZERO },
        }
    }
}

impl<K> Activity<K> {
    fn notes(&self) -> MutexGuard<'_, Notes<K>> {
        // Maps of finished values: whole after any panic.
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_wait_are_visited_and_are_gone() {
        let activity: Activity<&str> = Activity::new(Durations::default());
        let counts = |activity: &Activity<&str>| {
            let standing = activity.standing(|key| *key != "deleted");
            (standing.waiting, standing.visited)
        };
        assert_eq!(activity.standing(|_| true), Standing::default());
        activity.changed("a");
        activity.changed("a");
        activity.changed("b");
        activity.changed("deleted");
        assert_eq!(counts(&activity), (2, 0), "an object waits once, and one that is gone not at all");
        let visit = activity.begin("a");
        activity.changed("a");
        assert_eq!(counts(&activity), (2, 1), "what changes during its visit is visited again");
        assert!(activity.standing(|_| true).is_stuck(Duration::ZERO));
        drop(visit);
        drop((activity.begin("a"), activity.begin("b")));
        assert_eq!(activity.standing(|_| true), Standing::default());
        assert!(!activity.standing(|_| true).is_stuck(Duration::ZERO), "who has nothing to do is never stuck");
    }
}
