//! Threads for long computations, such as planning a job. The async threads, which answer probes and requests and run
//! the control loop, never compute these themselves.
//!
//! ```text
//!   owner "team-a":  work, work, work ─┐ one at a time
//!   owner "team-b":  work ─────────────┼──► first come, first served ──► as many threads as there are permits
//!   owner "team-c":  work, work ───────┘
//! ```
//!
//! * At most the given number of threads compute at the same time, and one more for heavy work: work that takes seconds
//!   has a thread apart from work that takes milliseconds.
//! * At most one piece of work of one owner runs or waits for a thread, so that owners share the threads, however much
//!   each of them has queued. Light and heavy work count separately.
//! * On Linux, heavy work has a lower priority than everything else in this program.
//! * Work that has begun runs to its end, even if its result is no longer awaited: a thread can't be stopped. Bound the
//!   work before it begins.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Maximum number of threads on any machine.
const MAX_THREADS: usize = 4;
/// Nice value of a thread that does heavy work.
const HEAVY_NICENESS: i32 = 5;
/// Number of owners above which those without work are removed.
const MAX_IDLE_OWNERS: usize = 1024;

/// Why work was not done, for the log.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// The work panicked. The panic's own message is on standard error.
    #[error("a background computation panicked")]
    Panicked,
    /// No thread could be started.
    #[error("can't start a thread: {0}")]
    NoThread(#[from] std::io::Error),
}

/// The threads. Clones share them.
#[derive(Clone)]
pub struct WorkerPool {
    light: WorkerLane,
    heavy: WorkerLane,
}

/// A set of threads, and the owners of their work.
#[derive(Clone)]
struct WorkerLane {
    /// Added to the nice value of the threads.
    niceness: i32,
    threads: Arc<Semaphore>,
    owners: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
}

impl WorkerPool {
    /// Creates `threads` threads, at least one, and one more for heavy work.
    pub fn new(threads: usize) -> Self {
        Self { light: WorkerLane::new(threads, 0), heavy: WorkerLane::new(1, HEAVY_NICENESS) }
    }

    /// Creates half as many threads as the machine has cores, at most four.
    pub fn for_this_machine() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new((cores / 2).min(MAX_THREADS))
    }

    /// Runs `work` in a thread when it is the turn of `owner`, and returns its result. If the future is dropped while
    /// the work waits, the work does not begin.
    ///
    /// # Errors
    /// The work panicked, or no thread could be started.
    pub async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        self.light.run(owner, work).await
    }

    /// Runs work that takes seconds, like [`WorkerPool::run`], in a thread of its own, so that work that takes
    /// milliseconds does not wait for it.
    ///
    /// # Errors
    /// As [`WorkerPool::run`].
    pub async fn run_heavy<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        self.heavy.run(owner, work).await
    }
}

impl WorkerLane {
    fn new(threads: usize, niceness: i32) -> Self {
        Self { niceness, threads: Arc::new(Semaphore::new(threads.max(1))), owners: Arc::default() }
    }

