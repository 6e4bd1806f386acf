//! The chunk store of a MemoryX shard: applies updates to chunks and copies chunks for snapshots.
//!
//! A [`ChunkOps`] has the data of a chunk and computes on it; the store decides when. A committed update is *pending*
//! until its chunk is read next, and is applied then, once.
//!
//! A snapshot of step *t* can be written while step *t + 1* runs, with storage of any speed. A chunk that is not
//! written yet is copied before its next update. The number of copies is limited; while none is free, a read that needs
//! one returns `None` and has to be repeated after [`ChunkStore::wait_for_copy`].
//!
//! ```text
//! commit t          begin_snapshot(t)      commit t+1           read: copy, then update
//! ----|--------------------|-------------------|-----------------------|-----------------> store's thread
//!                          '--- next: chunk 0, chunk 1, ... each as of step t --------------> writer's thread
//! ```
//!
//! * A snapshot of step *t* holds every chunk exactly as of step *t*, or ends in an error.
//! * An update is applied once, with the gradient it was decided for.
//! * Two threads share the store: one calls [`ChunkStore::read`], [`ChunkStore::gather`], [`ChunkStore::commit`] and
//!   [`ChunkStore::begin_snapshot`]; the other writes the snapshot.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use millrace_emulator::plan::ChunkId;

use crate::message::{AgentReport, SnapshotRequest};
use crate::types::CommitRecord;

/// The data of a chunk, and the operations on it.
pub trait ChunkOps {
    /// Weights, moments and gradient of one chunk.
    type ChunkData;
    /// The part that a checkpoint stores: weights and moments.
    type SnapshotData;

    /// Applies the update of `record`, with the gathered gradient, to the weights and moments of `chunk`.
    fn update(&self, chunk: ChunkId, numbers: &mut Self::ChunkData, record: &CommitRecord);

    /// Copies the part that a checkpoint stores.
    fn save(&self, numbers: &mut Self::ChunkData) -> Self::SnapshotData;
}

/// An inconsistency of the store, or an invalid request.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The chunk belongs to another shard.
    #[error("chunk {chunk} belongs to another shard")]
    NotOwned { chunk: ChunkId },
    #[error("chunk {chunk} is at step {applied}, so the update of step {pending} can't be applied")]
    MissedUpdate {
        chunk: ChunkId,
        /// Updates applied.
        applied: u64,
        /// The pending update's step.
        pending: u64,
    },
    /// A gradient would overwrite the one that a pending update needs.
    #[error("a gradient of chunk {chunk} arrived before the update of step {pending} was applied")]
    GradientTooEarly {
        chunk: ChunkId,
        /// The pending update's step.
        pending: u64,
    },
    /// A partial sum or a copy has another length than the chunk.
    #[error("data for chunk {chunk} do not have its {elements} elements")]
    WrongLength { chunk: ChunkId, elements: usize },
    /// The chunk can't be read as of a step, for a snapshot or for another replica.
    #[error("chunk {chunk} is at step {applied}, so it can't be read as of step {step}")]
    NotAtStep {
        chunk: ChunkId,
        /// Updates applied.
        applied: u64,
        /// The requested step.
        step: u64,
    },
    /// The snapshot was abandoned, or already has the chunk.
    #[error("no snapshot requires chunk {chunk}")]
    NotInSnapshot { chunk: ChunkId },
}

/// A chunk and its state.
struct ChunkCell<A: ChunkOps> {
    numbers: A::ChunkData,
    /// Updates applied.
    applied: u64,
    /// The snapshot that still needs the chunk.
    snapshot: Option<SnapshotRequirement<A::SnapshotData>>,
}

/// The requirement of a snapshot for a chunk.
struct SnapshotRequirement<S> {
    step: u64,
    /// The chunk as of `step`, if it was updated since.
    copy: Option<S>,
}

/// The chunks of one shard; see the module documentation.
pub struct ChunkStore<A: ChunkOps> {
    ops: A,
    cells: Vec<Option<Mutex<ChunkCell<A>>>>,
    pending: RwLock<Option<CommitRecord>>,
    free_copies: Mutex<usize>,
    copy_returned: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere ends the process; no lock is released while data are half-written.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<A: ChunkOps> ChunkStore<A> {
    /// Creates a store of `numbers`, by chunk, `None` for chunks of other shards. At most `copies` chunks are copied
    /// for a snapshot at the same time. The data are those before the first update, until [`ChunkStore::fill`] is
    /// called.
    pub fn new(ops: A, numbers: impl IntoIterator<Item = Option<A::ChunkData>>, copies: usize) -> Self {
        let cell = |numbers| Mutex::new(ChunkCell { numbers, applied: 0, snapshot: None });
        Self {
            ops,
            cells: numbers.into_iter().map(|numbers| numbers.map(cell)).collect(),
            pending: RwLock::new(None),
            free_copies: Mutex::new(copies.max(1)),
            copy_returned: Condvar::new(),
        }
    }

    /// Returns the operations on chunks.
    pub const fn ops(&self) -> &A {
        &self.ops
    }

    /// Returns the chunks of this shard, in order.
    pub fn owned_chunks(&self) -> impl Iterator<Item = ChunkId> {
        self.cells.iter().enumerate().filter_map(|(chunk, cell)| cell.is_some().then_some(chunk))
    }

    /// Returns the number of copies that are free.
    pub fn free_copies(&self) -> usize {
        *lock(&self.free_copies)
    }

    fn lock_chunk(&self, chunk: ChunkId) -> Result<MutexGuard<'_, ChunkCell<A>>, StoreError> {
        self.cells.get(chunk).and_then(Option::as_ref).map(lock).ok_or(StoreError::NotOwned { chunk })
    }

