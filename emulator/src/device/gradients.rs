//! Partial sums of gradients, joined along the leaf tree as blocks of leaves are computed, left to right.
//!
//! If a block is the right half of its node, its gradient is accumulated directly into the gradient of the left half.
//! Some operators do not compute all leaves of a block in one call, or do not accumulate with the bits of a separate
//! addition. Their gradients of each leaf are computed and added in temporary memory, and only the sum of the block is
//! written to its destination.

use std::ops::Range;

use crate::graph::{LayerId, TensorId};
use crate::kernels::pool::{rows, rows_mut};
use crate::kernels::{Accumulate, Buffer, Context, elementwise};
use crate::ops::execute::{MAX_PARAMS, TensorGradient};
use crate::plan::{GroupId, StreamPlan};
use crate::tree::{LeafTree, Node};

/// Elements that one thread adds at a time.
const GRAIN: usize = 1 << 14;

/// How the operators of a layer compute the gradients of its groups.
#[derive(Debug)]
pub(super) struct LayerGradients {
    groups: Vec<GroupId>,
    /// Whether no two operators of the layer use the same tensor. Otherwise the gradient of each leaf is a sum of its
    /// own, so that a block has one leaf and is not accumulated directly.
    has_one_use_per_tensor: bool,
    /// Destinations of the gradients, for each node of the layer and each of its tensors.
    tensors: Vec<[Option<TensorDestination>; MAX_PARAMS]>,
}

/// Destination of an operator's gradient of a tensor.
#[derive(Clone, Debug)]
struct TensorDestination {
    /// Position of its group in the layer.
    group: usize,
    /// Range in the group.
    range: Range<usize>,
    /// Whether an earlier step (of a later operator) has already written a gradient of this tensor.
    is_accumulated: bool,
}

impl LayerGradients {
    pub fn new(plan: &StreamPlan, layer: LayerId) -> Self {
        let groups = plan.layers[layer].groups.clone();
        let nodes = plan.graph.layers[layer].nodes.clone();
        let uses = |tensor: TensorId| {
            let all =
                nodes.clone().flat_map(|node| plan.graph.nodes[node].params.iter().map(move |&used| (node, used)));
            all.filter(move |&(_, used)| used == tensor).map(|(node, _)| node)
        };
        let slot = |node: usize, tensor: TensorId| {
            groups.iter().enumerate().find_map(|(index, &group)| {
                let (_, range) = plan.groups[group].tensors.iter().find(|(member, _)| *member == tensor)?;
                Some(TensorDestination {
                    group: index,
                    range: range.clone(),
                    is_accumulated: uses(tensor).any(|other| other > node),
                })
            })
        };
        let is_used_once = |tensor: TensorId| uses(tensor).count() == 1;
        let has_one_use_per_tensor = plan.graph.layer_tensors(layer).into_iter().all(is_used_once);
        let tensors = nodes.clone().map(|node| {
            let params = &plan.graph.nodes[node].params;
            std::array::from_fn(|index| params.get(index).and_then(|&tensor| slot(node, tensor)))
        });
        Self { has_one_use_per_tensor, tensors: tensors.collect(), groups }
    }

    /// Returns whether no two operators of the layer use the same tensor.
    pub const fn has_one_use_per_tensor(&self) -> bool {
        self.has_one_use_per_tensor
    }
}

/// A partial sum: the leaves it covers, and its index in [`PartialGradients::memory`].
#[derive(Clone, Copy, Debug)]
struct PartialSum {
    node: Node,
    memory: usize,
}

/// The sums of one group.
#[derive(Debug, Default)]
struct OpenSums {
    sums: Vec<PartialSum>,
    /// The current block: destination of its gradient, and whether the gradient is accumulated there.
    current: Option<(usize, Accumulate)>,
}

/// The partial sums of the layer whose backward pass ran last.
#[derive(Debug)]
pub(super) struct PartialGradients {
    tree: LeafTree,
    layer: Option<LayerId>,
    /// For each group of the layer.
    open: Vec<OpenSums>,
    /// Sums over leaves of the current block, of the operator that computes them one after the other: the memory of
    /// each of its tensors.
    leaf_sums: Vec<[Option<usize>; MAX_PARAMS]>,
    memory: Vec<Buffer>,
    /// Which buffers are in use.
    used: Vec<bool>,
}

impl PartialGradients {
    pub fn new(plan: &StreamPlan) -> Self {
        let maximum = plan.layers.iter().map(|layer| layer.groups.len()).max().unwrap_or(0);
        let mut open = Vec::with_capacity(maximum);
        open.resize_with(maximum, OpenSums::default);
        let (leaf_sums, memory, used) = (Vec::new(), Vec::new(), Vec::new());
        Self { tree: plan.leaves.tree(), layer: None, open, leaf_sums, memory, used }
    }

