//! A toy model: a stream plan with a group that is used twice, and arithmetic whose bits depend on the order of sums,
//! the version of each weight, and every single leaf.

use std::ops::Range;

use millrace_emulator::graph::{Graph, Layer, LayerId, OpNode};
use millrace_emulator::ops::SumLoss;
use millrace_emulator::plan::{
    Chunk, ChunkId, DownSlot, Encoding, Group, GroupId, LayerPlan, LeafLayout, MachineBytes, Pass, StreamPlan, UpSlot,
};
use millrace_emulator::tree::Node;
use millrace_engine::payload::{Payload, SPARSE_BLOCK_ELEMENTS};
use millrace_engine::types::{CommitRecord, IterationKind, LeafResult, OtherLosses};

use crate::random::{Random, mix};

/// Elements of a chunk: a few, or blocks of which some are zero in a leaf's gradient.
const ELEMENTS: [usize; 3] = [1, 3, 2 * SPARSE_BLOCK_ELEMENTS + 2];

/// A plan of 2 to 5 layers, 1 to 3 chunks a group and 1 to 9 leaves.
pub fn plan(random: &mut Random) -> StreamPlan {
    let layers = random.within(2, 5);
    let tied = random.chance(60);
    let (mut groups, mut chunks) = (Vec::new(), Vec::new());
    let mut uses: Vec<Vec<GroupId>> = Vec::new();
    for layer in 0..layers {
        let mut used = if tied && layer + 1 == layers { vec![0] } else { Vec::new() };
        if used.is_empty() || random.chance(50) {
            used.push(groups.len());
            groups.push(group(format!("group.{layer}"), &mut chunks, groups.len(), random));
        }
        uses.push(used);
    }
    let layer = |groups: Vec<GroupId>, backward_groups| LayerPlan {
        groups,
        backward_groups,
        recompute: false,
        recompute_flops: 0,
        forward_flops: 0,
        backward_flops: 0,
        saved: MachineBytes::default(),
        working: MachineBytes::default(),
    };
    let reads_first = random.chance(50);
    let backward = |at: usize, used: &[GroupId]| if at == 0 && !reads_first { Vec::new() } else { used.to_vec() };
    let layer_plans: Vec<LayerPlan> =
        uses.iter().enumerate().map(|(at, used)| layer(used.clone(), backward(at, used))).collect();
    let leaves = |random: &mut Random| LeafLayout { count: random.within(1, 9) as u32, samples: 1 };
    let mut plan = StreamPlan {
        graph: graph(layers),
        sequence: 1,
        leaves: leaves(random),
        eval_leaves: leaves(random),
        resident: (0..groups.len()).filter(|_| random.chance(30)).collect(),
        groups,
        chunks,
        layers: layer_plans,
        encoding: Encoding::F32,
        leaves_per_round: random.pick(&[1, 1, 1, 2, 3, 5]).unwrap_or(1),
        tiles: 1,
        whole_tensor_state: None,
        extra_state_tensors: 0,
        down_train: Vec::new(),
        down_eval: Vec::new(),
        up: Vec::new(),
    };
    plan.down_train = down(&plan, true);
    plan.down_eval = down(&plan, false);
    plan.up = (0..layers)
        .rev()
        .flat_map(|layer| layer_chunks(&plan, layer).into_iter().map(move |(_, chunk)| UpSlot { layer, chunk }))
        .collect();
    plan
}

fn group(name: String, chunks: &mut Vec<Chunk>, group: GroupId, random: &mut Random) -> Group {
    let (first, mut elements) = (chunks.len(), 0);
    for _ in 0..random.within(1, 3) {
        let chunk = Chunk { group, start: elements, elements: ELEMENTS[random.below(ELEMENTS.len())] };
        elements += chunk.elements;
        chunks.push(chunk);
    }
    Group { name, tensors: Vec::new(), chunks: first..chunks.len(), elements }
}

fn graph(layers: usize) -> Graph {
    let layers = (0..layers).map(|at| Layer { name: format!("layer.{at}"), nodes: 0..0, block: None }).collect();
    Graph { layers, ..Graph::default() }
}

