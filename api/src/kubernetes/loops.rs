//! The tasks that copy a cluster into the database, as the watchdog of the liveness probe sees them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_control::watchdog::ProgressSource;
use tokio::task::JoinHandle;

/// Progress of a loop: the time since which its current work has made no progress; `None` while it is idle.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Option<Instant>>);

/// Work of a loop in progress; dropping it ends the work.
pub struct Working<'a>(&'a Progress);

impl Progress {
    /// Begins work on an item.
    pub fn begin(&self) -> Working<'_> {
        *self.since() = Some(Instant::now());
        Working(self)
    }

    /// Returns the time since the last progress; zero for an idle loop.
    fn busy_for(&self) -> Duration {
        self.since().map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Working<'_> {
    /// Records progress within the work.
    pub fn record_progress(&self) {
        *self.0.since() = Some(Instant::now());
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        *self.0.since() = None;
    }
}

/// All tasks of the backend.
#[derive(Default)]
pub struct Loops {
    /// The loop that puts jobs into the database.
    pub jobs: Progress,
    /// The loop that puts events of jobs into the database.
    pub events: Progress,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Loops {
    /// Watches these tasks, none of which may end by itself.
    pub fn run(&self, tasks: Vec<JoinHandle<()>>) {
        self.running().extend(tasks);
    }

    pub fn end(&self) {
        self.running().drain(..).for_each(|task| task.abort());
    }

    fn running(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgressSource for Loops {
    fn stuck(&self, bound: Duration) -> Option<String> {
        if self.running().iter().any(JoinHandle::is_finished) {
            return Some("a loop that follows the cluster has ended".to_owned());
        }
        let loops = [("jobs", &self.jobs), ("events", &self.events)];
        let (what, busy) =
            loops.map(|(what, progress)| (what, progress.busy_for())).into_iter().max_by_key(|of| of.1)?;
        (busy > bound).then(|| format!("the loop that copies {what} has made no progress for {} s", busy.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn loop_without_progress_is_stuck() {
        let loops = Loops::default();
        assert_eq!(loops.stuck(Duration::ZERO), None, "one that waits is not");
        let working = loops.events.begin();
        let stuck = loops.stuck(Duration::ZERO).unwrap();
        assert!(stuck.contains("copies events"), "{stuck}");
        assert_eq!(loops.stuck(Duration::from_secs(60)), None);
        working.record_progress();
        drop(working);
        assert_eq!(loops.stuck(Duration::ZERO), None);

        loops.run(vec![tokio::spawn(std::future::pending())]);
        assert_eq!(loops.stuck(Duration::ZERO), None);
        let (ended, end) = tokio::sync::oneshot::channel::<()>();
        loops.run(vec![tokio::spawn(async { drop(end.await) })]);
        drop(ended);
        while loops.stuck(Duration::ZERO).is_none() {
            tokio::task::yield_now().await;
        }
        loops.end();
        assert_eq!(loops.stuck(Duration::ZERO), None);
    }
}
