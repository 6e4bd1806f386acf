//! Executes the steps of a pass for one leaf.

use std::ops::Range;
use std::time::Instant;

use super::Scratch;
use super::operators::OperatorTable;
use crate::device::DeviceError;
use crate::device::activations::RoundKind;
use crate::device::gradients::{LayerGradients, PartialGradients};
use crate::device::packs::{PackedWeights, tensors};
use crate::device::samples::RoundSamples;
use crate::device::weights::LoadedWeights;
use crate::graph::{LayerId, NodeId};
use crate::kernels::loss::LossSums;
use crate::kernels::pool::{rows, rows_mut};
use crate::kernels::{Accumulate, Context, elementwise};
use crate::numerics::random;
use crate::ops::execute::{self, MAX_INPUTS, NodeShape, OperatorContext, OperatorInput, TargetMut};
use crate::plan::{LeafLayout, Pass, StreamPlan};
use crate::schedule::{BackwardStep, ForwardStep, GradientTarget, InputSource, Step, StorageId};

/// Elements that one thread copies or adds at a time.
const GRAIN_ELEMENTS: usize = 1 << 14;

/// Parts of a device, borrowed for one leaf.
pub(super) struct StepRunner<'a> {
    pub cx: Context<'a>,
    pub plan: &'a StreamPlan,
    pub layer: LayerId,
    pub operators: &'a OperatorTable,
    pub layer_gradients: &'a LayerGradients,
    pub kind: &'a RoundKind,
    pub arena: &'a mut [f32],
    pub samples: &'a RoundSamples,
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
    pub training: bool,
    pub seed: u64,
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