    /// Discards all sums and keeps their memory for reuse.
    pub fn clear(&mut self) {
        self.layer = None;
        self.used.fill(false);
        self.leaf_sums.clear();
        for open in &mut self.open {
            open.sums.clear();
            open.current = None;
        }
    }

    /// Begins the backward pass of `layer`.
    pub fn begin_layer(&mut self, layer: LayerId) {
        self.clear();
        self.layer = Some(layer);
    }

    /// Allocates memory for the gradients of a block, the leaves below `node`.
    pub fn begin_block(&mut self, plan: &StreamPlan, layer: &LayerGradients, node: Node) {
        let sibling = self.tree.join_of(node).map(|join| join.sibling).filter(|sibling| sibling.start < node.start);
        for (index, &group) in layer.groups.iter().enumerate() {
            let sibling = sibling.filter(|_| layer.has_one_use_per_tensor);
            let sibling = sibling.and_then(|sibling| self.find(index, sibling));
            let current = match sibling {
                Some(sum) => (self.open[index].sums[sum].memory, Accumulate::Add),
                None => (self.take(plan.groups[group].elements), Accumulate::Store),
            };
            self.open[index].current = Some(current);
        }
    }

    /// Returns memory, range and mode of the current block's gradient of an operator's tensor; `node` counts from the
    /// first node of the layer.
    fn destination(
        &self,
        layer: &LayerGradients,
        node: usize,
        param: usize,
    ) -> Option<(usize, Range<usize>, Accumulate)> {
        let slot = layer.tensors[node][param].as_ref()?;
        let (memory, accumulate) = self.open[slot.group].current?;
        let accumulate = if slot.is_accumulated { Accumulate::Add } else { accumulate };
        Some((memory, slot.range.clone(), accumulate))
    }

    /// Returns whether the current block's gradients of an operator's tensors are added to the sum of another block.
    pub fn extends_sums(&self, layer: &LayerGradients, node: usize) -> bool {
        let mut slots = layer.tensors[node].iter().flatten();
        slots.any(|slot| matches!(self.open[slot.group].current, Some((_, Accumulate::Add))))
    }

    /// Returns the memory for the current block's gradients of an operator's tensors.
    #[allow(clippy::expect_used, reason = "the plan's own ranges")]
    pub fn tensors(&mut self, layer: &LayerGradients, node: usize) -> [Option<TensorGradient<'_>>; MAX_PARAMS] {
        match (self.destination(layer, node, 0), self.destination(layer, node, 1)) {
            (None, _) => [None, None],
            (Some((memory, range, accumulate)), None) => {
                let data = &mut self.memory[memory].as_mut_slice()[range];
                [Some(TensorGradient { data, accumulate }), None]
            }
            (Some((one, first, accumulate)), Some((other, second, also))) => {
                let (a, b) = if one == other {
                    let both = self.memory[one].as_mut_slice().get_disjoint_mut([first, second]);
                    let [a, b] = both.expect("tensors of a group do not overlap");
                    (a, b)
                } else {
                    let both = self.memory.get_disjoint_mut([one, other]);
                    let [a, b] = both.expect("two groups have memory of their own");
                    (&mut a.as_mut_slice()[first], &mut b.as_mut_slice()[second])
                };
                [Some(TensorGradient { data: a, accumulate }), Some(TensorGradient { data: b, accumulate: also })]
            }
        }
    }

    /// Zeroes the gradients of an operator on whose output nothing depends.
    pub fn zero_unreached(&mut self, layer: &LayerGradients, node: usize) {
        for gradient in self.tensors(layer, node).into_iter().flatten() {
            if gradient.accumulate == Accumulate::Store {
                gradient.data.fill(0.0);
            }
        }
    }

    /// Allocates memory for one leaf's gradients of an operator's tensors.
    pub fn begin_leaf(&mut self, layer: &LayerGradients, node: usize) {
        let elements = |param: usize| Some(layer.tensors[node][param].as_ref()?.range.len());
        let memory = [elements(0), elements(1)].map(|elements| Some(self.take(elements?)));
        self.leaf_sums.push(memory);
    }

