//! Shared parts of the tests of devices and operators: models, a driver of rounds, sums over the leaf tree.
#![allow(dead_code)] // each test uses a part

pub mod generic;

use std::sync::Arc;

use millrace_emulator::compile::{BatchSpec, CompileRequest, compile};
use millrace_emulator::device::{CpuDevice, Device, DeviceError, DeviceOptions, InputData, LeafInput, LeafLoss};
use millrace_emulator::families;
use millrace_emulator::graph::{DType, Graph, ValueId};
use millrace_emulator::kernels::Simd;
use millrace_emulator::numerics::bf16;
use millrace_emulator::numerics::init::{Initializer, tensor_key};
use millrace_emulator::ops::Signature;
use millrace_emulator::plan::{ChunkId, DEFAULT_CHUNK_ELEMENTS, Encoding, LeafLayout, Pass, StreamPlan};
use millrace_emulator::tree::{LeafTree, Node, PartialSums};
use millrace_params::{ModelSize, ModelSpec};

/// The seed of every device, which determines the dropout masks.
pub const SEED: u64 = 7;

/// Memory of a wafer on which everything fits.
pub const LARGE: u64 = 1 << 40;

/// A small GPT; tests modify the relevant fields.
pub fn spec(layers: usize, hidden: usize, heads: usize, vocabulary: usize, positions: usize) -> ModelSpec {
    ModelSpec::gpt2(ModelSize {
        vocab_size: vocabulary,
        hidden_size: hidden,
        num_hidden_layers: layers,
        num_heads: heads,
        max_position_embeddings: positions,
    })
}

/// Returns `spec` with this dropout rate everywhere.
pub fn with_dropout(mut spec: ModelSpec, rate: f64) -> ModelSpec {
    (spec.dropout_rate, spec.embedding_dropout_rate, spec.attention_dropout_rate) = (rate, rate, rate);
    spec
}

/// Compiles the plan of a GPT.
pub fn gpt_plan(spec: &ModelSpec, sequence: usize, batch: BatchSpec, wafer: u64) -> Arc<StreamPlan> {
    plan(families::decoder(spec, sequence).unwrap(), batch, Encoding::F32, wafer)
}

/// Compiles the plan of any graph.
pub fn plan(graph: Graph, train: BatchSpec, encoding: Encoding, wafer_memory: u64) -> Arc<StreamPlan> {
    Arc::new(compile(request(graph, train, encoding, wafer_memory)).unwrap())
}

/// The request of [`plan`].
pub fn request(graph: Graph, train: BatchSpec, encoding: Encoding, wafer_memory: u64) -> CompileRequest {
    CompileRequest {
        graph,
        train,
        trains: true,
        eval: None,
        encoding,
        wafer_memory,
        chunk_elements: DEFAULT_CHUNK_ELEMENTS,
        window_chunks: 8,
        memoryx_memory: u64::MAX,
        whole_tensor_state: None,
        extra_state_tensors: 0,
    }
}

/// Compiles the plan of a graph on the largest wafer, of decreasing sizes, on which some layer is recomputed. If
/// recomputation does not help the graph, the plan is that of a large wafer.
pub fn recomputing(graph: Graph, train: BatchSpec) -> Arc<StreamPlan> {
    recomputing_in_chunks(graph, train, DEFAULT_CHUNK_ELEMENTS)
}

/// Like `recomputing`, with chunks of at most `chunk_elements`.
pub fn recomputing_in_chunks(graph: Graph, train: BatchSpec, chunk_elements: usize) -> Arc<StreamPlan> {
    let mut wafer = LARGE;
    loop {
        match compile(CompileRequest { chunk_elements, ..request(graph.clone(), train, Encoding::F32, wafer) }) {
            Ok(plan) if plan.layers.iter().any(|layer| layer.recompute) => return Arc::new(plan),
            Ok(_) => wafer -= wafer / 16,
            Err(_) => return plan(graph, train, Encoding::F32, LARGE),
        }
    }
}

/// Initial values of every group.
pub fn initial_weights(plan: &StreamPlan, seed: u64) -> Vec<Vec<f32>> {
    let group = |group: &millrace_emulator::plan::Group| {
        let mut values = vec![0.0; group.elements];
        for (tensor, range) in &group.tensors {
            let init = plan.graph.tensors[*tensor].init;
            init.fill(tensor_key(seed, *tensor as u64), 0, &mut values[range.clone()]);
        }
        values
    };
    plan.groups.iter().map(group).collect()
}

