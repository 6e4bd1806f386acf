//! The device that computes on the CPU of this machine.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::activations::{Arena, LeafBlock, RoundKind};
use super::gradients::{LayerGradients, PartialGradients};
use super::packs::PackedWeights;
use super::samples::RoundSamples;
use super::weights::LoadedWeights;
use super::{Device, DeviceError, DeviceMemory, LeafInput, LeafLoss};
use crate::graph::{DType, LayerId};
use crate::kernels::attention::AttentionWorkspace;
use crate::kernels::embedding::TokenPosition;
use crate::kernels::loss::{LossSums, LossWorkspace};
use crate::kernels::pool::PoolError;
use crate::kernels::rotary::RotaryTable;
use crate::kernels::{ComputeThreads, Context, GemmWorkspace, Simd};
use crate::numerics::{NumericsProfile, Precision};
use crate::ops::execute::UnsupportedOperator;
use crate::plan::{ChunkId, Encoding, Pass, StreamPlan};
use crate::schedule::{ForwardStep, PassSchedule, Step};
use crate::tree::{LeafTree, Node};

mod operators;
mod steps;

pub use operators::OperatorTime;
pub(crate) use operators::check_operator;
use operators::{OperatorTable, check};
use steps::{LeafSums, Round, StepRunner};

/// Options of a [`CpuDevice`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceOptions {
    /// The job's seed. Seed, sample, operator and element determine the dropout masks.
    pub seed: u64,
    /// Number of compute threads, at least one. With one thread, the calling thread computes; with more, it waits for
    /// them.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub simd: Simd,
    /// Maximum leaves of a round. Memory is laid out for this many.
    pub leaves: usize,
}

/// Scratch memory of the kernels.
#[derive(Debug, Default)]
struct Scratch {
    products: GemmWorkspace,
    attention: AttentionWorkspace,
    rotary: RotaryTable,
    /// The dropout keys of one operator.
    keys: Vec<u64>,
    loss: LossWorkspace,
    order: Vec<TokenPosition>,
    /// Of each leaf of a block.
    sums: Vec<LossSums>,
}

/// Why a [`CpuDevice`] can't be created.
#[derive(Debug, thiserror::Error)]
pub enum DeviceStartError {
    /// The kernels do not support an operator of the plan.
    #[error("the device cannot run this plan: operator {id} ({name}) {reason}")]
    Operator {
        /// Number of the operator in the graph.
        id: usize,
        /// Name of its kind.
        name: &'static str,
        /// The rest of the sentence.
        reason: UnsupportedOperator,
    },
    /// Its threads could not be started.
    #[error("the device cannot start")]
    Threads(#[from] PoolError),
}

/// A [`Device`] on the CPU; see the module documentation.
#[derive(Debug)]
pub struct CpuDevice {
    plan: Arc<StreamPlan>,
    options: DeviceOptions,
    precision: Precision,
    pool: Arc<ComputeThreads>,
    operators: OperatorTable,
    layer_gradients: Vec<LayerGradients>,
    /// Evaluation and training rounds.
    kinds: [RoundKind; 2],
    arena: Arena,
    samples: RoundSamples,
    weights: LoadedWeights,
    packs: PackedWeights,
    gradients: PartialGradients,
    scratch: Scratch,
    times: Vec<OperatorTime>,
    /// For each leaf of the round: the sums of the losses computed so far.
    loss_sums: Vec<LeafSums>,
    /// For each leaf of the round: the sums of its metrics, until its losses are recorded.
    metrics: Vec<Vec<f64>>,
    losses: Vec<LeafLoss>,
    /// The first integer of the pass that is outside the table that it indexes.
    fault: Option<DeviceError>,
    training: bool,
    /// Number of passes of the round that are finished.
    passes: usize,
    flops: u64,
}

impl CpuDevice {
    /// Creates a device for `plan`. Memory for activations, weights and gradients is allocated when the first rounds
    /// need it.
    ///
    /// # Errors
    /// Threads can't be started, or the kernels do not support an operator.
    pub fn new(plan: Arc<StreamPlan>, options: DeviceOptions) -> Result<Self, DeviceStartError> {
        let graph = &plan.graph;
        check(graph)?;
        let pool = ComputeThreads::new(options.threads)?;
        let (operators, times) = OperatorTable::new(graph);
        let recompute: Vec<bool> = plan.layers.iter().map(|layer| layer.recompute).collect();
        let kinds = [
            RoundKind::new(PassSchedule::evaluation(graph), graph, plan.eval_leaves),
            RoundKind::new(PassSchedule::training(graph, &recompute), graph, plan.leaves),
        ];
        let weights = LoadedWeights::new(&plan, options.simd, &kinds);
        let layers = 0..graph.layers.len();
        Ok(Self {
            options,
            precision: plan.encoding.into(),
            pool: Arc::new(pool),
            layer_gradients: layers.map(|layer| LayerGradients::new(&plan, layer)).collect(),
            kinds,
            arena: Arena::default(),
            samples: RoundSamples::new(graph, plan.leaves.samples.max(plan.eval_leaves.samples) as usize),
            packs: PackedWeights::new(graph, &weights),
            weights,
            gradients: PartialGradients::new(&plan),
            scratch: Scratch::default(),
            times,
            loss_sums: Vec::new(),
            metrics: Vec::new(),
            losses: Vec::new(),
            fault: None,
            training: false,
            passes: 0,
            flops: 0,
            operators,
            plan,
        })
    }