    async fn run<T: Send + 'static>(
        &self,
        owner: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let turn = permit(self.owner_semaphore(owner)).await?;
        let thread = permit(self.threads.clone()).await?;
        let (done, result) = oneshot::channel();
        let niceness = self.niceness;
        std::thread::Builder::new().name("compute".to_owned()).spawn(move || {
            lower_priority(niceness);
            let computed = catch_unwind(AssertUnwindSafe(work)).map_err(|_| WorkError::Panicked);
            // Before the result is sent: its receiver may request more at once.
            drop((thread, turn));
            // The receiver may have been dropped.
            let _ = done.send(computed);
        })?;
        result.await.unwrap_or(Err(WorkError::Panicked))
    }

    /// Returns the semaphore that admits the work of an owner, one piece at a time.
    fn owner_semaphore(&self, owner: &str) -> Arc<Semaphore> {
        // The map holds counters only, so it is consistent after any panic.
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = owners.get(owner).and_then(Weak::upgrade) {
            return turns;
        }
        if owners.len() >= MAX_IDLE_OWNERS {
            owners.retain(|_, turns| turns.strong_count() > 0);
        }
        let turns = Arc::new(Semaphore::new(1));
        owners.insert(owner.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

/// Adds to the nice value of the calling thread. On systems other than Linux this would affect the whole process.
fn lower_priority(niceness: i32) {
    if cfg!(target_os = "linux")
        && niceness != 0
        && let Err(error) = rustix::process::nice(niceness)
    {
        tracing::debug!("can't lower the priority of a worker thread: {error}");
    }
}

async fn permit(semaphore: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, WorkError> {
    // No semaphore of this module is ever closed.
    semaphore.acquire_owned().await.map_err(|_| WorkError::Panicked)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Returns work that sends its name when it begins and ends when it receives a message.
    fn waiting(
        name: &'static str,
        begun: &mpsc::Sender<&'static str>,
    ) -> (mpsc::Sender<()>, impl FnOnce() + Send + use<>) {
        let (go, gone) = mpsc::channel();
        let begun = begun.clone();
        (go, move || {
            begun.send(name).unwrap();
            gone.recv().unwrap();
        })
    }

    #[tokio::test]
    async fn busy_owner_does_not_delay_others() {
        let (workers, (begun, mut order)) = (WorkerPool::new(1), mpsc::channel());
        let mut running = Vec::new();
        let mut ends = Vec::new();
        for (owner, name) in [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1")] {
            let (go, work) = waiting(name, &begun);
            ends.push((name, go));
            let workers = workers.clone();
            running.push(tokio::spawn(async move { workers.run(owner, work).await.unwrap() }));
            // They enqueue their work in this order.
            tokio::task::yield_now().await;
        }
        for expected in ["a1", "b1", "a2", "a3"] {
            let first = tokio::task::spawn_blocking(move || (order.recv().unwrap(), order));
            let (name, order_again) = first.await.unwrap();
            assert_eq!(name, expected);
            assert!(order_again.try_recv().is_err(), "one thread, one piece of work");
            order = order_again;
            ends.iter().find(|(known, _)| *known == name).unwrap().1.send(()).unwrap();
        }
        for task in running {
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn light_work_does_not_wait_for_heavy_work() {
        let (workers, (begun, order)) = (WorkerPool::new(1), mpsc::channel());
        let (go, work) = waiting("heavy", &begun);
        let heavy = workers.clone();
        let heavy = tokio::spawn(async move { heavy.run_heavy("a", work).await.unwrap() });
        let order = tokio::task::spawn_blocking(move || order.recv().map(|_| order)).await.unwrap();
        assert_eq!(workers.run("a", || 1).await.unwrap(), 1, "also of the same owner");
        assert!(!heavy.is_finished() && order.is_ok());
        go.send(()).unwrap();
        heavy.await.unwrap();
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn heavy_work_has_a_lower_priority_than_what_answers_requests() {
        let niceness = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            // The fields after the name in parentheses begin with the third one; the nice value is the 19th.
            stat.rsplit(") ").next().unwrap().split(' ').nth(16).unwrap().parse::<i32>().unwrap()
        };
        let (workers, before) = (WorkerPool::new(1), niceness());
        assert_eq!(workers.run_heavy("a", niceness).await.unwrap(), (before + HEAVY_NICENESS).min(19));
        assert_eq!([workers.run("a", niceness).await.unwrap(), niceness()], [before, before]);
    }

    #[tokio::test]
    async fn panic_is_an_error_and_frees_thread() {
        let workers = WorkerPool::new(1);
        assert!(matches!(workers.run("a", || panic!("as the test wants it")).await, Err::<(), _>(WorkError::Panicked)));
        assert_eq!(workers.run("a", || 1).await.unwrap(), 1);
    }
}
