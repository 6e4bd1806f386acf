//! The chunk store: parameters, moments and gradients of one shard, in DRAM.
//!
//! [`millrace_engine::chunk_store`] decides when an update is applied and what a snapshot holds. This module has the
//! data: initial values, reading and writing of checkpoints, the update.
//!
//! A *cell* is what is updated at once: a chunk, or all chunks of a group if the optimizer needs whole tensors. It has
//! the number of its first chunk.

mod copy;
mod load;
mod masks;

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use millrace_checkpoint::{Moments, RangeWriter, Section};
use millrace_emulator::graph::{Tensor, TensorId};
use millrace_emulator::kernels::{Buffer, Simd, convert, elementwise};
use millrace_emulator::optimizers::{self, UpdateArrays, UpdateStep};
use millrace_emulator::placement::{self, ShardId};
use millrace_emulator::plan::{ChunkId, Encoding, StateShape};
use millrace_emulator::sparsity::SparsityMasks;
use millrace_engine::chunk_store::{self, SnapshotCursor, StoreError};
use millrace_engine::payload::{self, Payload};
use millrace_engine::payload_memory::PayloadMemory;
use millrace_engine::types::CommitRecord;
use millrace_params::TensorSettings;
use millrace_telemetry::stall::{StallClock, StallReason};

use crate::checkpoints::checkpoint_failure;
use crate::control::job::CompiledJob;
use crate::error::AgentError;
use crate::write_watch::{OngoingWrite, WriteWatch};

/// Maximum chunk copies that wait for the disk: 16 chunks of 3 MiB (2^18 elements of weights and two moments in f32).
const MAX_SNAPSHOT_COPIES: usize = 16;
/// How long an update waits for storage that accepts nothing, until the snapshot is abandoned: half of the time after
/// which the store's thread counts as stuck.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// Elements between the arrays of a chunk. If w, m, v and g are at distances that are powers of two, they evict each
/// other from the caches, and an update takes several times as long.
const ARRAY_STAGGER_ELEMENTS: usize = 272;

/// The data of a cell: w, moments, g, with [`ARRAY_STAGGER_ELEMENTS`] elements after each.
pub struct ChunkArrays {
    numbers: Buffer,
    /// Elements of each array.
    lengths: Vec<usize>,
}

impl ChunkArrays {
    /// Creates the arrays of cells, all zeros, in memory with huge pages: an update reads and writes all of them once.
    fn zeros(cells: Vec<Vec<usize>>) -> impl Iterator<Item = Self> {
        let numbers = |lengths: &Vec<usize>| lengths.iter().map(|length| length + ARRAY_STAGGER_ELEMENTS).sum();
        let memory = Buffer::in_one_memory(&cells.iter().map(numbers).collect::<Vec<usize>>());
        memory.into_iter().zip(cells).map(|(numbers, lengths)| Self { numbers, lengths })
    }

    fn array(&mut self, index: usize) -> &mut [f32] {
        let start: usize = self.lengths[..index].iter().map(|length| length + ARRAY_STAGGER_ELEMENTS).sum();
        &mut self.numbers.as_mut_slice()[start..start + self.lengths[index]]
    }

    fn arrays(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let mut rest = self.numbers.as_mut_slice();
        self.lengths.iter().map_while(move |&length| {
            let array = rest.split_off_mut(..length + ARRAY_STAGGER_ELEMENTS)?;
            array.get_mut(..length)
        })
    }
}

/// Updates and copies chunks with the optimizer of the job.
struct OptimizerOps {
    job: CompiledJob,
    simd: Simd,
    moments: Moments,
    masks: SparsityMasks,
    /// Settings of the optimizer for each tensor.
    tensor_settings: Vec<TensorSettings>,
}

impl chunk_store::ChunkOps for OptimizerOps {
    type ChunkData = ChunkArrays;
    /// Weights and moments, concatenated.
    type SnapshotData = Vec<f32>;