    fn pending(&self) -> Option<CommitRecord> {
        *self.pending.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the data of `chunk` with `fill`; afterwards they have `step` updates applied.
    ///
    /// # Errors
    /// The chunk belongs to another shard.
    pub fn fill<T>(
        &self,
        chunk: ChunkId,
        step: u64,
        fill: impl FnOnce(&mut A::ChunkData) -> T,
    ) -> Result<T, StoreError> {
        let mut cell = self.lock_chunk(chunk)?;
        cell.applied = step;
        Ok(fill(&mut cell.numbers))
    }

    /// Reads `chunk` with all updates applied. Returns `None` if a snapshot needs a copy first and none is free: repeat
    /// the call after [`ChunkStore::wait_for_copy`].
    ///
    /// # Errors
    /// The chunk belongs to another shard, or an update was skipped.
    pub fn read<T>(&self, chunk: ChunkId, read: impl FnOnce(&mut A::ChunkData) -> T) -> Result<Option<T>, StoreError> {
        let cell = self.read_cell(chunk)?;
        Ok(cell.map(|mut cell| read(&mut cell.numbers)))
    }

    /// Reads `chunk` like [`ChunkStore::read`], if it has exactly `step` updates.
    ///
    /// # Errors
    /// Those of [`ChunkStore::read`], and if the chunk is at another step.
    pub fn read_at<T>(
        &self,
        chunk: ChunkId,
        step: u64,
        read: impl FnOnce(&mut A::ChunkData) -> T,
    ) -> Result<Option<T>, StoreError> {
        let Some(mut cell) = self.read_cell(chunk)? else { return Ok(None) };
        if cell.applied != step {
            return Err(StoreError::NotAtStep { chunk, applied: cell.applied, step });
        }
        Ok(Some(read(&mut cell.numbers)))
    }

    /// Returns `chunk` with all updates applied; `None` while it has to be copied for a snapshot and no copy is free.
    fn read_cell(&self, chunk: ChunkId) -> Result<Option<MutexGuard<'_, ChunkCell<A>>>, StoreError> {
        let mut cell = self.lock_chunk(chunk)?;
        if let Some(record) = self.pending().filter(|record| record.step > cell.applied) {
            let applied = cell.applied;
            if cell.snapshot.as_ref().is_some_and(|wanted| wanted.copy.is_none() && applied >= wanted.step) {
                if !self.acquire_copy() {
                    return Ok(None);
                }
                let copy = self.ops.save(&mut cell.numbers);
                if let Some(wanted) = &mut cell.snapshot {
                    wanted.copy = Some(copy);
                }
            }
            self.update(chunk, &mut cell, &record)?;
        }
        Ok(Some(cell))
    }

    fn update(&self, chunk: ChunkId, cell: &mut ChunkCell<A>, record: &CommitRecord) -> Result<(), StoreError> {
        if record.step != cell.applied + 1 {
            return Err(StoreError::MissedUpdate { chunk, applied: cell.applied, pending: record.step });
        }
        cell.applied = record.step;
        self.ops.update(chunk, &mut cell.numbers, record);
        Ok(())
    }

    /// Adds a sum to the gradient of `chunk` with `take`.
    ///
    /// # Errors
    /// The chunk belongs to another shard, or its gradient is still needed by a pending update.
    pub fn gather<T>(&self, chunk: ChunkId, take: impl FnOnce(&mut A::ChunkData) -> T) -> Result<T, StoreError> {
        let mut cell = self.lock_chunk(chunk)?;
        if let Some(record) = self.pending().filter(|record| record.step > cell.applied) {
            return Err(StoreError::GradientTooEarly { chunk, pending: record.step });
        }
        Ok(take(&mut cell.numbers))
    }

    /// Makes the gathered gradients the pending update of `record`.
    pub fn commit(&self, record: CommitRecord) {
        *self.pending.write().unwrap_or_else(PoisonError::into_inner) = Some(record);
    }

