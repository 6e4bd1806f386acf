//! The thread that processes the chunk store, and the thread that writes a snapshot.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millrace_emulator::plan::{ChunkId, PlanHash};
use millrace_engine::chunk_store::StoreError;
use millrace_engine::frame::{Frame, FrameKey};
use millrace_engine::message::{AgentReport, ParameterSource, SnapshotRequest};
use millrace_engine::payload::Payload;
use millrace_engine::types::CommitRecord;
use millrace_protocol::codec::LinkContext;
use millrace_shared_memory::SharedMemory;
use millrace_telemetry::stall::{StallClock, StallReason};
use tokio::sync::{mpsc, oneshot};

use super::store::ShardStore;
use crate::error::AgentError;
use crate::links::LinkSender;
use crate::roles::work_meter::WorkMeter;
use crate::roles::work_queue::WorkReceiver;

/// How long the thread of an abandoned snapshot has to end: it may be writing a chunk.
const WRITER_END_TIMEOUT: Duration = Duration::from_millis(200);
/// Why a snapshot was abandoned.
const STUCK_STORAGE: &str = "the storage of model_dir does not accept data; training continues without the checkpoint";

/// Work for the store's thread.
pub enum StoreTask {
    /// Send the chunk of `key`; `step` goes into the header of the frame.
    Send { key: FrameKey, step: u64, end: LinkSender },
    /// See [`ShardCommand::Gather`](millrace_engine::shard::ShardCommand::Gather).
    Gather { chunk: ChunkId, first: bool, last: bool, sum: Payload },
    /// Make the gathered gradients the pending update.
    Commit(CommitRecord),
    /// Apply the pending update of a chunk.
    Update(ChunkId),
    /// Read a cell for another replica, as of a step.
    Copy { cell: ChunkId, step: u64, reply: oneshot::Sender<Result<Bytes, StoreError>> },
    /// Write every chunk as of the snapshot's step.
    Snapshot(SnapshotRequest),
}

/// Results of other threads.
pub enum StoreTaskResult {
    /// The gradient of a chunk is complete; `norm` is its squared norm.
    Gathered { chunk: ChunkId, norm: f64 },
    /// Loading the parameters has finished.
    Loaded { source: ParameterSource, result: Result<(), AgentError> },
    /// Writing a snapshot has finished; `report` is for the coordinator.
    Snapshot { snapshot: SnapshotRequest, report: AgentReport },
    /// The store's thread has processed enough sums: held grants can be sent.
    BacklogCleared,
    /// The store is inconsistent.
    Failed(StoreError),
}

/// Counts the sums that wait for the store's thread; shared by both threads.
#[derive(Debug)]
pub struct SumBacklog {
    /// Above this number of sums, grants are held back. They are sent again at half of it.
    max_sums: usize,
    sums: AtomicUsize,
    /// Whether the driver waits for [`StoreTaskResult::BacklogCleared`].
    is_paused: AtomicBool,
}

impl SumBacklog {
    /// Creates an empty backlog; see [`SumBacklog::exceeded`] for `max_sums`.
    pub const fn new(max_sums: usize) -> Self {
        Self { max_sums, sums: AtomicUsize::new(0), is_paused: AtomicBool::new(false) }
    }

    /// Counts a sum that was sent to the store's thread.
    pub fn add(&self) {
        self.sums.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns whether more than `max_sums` sums wait. If so, [`StoreTaskResult::BacklogCleared`] follows.
    pub fn exceeded(&self) -> bool {
        if self.sums.load(Ordering::SeqCst) <= self.max_sums {
            return false;
        }
        self.is_paused.store(true, Ordering::SeqCst);
        // The store's thread may have caught up in the meantime, before `is_paused` was set.
        self.sums.load(Ordering::SeqCst) > self.max_sums / 2 || !self.is_paused.swap(false, Ordering::SeqCst)
    }

    /// Counts a processed sum; returns whether the driver must be notified.
    fn take(&self) -> bool {
        let remaining = self.sums.fetch_sub(1, Ordering::SeqCst) - 1;
        remaining <= self.max_sums / 2 && self.is_paused.swap(false, Ordering::SeqCst)
    }
}

/// Starts a thread with the floating-point mode for computing (flush to zero).
///
/// # Errors
/// The system can't start a thread.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, AgentError> {
    let computing = move || {
        millrace_emulator::kernels::ftz::enable();
        work();
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(computing);
    spawned.map_err(|error| AgentError::local(error).context("can't start a thread"))
}

/// The store's thread: processes jobs in the order in which the state machine decided them.
pub struct StoreWorker {
    store: Arc<ShardStore>,
    done: mpsc::UnboundedSender<StoreTaskResult>,
    backlog: Arc<SumBacklog>,
    stall: StallClock,
    plan: PlanHash,
    /// Memory for the weights that the shard sends.
    memory: SharedMemory,
    meter: WorkMeter,
    /// The thread that writes the last snapshot.
    writer: Option<SnapshotWriter>,
}

/// The thread that writes a snapshot.
struct SnapshotWriter {
    snapshot: SnapshotRequest,
    /// Receives nothing; its sender is dropped when the thread ends.
    ended: Receiver<Infallible>,
}

impl SnapshotWriter {
    /// Waits for the end of the thread, at most for `timeout`; returns whether it has ended.
    fn has_ended_within(&self, timeout: Duration) -> bool {
        self.ended.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }
}

impl StoreWorker {
    pub const fn new(
        store: Arc<ShardStore>,
        done: mpsc::UnboundedSender<StoreTaskResult>,
        backlog: Arc<SumBacklog>,
        stall: StallClock,
        plan: PlanHash,
        memory: SharedMemory,
        meter: WorkMeter,
    ) -> Self {
        Self { store, done, backlog, stall, plan, memory, meter, writer: None }
    }

