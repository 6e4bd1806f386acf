//! Ends this process if its compute thread is stuck, so that the agent is lost to its coordinator and replaced. The
//! coordinator can't notice that: other threads answer its pings.
//!
//! A thread that measures all its waits either waits for work or computes. If the process uses no processor time for
//! [`STUCK_TICKS`] ticks in a row, although the thread does not wait or has work in its queue, the thread is blocked
//! where it never should be, such as in a deadlock or on memory that can't be read. However slow the machine, a long
//! computation is not mistaken for that.

use std::time::Duration;

use millrace_telemetry::stall::StallClock;
use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::work_queue::QueuedItems;

/// Time between two observations.
const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// Observations in a row without progress after which the thread is stuck. They are counted, instead of the time,
/// because a process that was stopped as a whole observes nothing meanwhile.
const STUCK_TICKS: u32 = 10;
/// Processor time of a process whose compute thread is stuck: at most this share of a tick.
const MAX_IDLE_SHARE: f64 = 0.02;
/// Time for the last log records to reach the coordinator.
const LOG_TIMEOUT: Duration = Duration::from_millis(200);

/// Watches a thread until this is dropped, at the latest by the thread itself when it ends.
#[derive(Debug)]
pub struct Watchdog(AbortHandle);

impl Watchdog {
    /// Watches the only thread that measures waits with `stall`, and that receives `queued` work; `thread` names it in
    /// the log. Must be called in the context of a runtime.
    pub fn watch(thread: &'static str, stall: StallClock, queued: QueuedItems) -> Self {
        Self(tokio::spawn(watch(thread, stall, queued)).abort_handle())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn watch(thread: &'static str, stall: StallClock, queued: QueuedItems) {
    let mut ticks = interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut progress = Progress::default();
    loop {
        ticks.tick().await;
        progress.observe(stall.totals().sum(), process_seconds(), !queued.is_empty());
        if progress.is_stuck() {
            tracing::error!(
                "the {thread} thread has work and does nothing for {STUCK_TICKS} s; this process ends so that it is \
                 replaced"
            );
            tokio::time::sleep(LOG_TIMEOUT).await;
            // The thread can't be ended. Nothing is saved: what it holds may be half-written.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

/// Returns the processor time of this process, in seconds.
fn process_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Counts observations without progress.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Seconds waited, and seconds of processor time, at the last observation.
    last: Option<(f64, f64)>,
    idle_ticks: u32,
}

impl Progress {
    /// Compares the seconds waited and computed until now with those of the last observation, one tick ago. A wait is
    /// no progress if the thread has work.
    fn observe(&mut self, waited: f64, computed: f64, has_work: bool) {
        let max_idle = MAX_IDLE_SHARE * TICK_INTERVAL.as_secs_f64();
        let is_idle = self.last.replace((waited, computed)).is_some_and(|(waited_before, computed_before)| {
            let waits = waited - waited_before >= max_idle && !has_work;
            !waits && computed - computed_before < max_idle
        });
        self.idle_ticks = if is_idle { self.idle_ticks + 1 } else { 0 };
    }

    const fn is_stuck(&self) -> bool {
        self.idle_ticks >= STUCK_TICKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes so many ticks in which the thread waits and computes for these shares of the time.
    fn ticks(progress: &mut Progress, count: u32, waits: f64, computes: f64, has_work: bool) {
        for _ in 0..count {
            let (waited, computed) = progress.last.unwrap_or_default();
            progress.observe(waited + waits, computed + computes, has_work);
        }
    }

    #[test]
    fn thread_that_waits_or_computes_is_not_stuck() {
        let mut progress = Progress::default();
        for (waits, computes, has_work) in
            [(1.0, 0.0, false), (0.0, 1.0, true), (0.03, 0.0, false), (0.0, 0.03, true), (0.5, 0.5, true)]
        {
            ticks(&mut progress, 100, waits, computes, has_work);
            assert!(!progress.is_stuck(), "{waits} {computes} {has_work}");
        }
    }

    #[test]
    fn stuck_thread_is_found_after_some_ticks_in_a_row() {
        // In a computation, and in a wait for work that it has.
        for (waits, has_work) in [(0.0, false), (1.0, true)] {
            let mut progress = Progress::default();
            ticks(&mut progress, 5, 1.0, 0.0, false);
            ticks(&mut progress, STUCK_TICKS - 1, waits, 0.01, has_work);
            assert!(!progress.is_stuck());
            ticks(&mut progress, 1, waits, 0.5, has_work);
            ticks(&mut progress, STUCK_TICKS - 1, waits, 0.01, has_work);
            assert!(!progress.is_stuck(), "it has computed meanwhile");
            ticks(&mut progress, 1, waits, 0.01, has_work);
            assert!(progress.is_stuck());
        }
    }
}
