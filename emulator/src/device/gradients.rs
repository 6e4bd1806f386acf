//! Partial sums of gradients, joined along the leaf tree as leaves are computed, left to right.
//!
//! If a leaf is the right half of its node, its gradient is accumulated directly into the gradient of the left half,
//! provided that this has the same bits as a separate addition. Otherwise it is computed separately and added.

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
    /// Whether a right half may be accumulated directly: every tensor is used once, by an operator whose accumulation
    /// is exact.
    direct: bool,
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
        let exact = |node: usize| {
            let node = &plan.graph.nodes[node];
            node.op.executor().is_accumulation_exact() || node.params.is_empty()
        };
        let is_used_once = |tensor: TensorId| uses(tensor).count() == 1;
        let direct = nodes.clone().all(exact) && plan.graph.layer_tensors(layer).into_iter().all(is_used_once);
        let tensors = nodes.clone().map(|node| {
            let params = &plan.graph.nodes[node].params;
            std::array::from_fn(|index| params.get(index).and_then(|&tensor| slot(node, tensor)))
        });
        Self { direct, tensors: tensors.collect(), groups }
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
    /// The current leaf: destination of its gradient, and whether the gradient is accumulated there.
    current: Option<(usize, Accumulate)>,
}

/// The partial sums of the layer whose backward pass ran last.
#[derive(Debug)]
pub(super) struct PartialGradients {
    tree: LeafTree,
    layer: Option<LayerId>,
    /// For each group of the layer.
    open: Vec<OpenSums>,
    memory: Vec<Buffer>,
    /// Which buffers are in use.
    used: Vec<bool>,
}

impl PartialGradients {
    pub fn new(plan: &StreamPlan) -> Self {
        let maximum = plan.layers.iter().map(|layer| layer.groups.len()).max().unwrap_or(0);
        let mut open = Vec::with_capacity(maximum);
        open.resize_with(maximum, OpenSums::default);
        Self { tree: plan.leaves.tree(), layer: None, open, memory: Vec::new(), used: Vec::new() }
    }

    /// Discards all sums and keeps their memory for reuse.
    pub fn clear(&mut self) {
        self.layer = None;
        self.used.fill(false);
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

    /// Allocates memory for the gradients of a leaf.
    pub fn begin_leaf(&mut self, plan: &StreamPlan, layer: &LayerGradients, leaf: u32) {
        let node = Node::new(leaf, leaf + 1);
        let sibling = self.tree.join_of(node).map(|join| join.sibling).filter(|sibling| sibling.start < leaf);
        for (index, &group) in layer.groups.iter().enumerate() {
            let sibling = sibling.filter(|_| layer.direct).and_then(|sibling| self.find(index, sibling));
            let current = match sibling {
                Some(sum) => (self.open[index].sums[sum].memory, Accumulate::Add),
                None => (self.take(plan.groups[group].elements), Accumulate::Store),
            };
            self.open[index].current = Some(current);
        }
    }

    /// Returns the memory for the gradients of one operator's tensors; `node` counts from the first node of the layer.
    #[allow(clippy::expect_used, reason = "the plan's own ranges")]
    pub fn tensors(&mut self, layer: &LayerGradients, node: usize) -> [Option<TensorGradient<'_>>; MAX_PARAMS] {
        let slot = |param: usize| {
            let slot = layer.tensors[node][param].as_ref()?;
            let (memory, accumulate) = self.open[slot.group].current?;
            let accumulate = if slot.is_accumulated { Accumulate::Add } else { accumulate };
            Some((memory, slot.range.clone(), accumulate))
        };
        match (slot(0), slot(1)) {
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

    /// Joins the finished gradients of a leaf with the sums before it.
    pub fn end_leaf(&mut self, cx: Context<'_>, groups: usize, leaf: u32) {
        for index in 0..groups {
            let Some((memory, accumulate)) = self.open[index].current.take() else { continue };
            let mut sum = PartialSum { node: Node::new(leaf, leaf + 1), memory };
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
                self.add(cx, left.memory, sum.memory);
                self.used[sum.memory] = false;
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

    fn add(&mut self, cx: Context<'_>, left: usize, right: usize) {
        let Ok([left, right]) = self.memory.get_disjoint_mut([left, right]) else { return };
        let (left, right) = (left.as_mut_slice(), right.as_slice());
        let data = (rows_mut(left, 1), rows(right, 1));
        cx.pool.for_each_rows(right.len(), GRAIN, data, |_, (left, right)| {
            elementwise::add_assign(cx.simd, left.data, right.data);
        });
    }
}