/// Gives the only loss of a plan a weight. The metrics of [`Leaf::result`] are then the sums of both.
pub fn add_weight(plan: &mut StreamPlan) {
    plan.graph.nodes.push(OpNode::new(SumLoss { factor: 1.0 }, vec![0, 1], Vec::new(), None));
}

/// Returns the weight of the loss of a sample. It is at least 1, so that no factor makes the training diverge. Sums of
/// weights depend on their order.
pub fn weight(sample: u64) -> f64 {
    1.0 + 1.0 / (1 + mix(sample) % 97) as f64
}

/// Returns the factor of the loss in a step over these samples, added in their order.
pub fn factor(plan: &StreamPlan, samples: &[u64]) -> f64 {
    if plan.graph.weighted_losses().next().is_none() {
        return 1.0;
    }
    samples.len() as f64 / samples.iter().map(|sample| weight(*sample)).sum::<f64>()
}

/// Chunks to stream if a group stays on the wafer only if it is resident.
fn down(plan: &StreamPlan, trains: bool) -> Vec<DownSlot> {
    let layers = plan.layers.len();
    let mut passes: Vec<_> = (0..layers).map(|layer| (Pass::Forward, layer)).collect();
    if trains {
        passes.extend((0..layers).rev().map(|layer| (Pass::Backward, layer)));
    }
    let (mut wafer, mut slots) = (Vec::new(), Vec::new());
    for (pass, layer) in passes {
        let used = &plan.layers[layer];
        for &group in if pass == Pass::Forward { &used.groups } else { &used.backward_groups } {
            if !wafer.contains(&group) {
                slots.extend(plan.groups[group].chunks.clone().map(|chunk| DownSlot { pass, layer, chunk }));
                wafer.push(group);
            }
        }
        wafer.retain(|&group| plan.is_resident(group));
    }
    slots
}

/// The chunks a layer uses, with their groups, in order.
pub fn layer_chunks(plan: &StreamPlan, layer: LayerId) -> Vec<(GroupId, ChunkId)> {
    let chunks = |&group: &GroupId| plan.groups[group].chunks.clone().map(move |chunk| (group, chunk));
    plan.layers[layer].groups.iter().flat_map(chunks).collect()
}