/// The elements of an input.
#[derive(Clone)]
pub enum Elements {
    I32(Vec<i32>),
    F32(Vec<f32>),
}

impl Elements {
    pub fn len(&self) -> usize {
        match self {
            Self::I32(integers) => integers.len(),
            Self::F32(numbers) => numbers.len(),
        }
    }

    pub fn to_f64(&self, range: std::ops::Range<usize>) -> Vec<f64> {
        match self {
            Self::I32(integers) => integers[range].iter().map(|&integer| f64::from(integer)).collect(),
            Self::F32(numbers) => numbers[range].iter().map(|&number| f64::from(number)).collect(),
        }
    }

    pub fn integers(&self) -> &[i32] {
        if let Self::I32(integers) = self { integers } else { &[] }
    }

    fn part(&self, range: std::ops::Range<usize>) -> InputData<'_> {
        match self {
            Self::I32(integers) => InputData::I32(&integers[range]),
            Self::F32(numbers) => InputData::F32(&numbers[range]),
        }
    }
}

/// Samples of a whole batch.
pub struct Samples {
    /// For each input of the graph: its elements, sample after sample.
    pub inputs: Vec<Elements>,
    /// Number of the first sample.
    pub first: u64,
}

impl Samples {
    /// Random numbers from -1 to 1, and random integers that the operators which read them accept: those of a table's
    /// rows, otherwise 0 or 1. Where negative integers are accepted, one in eight is negative.
    pub fn random(plan: &StreamPlan, seed: u64) -> Self {
        let samples = plan.leaves.batch() as usize;
        let input = |(position, &input): (usize, &ValueId)| {
            let shape = plan.graph.values[input].shape;
            let count = samples * shape.elements() as usize;
            if shape.dtype() == DType::F32 {
                let mut values = vec![0.0; count];
                Initializer::Uniform { low: -1.0, high: 1.0 }.fill(seed + position as u64, 0, &mut values);
                return Elements::F32(values);
            }
            let (entries, ignores_negative) = integers_of(&plan.graph, input);
            let mut values = vec![0.0; count];
            Initializer::Uniform { low: 0.0, high: entries as f64 }.fill(seed + position as u64, 0, &mut values);
            let integer = |(index, value): (usize, &f32)| {
                let is_ignored = ignores_negative && index % 8 == 5;
                if is_ignored { -100 } else { (*value as i32).min(entries as i32 - 1) }
            };
            Elements::I32(values.iter().enumerate().map(integer).collect())
        };
        Self { inputs: plan.graph.inputs.iter().enumerate().map(input).collect(), first: 1000 }
    }

    /// The leaves `range` of a batch cut into `leaves`.
    pub fn leaves(&self, leaves: LeafLayout, range: std::ops::Range<u32>) -> Vec<Leaf<'_>> {
        let samples = (leaves.count * leaves.samples) as usize;
        let leaf = |leaf: u32| {
            let input = |input: &'_ Elements| {
                let width = input.len() / samples * leaves.samples as usize;
                leaf as usize * width..(leaf as usize + 1) * width
            };
            Leaf {
                leaf,
                first_sample: self.first + u64::from(leaf * leaves.samples),
                inputs: self.inputs.iter().map(|elements| elements.part(input(elements))).collect(),
            }
        };
        range.map(leaf).collect()
    }
}

/// Returns how many integers from 0 on every operator that reads `input` accepts, and whether all accept negative ones.
fn integers_of(graph: &Graph, input: ValueId) -> (usize, bool) {
    let uses = graph.nodes.iter().flat_map(|node| {
        let positions =
            node.inputs.iter().enumerate().filter(move |(_, read)| **read == input).map(|(position, _)| position);
        positions.filter_map(move |position| {
            let operator = node.op.operator();
            let entries = operator.index_bound(&Signature::of(graph, node), position)?;
            Some((entries, operator.ignores_negative(position)))
        })
    });
    uses.reduce(|a, b| (a.0.min(b.0), a.1 && b.1)).unwrap_or((2, false))
}

