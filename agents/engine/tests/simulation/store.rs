//! The toy model's arithmetic for the product's chunk store, and the disk that snapshots are written to.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_emulator::plan::{ChunkId, StreamPlan};
use millrace_engine::chunk_store::{ChunkOps, ChunkStore, SnapshotCursor, StoreError};
use millrace_engine::message::{AgentReport, ChunkDigests, FailureCause, SnapshotRequest};
use millrace_engine::payload::Payload;
use millrace_engine::types::CommitRecord;

use crate::model::{Parameters, encode, numbers, squared_norm};

/// The chunks written by shards, by directory.
pub type Disk = BTreeMap<String, BTreeMap<ChunkId, Parameters>>;

/// The numbers of one chunk.
pub struct Numbers {
    parameters: Parameters,
    gradient: Vec<f32>,
}

/// The toy model's updates.
pub struct ToyArithmetic;

impl ChunkOps for ToyArithmetic {
    type ChunkData = Numbers;
    type SnapshotData = Parameters;

    fn update(&self, _: ChunkId, numbers: &mut Numbers, record: &CommitRecord) {
        numbers.parameters.update(&numbers.gradient, record);
    }

    fn save(&self, numbers: &mut Numbers) -> Parameters {
        numbers.parameters.clone()
    }
}

pub type ToyStore = ChunkStore<ToyArithmetic>;

/// Creates a store of chunks `shard`, `shard + shards`, ... of `state`, the parameters after `step` updates.
pub fn filled(
    plan: &StreamPlan,
    (shard, shards): (u32, u32),
    step: u64,
    state: &[Parameters],
    copies: usize,
) -> Result<ToyStore, StoreError> {
    let numbers = |chunk: ChunkId| {
        let gradient = vec![f32::NAN; plan.chunks[chunk].elements];
        (chunk as u32 % shards == shard).then(|| Numbers { parameters: state[chunk].clone(), gradient })
    };
    let store = ChunkStore::new(ToyArithmetic, (0..plan.chunks.len()).map(numbers), copies);
    store.owned_chunks().try_for_each(|chunk| store.fill(chunk, step, |_| {}))?;
    Ok(store)
}

/// Sets the parameters of a chunk, after `step` updates.
pub fn fill(store: &ToyStore, chunk: ChunkId, step: u64, parameters: Parameters) -> Result<(), StoreError> {
    store.fill(chunk, step, |numbers| numbers.parameters = parameters)
}

/// Returns the parameters of a chunk with all updates applied; `None` while no copy is free.
pub fn read_parameters(store: &ToyStore, chunk: ChunkId) -> Result<Option<Parameters>, StoreError> {
    store.read(chunk, |numbers| numbers.parameters.clone())
}

/// Returns the parameters of a chunk, which must have exactly `step` updates; `None` while no copy is free.
pub fn read_parameters_at(store: &ToyStore, chunk: ChunkId, step: u64) -> Result<Option<Parameters>, StoreError> {
    store.read_at(chunk, step, |numbers| numbers.parameters.clone())
}

/// Returns the weights to stream; `None` while no copy is free.
pub fn read(store: &ToyStore, chunk: ChunkId) -> Result<Option<Bytes>, StoreError> {
    store.read(chunk, |numbers| encode(&numbers.parameters.weights))
}

/// Adds the gradient of a use; returns the squared norm after the last one.
pub fn gather(
    store: &ToyStore,
    chunk: ChunkId,
    (first, last): (bool, bool),
    sum: &Payload,
) -> Result<Option<f64>, StoreError> {
    let sum = numbers(sum);
    store.gather(chunk, |numbers| {
        if first {
            numbers.gradient = sum;
        } else {
            numbers.gradient.iter_mut().zip(sum).for_each(|(all, one)| *all += one);
        }
        last.then(|| squared_norm(&numbers.gradient))
    })
}

/// Returns every chunk with all updates applied.
pub fn finish(store: &ToyStore) -> Result<Vec<(ChunkId, Parameters)>, String> {
    store.abandon_snapshot();
    let parameters = |chunk| {
        let read = read_parameters(store, chunk).map_err(|error| error.to_string())?;
        read.map(|parameters| (chunk, parameters)).ok_or_else(|| format!("no copy is free for chunk {chunk}"))
    };
    store.owned_chunks().map(parameters).collect()
}

/// The thread that writes a snapshot.
pub struct Writer {
    snapshot: SnapshotRequest,
    cursor: SnapshotCursor,
    digests: Vec<(ChunkId, ChunkDigests)>,
}

impl Writer {
    /// Begins a snapshot of `store`.
    pub fn new(store: &ToyStore, snapshot: SnapshotRequest) -> Self {
        Self { cursor: store.begin_snapshot(snapshot.step), snapshot, digests: Vec::new() }
    }

    /// Writes one more chunk, or fails. After the last chunk or a failure, returns the snapshot and its report. With
    /// `is_newest`, which is a planted bug, writes the chunk as it is now.
    pub fn write(
        &mut self,
        store: &ToyStore,
        disk: &mut Disk,
        fails: bool,
        is_newest: bool,
    ) -> Result<Option<(SnapshotRequest, AgentReport)>, StoreError> {
        let Some((chunk, mut parameters)) = self.cursor.next(store)? else {
            let digests = std::mem::take(&mut self.digests);
            return Ok(Some((
                self.snapshot.clone(),
                AgentReport::Written { snapshot: self.snapshot.clone(), digests },
            )));
        };
        if fails {
            store.abandon_snapshot();
            let reason = "no space is left".to_owned();
            let snapshot = self.snapshot.clone();
            return Ok(Some((
                snapshot.clone(),
                AgentReport::WriteFailed { snapshot, reason, cause: FailureCause::NoSpace },
            )));
        }
        if is_newest && let Some(newest) = read_parameters(store, chunk)? {
            parameters = newest;
        }
        self.digests.push((chunk, parameters.digests()));
        disk.entry(self.snapshot.path.clone()).or_default().insert(chunk, parameters);
        Ok(None)
    }
}
