//! Public figures of the real machine, and how far the time model is from them.

use millrace_params::{
    ApplianceSpec, Family, Initializer, Initializers, LossScaling, ModelSpec, Nonlinearity, Precision,
};
use serde::{Deserialize, Serialize};

use super::project;
use crate::compile::{Batch, Request, compile};
use crate::families;
use crate::plan::{CHUNK_ELEMENTS, Encoding, StreamPlan};

/// A run whose speed was published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Anchor {
    /// What ran.
    pub name: &'static str,
    /// Blocks.
    pub layers: usize,
    /// Width.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Vocabulary.
    pub vocabulary: usize,
    /// Whether the output layer shares the embedding's weights.
    pub tied: bool,
    /// Tokens of a sample.
    pub sequence: usize,
    /// Global batch.
    pub batch: usize,
    /// Systems.
    pub systems: u32,
    /// Measured samples per second, all systems together.
    pub samples_per_second: f64,
}

/// Public figures of CS-2 systems training GPTs.
pub const ANCHORS: [Anchor; 3] = [
    Anchor {
        name: "GPT-2 117M on 1 CS-2",
        layers: 12,
        hidden: 768,
        heads: 12,
        vocabulary: 50_257,
        tied: true,
        sequence: 2048,
        batch: 112,
        systems: 1,
        samples_per_second: 494.5,
    },
    // 26.3 billion tokens in 10 hours.
    Anchor {
        name: "GPT-3 1.3B on 4 CS-2",
        layers: 24,
        hidden: 2048,
        heads: 16,
        vocabulary: 50_257,
        tied: true,
        sequence: 2048,
        batch: 528,
        systems: 4,
        samples_per_second: 26.3e9 / 36_000.0 / 2048.0,
    },
    // Its rotary positions and parallel branches cost about what GPT-3's blocks of the same size do.
    Anchor {
        name: "GPT-J 6B on 2 CS-2",
        layers: 28,
        hidden: 4096,
        heads: 16,
        vocabulary: 50_400,
        tied: false,
        sequence: 2048,
        batch: 120,
        systems: 2,
        samples_per_second: 43.67,
    },
];

/// The model's answer to an [`Anchor`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnchorError {
    /// What ran.
    pub name: String,
    /// Measured on the real machine, samples per second.
    pub measured: f64,
    /// Projected, samples per second.
    pub projected: f64,
    /// `projected / measured - 1`.
    pub error: f64,
}

/// Projects every anchor on CS-2s; in milliseconds.
pub fn anchor_errors() -> Vec<AnchorError> {
    let appliance = ApplianceSpec::default();
    let answer = |anchor: &Anchor| {
        let projection = project(&anchor.plan(&appliance)?, &appliance, anchor.systems).ok()?;
        let (measured, projected) = (anchor.samples_per_second, projection.samples_per_second);
        let error = projected / measured - 1.0;
        Some(AnchorError { name: anchor.name.to_owned(), measured, projected, error })
    };
    ANCHORS.iter().filter_map(answer).collect()
}

impl Anchor {
    /// Its plan, in mixed precision and leaves of one sample.
    pub fn plan(&self, appliance: &ApplianceSpec) -> Option<StreamPlan> {
        compile(Request {
            graph: families::gpt(&self.spec(), self.sequence).ok()?,
            train: Batch { samples: self.batch, leaf_bound: 1 },
            trains: true,
            eval: None,
            encoding: Encoding::Bf16,
            wafer_memory: appliance.wafer.memory_bytes,
            chunk_elements: CHUNK_ELEMENTS,
            memoryx_memory: appliance.memoryx.memory_bytes,
        })
        .ok()
    }

    /// The model, with initial values that don't matter.
    pub fn spec(&self) -> ModelSpec {
        let zero = Initializer::Constant { val: 0.0 };
        ModelSpec {
            family: Family::Gpt3,
            vocab_size: self.vocabulary,
            hidden_size: self.hidden,
            num_hidden_layers: self.layers,
            num_heads: self.heads,
            filter_size: 4 * self.hidden,
            max_position_embeddings: self.sequence,
            use_position_embedding: true,
            share_embedding_weights: self.tied,
            dropout_rate: 0.0,
            embedding_dropout_rate: 0.0,
            attention_dropout_rate: 0.0,
            layer_norm_epsilon: 1e-5,
            attention_scale: 1.0 / ((self.hidden / self.heads) as f64).sqrt(),
            nonlinearity: Nonlinearity::Gelu,
            use_projection_bias_in_attention: true,
            use_ffn_bias_in_attention: true,
            use_ffn_bias: true,
            use_bias_in_output: false,
            initializers: Initializers { embedding: zero, hidden: zero, residual_output: zero, lm_head: zero },
            precision: Precision::Bf16,
            loss_scaling: LossScaling::NumTokens,
            loss_weight: 1.0,
            compute_eval_metrics: false,
        }
    }
}