fn unit(value: u64) -> f32 {
    (value >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Initial weights of a chunk.
pub fn initial(plan: &StreamPlan, chunk: ChunkId) -> Vec<f32> {
    (0..plan.chunks[chunk].elements).map(|at| unit(mix(7 + 31 * chunk as u64 + 1009 * at as u64))).collect()
}

/// Returns one value for the samples of each leaf of a task.
pub fn samples(plan: &StreamPlan, task: IterationKind, leaves: Range<u32>) -> Vec<u64> {
    let first = match task {
        IterationKind::Train { batch, .. } => batch * u64::from(plan.leaves.count),
        IterationKind::Eval { batch, .. } => (1 << 40) + batch * u64::from(plan.eval_leaves.count),
    };
    leaves.map(|leaf| first + u64::from(leaf)).collect()
}

/// The computation of one leaf through the layers.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub leaf: u32,
    sample: u64,
    /// Input of each layer so far, and the last output.
    values: Vec<f32>,
    slope: f32,
    /// Factor of its loss.
    factor: f64,
}

impl Leaf {
    pub fn new(leaf: u32, sample: u64, factor: f64) -> Self {
        Self { leaf, sample, values: vec![unit(mix(sample))], slope: 0.0, factor }
    }

    fn last(&self) -> f32 {
        self.values.last().copied().unwrap_or(0.0)
    }

    /// Computes the next layer with its weights, in order.
    pub fn forward(&mut self, weights: &[Vec<f32>]) {
        let input = self.last();
        let mut sum = input;
        for (at, weight) in weights.iter().flatten().enumerate() {
            sum = sum * 0.7 + weight * (input + 0.1 * (at + 1) as f32);
        }
        self.values.push(sum / (1.0 + sum.abs()));
    }

    /// Returns the loss after the last layer.
    pub fn result(&mut self) -> LeafResult {
        let error = self.last() - unit(mix(self.sample ^ 0x5555));
        self.slope = 2.0 * error * self.factor as f32;
        let loss = f64::from(error) * f64::from(error) * self.factor;
        LeafResult {
            leaf: self.leaf,
            loss,
            tokens: 1 + self.sample % 3,
            correct: u64::from(error > 0.0),
            other: OtherLosses { loss: f64::from(error), labels: 1, correct: u64::from(error < 0.0) },
            metrics: vec![loss, weight(self.sample)],
            bad_layer: None,
        }
    }

    /// Computes the backward pass of `layer`: the gradient of each chunk, in order. Weights that it does not read count
    /// as zero.
    pub fn backward(&mut self, layer: LayerId, weights: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (input, slope) = (self.values[layer], self.slope);
        let noise = unit(mix(self.sample ^ layer as u64)) * 1e-3;
        let mut at = 0;
        let mut gradients = Vec::new();
        for chunk in weights {
            let mut gradient = Vec::new();
            for (span, weight) in
                chunk.iter().enumerate().map(|(element, weight)| (element / SPARSE_BLOCK_ELEMENTS, weight))
            {
                at += 1;
                // As in an embedding lookup: most rows belong to words that are not in this sample.
                if chunk.len() > SPARSE_BLOCK_ELEMENTS && !mix(self.sample ^ mix(span as u64)).is_multiple_of(4) {
                    gradient.push(0.0);
                    continue;
                }
                gradient.push(slope * (input + 0.1 * at as f32) * (1.0 + 0.3 * weight) + noise / at as f32);
                self.slope = self.slope * 0.9 + weight * slope * 0.1;
            }
            gradients.push(gradient);
        }
        gradients
    }
}

/// Returns the tree's sum over `node`: left half plus right half, down to `leaf`.
pub fn sum(node: Node, leaf: &dyn Fn(u32) -> Option<Vec<f32>>) -> Option<Vec<f32>> {
    let Some((left, right)) = node.children() else { return leaf(node.start) };
    let (mut left, right) = (sum(left, leaf)?, sum(right, leaf)?);
    left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
    Some(left)
}

pub fn squared_norm(gradient: &[f32]) -> f64 {
    gradient.iter().map(|&value| f64::from(value) * f64::from(value)).sum()
}

/// The parameters of a chunk and its only moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    pub weights: Vec<f32>,
    pub moments: Vec<f32>,
}

impl Parameters {
    pub fn initial(plan: &StreamPlan, chunk: ChunkId) -> Self {
        let weights = initial(plan, chunk);
        Self { moments: vec![0.0; weights.len()], weights }
    }

    pub fn update(&mut self, gradient: &[f32], commit: &CommitRecord) {
        for ((weight, moment), gradient) in self.weights.iter_mut().zip(&mut self.moments).zip(gradient) {
            *moment = 0.5 * *moment + gradient * commit.scale;
            *weight -= commit.learning_rate * *moment;
        }
    }

    /// Returns a substitute for the digests of a real shard.
    pub fn digests(&self) -> Vec<[u8; 32]> {
        let digest = |values: &[f32]| {
            let mut bytes = [0; 32];
            let hash = values.iter().fold(0, |hash, value| mix(hash ^ u64::from(value.to_bits())));
            bytes[..8].copy_from_slice(&hash.to_le_bytes());
            bytes
        };
        vec![digest(&self.weights), digest(&self.moments)]
    }
}

/// The values of a partial sum.
pub fn numbers(sum: &Payload) -> Vec<f32> {
    match sum {
        Payload::Dense(bytes) => decode(bytes),
        Payload::Sparse(sum) => sum.blocks().flat_map(decode).collect(),
    }
}

/// Encodes f32 values as sent on links.
pub fn encode(values: &[f32]) -> bytes::Bytes {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The reverse of [`encode`].
pub fn decode(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