    fn update(&self, cell: ChunkId, numbers: &mut ChunkArrays, record: &CommitRecord) {
        let settings = self.job.optimizer();
        let optimizer = optimizers::optimizer(&settings.kind);
        let plan = &self.job.plan;
        let mask_change = self.begin_mask_change(numbers, record.step);
        let mut arrays: Vec<&mut [f32]> = numbers.arrays().collect();
        let [weights, state @ .., gradient] = arrays.as_mut_slice() else { return };
        let own_state = optimizer.state().len();
        for Piece { tensor, range, state: ranges } in self.pieces(cell) {
            if !plan.graph.tensors[tensor].trained {
                continue;
            }
            let TensorSettings { learning_rate_factor, weight_decay, group } = self.tensor_settings[tensor];
            let step = UpdateStep {
                step: record.step,
                learning_rate: f64::from(record.learning_rate) * learning_rate_factor,
                weight_decay,
                gradient_scale: if settings.maximize { -record.scale } else { record.scale },
                momentum_schedule: settings.momentum_schedule(group),
            };
            let mut state = state.iter_mut().zip(ranges).take(own_state).map(|(array, range)| &mut array[range]);
            let arrays = UpdateArrays {
                weights: &mut weights[range.clone()],
                gradient: &gradient[range],
                state: std::array::from_fn(|_| state.next().unwrap_or_default()),
                shape: &plan.graph.tensors[tensor].shape,
            };
            optimizer.update(self.simd, &step, arrays);
        }
        if let Some(change) = mask_change {
            self.change_masks(cell, numbers, &change, record.step);
        }
    }

    fn save(&self, numbers: &mut ChunkArrays) -> Vec<f32> {
        let saved = 1 + self.moments.len();
        let mut copy = Vec::with_capacity(numbers.lengths.iter().take(saved).sum());
        numbers.arrays().take(saved).for_each(|array| copy.extend_from_slice(array));
        copy
    }
}

/// A part of a tensor in a cell.
struct Piece {
    tensor: TensorId,
    /// Its elements in the arrays of weights and gradients.
    range: Range<usize>,
    /// Its elements in each array of state.
    state: Vec<Range<usize>>,
}

impl OptimizerOps {
    /// Sets the values of a chunk whose weights stay zero to zero.
    fn mask(&self, chunk: ChunkId, values: &mut [f32]) {
        if self.job.job.sparsity.is_some() {
            for (tensor, first, range) in self.job.plan.chunk_pieces(chunk) {
                self.masks.apply(self.simd, self.job.job.run.seed, tensor, first, &mut values[range]);
            }
        }
    }

    /// Sets the gradient of tensors that are not trained to zero.
    fn clear_untrained(&self, chunk: ChunkId, gradient: &mut [f32]) {
        let tensors = &self.job.plan.graph.tensors;
        for (tensor, _, range) in self.job.plan.chunk_pieces(chunk) {
            if !tensors[tensor].trained {
                gradient[range].fill(0.0);
            }
        }
    }

    /// Returns the cell that has a chunk: the first of the chunks that are updated together.
    fn cell_of(&self, chunk: ChunkId) -> ChunkId {
        self.job.plan.chunks_updated_with(chunk).start
    }

    /// Returns the elements of a chunk in the weights of its cell.
    fn range_in_cell(&self, chunk: ChunkId) -> Range<usize> {
        let range = self.job.plan.chunk_range(chunk);
        let first = self.job.plan.chunks[self.cell_of(chunk)].start;
        range.start - first..range.end - first
    }

    /// Returns the elements of a chunk's section in the array of its cell. State of rows or columns belongs to the
    /// first chunk of a group.
    fn section_range(&self, moments: &Moments, chunk: ChunkId, section: Section) -> Range<usize> {
        match moments.shape(section) {
            StateShape::Full => self.range_in_cell(chunk),
            shape => {
                let elements = self.state_elements(chunk, shape);
                if chunk == self.cell_of(chunk) { 0..elements } else { elements..elements }
            }
        }
    }

