//! Published results of the real machine, and the error of the time model for each.
//!
//! Three of them determine the model's only fitted constant, the default appliance's `utilisation`: the value for which
//! the mean of the logarithms of their errors is zero. The others only check the model. The same model runs up to 1.3
//! times faster with one software release of the real machine than with the previous one, so errors below 15% are not
//! significant.

use std::sync::OnceLock;

use millrace_params::{MachineSpec, ModelFamily, ModelSize, ModelSpec, Nonlinearity, Precision};
use serde::{Deserialize, Serialize};

use super::project_step;
use crate::compile::{BatchSpec, CompileRequest, compile};
use crate::families;
use crate::graph::{Graph, GraphBuilder, GraphError, Initializer, TensorId, TensorRole, ValueId};
use crate::ops::{Activation, Add, CausalAttention, CrossEntropy, Embedding, LayerNorm, Linear};
use crate::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, StreamPlan};

/// The use of a published result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PublishedResultUse {
    /// The model's constants are fitted to it.
    Fit,
    /// The model is checked by it.
    Check,
}

/// The architecture of a published run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishedModel {
    /// A GPT-2 or GPT-3: learned positions, one branch after the other, output weights shared with the embedding.
    Gpt {
        /// Blocks.
        layers: usize,
        /// Width.
        hidden: usize,
        /// Attention heads.
        heads: usize,
    },
    /// GPT-J 6B.
    GptJ,
}

/// A run with published speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedResult {
    /// What was trained.
    pub name: &'static str,
    /// Whether the result is used to fit or to check the model.
    pub used_for: PublishedResultUse,
    /// The model.
    pub model: PublishedModel,
    /// Global batch, in samples of 2,048 tokens.
    pub batch: usize,
    /// Systems.
    pub systems: u32,
    /// Measured samples per second, all systems together.
    pub samples_per_second: f64,
}

/// Tokens per sample in every published result.
const SEQUENCE: usize = 2048;
/// Vocabulary of GPT-2 and GPT-3.
const GPT_VOCABULARY: usize = 50_257;

/// Published results of CS-2 systems training GPTs.
pub const PUBLISHED_RESULTS: [PublishedResult; 4] = [
    PublishedResult {
        name: "GPT-2 117M on 1 CS-2",
        used_for: PublishedResultUse::Fit,
        model: PublishedModel::Gpt { layers: 12, hidden: 768, heads: 12 },
        batch: 112,
        systems: 1,
        samples_per_second: 494.5,
    },
    // 26.3 billion tokens in 10 hours.
    PublishedResult {
        name: "GPT-3 1.3B on 4 CS-2",
        used_for: PublishedResultUse::Fit,
        model: PublishedModel::Gpt { layers: 24, hidden: 2048, heads: 16 },
        batch: 528,
        systems: 4,
        samples_per_second: 26.3e9 / 36_000.0 / SEQUENCE as f64,
    },
    PublishedResult {
        name: "GPT-J 6B on 2 CS-2, release 2.0.3",
        used_for: PublishedResultUse::Fit,
        model: PublishedModel::GptJ,
        batch: 120,
        systems: 2,
        samples_per_second: 43.67,
    },
    PublishedResult {
        name: "GPT-J 6B on 1 CS-2, release 1.9.2",
        used_for: PublishedResultUse::Check,
        model: PublishedModel::GptJ,
        batch: 66,
        systems: 1,
        samples_per_second: 19.81,
    },
];

/// The projection for a [`PublishedResult`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProjectionError {
    /// What was trained.
    pub name: String,
    /// Whether the result was used to fit or to check the model.
    pub used_for: PublishedResultUse,
    /// Measured on the real machine, samples per second.
    pub measured: f64,
    /// Projected, samples per second.
    pub projected: f64,
    /// `projected / measured - 1`.
    pub error: f64,
}

/// Projects every published result on CS-2 systems. Computed once per process.
pub fn projection_errors() -> &'static [ProjectionError] {
    static ERRORS: OnceLock<Vec<ProjectionError>> = OnceLock::new();
    ERRORS.get_or_init(|| {
        let appliance = MachineSpec::default();
        PUBLISHED_RESULTS.iter().filter_map(|anchor| anchor.error(&appliance)).collect()
    })
}

impl PublishedResult {
    /// Computes the error of the projection for the systems of `appliance`.
    pub(super) fn error(&self, appliance: &MachineSpec) -> Option<ProjectionError> {
        let projection = project_step(&self.plan(appliance)?, appliance, self.systems).ok()?;
        let (measured, projected) = (self.samples_per_second, projection.samples_per_second);
        let error = projected / measured - 1.0;
        Some(ProjectionError { name: self.name.to_owned(), used_for: self.used_for, measured, projected, error })
    }

