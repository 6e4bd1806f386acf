//! A toy chunk store: one-pass updates just ahead of the next stream, and snapshots while training goes on.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_emulator::plan::{ChunkId, StreamPlan};
use millrace_engine::message::{ChunkDigests, Snapshot};
use millrace_engine::payload::Payload;
use millrace_engine::types::CommitRecord;

use crate::model::{Parameters, encode, numbers, squared_norm};

/// What shards have written, by directory.
pub type Disk = BTreeMap<String, BTreeMap<ChunkId, Parameters>>;

/// What is reported of a snapshot: its step, and each chunk's digests.
pub type Written = (u64, Vec<(ChunkId, ChunkDigests)>);

struct Held {
    parameters: Parameters,
    /// Updates applied.
    applied: u64,
    gradient: Vec<f32>,
}

/// A snapshot under way, or the last one.
struct Writing {
    snapshot: Snapshot,
    /// Not written yet; those updated meanwhile with their old parameters.
    left: BTreeMap<ChunkId, Option<Parameters>>,
    digests: Vec<(ChunkId, ChunkDigests)>,
    /// Whether the control stream of now has ordered it and got no answer.
    wanted: bool,
}

/// The chunks of one shard.
pub struct Store {
    chunks: BTreeMap<ChunkId, Held>,
    committed: u64,
    writing: Option<Writing>,
    /// Every commit since the parameters were loaded.
    pub commits: Vec<CommitRecord>,
}

impl Store {
    /// Chunks `shard`, `shard + shards`, ... of `state`, the parameters after `step` updates.
    pub fn new(plan: &StreamPlan, shard: u32, shards: u32, step: u64, state: &[Parameters]) -> Self {
        let own = (0..plan.chunks.len()).filter(|chunk| *chunk as u32 % shards == shard);
        let held = |chunk: ChunkId| Held {
            parameters: state[chunk].clone(),
            applied: step,
            gradient: vec![f32::NAN; plan.chunks[chunk].elements],
        };
        let chunks = own.map(|chunk| (chunk, held(chunk))).collect();
        Self { chunks, committed: step, writing: None, commits: Vec::new() }
    }

    fn chunk(&mut self, chunk: ChunkId) -> Result<&mut Held, String> {
        self.chunks.get_mut(&chunk).ok_or_else(|| format!("chunk {chunk} is another shard's"))
    }

    /// Applies the pending update of `chunk`, if there is one; a snapshot keeps what it still needs.
    fn settle(&mut self, chunk: ChunkId) -> Result<&mut Held, String> {
        let (commit, committed) = (self.commits.last().copied(), self.committed);
        let Some(held) = self.chunks.get_mut(&chunk) else { return Err(format!("chunk {chunk} is another shard's")) };
        if held.applied == committed {
            return Ok(held);
        }
        let commit = commit.filter(|commit| commit.step == held.applied + 1 && commit.step == committed);
        let commit = commit.ok_or_else(|| format!("chunk {chunk} missed an update after {}", held.applied))?;
        if let Some(left) = self.writing.as_mut().filter(|writing| writing.snapshot.step == held.applied)
            && let Some(copy) = left.left.get_mut(&chunk)
        {
            *copy = Some(held.parameters.clone());
        }
        held.parameters.update(&held.gradient, &commit);
        held.applied = committed;
        Ok(held)
    }

    /// Weights to be streamed.
    pub fn read(&mut self, chunk: ChunkId) -> Result<Bytes, String> {
        Ok(encode(&self.settle(chunk)?.parameters.weights))
    }

    /// Adds a use's gradient; after the last the squared norm.
    pub fn gather(&mut self, chunk: ChunkId, first: bool, last: bool, sum: &Payload) -> Result<Option<f64>, String> {
        let committed = self.committed;
        let held = self.chunk(chunk)?;
        if held.applied != committed {
            return Err(format!("the gradient of chunk {chunk} came before its update was applied"));
        }
        let sum = numbers(sum);
        if first {
            held.gradient = sum;
        } else {
            held.gradient.iter_mut().zip(sum).for_each(|(all, one)| *all += one);
        }
        Ok(last.then(|| squared_norm(&held.gradient)))
    }

    /// Makes the gathered gradients the pending update.
    pub fn commit(&mut self, commit: CommitRecord) -> Result<(), String> {
        if let Some((chunk, _)) = self.chunks.iter().find(|(_, held)| held.applied != self.committed) {
            return Err(format!("step {} is committed, but chunk {chunk} missed the update before", commit.step));
        }
        self.committed = commit.step;
        self.commits.push(commit);
        Ok(())
    }

    /// The control stream broke: speak of no snapshot until it is ordered again.
    pub fn hush(&mut self) {
        self.writing.iter_mut().for_each(|writing| writing.wanted = false);
    }

    /// A snapshot is ordered, perhaps again.
    pub fn snapshot(&mut self, snapshot: Snapshot) -> Result<(), String> {
        if let Some(writing) = self.writing.as_mut().filter(|writing| writing.snapshot == snapshot) {
            writing.wanted = true;
            return Ok(());
        }
        if snapshot.step != self.committed {
            return Err(format!("a snapshot of step {} is ordered at step {}", snapshot.step, self.committed));
        }
        let left = self.chunks.keys().map(|&chunk| (chunk, None)).collect();
        self.writing = Some(Writing { snapshot, left, digests: Vec::new(), wanted: true });
        Ok(())
    }

    /// Whether a snapshot has something to write or to answer.
    pub fn is_writing(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.wanted)
    }

    /// Writes one more chunk; the answer once all are written.
    pub fn write(&mut self, disk: &mut Disk) -> Result<Option<Written>, String> {
        let Some(writing) = &mut self.writing else { return Ok(None) };
        let (step, path) = (writing.snapshot.step, writing.snapshot.path.clone());
        let Some((chunk, copy)) = writing.left.pop_first() else {
            writing.wanted = false;
            return Ok(Some((step, writing.digests.clone())));
        };
        let parameters = match copy {
            Some(copy) => copy,
            // The pending update may be one that the snapshot has, or already the next.
            None => {
                let held = if self.chunk(chunk)?.applied < step { self.settle(chunk)? } else { self.chunk(chunk)? };
                if held.applied != step {
                    return Err(format!("chunk {chunk} is at {} but the snapshot at {step}", held.applied));
                }
                held.parameters.clone()
            }
        };
        if let Some(writing) = &mut self.writing {
            writing.digests.push((chunk, parameters.digests()));
        }
        disk.entry(path).or_default().insert(chunk, parameters);
        Ok(None)
    }

    /// Every chunk with all updates applied.
    pub fn finish(&mut self) -> Result<Vec<(ChunkId, Parameters)>, String> {
        let chunks: Vec<ChunkId> = self.chunks.keys().copied().collect();
        chunks.into_iter().map(|chunk| Ok((chunk, self.settle(chunk)?.parameters.clone()))).collect()
    }
}