impl StepRunner<'_> {
    /// Executes all steps of a pass for the leaf at position `leaf` of the round.
    pub fn leaf(mut self, pass: Pass, leaf: usize) {
        let (kind, layer) = (self.kind, self.layer);
        let index = self.samples.leaves[leaf].leaf;
        if pass == Pass::Backward {
            self.gradients.begin_leaf(self.plan, self.layer_gradients, index);
        }
        for step in kind.steps(pass, layer) {
            self.step(step, leaf);
        }
        if pass == Pass::Backward {
            self.gradients.end_leaf(self.cx, self.plan.layers[layer].groups.len(), index);
        }
    }

    fn step(&mut self, step: &Step, leaf: usize) {
        let start = Instant::now();
        match step {
            Step::Forward(step) => {
                self.forward(step, leaf);
                self.times[self.operators.kinds[step.node]].forward += start.elapsed();
            }
            Step::Backward(step) => {
                self.backward(step, leaf);
                self.times[self.operators.kinds[step.node]].backward += start.elapsed();
            }
            Step::Unreached(node) => {
                self.gradients.zero_unreached(self.layer_gradients, self.position_in_layer(*node));
            }
            Step::Copy { from, to } => self.join(*from, *to, leaf, |_, from, to| to.copy_from_slice(from)),
            Step::Add { from, to } => {
                self.join(*from, *to, leaf, |simd, from, to| elementwise::add_assign(simd, to, from))
            }
        }
    }

    fn forward(&mut self, step: &ForwardStep, leaf: usize) {
        let node = step.node;
        let range = |storage: Option<StorageId>| self.range(storage, leaf);
        let [a, b, c, d] = self.inputs(&step.inputs, leaf);
        let ranges = [a, b, c, d, range(step.output), range(step.extra), range(step.scratch)];
        let [a, b, c, d, output, extra, scratch] = split(self.arena, ranges);
        let shape = &self.operators.shapes[node];
        let inputs = read(shape, &step.inputs, self.samples, (leaf, self.kind.leaves), [a, b, c, d]);
        if let Some(fault) = first_outside(self.plan, self.operators, node, inputs, self.samples.leaves[leaf].leaf) {
            // Only an operator that computes numbers indexes a table.
            output.fill(f32::NAN);
            self.fault.get_or_insert(fault);
            return;
        }
        let weights = weights(self.plan, self.weights, self.packs, node);
        let mut context =
            operator_context(self.cx, self.training, self.seed, self.samples, self.kind, self.scratch, node, leaf);
        let sums = self.metrics.get_mut(leaf).and_then(|sums| sums.get_mut(self.operators.metrics[node].clone()));
        context.metric = sums.unwrap_or_default();
        let op = if self.training { self.operators.training[node] } else { self.plan.graph.nodes[node].op };
        op.executor().forward(&mut context, execute::ForwardArgs { shape, inputs, weights, output, extra, scratch });
        if self.plan.graph.nodes[node].output.is_none() {
            let sums = self.scratch.sums;
            self.loss_sums[leaf].add(sums);
            let reported = self.metrics.get_mut(leaf).and_then(|all| all.get_mut(self.operators.metrics[node].clone()));
            if let (Some(input), Some([loss, weight])) = (self.operators.weight_input(node), reported) {
                *loss += sums.loss;
                *weight += inputs[input].values().iter().map(|&weight| f64::from(weight)).sum::<f64>();
            }
        }
    }

    fn backward(&mut self, step: &BackwardStep, leaf: usize) {
        if step.targets.iter().any(|target| matches!(target, GradientTarget::Replace(_))) {
            self.backward_part(step, leaf, BackwardPart::Tensors);
            self.backward_part(step, leaf, BackwardPart::ReplacedInput);
        } else {
            self.backward_part(step, leaf, BackwardPart::Whole);
        }
    }

    fn backward_part(&mut self, step: &BackwardStep, leaf: usize, part: BackwardPart) {
        let node = step.node;
        let range = |storage: Option<StorageId>| self.range(storage, leaf);
        let sources: &[InputSource] = if part == BackwardPart::ReplacedInput { &[] } else { &step.inputs };
        let [a, b, c, d] = self.inputs(sources, leaf);
        let target = |index: usize| match step.targets.get(index) {
            Some(GradientTarget::Replace(storage)) if part == BackwardPart::ReplacedInput => {
                (self.range(Some(*storage), leaf), Some(Accumulate::Store))
            }
            Some(GradientTarget::Store(storage)) => (self.range(Some(*storage), leaf), Some(Accumulate::Store)),
            Some(GradientTarget::Add(storage)) => (self.range(Some(*storage), leaf), Some(Accumulate::Add)),
            Some(GradientTarget::None | GradientTarget::Overwrite | GradientTarget::Replace(_)) | None => (0..0, None),
        };
        let [(first, first_mode), (second, second_mode), (third, third_mode)] = [target(0), target(1), target(2)];
        let [output, extra, scratch, gradient] = [step.output, step.extra, step.scratch, step.gradient].map(range);
        let ranges = [a, b, c, d, output, extra, scratch, gradient, first, second, third];
        let [a, b, c, d, output, extra, scratch, gradient, first, second, third] = split(self.arena, ranges);
        let shape = &self.operators.shapes[node];
        let inputs = read(shape, sources, self.samples, (leaf, self.kind.leaves), [a, b, c, d]);
        let weights = weights(self.plan, self.weights, self.packs, node);
        let mut context =
            operator_context(self.cx, self.training, self.seed, self.samples, self.kind, self.scratch, node, leaf);
        let position = node - self.plan.graph.layers[self.layer].nodes.start;
        let io = execute::BackwardArgs {
            shape,
            inputs,
            weights,
            output,
            extra,
            scratch,
            gradient,
            targets: [target_of(first, first_mode), target_of(second, second_mode), target_of(third, third_mode)],
            tensors: match part {
                BackwardPart::ReplacedInput => Default::default(),
                BackwardPart::Whole | BackwardPart::Tensors => self.gradients.tensors(self.layer_gradients, position),
            },
        };
        self.operators.training[node].executor().backward(&mut context, io);
    }

    /// Computes `to` from `from` and the previous content of `to`.
    fn join(
        &mut self,
        from: StorageId,
        to: StorageId,
        leaf: usize,
        f: impl Fn(crate::kernels::Simd, &[f32], &mut [f32]) + Sync,
    ) {
        let ranges = [self.range(Some(from), leaf), self.range(Some(to), leaf)];
        let [from, to] = split(self.arena, ranges);
        let data = (rows(&*from, 1), rows_mut(to, 1));
        self.cx
            .pool
            .for_each_rows(from.len(), GRAIN_ELEMENTS, data, |_, (from, to)| f(self.cx.simd, from.data, to.data));
    }

    /// Returns the position of a node in its layer.
    fn position_in_layer(&self, node: NodeId) -> usize {
        node - self.plan.graph.layers[self.layer].nodes.start
    }

    /// Returns the range of a storage slot; empty for `None`.
    fn range(&self, storage: Option<StorageId>, leaf: usize) -> Range<usize> {
        storage.map_or(0..0, |storage| self.kind.extents()[storage].of_leaf(leaf))
    }

    /// Returns the ranges of the inputs; a repeated input appears once.
    fn inputs(&self, sources: &[InputSource], leaf: usize) -> [Range<usize>; MAX_INPUTS] {
        std::array::from_fn(|index| match sources.get(index) {
            Some(InputSource::Stored(storage)) if !sources[..index].contains(&sources[index]) => {
                self.range(Some(*storage), leaf)
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
    (leaf, leaves): (usize, LeafLayout),
    stored: [&'a [f32]; MAX_INPUTS],
) -> [OperatorInput<'a>; MAX_INPUTS] {
    std::array::from_fn(|index| match sources.get(index) {
        None | Some(InputSource::Absent) => OperatorInput::Absent,
        Some(InputSource::Sample(input)) => samples.of(*input, leaf),
        Some(InputSource::Constant(constant)) => samples.constant(*constant, leaves.samples as usize),
        Some(InputSource::Stored(_)) => {
            // The memory of an input that is repeated is that of its first use.
            let first = sources.iter().position(|source| *source == sources[index]).unwrap_or(index);
            OperatorInput::stored(shape.inputs[index].dtype(), stored[first])
        }
        Some(InputSource::Overwritten) => OperatorInput::Overwritten,
    })
}

/// Returns the error of the first integer that an operator can't index its table with, among those that other operators
/// compute.
fn first_outside(
    plan: &StreamPlan,
    operators: &OperatorTable,
    node: NodeId,
    inputs: [OperatorInput<'_>; MAX_INPUTS],
    leaf: u32,
) -> Option<DeviceError> {
    operators.bounds(node).find_map(|(index, bounds)| {
        let (position, value, entries) = bounds.first_outside(inputs[index].integers().iter().copied())?;
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
    execute::OperatorWeights {
        tensors: tensors(&plan.graph, weights, node),
        forward: packs.of(node, Pass::Forward),
        backward: packs.of(node, Pass::Backward),
    }
}

#[allow(clippy::too_many_arguments)]
fn operator_context<'a>(
    cx: Context<'a>,
    training: bool,
    seed: u64,
    samples: &RoundSamples,
    kind: &RoundKind,
    scratch: &'a mut Scratch,
    node: NodeId,
    leaf: usize,
) -> OperatorContext<'a> {
    let count = kind.leaves.samples;
    scratch.keys.clear();
    if training {
        let first = samples.leaves[leaf].first_sample;
        let key = |sample: u32| random::key(seed, first.wrapping_add(u64::from(sample)), node as u64);
        scratch.keys.extend((0..count).map(key));
    }
    let Scratch { products, attention, rotary, keys, loss, sums } = scratch;
    let samples = count as usize;
    OperatorContext { cx, training, samples, keys, products, attention, rotary, loss, sums, metric: &mut [] }
}
