//! Small models for the tests of this crate.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_emulator::graph::{
    Graph, INPUT_IDS, Initializer, LABELS, Layer, OpNode, Shape, Tensor, TensorRole, Value,
};
use millrace_emulator::ops::{
    Activation, Add, AddPosition, CausalAttention, CrossEntropy, Dropout, Embedding, LayerNorm, Linear, Nonlinearity,
    OpKind,
};
use millrace_emulator::plan::{Chunk, Encoding, Group, LeafLayout, PlanHash, StateShape, StreamPlan};

use crate::{
    CheckpointMetadata, LockRequest, ModelDirLock, Moments, RangeWriter, Section, Staging, StepHistory, WriterEpoch,
};

/// A GPT-2 of two blocks, hidden 8, two heads.
#[derive(Clone, Copy)]
pub struct Model {
    pub tied: bool,
    pub bias: bool,
    pub head_bias: bool,
    pub vocabulary: usize,
    pub scale: f32,
}

impl Default for Model {
    fn default() -> Self {
        // 1 / sqrt(4) is what GPT-2 has.
        Self { tied: true, bias: true, head_bias: false, vocabulary: 11, scale: 0.5 }
    }
}

pub const HIDDEN: usize = 8;
pub const INNER: usize = 20;
pub const POSITIONS: usize = 6;

struct Builder {
    graph: Graph,
    bias: bool,
}

impl Builder {
    fn tensor(&mut self, name: &str, shape: &[usize]) -> usize {
        let init = Initializer::Constant { value: 0.0 };
        self.graph.tensors.push(Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            init,
            role: TensorRole::Weight,
            trained: true,
        });
        self.graph.tensors.len() - 1
    }

    fn node(&mut self, op: impl Into<OpKind>, inputs: &[usize], params: &[usize]) -> usize {
        let out = self.graph.values.len();
        self.graph.values.push(Value { name: format!("v{out}"), shape: Shape::matrix(POSITIONS, HIDDEN) });
        self.graph.nodes.push(OpNode::new(op, inputs.to_vec(), params.to_vec(), out));
        out
    }

    fn norm(&mut self, name: &str, x: usize) -> usize {
        let params =
            [self.tensor(&format!("{name}.weight"), &[HIDDEN]), self.tensor(&format!("{name}.bias"), &[HIDDEN])];
        self.node(LayerNorm { epsilon: 1e-5 }, &[x], &params)
    }

    fn linear(&mut self, name: &str, x: usize, out: usize, input: usize) -> usize {
        let mut params = vec![self.tensor(&format!("{name}.weight"), &[out, input])];
        if self.bias {
            params.push(self.tensor(&format!("{name}.bias"), &[out]));
        }
        self.node(Linear, &[x], &params)
    }

    fn block(&mut self, block: usize, x: usize, scale: f32) -> usize {
        let y = self.norm(&format!("h.{block}.ln_1"), x);
        let y = self.linear(&format!("h.{block}.attn.qkv"), y, 3 * HIDDEN, HIDDEN);
        let y = self.node(CausalAttention::new(2, scale, 0.1), &[y], &[]);
        let y = self.linear(&format!("h.{block}.attn.proj"), y, HIDDEN, HIDDEN);
        let y = self.node(Dropout { rate: 0.2 }, &[y], &[]);
        let x = self.node(Add, &[x, y], &[]);
        let y = self.norm(&format!("h.{block}.ln_2"), x);
        let y = self.linear(&format!("h.{block}.mlp.fc"), y, INNER, HIDDEN);
        let y = self.node(Activation { kind: Nonlinearity::GeluTanh }, &[y], &[]);
        let y = self.linear(&format!("h.{block}.mlp.proj"), y, HIDDEN, INNER);
        let y = self.node(Dropout { rate: 0.2 }, &[y], &[]);
        self.node(Add, &[y, x], &[])
    }
}