    /// Processes jobs until all senders are dropped, or until the store is inconsistent.
    pub fn run(mut self, jobs: WorkReceiver<StoreTask>) {
        loop {
            let waiting = self.stall.start(StallReason::Grads);
            let Ok(job) = jobs.recv() else { return };
            drop(waiting);
            if let Err(error) = self.measured_work(job) {
                let _ = self.done.send(StoreTaskResult::Failed(error));
                return;
            }
            if self.store.take_storage_stuck()
                && let Some(SnapshotWriter { snapshot, .. }) = &self.writer
            {
                self.report_failed_snapshot(snapshot.clone(), &AgentError::local(STUCK_STORAGE));
            }
        }
    }

    /// Does the work and measures it, without the time in which it waits for storage.
    fn measured_work(&mut self, job: StoreTask) -> Result<(), StoreError> {
        let elements = match &job {
            StoreTask::Send { key, .. } => self.store.elements(key.chunk),
            StoreTask::Gather { chunk, .. } | StoreTask::Update(chunk) => self.store.elements(*chunk),
            StoreTask::Commit(_) | StoreTask::Copy { .. } | StoreTask::Snapshot(_) => return self.work(job),
        };
        let (began, waited) = (Instant::now(), self.stall.seconds(StallReason::Snapshot));
        let result = self.work(job);
        let waited = self.stall.seconds(StallReason::Snapshot) - waited;
        self.meter.add(elements, began.elapsed().as_secs_f64() - waited);
        result
    }

    fn work(&mut self, job: StoreTask) -> Result<(), StoreError> {
        match job {
            StoreTask::Send { key, step, end } => {
                let (encoding, payload) = self.store.read(key.chunk, &self.memory)?;
                let context = LinkContext { plan: self.plan, encoding, step };
                end.frame(Frame::new(key, payload), context);
            }
            StoreTask::Gather { chunk, first, last, sum } => {
                if let Some(norm) = self.store.gather(chunk, first, last, &sum)? {
                    let _ = self.done.send(StoreTaskResult::Gathered { chunk, norm });
                }
                if self.backlog.take() {
                    let _ = self.done.send(StoreTaskResult::BacklogCleared);
                }
            }
            StoreTask::Commit(record) => self.store.commit(record),
            StoreTask::Update(chunk) => self.store.update(chunk)?,
            StoreTask::Copy { cell, step, reply } => drop(reply.send(self.store.copy(cell, step))),
            StoreTask::Snapshot(snapshot) => self.snapshot(snapshot),
        }
        Ok(())
    }

    /// Marks the chunks, so that no later update gets into the snapshot, and writes them on another thread.
    fn snapshot(&mut self, snapshot: SnapshotRequest) {
        if let Some(writer) = &self.writer {
            // A coordinator requests one snapshot at a time. Only that of a lost coordinator, or one whose storage is
            // stuck, can still be in progress. Its thread must not take chunks of the next one.
            self.store.abandon_snapshot();
            if !writer.has_ended_within(WRITER_END_TIMEOUT) {
                return self.report_failed_snapshot(snapshot, &AgentError::local(STUCK_STORAGE));
            }
        }
        let cursor = self.store.begin_snapshot(snapshot.step);
        let (store, done, ordered) = (self.store.clone(), self.done.clone(), snapshot.clone());
        let (running, ended) = channel();
        let write = move || {
            let _running: Sender<Infallible> = running;
            let report = match store.write_snapshot(cursor, &snapshot.path) {
                Ok(digests) => AgentReport::Written { snapshot: snapshot.clone(), digests },
                Err(failure) => not_written(&snapshot, &failure),
            };
            let _ = done.send(StoreTaskResult::Snapshot { snapshot, report });
        };
        match spawn("snapshot", write) {
            Ok(_) => self.writer = Some(SnapshotWriter { snapshot: ordered, ended }),
            Err(failure) => {
                self.store.abandon_snapshot();
                self.report_failed_snapshot(ordered, &failure);
            }
        }
    }

    fn report_failed_snapshot(&self, snapshot: SnapshotRequest, failure: &AgentError) {
        let report = not_written(&snapshot, failure);
        let _ = self.done.send(StoreTaskResult::Snapshot { snapshot, report });
    }
}

fn not_written(snapshot: &SnapshotRequest, failure: &AgentError) -> AgentReport {
    AgentReport::WriteFailed { snapshot: snapshot.clone(), reason: failure.message(), cause: failure.failure_cause() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_held_back_for_waiting_sums_are_given_later() {
        let backlog = SumBacklog::new(4);
        (0..4).for_each(|_| backlog.add());
        assert!(!backlog.exceeded());
        backlog.add();
        assert!(backlog.exceeded());
        let notified: Vec<bool> = (0..5).map(|_| backlog.take()).collect();
        assert_eq!(notified, [false, false, true, false, false]);
        backlog.add();
        assert!(!backlog.take(), "no grant is held back");
    }
}
