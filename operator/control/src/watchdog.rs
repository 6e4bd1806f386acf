//! Detects loops of this process that make no progress, for a liveness probe.
//!
//! A loop is stuck if it has work, and has neither begun nor completed any for longer than a bound.
//!
//! * The bound is longer than any reconcile or update may take, and a reconcile that waits for an unreachable API
//!   server ends with an error at its own timeout. Therefore an outage is not reported.
//! * A loop without work, or a candidate that does not lead, is not reported.
//! * A thread that computes or blocks where it must not, a lock that is never released, and a controller whose queue is
//!   no longer read are reported.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Maximum time without progress. Reconciles are aborted after 120 s, updates of a ledger after 60 s.
pub const STUCK_TIMEOUT: Duration = Duration::from_secs(180);

/// Number of beats of an async runtime within the bound.
const HEARTBEATS_PER_BOUND: u32 = 6;

/// The loops of this process.
pub trait ProgressSource: Send + Sync {
    /// Returns which loop has made no progress for longer than `bound` although it has work. The sentence has no names
    /// of objects, because probes are not authenticated.
    fn stuck(&self, bound: Duration) -> Option<String>;
}

/// Checks the loops of this process against a bound.
pub struct Watchdog {
    bound: Duration,
    watched: Mutex<Option<Weak<dyn ProgressSource>>>,
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new(STUCK_TIMEOUT)
    }
}

impl Watchdog {
    /// Creates a watchdog without loops, with a bound other than [`STUCK_TIMEOUT`].
    pub fn new(bound: Duration) -> Self {
        Self { bound, watched: Mutex::new(None) }
    }

    /// Watches these loops instead of earlier ones, until they are dropped.
    pub fn watch(&self, loops: Weak<dyn ProgressSource>) {
        *self.watched() = Some(loops);
    }

    /// Stops watching: this process does not lead.
    pub fn clear(&self) {
        *self.watched() = None;
    }

    /// Returns what is stuck; `None` if nothing is.
    pub fn stuck(&self) -> Option<String> {
        let watched = self.watched().as_ref().and_then(Weak::upgrade)?;
        watched.stuck(self.bound)
    }

    /// Returns the interval for [`RuntimeHeartbeat::beat`].
    pub fn beat_interval(&self) -> Duration {
        self.bound / HEARTBEATS_PER_BOUND
    }

    fn watched(&self) -> MutexGuard<'_, Option<Weak<dyn ProgressSource>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows that an async runtime runs tasks, by a task that only records the time.
pub struct RuntimeHeartbeat(Arc<Mutex<Instant>>);

impl Default for RuntimeHeartbeat {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl RuntimeHeartbeat {
    /// Beats in a task of the current runtime until the result is dropped.
    pub fn beat(&self, interval: Duration) -> HeartbeatGuard {
        let last = self.0.clone();
        *lock(&last) = Instant::now();
        HeartbeatGuard(tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                *lock(&last) = Instant::now();
            }
        }))
    }

    /// Returns the time since the last beat.
    pub fn time_since_beat(&self) -> Duration {
        lock(&self.0).elapsed()
    }
}

fn lock(last: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a [`RuntimeHeartbeat`] when it is dropped.
pub struct HeartbeatGuard(tokio::task::JoinHandle<()>);

impl Drop for HeartbeatGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}
