//! Combines tensors into groups and cuts groups into chunks.

use std::ops::Range;

use crate::graph::{Graph, LayerId, TensorId};
#[cfg(doc)]
use crate::plan::StreamPlan;
use crate::plan::{Chunk, DEFAULT_CHUNK_ELEMENTS, Encoding, Group, GroupId};

/// Chunks begin at multiples of this many elements in their group: a cache line of f32, and a multiple of every vector
/// width.
const CHUNK_ALIGNMENT_ELEMENTS: usize = 64;
/// Approximate maximum number of chunks of a plan, independent of the requested chunk size, because a plan must fit in
/// memory. Beyond 2.7e11 parameters chunks are larger than requested; see [`StreamPlan::check_streamable`].
pub(super) const MAX_CHUNKS: usize = 1 << 20;

/// The groups of a graph's tensors, not yet cut into chunks.
pub(super) struct TensorGroups {
    groups: Vec<GroupBuilder>,
    /// The groups each layer uses, in order of first use in the graph.
    pub layers: Vec<Vec<GroupId>>,
}

struct GroupBuilder {
    name: String,
    tensors: Vec<TensorId>,
    /// Layers that use the group, ascending.
    users: Vec<LayerId>,
    /// Whether the group was split off because vectors are sent in another encoding than matrices.
    vectors: bool,
    elements: usize,
}

impl TensorGroups {
    /// Groups the tensors of a valid graph that are used by the same set of layers and sent in the same encoding.
    pub fn new(graph: &Graph, encoding: Encoding) -> Self {
        let mut users: Vec<Vec<LayerId>> = vec![Vec::new(); graph.tensors.len()];
        let mut by_first_use = Vec::new();
        for layer in 0..graph.layers.len() {
            for tensor in graph.layer_tensors(layer) {
                if users[tensor].is_empty() {
                    by_first_use.push(tensor);
                }
                users[tensor].push(layer);
            }
        }
        let mut groups: Vec<GroupBuilder> = Vec::new();
        // Groups whose first user is the current layer: only these can have the same users as the next tensor.
        let mut recent = 0;
        for tensor in by_first_use {
            let users = std::mem::take(&mut users[tensor]);
            let elements = graph.tensors[tensor].elements();
            let vectors = encoding != Encoding::F32 && graph.tensors[tensor].is_vector();
            while groups.get(recent).is_some_and(|group| group.users[0] != users[0]) {
                recent += 1;
            }
            match groups[recent..].iter_mut().find(|group| group.users == users && group.vectors == vectors) {
                Some(group) => {
                    group.tensors.push(tensor);
                    group.elements += elements;
                }
                None => {
                    let name = name(graph, tensor, &users, vectors);
                    groups.push(GroupBuilder { name, tensors: vec![tensor], users, vectors, elements });
                }
            }
        }
        let layers = by_layer(&groups, graph.layers.len());
        Self { groups, layers }
    }

    /// Maps the groups to a graph whose layers were joined, layer `l` to `places[l]`. Chunks, and with them the order
    /// of every sum over chunks, do not depend on how finely a graph is cut into layers.
    pub fn joined(mut self, new_layers: &[LayerId]) -> Self {
        for group in &mut self.groups {
            group.users.iter_mut().for_each(|layer| *layer = new_layers[*layer]);
            group.users.dedup();
        }
        self.layers = by_layer(&self.groups, new_layers.last().map_or(0, |last| last + 1));
        self
    }

    /// Returns the number of elements of a group.
    pub fn elements(&self, group: GroupId) -> u64 {
        self.groups[group].elements as u64
    }

    /// Returns the groups that more than one layer uses.
    pub fn shared(&self) -> impl Iterator<Item = GroupId> {
        (0..self.groups.len()).filter(|&group| self.groups[group].users.len() > 1)
    }

