//! The thread that works through the chunk store, and the one that writes a snapshot.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::thread::JoinHandle;

use millrace_emulator::plan::{ChunkId, PlanHash};
use millrace_engine::chunk_store::StoreError;
use millrace_engine::frame::{Frame, FrameKey};
use millrace_engine::message::{AgentReport, ParameterSource, SnapshotRequest};
use millrace_engine::payload::Payload;
use millrace_engine::types::CommitRecord;
use millrace_protocol::codec::{self, LinkContext};
use millrace_telemetry::stall::{StallClock, StallReason};
use tokio::sync::mpsc;

use super::store::Store;
use crate::failure::Failure;
use crate::links::End;

/// Work for the store's thread.
pub enum Job {
    /// Send the chunk of `key`; `step` is for the frame's header.
    Send { key: FrameKey, step: u64, end: End },
    /// See [`ShardCommand::Gather`](millrace_engine::shard::ShardCommand::Gather).
    Gather { chunk: ChunkId, first: bool, last: bool, sum: Payload },
    /// Make the gathered gradients the pending update.
    Commit(CommitRecord),
    /// Write every chunk as of the snapshot's step.
    Snapshot(SnapshotRequest),
}

/// What comes back from other threads.
pub enum Done {
    /// The whole gradient of a chunk is there.
    Gathered { chunk: ChunkId, norm: f64 },
    /// The parameters are there, or not.
    Loaded { source: ParameterSource, result: Result<(), Failure> },
    /// Tells that a snapshot is written, or not.
    Snapshot { snapshot: SnapshotRequest, report: AgentReport },
    /// The store's thread has worked off sums that grants were held back for.
    CaughtUp,
    /// The numbers can't be trusted any more.
    Failed(StoreError),
}

/// Sums that wait for the store's thread, as both threads see them.
#[derive(Debug)]
pub struct Backlog {
    /// Beyond so many sums grants are held back; at half of it they are given again.
    most: usize,
    sums: AtomicUsize,
    /// Whether the driver waits for [`Done::CaughtUp`].
    held: AtomicBool,
}

impl Backlog {
    /// Nothing waits; see [`Backlog::exceeded`] for `most`.
    pub const fn new(most: usize) -> Self {
        Self { most, sums: AtomicUsize::new(0), held: AtomicBool::new(false) }
    }

    /// A sum was given to the store's thread.
    pub fn add(&self) {
        self.sums.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether more sums wait than may. If so, [`Done::CaughtUp`] follows.
    pub fn exceeded(&self) -> bool {
        if self.sums.load(Ordering::SeqCst) <= self.most {
            return false;
        }
        self.held.store(true, Ordering::SeqCst);
        // The store's thread may have caught up meanwhile, and not have seen that grants are held.
        self.sums.load(Ordering::SeqCst) > self.most / 2 || !self.held.swap(false, Ordering::SeqCst)
    }

    /// The store's thread is done with a sum; whether the driver is to be told.
    fn take(&self) -> bool {
        let left = self.sums.fetch_sub(1, Ordering::SeqCst) - 1;
        left <= self.most / 2 && self.held.swap(false, Ordering::SeqCst)
    }
}

/// Starts a thread that may compute.
///
/// # Errors
/// The system refuses.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    let computing = move || {
        millrace_emulator::kernels::ftz::enable();
        work();
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(computing);
    spawned.map_err(|error| Failure::own(format!("can't start a thread: {error}")))
}

/// The store's thread: works in the order in which the machine decided.
pub struct StoreWorker {
    store: Arc<Store>,
    done: mpsc::UnboundedSender<Done>,
    backlog: Arc<Backlog>,
    stall: StallClock,
    plan: PlanHash,
    /// Writes the last snapshot.
    writer: Option<JoinHandle<()>>,
}

impl StoreWorker {
    /// A thread for `store`, whose results go to `done`.
    pub const fn new(
        store: Arc<Store>,
        done: mpsc::UnboundedSender<Done>,
        backlog: Arc<Backlog>,
        stall: StallClock,
        plan: PlanHash,
    ) -> Self {
        Self { store, done, backlog, stall, plan, writer: None }
    }

    /// Works until nobody can give it work any more, or the store's numbers can't be trusted any more.
    pub fn run(mut self, jobs: blocking::Receiver<Job>) {
        loop {
            let waiting = self.stall.start(StallReason::Grads);
            let Ok(job) = jobs.recv() else { return };
            drop(waiting);
            if let Err(error) = self.work(job) {
                let _ = self.done.send(Done::Failed(error));
                return;
            }
        }
    }

    fn work(&mut self, job: Job) -> Result<(), StoreError> {
        match job {
            Job::Send { key, step, end } => {
                let (encoding, payload) = self.store.read(key.chunk)?;
                let context = LinkContext { plan: self.plan, encoding, step };
                end.frame(codec::pack(Frame::new(key, payload), context));
            }
            Job::Gather { chunk, first, last, sum } => {
                if let Some(norm) = self.store.gather(chunk, first, last, &sum)? {
                    let _ = self.done.send(Done::Gathered { chunk, norm });
                }
                if self.backlog.take() {
                    let _ = self.done.send(Done::CaughtUp);
                }
            }
            Job::Commit(record) => self.store.commit(record),
            Job::Snapshot(snapshot) => self.snapshot(snapshot),
        }
        Ok(())
    }

    /// Marks the chunks, so that no later update overtakes the snapshot, and writes them on another thread.
    fn snapshot(&mut self, snapshot: SnapshotRequest) {
        if let Some(writer) = self.writer.take() {
            // Only a snapshot of a coordinator that is lost can still be written: one is under way at a time.
            self.store.abandon_snapshot();
            let _ = writer.join();
        }
        let cursor = self.store.begin_snapshot(snapshot.step);
        let (store, done, ordered) = (self.store.clone(), self.done.clone(), snapshot.clone());
        let write = move || {
            let report = match store.write_snapshot(cursor, &snapshot.path) {
                Ok(digests) => AgentReport::Written { snapshot: snapshot.clone(), digests },
                Err(failure) => not_written(&snapshot, &failure),
            };
            let _ = done.send(Done::Snapshot { snapshot, report });
        };
        match spawn("snapshot", write) {
            Ok(writer) => self.writer = Some(writer),
            Err(failure) => {
                self.store.abandon_snapshot();
                let report = not_written(&ordered, &failure);
                let _ = self.done.send(Done::Snapshot { snapshot: ordered, report });
            }
        }
    }
}

fn not_written(snapshot: &SnapshotRequest, failure: &Failure) -> AgentReport {
    AgentReport::WriteFailed { snapshot: snapshot.clone(), reason: failure.to_string(), cause: failure.kind() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_held_back_for_waiting_sums_are_given_later() {
        let backlog = Backlog::new(4);
        (0..4).for_each(|_| backlog.add());
        assert!(!backlog.exceeded());
        backlog.add();
        assert!(backlog.exceeded());
        let told: Vec<bool> = (0..5).map(|_| backlog.take()).collect();
        assert_eq!(told, [false, false, true, false, false]);
        backlog.add();
        assert!(!backlog.take(), "nobody waits");
    }
}