    /// Returns the memory for the current leaf's gradients of an operator's tensors.
    pub fn leaf_tensors(&mut self) -> [Option<TensorGradient<'_>>; MAX_PARAMS] {
        fn stored(memory: &mut Buffer) -> TensorGradient<'_> {
            TensorGradient { data: memory.as_mut_slice(), accumulate: Accumulate::Store }
        }
        match self.leaf_sums.last() {
            Some([Some(one), Some(other)]) => match self.memory.get_disjoint_mut([*one, *other]) {
                Ok(both) => both.map(|memory| Some(stored(memory))),
                Err(_) => [None, None],
            },
            Some([Some(one), None]) => [Some(stored(&mut self.memory[*one])), None],
            _ => [None, None],
        }
    }

    /// Joins the finished gradients of a leaf with those of the leaves before it, and after the last leaf of a block
    /// writes their sum to its destination.
    pub fn end_leaf(&mut self, cx: Context<'_>, layer: &LayerGradients, node: usize, block: Node, leaf: u32) {
        for _ in 0..block.joins_after(leaf) {
            let (Some(right), Some(left)) = (self.leaf_sums.pop(), self.leaf_sums.last().copied()) else { return };
            for (left, right) in left.into_iter().zip(right).filter_map(|(left, right)| left.zip(right)) {
                self.join(cx, (left, 0), right, Accumulate::Add);
            }
        }
        if leaf + 1 == block.end
            && let Some(sums) = self.leaf_sums.pop()
        {
            for (param, sum) in sums.into_iter().enumerate() {
                let Some((sum, destination)) = sum.zip(self.destination(layer, node, param)) else { continue };
                let (memory, range, accumulate) = destination;
                self.join(cx, (memory, range.start), sum, accumulate);
            }
        }
    }

    /// Joins the finished gradients of a block with the sums before it.
    pub fn end_block(&mut self, cx: Context<'_>, groups: usize, node: Node) {
        for index in 0..groups {
            let Some((memory, accumulate)) = self.open[index].current.take() else { continue };
            let mut sum = PartialSum { node, memory };
            if accumulate == Accumulate::Add {
                let left = self.open[index].sums.iter().position(|sum| sum.memory == memory);
                let join = self.tree.join_of(sum.node);
                if let (Some(left), Some(join)) = (left, join) {
                    self.open[index].sums.swap_remove(left);
                    sum.node = join.parent;
                }
            }
            while let Some(join) = self.tree.join_of(sum.node) {
                let Some(left) = self.find(index, join.sibling) else { break };
                let left = self.open[index].sums.swap_remove(left);
                self.join(cx, (left.memory, 0), sum.memory, Accumulate::Add);
                sum = PartialSum { node: join.parent, memory: left.memory };
            }
            self.open[index].sums.push(sum);
        }
    }

    /// Returns the sum over `node` of the gradient of `group` from its use in `layer`.
    pub fn get(&self, plan: &StreamPlan, layer: LayerId, group: GroupId, node: Node) -> Option<&[f32]> {
        if self.layer != Some(layer) {
            return None;
        }
        let index = plan.layers[layer].groups.iter().position(|&used| used == group)?;
        let sum = self.find(index, node)?;
        Some(self.memory[self.open[index].sums[sum].memory].as_slice())
    }

    pub fn bytes(&self) -> usize {
        self.memory.iter().map(Buffer::bytes).sum()
    }

    fn find(&self, group: usize, node: Node) -> Option<usize> {
        self.open[group].sums.iter().position(|sum| sum.node == node)
    }

    /// Returns the smallest unused buffer that can hold `elements`, or a new one.
    fn take(&mut self, elements: usize) -> usize {
        let free =
            (0..self.memory.len()).filter(|&index| !self.used[index] && self.memory[index].capacity() >= elements);
        let best = free.min_by_key(|&index| self.memory[index].capacity());
        let index = best.unwrap_or_else(|| {
            self.memory.push(Buffer::new());
            self.used.push(false);
            self.memory.len() - 1
        });
        self.used[index] = true;
        self.memory[index].resize(elements);
        index
    }

    /// Adds the sum in the buffer `right` to elements of the buffer `left` from the given one on, or stores it there,
    /// and releases `right`.
    fn join(&mut self, cx: Context<'_>, (left, first): (usize, usize), right: usize, accumulate: Accumulate) {
        self.used[right] = false;
        let Ok([left, right]) = self.memory.get_disjoint_mut([left, right]) else { return };
        let right = right.as_slice();
        let left = &mut left.as_mut_slice()[first..first + right.len()];
        let data = (rows_mut(left, 1), rows(right, 1));
        cx.pool.for_each_rows(right.len(), GRAIN, data, |_, (left, right)| match accumulate {
            Accumulate::Store => left.data.copy_from_slice(right.data),
            Accumulate::Add => elementwise::add_assign(cx.simd, left.data, right.data),
        });
    }
}