    /// Returns the elements of this shape that the group of a chunk has.
    fn state_elements(&self, chunk: ChunkId, shape: StateShape) -> usize {
        let plan = &self.job.plan;
        plan.groups[plan.chunks[chunk].group].state_elements(&plan.graph, shape)
    }

    /// Returns the length of each array of a cell: weights, moments, gradient.
    fn lengths(&self, cell: ChunkId) -> Vec<usize> {
        let plan = &self.job.plan;
        let weights = plan.chunks_updated_with(cell).map(|chunk| plan.chunks[chunk].elements).sum();
        let moment = |section| match self.moments.shape(section) {
            StateShape::Full => weights,
            shape => self.state_elements(cell, shape),
        };
        self.moments.sections().map(moment).chain([weights]).collect()
    }

    /// Returns the parts of tensors in a cell: whole tensors if the optimizer needs them.
    fn pieces(&self, cell: ChunkId) -> Vec<Piece> {
        let plan = &self.job.plan;
        let Some(shapes) = &plan.whole_tensor_state else {
            let moments = self.moments.len();
            let piece = |(tensor, _, range): (TensorId, usize, Range<usize>)| Piece {
                tensor,
                state: vec![range.clone(); moments],
                range,
            };
            return plan.chunk_pieces(cell).into_iter().map(piece).collect();
        };
        let group = &plan.groups[plan.chunks[cell].group];
        let ranges: Vec<_> = shapes.iter().map(|&shape| group.state_tensors(&plan.graph, shape)).collect();
        let tensors = group.tensors.iter().enumerate();
        let piece = |(index, (tensor, range)): (usize, &(TensorId, Range<usize>))| Piece {
            tensor: *tensor,
            range: range.clone(),
            state: ranges.iter().map(|tensors| tensors[index].1.clone()).collect(),
        };
        tensors.map(piece).collect()
    }
}

/// The chunk store of one shard; see the module documentation.
pub struct ShardStore {
    chunks: chunk_store::ChunkStore<OptimizerOps>,
    stall: StallClock,
    snapshot_timeout: Duration,
    /// Whether the snapshot was abandoned because its storage accepted nothing.
    is_storage_stuck: AtomicBool,
    /// The write of the snapshot that is in progress.
    writes: WriteWatch,
}

impl ShardStore {
    /// Allocates the chunks of shard `id` of `shards`, zeroed.
    ///
    /// # Errors
    /// This machine lacks the job's instruction set.
    pub fn new(job: CompiledJob, id: ShardId, shards: u32, stall: StallClock) -> Result<Self, AgentError> {
        let simd = Simd::new(job.profile.isa).map_err(AgentError::local)?;
        let moments = job.moments();
        let plan = job.plan.clone();
        let owners = placement::group_owners(&plan, shards);
        let is_owned = |chunk: ChunkId| placement::owner_of_chunk(&owners, shards, chunk) == id;
        let mut masks = SparsityMasks::new(&job.job, &plan.graph).map_err(AgentError::local)?;
        let owned = (0..plan.chunks.len()).filter(|chunk| is_owned(*chunk));
        let tensors = owned.flat_map(|chunk| plan.chunk_pieces(chunk)).map(|(tensor, _, _)| tensor);
        masks.find_bounds(job.job.run.seed, tensors);
        let settings = |tensor: &Tensor| job.optimizer().tensor_settings(&tensor.name, tensor.role.decays());
        let tensor_settings = plan.graph.tensors.iter().map(settings).collect();
        let arithmetic = OptimizerOps { job, simd, moments, masks, tensor_settings };
        let is_cell = |chunk: &ChunkId| is_owned(*chunk) && arithmetic.cell_of(*chunk) == *chunk;
        let lengths = (0..plan.chunks.len()).filter(is_cell).map(|chunk| arithmetic.lengths(chunk)).collect();
        let mut arrays = ChunkArrays::zeros(lengths);
        let cells: Vec<_> =
            (0..plan.chunks.len()).map(|chunk| is_cell(&chunk).then(|| arrays.next()).flatten()).collect();
        let largest = (0..plan.chunks.len()).map(|chunk| plan.chunks_updated_with(chunk).len()).max().unwrap_or(1);
        let copies = (MAX_SNAPSHOT_COPIES / largest.max(1)).max(1);
        Ok(Self {
            chunks: chunk_store::ChunkStore::new(arithmetic, cells, copies),
            stall,
            snapshot_timeout: SNAPSHOT_TIMEOUT,
            is_storage_stuck: AtomicBool::new(false),
            writes: WriteWatch::default(),
        })
    }