    /// Returns the profile that determines the bits of this device's results.
    pub fn profile(&self) -> NumericsProfile {
        NumericsProfile::new(self.options.simd.isa(), self.precision)
    }

    /// Returns the time spent so far, by kind of operator.
    pub fn times(&self) -> &[OperatorTime] {
        &self.times
    }

    /// Checks that a pass is next, and counts it.
    fn enter(&mut self, pass: Pass, layer: LayerId) -> Result<(), DeviceError> {
        let layers = self.plan.layers.len();
        let turn = match pass {
            Pass::Forward => layer,
            Pass::Backward if self.training => (2 * layers).wrapping_sub(layer + 1),
            Pass::Backward => usize::MAX,
        };
        if layer >= layers || turn != self.passes {
            return Err(DeviceError::Order { pass, layer });
        }
        let shape = &self.plan.layers[layer];
        let groups = if pass == Pass::Forward { &shape.groups } else { &shape.backward_groups };
        if !self.samples.leaves.is_empty() {
            self.weights.require(&self.plan, layer, groups)?;
        }
        self.weights.set_pass(pass);
        self.passes += 1;
        Ok(())
    }

    fn leave(&mut self, pass: Pass, layer: LayerId) {
        let shape = &self.plan.layers[layer];
        let samples = self.kinds[usize::from(self.training)].leaves.samples as usize * self.samples.leaves.len();
        let (groups, flops) = match pass {
            Pass::Forward => (&shape.groups, shape.forward_flops),
            Pass::Backward => (&shape.backward_groups, shape.backward_flops),
        };
        self.weights.release(&self.plan, groups);
        self.flops += flops * samples as u64;
    }

    /// Computes one pass of all leaves, after packing the weights.
    fn pass(&mut self, pass: Pass, layer: LayerId) {
        let pool = Arc::clone(&self.pool);
        let cx = Context { simd: self.options.simd, pool: &pool, precision: self.precision };
        pool.install(|| {
            if !self.samples.leaves.is_empty() {
                self.pack(cx, pass, layer);
            }
            if pass == Pass::Backward {
                self.gradients.begin_layer(layer);
            }
            let is_single = !self.layer_gradients[layer].has_one_use_per_tensor();
            let kind = &self.kinds[usize::from(self.training)];
            for block in kind.blocks(self.samples.leaf_range(), is_single) {
                self.runner(cx, layer, block).run(pass);
            }
            if pass == Pass::Forward && layer + 1 == self.plan.layers.len() {
                (0..self.samples.leaves.len()).for_each(|leaf| self.record_loss(leaf, self.loss_sums[leaf]));
            }
        });
    }

