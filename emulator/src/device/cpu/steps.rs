//! Executes the steps of a pass for one block of leaves.

use std::ops::Range;
use std::time::Instant;

use super::Scratch;
use super::operators::OperatorTable;
use crate::device::DeviceError;
use crate::device::activations::{LeafBlock, RoundKind};
use crate::device::gradients::{LayerGradients, PartialGradients};
use crate::device::packs::{PackedWeights, tensors};
use crate::device::samples::RoundSamples;
use crate::device::weights::LoadedWeights;
use crate::graph::{LayerId, NodeId};
use crate::kernels::loss::LossSums;
use crate::kernels::pool::{rows, rows_mut};
use crate::kernels::{Accumulate, Context, Simd, elementwise};
use crate::numerics::random;
use crate::ops::execute::{self, MAX_INPUTS, NodeShape, OperatorContext, OperatorInput, TargetMut};
use crate::plan::{LeafLayout, Pass, StreamPlan};
use crate::schedule::{BackwardStep, ForwardStep, GradientTarget, InputSource, Step, StorageId};

/// Elements that one thread copies or adds at a time.
const GRAIN_ELEMENTS: usize = 1 << 14;

/// Parts of a device, borrowed for one block of leaves.
pub(super) struct StepRunner<'a> {
    pub round: Round<'a>,
    pub layer: LayerId,
    pub block: LeafBlock,
    pub operators: &'a OperatorTable,
    pub layer_gradients: &'a LayerGradients,
    pub arena: &'a mut [f32],
    pub weights: &'a LoadedWeights,
    pub packs: &'a PackedWeights,
    pub gradients: &'a mut PartialGradients,
    pub scratch: &'a mut Scratch,
    /// The sums of the losses of each leaf of the round.
    pub loss_sums: &'a mut [LeafSums],
    /// For each leaf of the round: the sums of its metrics. Empty once its forward pass has been reported.
    pub metrics: &'a mut [Vec<f64>],
    pub times: &'a mut [super::OperatorTime],
    /// The first integer of the pass that is outside the table that it indexes.
    pub fault: &'a mut Option<DeviceError>,
}

/// Parts of a device that do not change during a round.
#[derive(Clone, Copy)]
pub(super) struct Round<'a> {
    pub cx: Context<'a>,
    pub plan: &'a StreamPlan,
    pub kind: &'a RoundKind,
    pub samples: &'a RoundSamples,
    pub training: bool,
    pub seed: u64,
}

impl Round<'_> {
    /// Returns the context of an operator for some leaves, in this memory.
    fn operator_context<'s>(&self, node: NodeId, leaves: &Range<usize>, scratch: &'s mut Scratch) -> OperatorContext<'s>
    where
        Self: 's,
    {
        let Self { cx, plan, kind, samples, training, seed } = *self;
        let count = kind.leaves.samples;
        scratch.keys.clear();
        if training {
            let drawing_node = plan.graph.nodes[node].draws_as.unwrap_or(node);
            let samples = samples.leaves[leaves.clone()]
                .iter()
                .flat_map(|leaf| (0..count).map(|sample| leaf.first_sample.wrapping_add(u64::from(sample))));
            scratch.keys.extend(samples.map(|sample| random::key(seed, sample, drawing_node as u64)));
        }
        let (leaves, samples) = (leaves.len(), count as usize * leaves.len());
        scratch.sums.clear();
        scratch.sums.resize(leaves, LossSums::default());
        let Scratch { products, attention, rotary, keys, loss, order, sums } = scratch;
        let metric = &mut [];
        OperatorContext { cx, training, leaves, samples, keys, products, attention, rotary, loss, order, sums, metric }
    }
}

/// Sums of the losses of a leaf.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeafSums {
    /// Sum of all losses, each times its factor.
    pub loss: f64,
    /// Those of the main loss, which is the last one.
    pub main: LossSums,
    /// Those of all others.
    pub other: LossSums,
}

impl LeafSums {
    /// Adds the next loss of the graph.
    fn add(&mut self, sums: LossSums) {
        self.loss += sums.loss;
        self.other += std::mem::replace(&mut self.main, sums);
    }
}

/// The part of a backward step that one call of its operator computes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BackwardPart {
    Whole,
    /// The gradients of tensors, which read the input.
    Tensors,
    /// The gradient of the input, which overwrites the input.
    ReplacedInput,
}

