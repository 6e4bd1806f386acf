//! Whether the loops of this process make progress, for a liveness probe.
//!
//! A loop counts as stuck when it has something to do, and has neither begun nor ended anything for longer than a
//! bound. The bound is longer than any visit or update may take, and a visit that an unreachable API server keeps
//! waiting ends with an error by its own limit: so an outage never counts, and neither does a loop that has nothing to
//! do, or a candidate that does not lead. What does count is a thread that computes or waits where it must not, a lock
//! that is never released, a controller whose queue nobody reads any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// For so long a loop may show no progress. Visits are given up after 120 s, updates of a ledger after 60 s.
pub const STUCK_AFTER: Duration = Duration::from_secs(180);

/// Between two signs of life of an async runtime, as a part of the bound.
const BEATS_PER_BOUND: u32 = 6;

/// Loops of this process.
pub trait Watched: Send + Sync {
    /// Which loop has made no progress for longer than `bound` although it has work: a sentence without any names of
    /// objects, since probes ask for no token.
    fn stuck(&self, bound: Duration) -> Option<String>;
}

/// See the module text.
pub struct Watchdog {
    bound: Duration,
    watched: Mutex<Option<Weak<dyn Watched>>>,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new(STUCK_AFTER)
    }
}

impl Watchdog {
    /// A watchdog over nothing, with another bound than [`STUCK_AFTER`].
    pub fn new(bound: Duration) -> Self {
        Self { bound, watched: Mutex::new(None) }
    }

    /// Watches these loops, and no others any more, for as long as they are there.
    pub fn watch(&self, loops: Weak<dyn Watched>) {
        *self.watched() = Some(loops);
    }

    /// Watches nothing any more: this process does not lead.
    pub fn rest(&self) {
        *self.watched() = None;
    }

    /// What is stuck, if something is.
    pub fn stuck(&self) -> Option<String> {
        let watched = self.watched().as_ref().and_then(Weak::upgrade)?;
        watched.stuck(self.bound)
    }

    /// How often a [`Heartbeat`] is to beat.
    pub fn beat_interval(&self) -> Duration {
        self.bound / BEATS_PER_BOUND
    }

    fn watched(&self) -> MutexGuard<'_, Option<Weak<dyn Watched>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sign of life of an async runtime: a task that does nothing but be run.
pub struct Heartbeat(Arc<Mutex<Instant>>);

impl Default for Heartbeat {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Heartbeat {
    /// Beats in a task of the present runtime until what is returned is dropped.
    pub fn beat(&self, interval: Duration) -> Beating {
        let last = self.0.clone();
        *lock(&last) = Instant::now();
        Beating(tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                *lock(&last) = Instant::now();
            }
        }))
    }

    /// How long ago the last beat was.
    pub fn silent_for(&self) -> Duration {
        lock(&self.0).elapsed()
    }
}

fn lock(last: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a [`Heartbeat`] when it is dropped.
pub struct Beating(tokio::task::JoinHandle<()>);

impl Drop for Beating {
    fn drop(&mut self) {
        self.0.abort();
    }
}