    /// Returns the groups of `layer` whose weights its backward pass reads. If the layer is recomputed, these are all
    /// of its groups.
    pub fn read_backward(&self, graph: &Graph, layer: LayerId, recompute: bool) -> Vec<GroupId> {
        let mut groups = self.layers[layer].clone();
        if !recompute {
            let read: Vec<TensorId> = graph.nodes[graph.layers[layer].nodes.clone()]
                .iter()
                .flat_map(|node| {
                    let operator = node.op.operator();
                    node.params
                        .iter()
                        .enumerate()
                        .filter_map(move |(position, &id)| operator.backward_reads_param(position).then_some(id))
                })
                .collect();
            groups.retain(|&group| self.groups[group].tensors.iter().any(|tensor| read.contains(tensor)));
        }
        groups
    }

    /// Lays out the groups and cuts them into chunks of at most `maximum` elements, or into about [`MAX_CHUNKS`]
    /// chunks.
    pub fn into_chunks(self, graph: &Graph, maximum: usize) -> (Vec<Group>, Vec<Chunk>) {
        let all: usize = self.groups.iter().map(|members| members.elements).sum();
        let maximum = maximum
            .min(DEFAULT_CHUNK_ELEMENTS)
            .max(all.div_ceil(MAX_CHUNKS))
            .next_multiple_of(CHUNK_ALIGNMENT_ELEMENTS);
        let mut chunks = Vec::new();
        let groups = self.groups.into_iter().enumerate().map(|(id, members)| {
            let GroupBuilder { name, tensors, elements, .. } = members;
            let first = chunks.len();
            chunks.extend(even_pieces(elements, maximum).map(|piece| Chunk {
                group: id,
                start: piece.start,
                elements: piece.len(),
            }));
            Group { name, tensors: lay_out(graph, tensors), chunks: first..chunks.len(), elements }
        });
        (groups.collect(), chunks)
    }
}

/// Returns the groups of each of `count` layers.
fn by_layer(groups: &[GroupBuilder], count: usize) -> Vec<Vec<GroupId>> {
    let mut layers = vec![Vec::new(); count];
    for (id, group) in groups.iter().enumerate() {
        for &layer in &group.users {
            layers[layer].push(id);
        }
    }
    layers
}

/// Returns the name of a group whose first tensor is `tensor`.
fn name(graph: &Graph, tensor: TensorId, users: &[LayerId], vectors: bool) -> String {
    match users {
        [layer] if vectors => format!("{}.vectors", graph.layers[*layer].name),
        [layer] => graph.layers[*layer].name.clone(),
        _ => graph.tensors[tensor].name.clone(),
    }
}

fn lay_out(graph: &Graph, tensors: Vec<TensorId>) -> Vec<(TensorId, Range<usize>)> {
    let mut end = 0;
    let group_of = |tensor: TensorId| {
        let start = end;
        end += graph.tensors[tensor].elements();
        (tensor, start..end)
    };
    tensors.into_iter().map(group_of).collect()
}

/// Cuts `elements >= 1` elements into equal pieces of at most `maximum` (a multiple of the alignment), as few as
/// possible.
fn even_pieces(elements: usize, maximum: usize) -> impl Iterator<Item = Range<usize>> {
    let count = elements.div_ceil(maximum);
    let size = elements.div_ceil(count).next_multiple_of(CHUNK_ALIGNMENT_ELEMENTS);
    (0..elements).step_by(size).map(move |start| start..(start + size).min(elements))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_even_aligned_and_complete() {
        for elements in [
            1,
            63,
            64,
            65,
            DEFAULT_CHUNK_ELEMENTS,
            DEFAULT_CHUNK_ELEMENTS + 1,
            7 * DEFAULT_CHUNK_ELEMENTS + 12_345,
            38_597_376,
        ] {
            let pieces: Vec<_> = even_pieces(elements, DEFAULT_CHUNK_ELEMENTS).collect();
            assert_eq!(pieces.len(), elements.div_ceil(DEFAULT_CHUNK_ELEMENTS));
            assert_eq!(pieces.iter().cloned().flatten().count(), elements);
            assert!(pieces.windows(2).all(|two| two[0].end == two[1].start && two[1].start.is_multiple_of(64)));
            assert!(pieces.iter().all(|piece| piece.len() <= DEFAULT_CHUNK_ELEMENTS && !piece.is_empty()));
        }
    }
}