    /// Returns the number of elements of a chunk.
    pub fn elements(&self, chunk: ChunkId) -> u64 {
        self.ops().job.plan.chunks.get(chunk).map_or(0, |chunk| chunk.elements as u64)
    }

    fn ops(&self) -> &OptimizerOps {
        self.chunks.ops()
    }

    /// Adds the sum of one use of `chunk` to its gradient; the first use replaces the previous gradient. Returns the
    /// squared norm of the gradient after the last use; `None` before.
    ///
    /// # Errors
    /// The chunk belongs to another shard, its gradient is still needed by a pending update, or the sum has another
    /// length than the chunk.
    pub fn gather(&self, chunk: ChunkId, first: bool, last: bool, sum: &Payload) -> Result<Option<f64>, StoreError> {
        let ops = self.ops();
        let OptimizerOps { simd, moments, .. } = ops;
        self.chunks.gather(ops.cell_of(chunk), |numbers| {
            let range = ops.range_in_cell(chunk);
            let gradient = &mut numbers.array(1 + moments.len())[range.clone()];
            let elements = gradient.len();
            take_sum(*simd, sum, first, gradient).ok_or(StoreError::WrongLength { chunk, elements })?;
            if !last {
                return Ok(None);
            }
            ops.clear_untrained(chunk, gradient);
            if ops.masks_change() {
                return Ok(Some(elementwise::squared_norm(*simd, &ops.masked_gradient(numbers, range))));
            }
            ops.mask(chunk, gradient);
            Ok(Some(elementwise::squared_norm(*simd, gradient)))
        })?
    }

    /// Makes the gathered gradients the pending update.
    pub fn commit(&self, record: CommitRecord) {
        self.chunks.commit(record);
    }

    /// Returns the encoded current weights of the chunk, created in `memory`. Blocks while a snapshot needs a copy of
    /// the chunk and none is free.
    ///
    /// # Errors
    /// The chunk belongs to another shard, or an update was skipped.
    pub fn read(&self, chunk: ChunkId, memory: &dyn PayloadMemory) -> Result<(Encoding, Bytes), StoreError> {
        let ops = self.ops();
        let OptimizerOps { job, simd, .. } = ops;
        let encoding = job.plan.chunk_encoding(chunk);
        let (cell, range) = (ops.cell_of(chunk), ops.range_in_cell(chunk));
        let bytes = self.wait_for_copies(|| {
            self.chunks.read(cell, |numbers| {
                let weights = &numbers.array(0)[range.clone()];
                memory.create(encoding.bytes() * weights.len(), &mut |out| match encoding {
                    Encoding::F32 => out.put_f32(weights),
                    Encoding::Bf16 => convert::put_bf16(*simd, weights, |bytes| out.put(bytes)),
                })
            })
        })?;
        Ok((encoding, bytes))
    }

    /// Applies the pending update of `chunk`, if there is one. Blocks like [`ShardStore::read`].
    ///
    /// # Errors
    /// Those of [`ShardStore::read`].
    pub fn update(&self, chunk: ChunkId) -> Result<(), StoreError> {
        let cell = self.ops().cell_of(chunk);
        self.wait_for_copies(|| self.chunks.read(cell, |_| ()))
    }