pub fn graph(model: Model) -> Graph {
    let integers = |name: &str| Value { name: name.into(), shape: Shape::integers(POSITIONS) };
    let empty = Graph { values: vec![integers(INPUT_IDS), integers(LABELS)], inputs: vec![0, 1], ..Graph::default() };
    let mut b = Builder { graph: empty, bias: model.bias };
    let (wte, wpe) =
        (b.tensor("wte.weight", &[model.vocabulary, HIDDEN]), b.tensor("wpe.weight", &[POSITIONS, HIDDEN]));
    let x = b.node(Embedding, &[0], &[wte]);
    let mut x = b.node(AddPosition, &[x], &[wpe]);
    let mut boundaries = vec![0, b.graph.nodes.len()];
    for block in 0..2 {
        x = b.block(block, x, model.scale);
        boundaries.push(b.graph.nodes.len());
    }
    let x = b.norm("ln_f", x);
    let mut head = vec![if model.tied { wte } else { b.tensor("lm_head.weight", &[model.vocabulary, HIDDEN]) }];
    if model.head_bias {
        head.push(b.tensor("lm_head.bias", &[model.vocabulary]));
    }
    b.graph.nodes.push(OpNode::new(CrossEntropy::new(), vec![x, 1], head, None));
    boundaries.push(b.graph.nodes.len());
    let names = ["embed", "h.0", "h.1", "head"];
    b.graph.layers = names
        .iter()
        .zip(boundaries.windows(2))
        .map(|(name, range)| Layer { name: (*name).into(), nodes: range[0]..range[1], block: None })
        .collect();
    b.graph
}

/// A plan with `groups` groups, cut into chunks of at most `max_elements` elements.
pub fn plan_of(graph: Graph, groups: usize, max_elements: usize) -> StreamPlan {
    let leaves = LeafLayout { count: 2, samples: 1 };
    let mut plan = StreamPlan {
        sequence: POSITIONS,
        leaves,
        eval_leaves: leaves,
        groups: Vec::new(),
        chunks: Vec::new(),
        layers: Vec::new(),
        resident: Vec::new(),
        encoding: Encoding::F32,
        leaves_per_round: 2,
        tiles: 1,
        whole_tensor_state: None,
        extra_state_tensors: 0,
        down_train: Vec::new(),
        down_eval: Vec::new(),
        up: Vec::new(),
        graph,
    };
    let ids: Vec<usize> = (0..plan.graph.tensors.len()).collect();
    for (index, members) in ids.chunks(ids.len().div_ceil(groups)).enumerate() {
        let mut end = 0;
        let tensors: Vec<(usize, Range<usize>)> = members
            .iter()
            .map(|&id| {
                let start = end;
                end += plan.graph.tensors[id].elements();
                (id, start..end)
            })
            .collect();
        let first = plan.chunks.len();
        let chunks = (0..end).step_by(max_elements).map(|start| Chunk {
            group: index,
            start,
            elements: max_elements.min(end - start),
        });
        plan.chunks.extend(chunks);
        plan.groups.push(Group {
            name: format!("h.{index}"),
            tensors,
            chunks: first..plan.chunks.len(),
            elements: end,
        });
    }
    plan
}

pub fn plan() -> StreamPlan {
    plan_of(graph(Model::default()), 4, 100)
}

pub fn facts(plan: &StreamPlan) -> CheckpointMetadata {
    CheckpointMetadata {
        plan: plan.hash(),
        seed: u64::MAX,
        next_sample: 80,
        numerics_profile: r#"{"isa":"avx2"}"#.into(),
        precision: "f32".into(),
        optimizer: "adamw".into(),
        loss: Some(2.345_678),
        grad_norm: Some(f32::MIN_POSITIVE),
        history: StepHistory { skipped_batches: 0, steps: 50, mean_loss: 2.345_678, mean_grad_norm: f32::MIN_POSITIVE },
        notes: vec!["a note".into()],
        job: r#"{"model": {"hidden": 8}}"#.into(),
        recovery: false,
    }
}