    /// Packs the weights that the operators of a pass need and that were not packed when they arrived.
    fn pack(&mut self, cx: Context<'_>, pass: Pass, layer: LayerId) {
        let kind = &self.kinds[usize::from(self.training)];
        for (node, direction) in kind.steps(pass, layer).iter().filter_map(Step::operator) {
            let start = Instant::now();
            let shape = &self.operators.shapes[node];
            self.packs.prepare(cx, &self.plan.graph, &self.weights, (node, shape), direction);
            self.times[self.operators.kinds[node]].packing += start.elapsed();
        }
    }

    /// Collects the parts of the device that the steps of a block need.
    fn runner<'a>(&'a mut self, cx: Context<'a>, layer: LayerId, block: LeafBlock) -> StepRunner<'a> {
        let kind = &self.kinds[usize::from(self.training)];
        let (training, seed) = (self.training, self.options.seed);
        StepRunner {
            round: Round { cx, plan: &self.plan, kind, samples: &self.samples, training, seed },
            layer,
            block,
            operators: &self.operators,
            layer_gradients: &self.layer_gradients[layer],
            arena: self.arena.numbers(),
            weights: &self.weights,
            packs: &self.packs,
            gradients: &mut self.gradients,
            scratch: &mut self.scratch,
            loss_sums: &mut self.loss_sums,
            metrics: &mut self.metrics,
            times: &mut self.times,
            fault: &mut self.fault,
        }
    }

    /// Records the losses of a leaf.
    fn record_loss(&mut self, leaf: usize, LeafSums { loss, main, other }: LeafSums) {
        let bad_layer = if loss.is_finite() { None } else { self.find_bad_layer(leaf) };
        let LossSums { tokens, correct, .. } = main;
        // Without sums, forward passes that the backward pass repeats add nothing.
        let metrics = self.metrics.get_mut(leaf).map(std::mem::take).unwrap_or_default();
        let leaf = self.samples.leaves[leaf].leaf;
        self.losses.push(LeafLoss { leaf, loss, tokens, correct, other, metrics, bad_layer });
    }