    /// Repeats `read` until a snapshot has a free copy for it. Abandons a snapshot whose storage accepts nothing, so
    /// that training continues; see [`ShardStore::take_storage_stuck`].
    fn wait_for_copies<T>(&self, read: impl Fn() -> Result<Option<T>, StoreError>) -> Result<T, StoreError> {
        loop {
            if let Some(value) = read()? {
                return Ok(value);
            }
            let _waiting = self.stall.start(StallReason::Snapshot);
            if !self.chunks.wait_for_copy(self.snapshot_timeout) {
                self.is_storage_stuck.store(true, Ordering::Relaxed);
                self.abandon_snapshot();
            }
        }
    }

    /// Returns whether the snapshot was abandoned since the last call, because its storage accepted nothing.
    pub fn take_storage_stuck(&self) -> bool {
        self.is_storage_stuck.swap(false, Ordering::Relaxed)
    }

    /// Marks every chunk for a snapshot of `step`. Must be called before the next iteration is opened.
    pub fn begin_snapshot(&self, step: u64) -> SnapshotCursor {
        self.chunks.begin_snapshot(step)
    }

    /// Writes every chunk of the snapshot, while training continues. Blocks. Abandons the snapshot on failure.
    ///
    /// # Errors
    /// The disk is full or a write failed.
    pub fn write_snapshot(&self, cursor: SnapshotCursor, path: &str) -> Result<ChunkDigestList, AgentError> {
        self.write_chunks(cursor, path).inspect_err(|_| self.abandon_snapshot())
    }

    fn write_chunks(&self, mut cursor: SnapshotCursor, path: &str) -> Result<ChunkDigestList, AgentError> {
        let failed = checkpoint_failure;
        let ops = self.ops();
        let OptimizerOps { job, moments, .. } = ops;
        let directory = Path::new(path);
        let open = || RangeWriter::open(path, &job.plan, moments);
        let mut writer = self.writes.watch(directory, open).map_err(failed)?;
        let mut digests = Vec::new();
        while let Some((cell, numbers)) = cursor.next(&self.chunks).map_err(AgentError::local)? {
            let lengths = ops.lengths(cell);
            for chunk in job.plan.chunks_updated_with(cell) {
                let mut of_chunk = Vec::with_capacity(1 + moments.len());
                let mut rest = numbers.as_slice();
                for (section, length) in moments.sections().zip(&lengths) {
                    let (values, others) = rest.split_at(*length);
                    let values = &values[ops.section_range(moments, chunk, section)];
                    let written = self.writes.watch(directory, || writer.write_chunk(chunk, section, values));
                    of_chunk.push(written.map_err(failed)?.0);
                    rest = others;
                }
                digests.push((chunk, of_chunk));
            }
        }
        self.writes.watch(directory, || writer.finish()).map_err(failed)?;
        Ok(digests)
    }

    /// Returns the write of a snapshot that is in progress; of an abandoned one, too, until the storage responds.
    pub fn ongoing_write(&self) -> Option<OngoingWrite> {
        self.writes.ongoing()
    }

    /// Abandons the snapshot: updates no longer copy for it.
    pub fn abandon_snapshot(&self) {
        self.chunks.abandon_snapshot();
    }
}

/// Digests of each owned chunk: parameters, then moments.
pub type ChunkDigestList = Vec<(ChunkId, Vec<[u8; 32]>)>;

/// Sets `gradient = sum`, or adds it after the first use; returns `None` if the lengths differ.
fn take_sum(simd: Simd, sum: &Payload, first: bool, gradient: &mut [f32]) -> Option<()> {
    let take = if first { convert::read_f32 } else { convert::add_f32 };
    match sum {
        _ if !sum.has_elements(gradient.len()) => return None,
        Payload::Dense(sum) => take(simd, sum, gradient),
        Payload::Sparse(sum) => {
            let spans = gradient.chunks_mut(payload::SPARSE_BLOCK_ELEMENTS).zip(sum.blocks());
            spans.for_each(|(gradient, span)| take(simd, span, gradient));
        }
    }
    Some(())
}

#[cfg(test)]
mod tests;