/// Random bits, including all kinds of NaNs, infinities, subnormals and negative zeros.
pub fn random_bits(seed: u64, elements: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let special = [f32::NAN.to_bits(), 0x7fa0_0001, 0xffc1_2345, (-0.0f32).to_bits(), 1, f32::NEG_INFINITY.to_bits()];
    (0..elements)
        .map(|index| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            f32::from_bits(if index % 7 == 0 { special[state as usize % special.len()] } else { state as u32 })
        })
        .collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub fn lock(dir: &Path) -> Arc<ModelDirLock> {
    Arc::new(ModelDirLock::acquire(dir, &LockRequest::local()).unwrap())
}

/// The content of a tensor's section, independent of the plan.
pub fn tensor_values(plan: &StreamPlan, tensor: usize, section: usize) -> Vec<f32> {
    values_of_shape(plan, tensor, section, StateShape::Full)
}

fn values_of_shape(plan: &StreamPlan, tensor: usize, section: usize, shape: StateShape) -> Vec<f32> {
    let tensor = &plan.graph.tensors[tensor];
    let seed = tensor.name.bytes().fold(section as u64 + 1, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    random_bits(seed, shape.elements(&tensor.shape))
}

/// The content of a chunk's section: the state of rows or columns of a group belongs to its first chunk.
pub fn section_values(plan: &StreamPlan, moments: &Moments, chunk: usize, section: Section) -> Vec<f32> {
    let (shape, group) = (moments.shape(section), &plan.groups[plan.chunks[chunk].group]);
    match shape {
        StateShape::Full => chunk_values(plan, chunk, section.index()),
        _ if chunk != group.chunks.start => Vec::new(),
        _ => {
            let tensors = group.tensors.iter();
            tensors.flat_map(|(tensor, _)| values_of_shape(plan, *tensor, section.index(), shape)).collect()
        }
    }
}

/// The content of a chunk's section.
pub fn chunk_values(plan: &StreamPlan, chunk: usize, section: usize) -> Vec<f32> {
    let mut values = vec![0.0; plan.chunks[chunk].elements];
    for (tensor, start, range) in plan.chunk_pieces(chunk) {
        let length = range.len();
        values[range].copy_from_slice(&tensor_values(plan, tensor, section)[start..start + length]);
    }
    values
}

/// Writes a checkpoint as two shards do.
pub fn write(lock: &Arc<ModelDirLock>, plan: &StreamPlan, step: u64, moments: &Moments) -> PathBuf {
    write_of_kind(lock, plan, step, moments, false)
}

/// Like [`write`]; a recovery checkpoint if `recovery` is true.
pub fn write_of_kind(
    lock: &Arc<ModelDirLock>,
    plan: &StreamPlan,
    step: u64,
    moments: &Moments,
    recovery: bool,
) -> PathBuf {
    let epoch = WriterEpoch { attempt: lock.attempt(), number: 2 };
    let mut staging = Staging::create(lock, plan, step, epoch, moments).unwrap();
    for shard in 0..2 {
        let mut writer = RangeWriter::open(staging.path(), plan, moments).unwrap();
        let mut written = Vec::new();
        for chunk in (shard..plan.chunks.len()).step_by(2) {
            for section in moments.sections() {
                let values = section_values(plan, moments, chunk, section);
                written.push((section, chunk, writer.write_chunk(chunk, section, &values).unwrap()));
            }
        }
        writer.finish().unwrap();
        for (section, chunk, digest) in written {
            staging.record_digest(section, chunk, digest).unwrap();
        }
    }
    staging.publish(CheckpointMetadata { plan: PlanHash(step), recovery, ..facts(plan) }).unwrap()
}

pub fn adam_moments() -> Moments {
    Moments::new(["m", "v"]).unwrap()
}

/// The moments of Adafactor with a mean of updates.
pub fn adafactor_moments() -> Moments {
    let shapes = [("v_row", StateShape::Rows), ("v_col", StateShape::Columns), ("m", StateShape::Full)];
    Moments::with_shapes(shapes).unwrap()
}

/// The moment of SGD with momentum.
pub fn sgd_moments() -> Moments {
    Moments::new(["m"]).unwrap()
}
