//! The weights on the wafer. Groups are filled chunk by chunk.

use super::DeviceError;
use super::activations::RoundKind;
use super::group_layout::GroupLayout;
use crate::graph::{LayerId, NodeId, TensorId};
use crate::kernels::{Buffer, Context, PackedOperand, Simd};
use crate::packing::matrix_readers;
use crate::plan::{ChunkId, Encoding, GroupId, Pass, StreamPlan};

/// The loaded groups.
///
/// The stream of the next pass may be ahead: a chunk can arrive again before its group was used and released. Each use
/// consumes one load of every chunk. A group with matrices that are packed as they arrive is used once in each pass;
/// its first load is for the forward pass.
#[derive(Debug)]
pub(super) struct LoadedWeights {
    groups: Vec<LoadedGroup>,
    /// Loads of each chunk that are not consumed yet.
    loads: Vec<u32>,
    /// Memory of released groups, for reuse.
    free: Vec<Buffer>,
    /// Group of each tensor, and its place in the group's memory, unless it is only kept in packed form.
    tensors: Vec<(GroupId, Option<std::ops::Range<usize>>)>,
    /// Of each operator whose matrix is packed as it arrives: the group, and the number of the matrix in its layout.
    matrices: Vec<Option<(GroupId, usize)>>,
    /// Elements of a payload that can't be read in place.
    converted: Buffer,
    /// The pass that is computed.
    pass: Pass,
}

#[derive(Debug)]
struct LoadedGroup {
    layout: GroupLayout,
    /// For each pass, or for both.
    memory: [Option<Buffer>; 2],
    /// Changes whenever the content may have changed; shows whether packed copies are still valid.
    version: u64,
    /// Whether the forward pass of this round has used the group.
    is_forward_finished: bool,
}

impl LoadedGroup {
    /// Returns the pass whose memory has the weights that `pass` reads.
    fn memory_of(&self, pass: Pass) -> Pass {
        if self.layout.has_memory_by_pass() { pass } else { Pass::Forward }
    }

    fn elements(&self, pass: Pass) -> Option<&[f32]> {
        self.memory[self.memory_of(pass) as usize].as_ref().map(Buffer::as_slice)
    }
}

impl LoadedWeights {
    pub fn new(plan: &StreamPlan, simd: Simd, kinds: &[RoundKind]) -> Self {
        let mut tensors = vec![(0, None); plan.graph.tensors.len()];
        let mut matrices = vec![None; plan.graph.nodes.len()];
        let readers = matrix_readers(plan);
        let mut groups = Vec::with_capacity(plan.groups.len());
        for (id, group) in plan.groups.iter().enumerate() {
            let layout = GroupLayout::new(plan, id, &readers, simd, kinds);
            for (tensor, range) in &group.tensors {
                tensors[*tensor] = (id, layout.plain(range));
            }
            for (node, number) in layout.matrices() {
                matrices[node] = Some((id, number));
            }
            groups.push(LoadedGroup { layout, memory: [None, None], version: 0, is_forward_finished: false });
        }
        Self {
            loads: vec![0; plan.chunks.len()],
            free: Vec::with_capacity(2 * groups.len()),
            groups,
            tensors,
            matrices,
            converted: Buffer::new(),
            pass: Pass::Forward,
        }
    }

    /// Releases all groups and keeps their memory for reuse.
    pub fn clear(&mut self) {
        self.loads.fill(0);
        for group in &mut self.groups {
            group.is_forward_finished = false;
            self.free.extend(group.memory.iter_mut().filter_map(Option::take));
        }
    }

    /// Sets the pass that is computed next.
    pub fn set_pass(&mut self, pass: Pass) {
        self.pass = pass;
    }

    pub fn load(
        &mut self,
        plan: &StreamPlan,
        cx: Context<'_>,
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
        let is_for_forward = !group.is_forward_finished && self.loads[chunk] == 0;
        let pass = group.memory_of(if is_for_forward { Pass::Forward } else { Pass::Backward });
        let elements = group.layout.len(pass);
        let memory = group.memory[pass as usize].get_or_insert_with(|| take_best(&mut self.free, elements));
        group.version += 1;
        let memory = memory.as_mut_slice();
        group.layout.store(cx, pass, entry.start, (encoding, payload), memory, &mut self.converted);
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

    /// Consumes one use, in the current pass, of each of `groups` that does not stay on the wafer.
    pub fn release(&mut self, plan: &StreamPlan, groups: &[GroupId]) {
        for &id in groups.iter().filter(|&&group| !plan.is_resident(group)) {
            let loads = &mut self.loads[plan.groups[id].chunks.clone()];
            loads.iter_mut().for_each(|loads| *loads = loads.saturating_sub(1));
            let group = &mut self.groups[id];
            let pass = group.memory_of(self.pass);
            if group.layout.has_memory_by_pass() || loads.iter().all(|&loads| loads == 0) {
                self.free.extend(group.memory[pass as usize].take());
            }
            group.is_forward_finished = true;
        }
    }

    /// Returns the elements of a tensor; empty if its group is not loaded, or the tensor is only kept in packed form.
    pub fn tensor(&self, tensor: TensorId) -> &[f32] {
        let (group, place) = &self.tensors[tensor];
        let elements = place.clone().zip(self.groups[*group].elements(self.pass));
        elements.map_or(&[], |(place, memory)| &memory[place])
    }

    /// Returns whether the matrix of an operator is packed as it arrives.
    pub fn packs_matrix(&self, node: NodeId) -> bool {
        self.matrices[node].is_some()
    }

    /// Returns the packed matrix that an operator reads in its pass `operator_pass`; `None` if it is not packed as it
    /// arrives.
    pub fn packed_matrix(&self, node: NodeId, operator_pass: Pass) -> Option<PackedOperand<'_>> {
        let (group, number) = self.matrices[node]?;
        let group = &self.groups[group];
        let pack = group.layout.pack(number, self.pass, operator_pass)?;
        Some(pack.form.operand(&group.elements(self.pass)?[pack.range()]))
    }

    /// Returns which load of its group a tensor comes from.
    pub fn version(&self, tensor: TensorId) -> u64 {
        self.groups[self.tensors[tensor].0].version
    }

    pub fn bytes(&self) -> usize {
        let groups = self.groups.iter().flat_map(|group| group.memory.iter().flatten());
        groups.chain(&self.free).map(Buffer::bytes).sum::<usize>() + self.converted.bytes()
    }
}

/// Takes the smallest of `free` that can hold `elements`, otherwise the largest one, or allocates a new one if there is
/// none, and resizes it. So there are never more buffers than were in use at one time.
fn take_best(free: &mut Vec<Buffer>, elements: usize) -> Buffer {
    let capacity = |index: &usize| free[*index].capacity();
    let fitting = (0..free.len()).filter(|index| capacity(index) >= elements).min_by_key(capacity);
    let best = fitting.or_else(|| (0..free.len()).max_by_key(capacity));
    let mut buffer = best.map_or_else(Buffer::new, |index| free.swap_remove(index));
    buffer.resize(elements);
    buffer
}