    /// Begins a snapshot of `step`, the newest committed step. The previous snapshot must be written or abandoned.
    pub fn begin_snapshot(&self, step: u64) -> SnapshotCursor {
        self.abandon_snapshot();
        for chunk in self.owned_chunks() {
            if let Ok(mut cell) = self.lock_chunk(chunk) {
                cell.snapshot = Some(SnapshotRequirement { step, copy: None });
            }
        }
        SnapshotCursor { chunks: self.owned_chunks().collect::<Vec<_>>().into_iter() }
    }

    /// Abandons the snapshot: updates no longer copy for it.
    pub fn abandon_snapshot(&self) {
        for chunk in self.owned_chunks() {
            let wanted = self.lock_chunk(chunk).ok().and_then(|mut cell| cell.snapshot.take());
            if wanted.is_some_and(|wanted| wanted.copy.is_some()) {
                self.release_copy();
            }
        }
    }

    /// Returns the chunk as of the snapshot's step.
    fn take_for_snapshot(&self, chunk: ChunkId) -> Result<A::SnapshotData, StoreError> {
        let mut cell = self.lock_chunk(chunk)?;
        let SnapshotRequirement { step, copy } = cell.snapshot.take().ok_or(StoreError::NotInSnapshot { chunk })?;
        if let Some(copy) = copy {
            drop(cell);
            self.release_copy();
            return Ok(copy);
        }
        // Without a copy the chunk is at the snapshot's step, or one update before it. The pending update may be that
        // one, or a later one that was committed while the snapshot is written and must not be included.
        if let Some(record) = self.pending().filter(|record| record.step > cell.applied && record.step <= step) {
            self.update(chunk, &mut cell, &record)?;
        }
        if cell.applied != step {
            return Err(StoreError::NotAtStep { chunk, applied: cell.applied, step });
        }
        Ok(self.ops.save(&mut cell.numbers))
    }

    fn acquire_copy(&self) -> bool {
        let mut free = lock(&self.free_copies);
        let taken = *free > 0;
        *free -= usize::from(taken);
        taken
    }

    fn release_copy(&self) {
        *lock(&self.free_copies) += 1;
        self.copy_returned.notify_one();
    }

    /// Waits until a copy is free, at most for `timeout`; returns whether one is. Only the thread that reads may wait,
    /// so that it can take the copy.
    pub fn wait_for_copy(&self, timeout: Duration) -> bool {
        let free = self.copy_returned.wait_timeout_while(lock(&self.free_copies), timeout, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner).0 > 0
    }
}

/// The chunks of a snapshot that are not written yet.
#[derive(Debug)]
pub struct SnapshotCursor {
    chunks: std::vec::IntoIter<ChunkId>,
}

impl SnapshotCursor {
    /// Returns the next chunk as of the snapshot's step; `None` after the last one.
    ///
    /// # Errors
    /// The chunk is not available as of that step. Abandon the snapshot with [`ChunkStore::abandon_snapshot`].
    pub fn next<A: ChunkOps>(
        &mut self,
        store: &ChunkStore<A>,
    ) -> Result<Option<(ChunkId, A::SnapshotData)>, StoreError> {
        let Some(chunk) = self.chunks.next() else { return Ok(None) };
        store.take_for_snapshot(chunk).map(|saved| Some((chunk, saved)))
    }
}

/// The most recent snapshot command and its result. The next coordinator, or the next control stream, may repeat the
/// command. The result is not reported to a coordinator that has not requested the snapshot, because its directory may
/// no longer exist.
#[derive(Debug, Default)]
pub struct SnapshotTracker {
    last: Option<TrackedSnapshot>,
}

#[derive(Debug)]
struct TrackedSnapshot {
    snapshot: SnapshotRequest,
    /// Whether it was requested on the current control stream.
    wanted: bool,
    /// The report, once the result is known.
    answer: Option<AgentReport>,
}

/// The reaction to a snapshot command.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotAction {
    /// Begin it.
    Begin,
    /// Do nothing: it is in progress.
    Wait,
    /// Report this: it is already finished.
    Report(AgentReport),
}

impl SnapshotTracker {
    /// Handles a snapshot command, which may be a repetition.
    pub fn on_snapshot_command(&mut self, snapshot: &SnapshotRequest) -> SnapshotAction {
        match &mut self.last {
            Some(last) if last.snapshot == *snapshot => {
                last.wanted = true;
                last.answer.clone().map_or(SnapshotAction::Wait, SnapshotAction::Report)
            }
            _ => {
                self.last = Some(TrackedSnapshot { snapshot: snapshot.clone(), wanted: true, answer: None });
                SnapshotAction::Begin
            }
        }
    }

    /// Records the result of a snapshot; returns the report if the current coordinator requested it.
    pub fn on_finished(&mut self, snapshot: &SnapshotRequest, report: AgentReport) -> Option<AgentReport> {
        let last = self.last.as_mut().filter(|last| last.snapshot == *snapshot)?;
        last.answer = Some(report.clone());
        last.wanted.then_some(report)
    }

    /// Handles the loss of the control stream.
    pub fn on_coordinator_lost(&mut self) {
        self.last.iter_mut().for_each(|last| last.wanted = false);
    }
}