/// Memory to which the gradients of an operator's tensors are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TensorDestinations {
    /// That of the block.
    Block,
    /// Memory for one leaf.
    Leaf,
}

impl StepRunner<'_> {
    /// Executes all steps of a pass.
    pub fn run(mut self, pass: Pass) {
        let (kind, layer, node) = (self.round.kind, self.layer, self.block.node);
        if pass == Pass::Backward {
            self.gradients.begin_block(self.round.plan, self.layer_gradients, node);
        }
        for step in kind.steps(pass, layer) {
            self.step(step);
        }
        if pass == Pass::Backward {
            self.gradients.end_block(self.round.cx, self.round.plan.layers[layer].groups.len(), node);
        }
    }

    fn step(&mut self, step: &Step) {
        let start = Instant::now();
        match step {
            Step::Forward(step) => {
                self.calls(step.node, &step.inputs).for_each(|leaves| self.forward(step, leaves));
                self.times[self.operators.kinds[step.node]].forward += start.elapsed();
            }
            Step::Backward(step) => {
                self.backward(step);
                self.times[self.operators.kinds[step.node]].backward += start.elapsed();
            }
            Step::Unreached(node) => {
                self.gradients.zero_unreached(self.layer_gradients, self.position_in_layer(*node));
            }
            Step::Copy { from, to } => self.join(*from, *to, |_, from, to| to.copy_from_slice(from)),
            Step::Add { from, to } => self.join(*from, *to, |simd, from, to| elementwise::add_assign(simd, to, from)),
        }
    }

    /// Returns the leaves of each call of an operator: those of the block together, or one after the other.
    fn calls(&self, node: NodeId, inputs: &[InputSource]) -> impl Iterator<Item = Range<usize>> + use<> {
        let leaves = self.block.leaves.clone();
        let has_constant = inputs.iter().any(|input| matches!(input, InputSource::Constant(_)));
        let spans = self.round.plan.graph.nodes[node].op.executor().spans_leaves() && !has_constant;
        let count = if spans { leaves.len() } else { 1 };
        leaves.step_by(count.max(1)).map(move |first| first..first + count)
    }

    fn forward(&mut self, step: &ForwardStep, leaves: Range<usize>) {
        let node = step.node;
        let range = |storage: Option<StorageId>| self.range(storage, &leaves);
        let [a, b, c, d] = self.inputs(&step.inputs, &leaves);
        let ranges = [a, b, c, d, range(step.output), range(step.extra), range(step.scratch)];
        let [a, b, c, d, output, extra, scratch] = split(self.arena, ranges);
        let shape = &self.operators.shapes[node];
        let inputs = read(shape, &step.inputs, self.round.samples, (&leaves, self.round.kind.leaves), [a, b, c, d]);
        let first = self.round.samples.leaves[leaves.start].leaf;
        if let Some(fault) = first_outside(self.round.plan, self.operators, node, inputs, (first, leaves.len())) {
            // Only an operator that computes numbers indexes a table.
            output.fill(f32::NAN);
            self.fault.get_or_insert(fault);
            return;
        }
        let weights = weights(self.round.plan, self.weights, self.packs, node);
        let mut context = self.round.operator_context(node, &leaves, self.scratch);
        let sums =
            self.metrics.get_mut(leaves.start).and_then(|sums| sums.get_mut(self.operators.metrics[node].clone()));
        context.metric = sums.unwrap_or_default();
        let op = if self.round.training { self.operators.training[node] } else { self.round.plan.graph.nodes[node].op };
        op.executor().forward(&mut context, execute::ForwardArgs { shape, inputs, weights, output, extra, scratch });
        if self.round.plan.graph.nodes[node].output.is_none() {
            let weights = self.operators.weight_input(node).map(|input| inputs[input].values());
            for (index, leaf) in leaves.clone().enumerate() {
                let sums = self.scratch.sums[index];
                self.loss_sums[leaf].add(sums);
                let reported =
                    self.metrics.get_mut(leaf).and_then(|all| all.get_mut(self.operators.metrics[node].clone()));
                if let (Some(weights), Some([loss, weight])) = (weights, reported) {
                    let count = weights.len() / leaves.len();
                    *loss += sums.loss;
                    *weight += weights[index * count..][..count].iter().map(|&weight| f64::from(weight)).sum::<f64>();
                }
            }
        }
    }

    fn backward(&mut self, step: &BackwardStep) {
        let (node, layer) = (self.position_in_layer(step.node), self.layer_gradients);
        let executor = self.round.plan.graph.nodes[step.node].op.executor();
        for leaves in self.calls(step.node, &step.inputs) {
            let is_whole_block = leaves == self.block.leaves;
            let is_direct =
                is_whole_block && (executor.is_accumulation_exact() || !self.gradients.extends_sums(layer, node));
            if is_direct {
                self.backward_call(step, &leaves, TensorDestinations::Block);
            } else {
                let leaf = self.round.samples.leaves[leaves.start].leaf;
                self.gradients.begin_leaf(layer, node);
                self.backward_call(step, &leaves, TensorDestinations::Leaf);
                self.gradients.end_leaf(self.round.cx, layer, node, self.block.node, leaf);
            }
        }
    }

    fn backward_call(&mut self, step: &BackwardStep, leaves: &Range<usize>, tensors: TensorDestinations) {
        if step.targets.iter().any(|target| matches!(target, GradientTarget::Replace(_))) {
            self.backward_part(step, leaves, BackwardPart::Tensors, tensors);
            self.backward_part(step, leaves, BackwardPart::ReplacedInput, tensors);
        } else {
            self.backward_part(step, leaves, BackwardPart::Whole, tensors);
        }
    }

    fn backward_part(
        &mut self,
        step: &BackwardStep,
        leaves: &Range<usize>,
        part: BackwardPart,
        tensors: TensorDestinations,
    ) {
        let (node, position) = (step.node, self.position_in_layer(step.node));
        let range = |storage: Option<StorageId>| self.range(storage, leaves);
        let sources: &[InputSource] = if part == BackwardPart::ReplacedInput { &[] } else { &step.inputs };
        let [a, b, c, d] = self.inputs(sources, leaves);
        let target = |index: usize| match step.targets.get(index) {
            Some(GradientTarget::Replace(storage)) if part == BackwardPart::ReplacedInput => {
                (self.range(Some(*storage), leaves), Some(Accumulate::Store))
            }
            Some(GradientTarget::Store(storage)) => (self.range(Some(*storage), leaves), Some(Accumulate::Store)),
            Some(GradientTarget::Add(storage)) => (self.range(Some(*storage), leaves), Some(Accumulate::Add)),
            Some(GradientTarget::None | GradientTarget::Overwrite | GradientTarget::Replace(_)) | None => (0..0, None),
        };
        let [(first, first_mode), (second, second_mode), (third, third_mode)] = [target(0), target(1), target(2)];
        let [output, extra, scratch, gradient] = [step.output, step.extra, step.scratch, step.gradient].map(range);
        let ranges = [a, b, c, d, output, extra, scratch, gradient, first, second, third];
        let [a, b, c, d, output, extra, scratch, gradient, first, second, third] = split(self.arena, ranges);
        let shape = &self.operators.shapes[node];
        let inputs = read(shape, sources, self.round.samples, (leaves, self.round.kind.leaves), [a, b, c, d]);
        let weights = weights(self.round.plan, self.weights, self.packs, node);
        let mut context = self.round.operator_context(node, leaves, self.scratch);
        let io = execute::BackwardArgs {
            shape,
            inputs,
            weights,
            output,
            extra,
            scratch,
            gradient,
            targets: [target_of(first, first_mode), target_of(second, second_mode), target_of(third, third_mode)],
            tensors: match (part, tensors) {
                (BackwardPart::ReplacedInput, _) => Default::default(),
                (_, TensorDestinations::Block) => self.gradients.tensors(self.layer_gradients, position),
                (_, TensorDestinations::Leaf) => self.gradients.leaf_tensors(),
            },
        };
        self.operators.training[node].executor().backward(&mut context, io);
    }

    /// Computes `to` from `from` and the previous content of `to`.
    fn join(&mut self, from: StorageId, to: StorageId, f: impl Fn(Simd, &[f32], &mut [f32]) + Sync) {
        let ranges = [from, to].map(|storage| self.range(Some(storage), &self.block.leaves));
        let [from, to] = split(self.arena, ranges);
        let data = (rows(&*from, 1), rows_mut(to, 1));
        self.round
            .cx
            .pool
            .for_each_rows(from.len(), GRAIN_ELEMENTS, data, |_, (from, to)| f(self.round.cx.simd, from.data, to.data));
    }

    /// Returns the position of a node in its layer.
    fn position_in_layer(&self, node: NodeId) -> usize {
        node - self.round.plan.graph.layers[self.layer].nodes.start
    }

    /// Returns the range of leaves of the block in a storage slot; empty for `None`.
    fn range(&self, storage: Option<StorageId>, leaves: &Range<usize>) -> Range<usize> {
        let extent = |storage: StorageId| self.round.kind.extents()[storage];
        storage.map_or(0..0, |storage| extent(storage).of_leaves(leaves.clone(), self.block.leaves.start))
    }

    /// Returns the ranges of the inputs; a repeated input appears once.
    fn inputs(&self, sources: &[InputSource], leaves: &Range<usize>) -> [Range<usize>; MAX_INPUTS] {
        std::array::from_fn(|index| match sources.get(index) {
            Some(InputSource::Stored(storage)) if !sources[..index].contains(&sources[index]) => {
                self.range(Some(*storage), leaves)
            }
            _ => 0..0,
        })
    }
}

