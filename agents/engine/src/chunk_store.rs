//! The chunk store of a MemoryX shard: which update each chunk has, and what a snapshot still needs of it.
//!
//! The numbers, and what is computed with them, belong to an [`ChunkOps`]; the store decides when. A committed update
//! is *pending* until its chunk is next read, and is applied then, once.
//!
//! A snapshot of step *t* may be written while step *t + 1* runs, however slow the storage is. A chunk that is not yet
//! written is copied before its next update. Copies are limited in number; while none is free, a read that needs one is
//! refused and has to be repeated after [`ChunkStore::wait_for_copy`].
//!
//! ```text
//! commit t          begin_snapshot(t)      commit t+1           read: copy, then update
//! ----|--------------------|-------------------|-----------------------|-----------------> store's thread
//!                          '--- next: chunk 0, chunk 1, ... each as of step t --------------> writer's thread
//! ```
//!
//! Guarantees: a snapshot of step *t* holds every chunk exactly as of step *t*, or ends in an error; an update is
//! applied once, to the gradient it was decided for. The store is shared by two threads: one calls
//! [`ChunkStore::read`], [`ChunkStore::gather`], [`ChunkStore::commit`] and [`ChunkStore::begin_snapshot`], the other
//! writes the snapshot.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use millrace_emulator::plan::ChunkId;

use crate::message::{AgentReport, SnapshotRequest};
use crate::types::CommitRecord;

/// The numbers of a chunk, and what is done with them.
pub trait ChunkOps {
    /// Weights, moments and gradient of one chunk.
    type ChunkData;
    /// What a checkpoint keeps of them: weights and moments.
    type SnapshotData;

    /// Applies the update of `record`, with the gradient that was gathered, to the weights and moments of `chunk`.
    fn update(&self, chunk: ChunkId, numbers: &mut Self::ChunkData, record: &CommitRecord);

    /// Copies what a checkpoint keeps.
    fn save(&self, numbers: &mut Self::ChunkData) -> Self::SnapshotData;
}

/// A store whose numbers can't be trusted any more, or a caller that asks for what isn't there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The chunk belongs to another shard.
    #[error("chunk {chunk} belongs to another shard")]
    NotOwned {
        /// The chunk.
        chunk: ChunkId,
    },
    /// An update was skipped.
    #[error("chunk {chunk} has the updates up to step {applied}, so that of step {pending} can't follow")]
    MissedUpdate {
        /// The chunk.
        chunk: ChunkId,
        /// Updates applied.
        applied: u64,
        /// The pending update's step.
        pending: u64,
    },
    /// A gradient would overwrite the one that a pending update needs.
    #[error("a gradient of chunk {chunk} came before the update of step {pending} was applied")]
    GradientTooEarly {
        /// The chunk.
        chunk: ChunkId,
        /// The pending update's step.
        pending: u64,
    },
    /// The chunk can't be saved as of the snapshot's step.
    #[error("chunk {chunk} is at step {applied}, so the snapshot of step {step} can't have it")]
    NotAtStep {
        /// The chunk.
        chunk: ChunkId,
        /// Updates applied.
        applied: u64,
        /// The snapshot's step.
        step: u64,
    },
    /// The snapshot was given up, or has had the chunk already.
    #[error("no snapshot waits for chunk {chunk}")]
    NotInSnapshot {
        /// The chunk.
        chunk: ChunkId,
    },
}

/// A chunk.
struct ChunkCell<A: ChunkOps> {
    numbers: A::ChunkData,
    /// Updates applied.
    applied: u64,
    /// The snapshot that has not got the chunk yet.
    snapshot: Option<SnapshotRequirement<A::SnapshotData>>,
}

/// What a snapshot needs of a chunk.
struct SnapshotRequirement<S> {
    step: u64,
    /// The chunk as of `step`, where it has been updated since.
    copy: Option<S>,
}

/// See the module text.
pub struct ChunkStore<A: ChunkOps> {
    ops: A,
    cells: Vec<Option<Mutex<ChunkCell<A>>>>,
    pending: RwLock<Option<CommitRecord>>,
    free_copies: Mutex<usize>,
    copy_returned: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere ends the process; the numbers themselves are never half-written under a lock that is released.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<A: ChunkOps> ChunkStore<A> {
    /// A store of `numbers`, by chunk, `None` for those of other shards; at most `copies` chunks are copied at a time
    /// for a snapshot. The numbers are those before the first update until [`ChunkStore::fill`].
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

    /// What is done with the numbers.
    pub const fn ops(&self) -> &A {
        &self.ops
    }

    /// The chunks of this shard, in order.
    pub fn owned_chunks(&self) -> impl Iterator<Item = ChunkId> {
        self.cells.iter().enumerate().filter_map(|(chunk, cell)| cell.is_some().then_some(chunk))
    }

    /// Copies that could be made now.
    pub fn free_copies(&self) -> usize {
        *lock(&self.free_copies)
    }

    fn lock_chunk(&self, chunk: ChunkId) -> Result<MutexGuard<'_, ChunkCell<A>>, StoreError> {
        self.cells.get(chunk).and_then(Option::as_ref).map(lock).ok_or(StoreError::NotOwned { chunk })
    }