    /// Compiles its plan, in mixed precision with leaves of one sample.
    pub fn plan(&self, appliance: &MachineSpec) -> Option<StreamPlan> {
        let graph = match self.model {
            PublishedModel::Gpt { layers, hidden, heads } => families::decoder(&gpt(layers, hidden, heads), SEQUENCE),
            PublishedModel::GptJ => gpt_j(),
        };
        compile(CompileRequest {
            graph: graph.ok()?,
            train: BatchSpec { samples: self.batch, leaf_bound: 1 },
            trains: true,
            eval: None,
            encoding: Encoding::Bf16,
            wafer_memory: appliance.wafer.memory_bytes,
            chunk_elements: DEFAULT_CHUNK_ELEMENTS,
            window_chunks: appliance.link.window_chunks,
            memoryx_memory: appliance.memoryx.bytes_per_copy(),
            whole_tensor_state: None,
            extra_state_tensors: 0,
        })
        .ok()
    }
}

/// Builds a GPT-2 or GPT-3. Initial values are irrelevant here.
fn gpt(layers: usize, hidden: usize, heads: usize) -> ModelSpec {
    ModelSpec {
        family: ModelFamily::Gpt3,
        precision: Precision::Bf16,
        ..ModelSpec::gpt2(ModelSize {
            vocab_size: GPT_VOCABULARY,
            hidden_size: hidden,
            num_hidden_layers: layers,
            num_heads: heads,
            max_position_embeddings: SEQUENCE,
        })
    }
}

/// Builds GPT-J 6B: attention and feed-forward network in parallel after one norm, and a separate output layer with a
/// bias. Rotary positions are omitted, because there is no operator for them; they have no weights and no products.
pub(super) fn gpt_j() -> Result<Graph, GraphError> {
    let (width, heads, vocabulary) = (4096, 16, 50_400);
    let mut model = GptJ { builder: GraphBuilder::new() };
    let [input_ids, labels] = model.builder.token_inputs(SEQUENCE);
    let table = model.tensor("wte.weight", &[vocabulary, width], TensorRole::Embedding);
    let mut stream = model.builder.node(Embedding, "embed", &[input_ids], &[table])?;
    model.builder.end_layer("embed");
    for block in 0..28 {
        let part_name = |part: &str| format!("h.{block}.{part}");
        let normal = model.norm(&part_name("ln_1"), stream, width)?;
        let qkv = model.linear(&part_name("attn.qkv"), normal, [3 * width, width], false)?;
        let attention = CausalAttention::new(heads, 1.0 / 16.0, 0.0);
        let mixed = model.builder.node(attention, part_name("attn"), &[qkv], &[])?;
        let attended = model.linear(&part_name("attn.proj"), mixed, [width, width], false)?;
        let inner = model.linear(&part_name("mlp.fc"), normal, [4 * width, width], true)?;
        let active = Activation { kind: Nonlinearity::GeluTanh };
        let active = model.builder.node(active, part_name("mlp.act"), &[inner], &[])?;
        let fed = model.linear(&part_name("mlp.proj"), active, [width, 4 * width], true)?;
        let branches = model.builder.node(Add, part_name("branches"), &[attended, fed], &[])?;
        stream = model.builder.node(Add, part_name("sum"), &[branches, stream], &[])?;
        model.builder.end_layer(format!("h.{block}"));
    }
    let normal = model.norm("ln_f", stream, width)?;
    let weight = model.tensor("lm_head.weight", &[vocabulary, width], TensorRole::Weight);
    let bias = model.tensor("lm_head.bias", &[vocabulary], TensorRole::Bias);
    model.builder.loss(CrossEntropy::new(), &[normal, labels], &[weight, bias])?;
    model.builder.end_layer("head");
    model.builder.finish()
}

struct GptJ {
    builder: GraphBuilder,
}

impl GptJ {
    fn tensor(&mut self, name: &str, shape: &[usize], role: TensorRole) -> TensorId {
        self.builder.tensor(name, shape, Initializer::Constant { value: 0.0 }, role)
    }

    fn norm(&mut self, name: &str, x: ValueId, width: usize) -> Result<ValueId, GraphError> {
        let gain = self.tensor(&format!("{name}.weight"), &[width], TensorRole::Norm);
        let offset = self.tensor(&format!("{name}.bias"), &[width], TensorRole::Norm);
        self.builder.node(LayerNorm { epsilon: 1e-5 }, name, &[x], &[gain, offset])
    }

    fn linear(&mut self, name: &str, x: ValueId, shape: [usize; 2], biased: bool) -> Result<ValueId, GraphError> {
        let mut params = vec![self.tensor(&format!("{name}.weight"), &shape, TensorRole::Weight)];
        if biased {
            params.push(self.tensor(&format!("{name}.bias"), &shape[..1], TensorRole::Bias));
        }
        self.builder.node(Linear, name, &[x], &params)
    }
}
