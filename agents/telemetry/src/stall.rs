//! Measures how long a role waits, by reason, for `millrace_stall_seconds_total{reason}` and the run's summary.
//!
//! * A wait lasts from [`StallClock::start`] to the drop of its [`StallTimer`].
//! * Waits of several threads add up. If a role's share of waiting must stay below 1, it measures only on the one
//!   thread that would otherwise compute.
//! * A wait in progress counts up to the present, so that a role that hangs is visible.

use std::fmt;
use std::ops::{AddAssign, Index, IndexMut, Sub};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Reasons for which a role waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StallReason {
    /// The weights of the next layer have not arrived.
    Weights,
    /// Gradients or partial sums have not arrived.
    Grads,
    /// The optimizer has not updated a chunk that must be streamed next.
    Optimizer,
    /// Training samples have not arrived.
    Samples,
    /// There is no credit to send: the receiver is slower.
    Credit,
    /// The coordinator has not decided about the step.
    Commit,
    /// The first iteration of an epoch has not begun: the job starts, or its membership has changed.
    Epoch,
    /// The checkpoint's copy pool is full: a chunk must be copied before its next update.
    Snapshot,
}

impl StallReason {
    /// All reasons, in the order of all reports.
    pub const ALL: [Self; 8] = [
        Self::Weights,
        Self::Grads,
        Self::Optimizer,
        Self::Samples,
        Self::Credit,
        Self::Commit,
        Self::Epoch,
        Self::Snapshot,
    ];

    /// Returns the value of the label `reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Grads => "grads",
            Self::Optimizer => "optimizer",
            Self::Samples => "samples",
            Self::Credit => "credit",
            Self::Commit => "commit",
            Self::Epoch => "epoch",
            Self::Snapshot => "snapshot",
        }
    }

    /// Returns the reason with this name; `None` if there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

const STALL_REASON_COUNT: usize = StallReason::ALL.len();

/// Measures waits by reason. Clones share one clock, and all methods may be called from any thread. Starting and ending
/// a wait each costs one clock reading under a lock that is rarely contended. Nothing is allocated; a wait holds one
/// reference count.
#[derive(Clone, Debug)]
pub struct StallClock {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    waits: [Mutex<Waits>; STALL_REASON_COUNT],
}

/// The waits of one reason. Time is in nanoseconds since the clock's epoch.
///
/// A running wait has subtracted its start from `balance`; an ended one has also added its end. `balance + running *
/// now` is therefore the time waited until now. The clock is read under the lock, so the total never decreases.
#[derive(Debug, Default)]
struct Waits {
    balance: i64,
    running: i64,
}

impl Shared {
    /// Locks the waits of a reason, and returns them with the current time.
    fn now(&self, reason: StallReason) -> (MutexGuard<'_, Waits>, i64) {
        // The numbers are consistent after every statement, so a panic elsewhere can't have corrupted them.
        let waits = self.waits[reason as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.epoch.elapsed().as_nanos();
        (waits, i64::try_from(now).unwrap_or(i64::MAX))
    }
}

impl Default for StallClock {
    fn default() -> Self {
        Self::new()
    }
}

impl StallClock {
    /// Creates a clock without waits.
    pub fn new() -> Self {
        Self { shared: Arc::new(Shared { epoch: Instant::now(), waits: Default::default() }) }
    }

    /// Begins a wait, which ends when the returned value is dropped. The value may be moved to another thread and held
    /// across an `await`.
    #[must_use = "the wait ends when the guard is dropped"]
    pub fn start(&self, reason: StallReason) -> StallTimer {
        let (mut waits, now) = self.shared.now(reason);
        waits.balance -= now;
        waits.running += 1;
        drop(waits);
        StallTimer { shared: Arc::clone(&self.shared), reason }
    }

    /// Runs `wait` and counts its duration.
    pub fn measure<T>(&self, reason: StallReason, wait: impl FnOnce() -> T) -> T {
        let _stall = self.start(reason);
        wait()
    }

    /// Returns the seconds waited for one reason until now.
    pub fn seconds(&self, reason: StallReason) -> f64 {
        let (waits, now) = self.shared.now(reason);
        let nanoseconds = waits.balance + waits.running * now;
        nanoseconds as f64 / 1e9
    }

    /// Returns the seconds waited until now, by reason.
    pub fn totals(&self) -> StallTotals {
        StallTotals { seconds: StallReason::ALL.map(|reason| self.seconds(reason)) }
    }
}

/// A wait in progress, which ends when this is dropped.
#[derive(Debug)]
pub struct StallTimer {
    shared: Arc<Shared>,
    reason: StallReason,
}

impl Drop for StallTimer {
    fn drop(&mut self) {
        let (mut waits, now) = self.shared.now(self.reason);
        waits.balance += now;
        waits.running -= 1;
    }
}

/// Seconds waited, by reason. In JSON a map from reason to seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StallTotals {
    seconds: [f64; STALL_REASON_COUNT],
}