/// Borrows several ranges of the arena mutably.
#[allow(clippy::expect_used, reason = "the plan's own ranges, checked when the arena is laid out")]
fn split<const N: usize>(arena: &mut [f32], ranges: [Range<usize>; N]) -> [&mut [f32]; N] {
    arena.get_disjoint_mut(ranges).expect("pieces of memory alive at one time do not overlap")
}

/// Returns the inputs in the form the operator takes; `stored` are those in the arena.
fn read<'a>(
    shape: &NodeShape,
    sources: &[InputSource],
    samples: &'a RoundSamples,
    (leaves, layout): (&Range<usize>, LeafLayout),
    stored: [&'a [f32]; MAX_INPUTS],
) -> [OperatorInput<'a>; MAX_INPUTS] {
    std::array::from_fn(|index| match sources.get(index) {
        None | Some(InputSource::Absent) => OperatorInput::Absent,
        Some(InputSource::Sample(input)) => samples.of(*input, leaves.clone()),
        Some(InputSource::Constant(constant)) => samples.constant(*constant, layout.samples as usize),
        Some(InputSource::Stored(_)) => {
            // The memory of an input that is repeated is that of its first use.
            let first = sources.iter().position(|source| *source == sources[index]).unwrap_or(index);
            OperatorInput::stored(shape.inputs[index].dtype(), stored[first])
        }
        Some(InputSource::Overwritten) => OperatorInput::Overwritten,
    })
}