/// The samples of a leaf: what a [`LeafInput`] refers to.
#[derive(Clone)]
pub struct Leaf<'a> {
    pub leaf: u32,
    pub first_sample: u64,
    pub inputs: Vec<InputData<'a>>,
}

impl Leaf<'_> {
    pub fn input(&self) -> LeafInput<'_> {
        LeafInput { leaf: self.leaf, first_sample: self.first_sample, inputs: &self.inputs }
    }
}

/// Begins a round of `leaves`.
pub fn begin(device: &mut CpuDevice, training: bool, nodes: &[Node], leaves: &[Leaf<'_>]) -> Result<(), DeviceError> {
    let inputs: Vec<LeafInput<'_>> = leaves.iter().map(Leaf::input).collect();
    device.begin(training, nodes, &inputs)
}

/// All tensors in f64.
pub fn to_f64(plan: &StreamPlan, groups: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let mut tensors = vec![Vec::new(); plan.graph.tensors.len()];
    for (group, values) in plan.groups.iter().zip(groups) {
        for (tensor, range) in &group.tensors {
            tensors[*tensor] = values[range.clone()].iter().map(|value| f64::from(*value)).collect();
        }
    }
    tensors
}

/// A device for all leaves.
pub fn device(plan: &Arc<StreamPlan>, threads: usize) -> CpuDevice {
    device_on(plan, threads, Simd::detect())
}

/// A device of a given instruction set.
pub fn device_on(plan: &Arc<StreamPlan>, threads: usize, simd: Simd) -> CpuDevice {
    let leaves = plan.leaves.count.max(plan.eval_leaves.count) as usize;
    CpuDevice::new(Arc::clone(plan), DeviceOptions { seed: SEED, threads, simd, leaves }).unwrap()
}

/// Loads the chunks of one pass of one layer, in the plan's encoding.
pub fn load(device: &mut CpuDevice, plan: &StreamPlan, weights: &[Vec<f32>], pass: Pass, layer: usize) {
    load_as(plan.encoding, device, plan, weights, pass, layer);
}

fn load_as(
    encoding: Encoding,
    device: &mut CpuDevice,
    plan: &StreamPlan,
    weights: &[Vec<f32>],
    pass: Pass,
    layer: usize,
) {
    for slot in plan.down_train.iter().filter(|slot| (slot.pass, slot.layer) == (pass, layer)) {
        let values = &weights[plan.chunks[slot.chunk].group][plan.chunk_range(slot.chunk)];
        let encoding = if encoding == Encoding::F32 { encoding } else { plan.chunk_encoding(slot.chunk) };
        let payload: Vec<u8> = match encoding {
            Encoding::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Encoding::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        };
        device.load(slot.chunk, encoding, &payload).unwrap();
    }
}

/// The up stream of a training round: partial sums for each use of each chunk.
pub type UpStream = Vec<(usize, ChunkId, Node, Vec<f32>)>;

/// Runs a training round of the leaves `range` with weights in the plan's encoding.
pub fn round(
    device: &mut CpuDevice,
    plan: &StreamPlan,
    weights: &[Vec<f32>],
    samples: &Samples,
    range: std::ops::Range<u32>,
) -> (Vec<LeafLoss>, UpStream) {
    round_as(plan.encoding, device, plan, weights, samples, range)
}

/// Like `round`, with weights in `encoding`.
pub fn round_as(
    encoding: Encoding,
    device: &mut CpuDevice,
    plan: &StreamPlan,
    weights: &[Vec<f32>],
    samples: &Samples,
    range: std::ops::Range<u32>,
) -> (Vec<LeafLoss>, UpStream) {
    let nodes = plan.leaves.tree().cover(range.clone());
    begin(device, true, &nodes, &samples.leaves(plan.leaves, range)).unwrap();
    for layer in 0..plan.layers.len() {
        load_as(encoding, device, plan, weights, Pass::Forward, layer);
        device.forward(layer).unwrap();
    }
    let losses = device.losses().to_vec();
    let mut sums = Vec::new();
    for layer in (0..plan.layers.len()).rev() {
        load_as(encoding, device, plan, weights, Pass::Backward, layer);
        device.backward(layer).unwrap();
        for slot in plan.up.iter().filter(|slot| slot.layer == layer) {
            for node in &nodes {
                let gradient = device.gradient(layer, slot.chunk, *node).unwrap();
                sums.push((layer, slot.chunk, *node, gradient.to_vec()));
            }
        }
    }
    (losses, sums)
}

/// Like `round` of the whole batch, with the weights of each pass of a layer loaded before the pass that precedes it.
pub fn round_with_early_weights(
    device: &mut CpuDevice,
    plan: &StreamPlan,
    weights: &[Vec<f32>],
    samples: &Samples,
) -> (Vec<LeafLoss>, UpStream) {
    let leaves = samples.leaves(plan.leaves, 0..plan.leaves.count);
    let root = plan.leaves.tree().root();
    begin(device, true, &[root], &leaves).unwrap();
    let forward = (0..plan.layers.len()).map(|layer| (Pass::Forward, layer));
    let passes: Vec<_> = forward.chain((0..plan.layers.len()).rev().map(|layer| (Pass::Backward, layer))).collect();
    let (mut losses, mut sums) = (Vec::new(), Vec::new());
    load(device, plan, weights, passes[0].0, passes[0].1);
    for (index, &(pass, layer)) in passes.iter().enumerate() {
        if let Some(&(pass, layer)) = passes.get(index + 1) {
            load(device, plan, weights, pass, layer);
        }
        match pass {
            Pass::Forward => device.forward(layer).unwrap(),
            Pass::Backward => device.backward(layer).unwrap(),
        }
        if (pass, layer) == (Pass::Forward, plan.layers.len() - 1) {
            losses = device.losses().to_vec();
        }
        for slot in plan.up.iter().filter(|slot| pass == Pass::Backward && slot.layer == layer) {
            sums.push((layer, slot.chunk, root, device.gradient(layer, slot.chunk, root).unwrap().to_vec()));
        }
    }
    (losses, sums)
}

/// Runs an evaluation of the whole batch on one device.
pub fn evaluate(device: &mut CpuDevice, plan: &StreamPlan, weights: &[Vec<f32>], samples: &Samples) -> Vec<LeafLoss> {
    let leaves = samples.leaves(plan.eval_leaves, 0..plan.eval_leaves.count);
    begin(device, false, &[], &leaves).unwrap();
    for layer in 0..plan.layers.len() {
        load(device, plan, weights, Pass::Forward, layer);
        device.forward(layer).unwrap();
    }
    device.losses().to_vec()
}

/// Gradients of the whole batch by group: partial sums joined along the tree for each use, uses joined in plan order.
pub fn total(plan: &StreamPlan, sums: UpStream) -> Vec<Vec<f32>> {
    let tree: LeafTree = plan.leaves.tree();
    let add = |mut left: Vec<f32>, right: Vec<f32>| {
        left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
        left
    };
    let mut uses: Vec<_> = plan.up.iter().map(|slot| (*slot, PartialSums::new(tree))).collect();
    for (layer, chunk, node, sum) in sums {
        let partial = uses.iter_mut().find(|(slot, _)| (slot.layer, slot.chunk) == (layer, chunk)).unwrap();
        partial.1.insert(node, sum, add).unwrap();
    }
    let mut groups: Vec<Vec<f32>> = plan.groups.iter().map(|group| vec![0.0; group.elements]).collect();
    let mut is_summed = vec![false; plan.chunks.len()];
    for (slot, mut partials) in uses {
        let joined = partials.take();
        assert_eq!(joined.len(), 1);
        assert_eq!(joined[0].0, tree.root());
        let target = &mut groups[plan.chunks[slot.chunk].group][plan.chunk_range(slot.chunk)];
        let first = !std::mem::replace(&mut is_summed[slot.chunk], true);
        for (to, from) in target.iter_mut().zip(&joined[0].1) {
            *to = if first { *from } else { *to + *from };
        }
    }
    groups
}

/// Runs a whole step on one device; returns loss and gradients.
pub fn step(
    device: &mut CpuDevice,
    plan: &StreamPlan,
    weights: &[Vec<f32>],
    samples: &Samples,
) -> (f64, Vec<Vec<f32>>) {
    let (losses, sums) = round(device, plan, weights, samples, 0..plan.leaves.count);
    (losses.iter().map(|leaf| leaf.loss).sum(), total(plan, sums))
}