    fn pending(&self) -> Option<CommitRecord> {
        *self.pending.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `fill` set the numbers of `chunk`, to which `step` updates have been applied then.
    ///
    /// # Errors
    /// The chunk is another shard's.
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

    /// Reads `chunk` with all updates applied. `None` while a snapshot needs a copy first and none is free: repeat it
    /// after [`ChunkStore::wait_for_copy`].
    ///
    /// # Errors
    /// The chunk is another shard's, or has missed an update.
    pub fn read<T>(&self, chunk: ChunkId, read: impl FnOnce(&mut A::ChunkData) -> T) -> Result<Option<T>, StoreError> {
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
        Ok(Some(read(&mut cell.numbers)))
    }

    fn update(&self, chunk: ChunkId, cell: &mut ChunkCell<A>, record: &CommitRecord) -> Result<(), StoreError> {
        if record.step != cell.applied + 1 {
            return Err(StoreError::MissedUpdate { chunk, applied: cell.applied, pending: record.step });
        }
        cell.applied = record.step;
        self.ops.update(chunk, &mut cell.numbers, record);
        Ok(())
    }

    /// Lets `take` put a sum into the gradient of `chunk`.
    ///
    /// # Errors
    /// The chunk is another shard's, or still needs the gradient it has.
    pub fn gather<T>(&self, chunk: ChunkId, take: impl FnOnce(&mut A::ChunkData) -> T) -> Result<T, StoreError> {
        let mut cell = self.lock_chunk(chunk)?;
        if let Some(record) = self.pending().filter(|record| record.step > cell.applied) {
            return Err(StoreError::GradientTooEarly { chunk, pending: record.step });
        }
        Ok(take(&mut cell.numbers))
    }

    /// Makes the gathered gradients the pending update.
    pub fn commit(&self, record: CommitRecord) {
        *self.pending.write().unwrap_or_else(PoisonError::into_inner) = Some(record);
    }

    /// Begins a snapshot of `step`, which is the newest committed one; the one before it must be written or given up.
    pub fn begin_snapshot(&self, step: u64) -> SnapshotCursor {
        self.abandon_snapshot();
        for chunk in self.owned_chunks() {
            if let Ok(mut cell) = self.lock_chunk(chunk) {
                cell.snapshot = Some(SnapshotRequirement { step, copy: None });
            }
        }
        SnapshotCursor { chunks: self.owned_chunks().collect::<Vec<_>>().into_iter() }
    }

    /// Gives up a snapshot: updates need not copy for it any more.
    pub fn abandon_snapshot(&self) {
        for chunk in self.owned_chunks() {
            let wanted = self.lock_chunk(chunk).ok().and_then(|mut cell| cell.snapshot.take());
            if wanted.is_some_and(|wanted| wanted.copy.is_some()) {
                self.release_copy();
            }
        }
    }

    /// The chunk as of the snapshot's step.
    fn take_for_snapshot(&self, chunk: ChunkId) -> Result<A::SnapshotData, StoreError> {
        let mut cell = self.lock_chunk(chunk)?;
        let SnapshotRequirement { step, copy } = cell.snapshot.take().ok_or(StoreError::NotInSnapshot { chunk })?;
        if let Some(copy) = copy {
            drop(cell);
            self.release_copy();
            return Ok(copy);
        }
        // Without a copy the chunk is at the snapshot's step, or one update behind it. The pending update may be that
        // one, or a later one, committed while the snapshot is written: that one must not get into the snapshot.
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

    /// Waits until a copy could be made. Only the thread that reads may wait: it is then the one that takes the copy.
    pub fn wait_for_copy(&self) {
        let mut free = lock(&self.free_copies);
        while *free == 0 {
            free = self.copy_returned.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The chunks of a snapshot that are still to be written.
#[derive(Debug)]
pub struct SnapshotCursor {
    chunks: std::vec::IntoIter<ChunkId>,
}

impl SnapshotCursor {
    /// The next chunk as of the snapshot's step; `None` when all have been given.
    ///
    /// # Errors
    /// The chunk can't be had as of that step. The snapshot is to be given up, by [`ChunkStore::abandon_snapshot`].
    pub fn next<A: ChunkOps>(
        &mut self,
        store: &ChunkStore<A>,
    ) -> Result<Option<(ChunkId, A::SnapshotData)>, StoreError> {
        let Some(chunk) = self.chunks.next() else { return Ok(None) };
        store.take_for_snapshot(chunk).map(|saved| Some((chunk, saved)))
    }
}

/// The snapshot that was ordered last, and its answer. An order may be repeated by the next coordinator, or on the next
/// control stream; a coordinator that has not ordered a snapshot is not told of it, since its directory may be gone.
#[derive(Debug, Default)]
pub struct SnapshotTracker {
    last: Option<TrackedSnapshot>,
}

#[derive(Debug)]
struct TrackedSnapshot {
    snapshot: SnapshotRequest,
    /// Whether it was ordered on the current control stream.
    wanted: bool,
    /// What to report, once it is known.
    answer: Option<AgentReport>,
}

/// What a shard does about an order for a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotAction {
    /// Begin it.
    Begin,
    /// Nothing: it is under way.
    Wait,
    /// Report this: it is over already.
    Report(AgentReport),
}

impl SnapshotTracker {
    /// A snapshot was ordered, perhaps again.
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

    /// A snapshot is written, or can't be; returns the report where the coordinator waits for it.
    pub fn on_finished(&mut self, snapshot: &SnapshotRequest, report: AgentReport) -> Option<AgentReport> {
        let last = self.last.as_mut().filter(|last| last.snapshot == *snapshot)?;
        last.answer = Some(report.clone());
        last.wanted.then_some(report)
    }

    /// The control stream broke.
    pub fn on_coordinator_lost(&mut self) {
        self.last.iter_mut().for_each(|last| last.wanted = false);
    }
}