/// Returns the error of the first integer that an operator can't index its table with, among those that other operators
/// compute. The inputs are those of some number of leaves from the given one on.
fn first_outside(
    plan: &StreamPlan,
    operators: &OperatorTable,
    node: NodeId,
    inputs: [OperatorInput<'_>; MAX_INPUTS],
    (first, leaves): (u32, usize),
) -> Option<DeviceError> {
    operators.bounds(node).find_map(|(index, bounds)| {
        let integers = inputs[index].integers();
        let (position, value, entries) = bounds.first_outside(integers.iter().copied())?;
        let of_leaf = integers.len() / leaves;
        let (leaf, position) = (first + (position / of_leaf) as u32, position % of_leaf);
        let input = plan.graph.values[plan.graph.nodes[node].inputs[index]].name.clone();
        Some(DeviceError::Index { leaf, input, value, position, entries })
    })
}

fn target_of(memory: &mut [f32], accumulate: Option<Accumulate>) -> TargetMut<'_> {
    accumulate.map_or(TargetMut::None, |accumulate| TargetMut::Memory(memory, accumulate))
}

fn weights<'a>(
    plan: &StreamPlan,
    weights: &'a LoadedWeights,
    packs: &'a PackedWeights,
    node: NodeId,
) -> execute::OperatorWeights<'a> {
    let packed = |pass: Pass| weights.packed_matrix(node, pass).or_else(|| packs.of(node, pass));
    execute::OperatorWeights {
        tensors: tensors(&plan.graph, weights, node),
        transposed: packed(Pass::Forward),
        matrix: packed(Pass::Backward),
    }
}
