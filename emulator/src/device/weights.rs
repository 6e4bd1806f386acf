//! The weights on the wafer. Groups are filled chunk by chunk.

use super::DeviceError;
use crate::graph::{LayerId, TensorId};
use crate::kernels::{Buffer, Simd, convert};
use crate::plan::{ChunkId, Encoding, GroupId, StreamPlan};

/// The loaded groups.
///
/// The stream of the next pass may be ahead: a chunk can arrive again before its group was used and released. Each use
/// consumes one load of every chunk.
#[derive(Debug)]
pub(super) struct LoadedWeights {
    groups: Vec<LoadedGroup>,
    /// Loads of each chunk that are not consumed yet.
    loads: Vec<u32>,
    /// Memory of released groups, for reuse.
    free: Vec<Buffer>,
    /// Group and range of each tensor.
    locations: Vec<(GroupId, std::ops::Range<usize>)>,
}

#[derive(Debug, Default)]
struct LoadedGroup {
    memory: Option<Buffer>,
    /// Changes whenever the content may have changed; shows whether packed copies are still valid.
    version: u64,
}

impl LoadedWeights {
    pub fn new(plan: &StreamPlan) -> Self {
        let mut locations = vec![(0, 0..0); plan.graph.tensors.len()];
        for (id, group) in plan.groups.iter().enumerate() {
            for (tensor, range) in &group.tensors {
                locations[*tensor] = (id, range.clone());
            }
        }
        Self {
            groups: plan.groups.iter().map(|_| LoadedGroup::default()).collect(),
            loads: vec![0; plan.chunks.len()],
            free: Vec::with_capacity(plan.groups.len()),
            locations,
        }
    }

    /// Releases all groups and keeps their memory for reuse.
    pub fn clear(&mut self) {
        self.loads.fill(0);
        for group in &mut self.groups {
            self.free.extend(group.memory.take());
        }
    }

    pub fn load(
        &mut self,
        plan: &StreamPlan,
        simd: Simd,
        chunk: ChunkId,
        encoding: Encoding,
        payload: &[u8],
    ) -> Result<(), DeviceError> {
        let chunks = plan.chunks.len();
        let entry = plan.chunks.get(chunk).ok_or(DeviceError::UnknownChunk { chunk, chunks })?;
        let expected = entry.elements * encoding.bytes();
        if payload.len() != expected {
            return Err(DeviceError::Payload { chunk, expected, found: payload.len() });
        }
        let group = &mut self.groups[entry.group];
        let elements = plan.groups[entry.group].elements;
        let memory = group.memory.get_or_insert_with(|| take_best(&mut self.free, elements));
        group.version += 1;
        let out = &mut memory.as_mut_slice()[plan.chunk_range(chunk)];
        match encoding {
            Encoding::F32 => convert::read_f32(simd, payload, out),
            Encoding::Bf16 => convert::read_bf16(simd, payload, out),
        }
        self.loads[chunk] += 1;
        Ok(())
    }

    /// Checks that all chunks of `groups` are loaded.
    pub fn require(&self, plan: &StreamPlan, layer: LayerId, groups: &[GroupId]) -> Result<(), DeviceError> {
        let mut chunks = groups.iter().flat_map(|&group| plan.groups[group].chunks.clone());
        match chunks.find(|&chunk| self.loads[chunk] == 0) {
            Some(chunk) => Err(DeviceError::MissingWeights { layer: plan.graph.layers[layer].name.clone(), chunk }),
            None => Ok(()),
        }
    }

    /// Consumes one use of each of `groups` that does not stay on the wafer.
    pub fn release(&mut self, plan: &StreamPlan, groups: &[GroupId]) {
        for &group in groups.iter().filter(|&&group| !plan.is_resident(group)) {
            let loads = &mut self.loads[plan.groups[group].chunks.clone()];
            loads.iter_mut().for_each(|loads| *loads = loads.saturating_sub(1));
            if loads.iter().all(|&loads| loads == 0) {
                self.free.extend(self.groups[group].memory.take());
            }
        }
    }

    /// Returns the elements of a tensor; empty if its group is not loaded.
    pub fn tensor(&self, tensor: TensorId) -> &[f32] {
        let (group, range) = &self.locations[tensor];
        self.groups[*group].memory.as_ref().map_or(&[], |memory| &memory.as_slice()[range.clone()])
    }

    /// Returns which load of its group a tensor comes from.
    pub fn version(&self, tensor: TensorId) -> u64 {
        self.groups[self.locations[tensor].0].version
    }

    pub fn bytes(&self) -> usize {
        let groups = self.groups.iter().filter_map(|group| group.memory.as_ref());
        groups.chain(&self.free).map(Buffer::bytes).sum()
    }
}

/// Takes the smallest of `free` that can hold `elements`, or allocates a new one, and resizes it.
fn take_best(free: &mut Vec<Buffer>, elements: usize) -> Buffer {
    let best =
        (0..free.len()).filter(|&index| free[index].capacity() >= elements).min_by_key(|&index| free[index].capacity());
    let mut buffer = best.map_or_else(Buffer::new, |index| free.swap_remove(index));
    buffer.resize(elements);
    buffer
}
