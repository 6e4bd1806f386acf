//! The thread that works through the chunk store, and the one that writes a snapshot.

use std::sync::{Arc, mpsc as blocking};
use std::thread::JoinHandle;

use millrace_emulator::plan::{ChunkId, PlanHash};
use millrace_engine::frame::{Frame, Place};
use millrace_engine::message::{Report, Snapshot, Source};
use millrace_engine::payload::Payload;
use millrace_engine::store::StoreError;
use millrace_engine::types::CommitRecord;
use millrace_protocol::codec::{self, LinkContext};
use millrace_telemetry::stall::{StallClock, StallReason};
use tokio::sync::mpsc;

use super::store::Store;
use crate::failure::Failure;
use crate::links::End;

/// Work for the store's thread.
pub enum Job {
    /// Send the chunk at `place`; `step` is for the frame's header.
    Send { place: Place, step: u64, end: End },
    /// See [`Command::Gather`](millrace_engine::shard::Command::Gather).
    Gather { chunk: ChunkId, first: bool, last: bool, sum: Payload },
    /// Make the gathered gradients the pending update.
    Commit(CommitRecord),
    /// Write every chunk as of the snapshot's step.
    Snapshot(Snapshot),
}

/// What comes back from other threads.
pub enum Done {
    /// The whole gradient of a chunk is there.
    Gathered { chunk: ChunkId, norm: f64 },
    /// The parameters are there, or not.
    Loaded { source: Source, result: Result<(), Failure> },
    /// Tells that a snapshot is written, or not.
    Snapshot { snapshot: Snapshot, report: Report },
    /// The numbers can't be trusted any more.
    Failed(StoreError),
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
    stall: StallClock,
    plan: PlanHash,
    /// Writes the last snapshot.
    writer: Option<JoinHandle<()>>,
}

impl StoreWorker {
    /// A thread for `store`, whose results go to `done`.
    pub const fn new(store: Arc<Store>, done: mpsc::UnboundedSender<Done>, stall: StallClock, plan: PlanHash) -> Self {
        Self { store, done, stall, plan, writer: None }
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
            Job::Send { place, step, end } => {
                let (encoding, payload) = self.store.read(place.chunk)?;
                let context = LinkContext { plan: self.plan, encoding, step };
                end.frame(codec::pack(Frame::new(place, payload), context));
            }
            Job::Gather { chunk, first, last, sum } => {
                if let Some(norm) = self.store.gather(chunk, first, last, &sum)? {
                    let _ = self.done.send(Done::Gathered { chunk, norm });
                }
            }
            Job::Commit(record) => self.store.commit(record),
            Job::Snapshot(snapshot) => self.snapshot(snapshot),
        }
        Ok(())
    }

    /// Marks the chunks, so that no later update overtakes the snapshot, and writes them on another thread.
    fn snapshot(&mut self, snapshot: Snapshot) {
        if let Some(writer) = self.writer.take() {
            // Only a snapshot of a coordinator that is lost can still be written: one is under way at a time.
            let _ = writer.join();
        }
        let cursor = self.store.begin_snapshot(snapshot.step);
        let (store, done, ordered) = (self.store.clone(), self.done.clone(), snapshot.clone());
        let write = move || {
            let report = match store.write_snapshot(cursor, &snapshot.path) {
                Ok(digests) => Report::Written { step: snapshot.step, digests },
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

fn not_written(snapshot: &Snapshot, failure: &Failure) -> Report {
    Report::NotWritten { step: snapshot.step, reason: failure.to_string(), cause: failure.kind() }
}