impl StallTotals {
    /// Returns each reason with its seconds.
    pub fn iter(&self) -> impl Iterator<Item = (StallReason, f64)> + '_ {
        StallReason::ALL.into_iter().zip(self.seconds)
    }

    /// Returns the seconds waited for all reasons together.
    pub fn sum(&self) -> f64 {
        self.seconds.iter().sum()
    }

    /// Formats the share of `wall` that was spent waiting, by reason: `waited 4.1%: weights 3.0%, credit 1.1%`. Reasons
    /// below 0.05 % are left out.
    pub fn shares(&self, wall: Duration) -> impl fmt::Display + '_ {
        fmt::from_fn(move |f| {
            let percent = |seconds: f64| 100.0 * seconds / wall.as_secs_f64().max(1e-9);
            write!(f, "waited {:.1}%", percent(self.sum()))?;
            let mut notable: Vec<_> = self.iter().filter(|&(_, s)| percent(s) >= 0.05).collect();
            notable.sort_by(|a, b| b.1.total_cmp(&a.1));
            for (at, (reason, seconds)) in notable.into_iter().enumerate() {
                let separator = if at == 0 { ": " } else { ", " };
                write!(f, "{separator}{} {:.1}%", reason.as_str(), percent(seconds))?;
            }
            Ok(())
        })
    }
}

impl Index<StallReason> for StallTotals {
    type Output = f64;
    fn index(&self, reason: StallReason) -> &f64 {
        &self.seconds[reason as usize]
    }
}

impl IndexMut<StallReason> for StallTotals {
    fn index_mut(&mut self, reason: StallReason) -> &mut f64 {
        &mut self.seconds[reason as usize]
    }
}

/// Returns the time waited since `earlier`.
impl Sub for StallTotals {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self { seconds: std::array::from_fn(|at| self.seconds[at] - earlier.seconds[at]) }
    }
}

impl AddAssign for StallTotals {
    fn add_assign(&mut self, other: Self) {
        for (mine, theirs) in self.seconds.iter_mut().zip(other.seconds) {
            *mine += theirs;
        }
    }
}

impl Serialize for StallTotals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(STALL_REASON_COUNT))?;
        for (reason, seconds) in self.iter() {
            map.serialize_entry(reason.as_str(), &seconds)?;
        }
        map.end()
    }
}

/// Ignores reasons that this version does not know.
impl<'de> Deserialize<'de> for StallTotals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = std::collections::BTreeMap::<String, f64>::deserialize(deserializer)?;
        let mut totals = Self::default();
        for (name, seconds) in map {
            if let Some(reason) = StallReason::from_name(&name) {
                totals[reason] = seconds;
            }
        }
        Ok(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use StallReason::*;

    #[test]
    fn waits_of_threads_add_up_and_never_fall() {
        let clock = StallClock::new();
        let outer = Instant::now();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let clock = clock.clone();
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        clock.measure(Credit, || std::hint::black_box(0));
                    }
                })
            })
            .collect();
        let mut last = 0.0;
        while !threads.iter().all(std::thread::JoinHandle::is_finished) {
            let now = clock.seconds(Credit);
            assert!(now >= last, "{now} < {last}");
            last = now;
        }
        let spent = outer.elapsed().as_secs_f64();
        let waited = clock.totals();
        assert!(waited[Credit] > 0.0 && waited[Credit] <= 4.0 * spent);
        assert_eq!(waited.sum(), waited[Credit]);
        assert_eq!(clock.seconds(Credit), waited[Credit], "nothing runs any more");
    }

    #[test]
    fn wait_is_counted_while_it_lasts() {
        let clock = StallClock::new();
        let stall = clock.start(Samples);
        let first = clock.seconds(Samples);
        while clock.seconds(Samples) <= first {}
        drop(stall);
        let ended = clock.totals();
        assert!(ended[Samples] > first);
        assert_eq!((clock.totals() - ended).sum(), 0.0);
    }

    #[test]
    fn shares_and_json_format() {
        let mut totals = StallTotals::default();
        totals[Credit] = 0.11;
        totals[Weights] = 0.3;
        totals[Commit] = 0.001;
        assert_eq!(totals.shares(Duration::from_secs(10)).to_string(), "waited 4.1%: weights 3.0%, credit 1.1%");
        assert_eq!(StallTotals::default().shares(Duration::ZERO).to_string(), "waited 0.0%");
        let text = serde_json::to_string(&totals).unwrap();
        assert!(text.starts_with("{\"weights\":0.3,\"grads\":0.0,"));
        assert_eq!(serde_json::from_str::<StallTotals>(&text).unwrap(), totals);
        assert!(serde_json::from_str::<StallTotals>("{\"later\":1}").is_ok());
    }
}