    /// Returns the first layer with a non-finite value among those kept for the backward pass, otherwise the last
    /// layer.
    fn find_bad_layer(&mut self, leaf: usize) -> Option<LayerId> {
        if !self.training {
            return None;
        }
        let kind = &self.kinds[1];
        let last = kind.schedule.forward.len() - 1;
        let arena = self.arena.numbers();
        let is_bad = |step: &Step| {
            let Step::Forward(ForwardStep { node, output: Some(output), .. }) = step else { return false };
            let value = self.plan.graph.nodes[*node].output;
            if value.is_none_or(|value| self.plan.graph.values[value].shape.dtype() != DType::F32) {
                return false;
            }
            let is_saved = kind.schedule.storage[*output].passes.1 > last;
            is_saved
                && arena[kind.extents()[*output].of_leaves(leaf..leaf + 1, leaf)]
                    .iter()
                    .any(|number| !number.is_finite())
        };
        let layer = kind.schedule.forward.iter().position(|steps| steps.iter().any(is_bad));
        Some(layer.unwrap_or(last))
    }
}

impl Device for CpuDevice {
    fn begin(&mut self, training: bool, nodes: &[Node], leaves: &[LeafInput<'_>]) -> Result<(), DeviceError> {
        // Until all arguments are checked, no pass is allowed.
        self.passes = usize::MAX;
        self.losses.clear();
        self.weights.clear();
        self.gradients.clear();
        let kind = &mut self.kinds[usize::from(training)];
        let (max_leaves, count) = (self.options.leaves, kind.leaves.count);
        let is_contiguous = leaves.windows(2).all(|two| two[0].leaf.checked_add(1) == Some(two[1].leaf));
        let is_in_range = leaves.last().is_none_or(|last| last.leaf < count);
        if !(is_contiguous && is_in_range && leaves.len() <= max_leaves) {
            let found = format!("{:?}", leaves.iter().map(|leaf| leaf.leaf).collect::<Vec<_>>());
            return Err(DeviceError::Leaves { found, max_leaves, leaves: count });
        }
        let range = leaves.first().map_or(0..0, |first| first.leaf..first.leaf + leaves.len() as u32);
        if training && !is_cover(kind.leaves.tree(), range.clone(), nodes) {
            let (requested, produced) = (format_nodes(nodes), format_nodes(&kind.leaves.tree().cover(range)));
            return Err(DeviceError::Nodes { requested, produced });
        }
        self.samples.take(leaves, kind.leaves.samples as usize)?;
        self.arena.reserve(kind, max_leaves);
        self.loss_sums.clear();
        self.loss_sums.resize(leaves.len(), LeafSums::default());
        self.metrics.clear();
        self.metrics.resize(leaves.len(), vec![0.0; self.operators.metric_elements]);
        self.training = training;
        self.passes = 0;
        Ok(())
    }

    fn scale_losses(&mut self, factors: &[f64]) -> Result<(), DeviceError> {
        let OperatorTable { weighted_losses, training, .. } = &mut self.operators;
        if weighted_losses.len() != factors.len() {
            return Err(DeviceError::LossFactors { expected: weighted_losses.len(), found: factors.len() });
        }
        for (loss, factor) in weighted_losses.iter().zip(factors) {
            training[loss.node] = self.plan.graph.nodes[loss.node].op.times(*factor);
        }
        Ok(())
    }

    fn load(&mut self, chunk: ChunkId, encoding: Encoding, payload: &[u8]) -> Result<(), DeviceError> {
        let cx = Context { simd: self.options.simd, pool: &self.pool, precision: self.precision };
        self.weights.load(&self.plan, cx, chunk, encoding, payload)
    }

    fn forward(&mut self, layer: LayerId) -> Result<(), DeviceError> {
        self.enter(Pass::Forward, layer)?;
        self.pass(Pass::Forward, layer);
        self.leave(Pass::Forward, layer);
        self.fault.take().map_or(Ok(()), Err)
    }

    fn backward(&mut self, layer: LayerId) -> Result<(), DeviceError> {
        self.enter(Pass::Backward, layer)?;
        self.pass(Pass::Backward, layer);
        self.leave(Pass::Backward, layer);
        Ok(())
    }

    fn gradient(&self, layer: LayerId, chunk: ChunkId, node: Node) -> Option<&[f32]> {
        let group = self.plan.chunks.get(chunk)?.group;
        self.gradients.get(&self.plan, layer, group, node)?.get(self.plan.chunk_range(chunk))
    }

    fn losses(&self) -> &[LeafLoss] {
        &self.losses
    }

    fn memory(&self) -> DeviceMemory {
        let Scratch { products, attention, rotary, loss, .. } = &self.scratch;
        DeviceMemory {
            weights: (self.weights.bytes() + self.packs.bytes()) as u64,
            activations: self.arena.bytes(&self.samples) as u64,
            gradients: self.gradients.bytes() as u64,
            scratch: (products.bytes() + attention.bytes() + rotary.bytes() + loss.bytes()) as u64,
        }
    }

    fn flops(&self) -> u64 {
        self.flops
    }
}

/// Returns whether `nodes` is [`LeafTree::cover`] of `range`: nodes of the tree that tile it, no two of which can be
/// joined.
fn is_cover(tree: LeafTree, range: Range<u32>, nodes: &[Node]) -> bool {
    let end = nodes
        .iter()
        .try_fold(range.start, |start, node| (node.start == start && tree.contains(*node)).then_some(node.end));
    let joined = |two: &[Node]| tree.join_of(two[0]).is_some_and(|join| join.sibling == two[1]);
    end == Some(range.end) && !nodes.windows(2).any(joined)
}

fn format_nodes(nodes: &[Node]) -> String {
    let names: Vec<String> = nodes.iter().map(Node::to_string).collect();
    if names.is_empty() { "of no leaves".to_owned() } else { names.join(" and ") }
}
