//! The model of a resolved job.

use serde::{Deserialize, Serialize};

/// A GPT, fully specified: blocks that normalise their input, a final layer norm, and an output layer over the
/// vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The family's name, for reports and exports.
    pub family: Family,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder blocks.
    pub num_hidden_layers: usize,
    /// Attention heads; divides `hidden_size`.
    pub num_heads: usize,
    /// Width of the feed-forward network.
    pub filter_size: usize,
    /// Rows of the position embedding.
    pub max_position_embeddings: usize,
    /// Whether learned positions are added to the token embedding.
    pub use_position_embedding: bool,
    /// Whether the output layer shares the token embedding's weights.
    pub share_embedding_weights: bool,
    /// Dropout of both residual branches, in [0, 1).
    pub dropout_rate: f64,
    /// Dropout of the sum of embeddings, in [0, 1).
    pub embedding_dropout_rate: f64,
    /// Dropout of the attention weights, in [0, 1).
    pub attention_dropout_rate: f64,
    /// Added to the variance in every layer norm.
    pub layer_norm_epsilon: f64,
    /// Factor on the products of queries and keys: one over the square root of the head's width, or 1 for plain
    /// dot products.
    pub attention_scale: f64,
    /// Activation of the feed-forward network.
    pub nonlinearity: Nonlinearity,
    /// Whether the query, key and value projections have biases.
    pub use_projection_bias_in_attention: bool,
    /// Whether the attention's output projection has a bias.
    pub use_ffn_bias_in_attention: bool,
    /// Whether both feed-forward layers have biases.
    pub use_ffn_bias: bool,
    /// Whether the output layer has a bias.
    pub use_bias_in_output: bool,
    /// Initial values of the weights; biases begin at 0, layer norms at scale 1.
    pub initializers: Initializers,
    /// Type of the weights on the wire and of the inputs of matrix products.
    pub precision: Precision,
    /// What the summed loss of a batch is divided by.
    pub loss_scaling: LossScaling,
    /// Factor on the loss.
    pub loss_weight: f64,
    /// Whether evaluation reports perplexity and accuracy beside the loss.
    pub compute_eval_metrics: bool,
}

impl ModelSpec {
    /// Width of one attention head.
    pub fn head_size(&self) -> usize {
        self.hidden_size / self.num_heads
    }
}

/// A family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// GPT-2.
    Gpt2,
    /// GPT-3 with dense attention.
    Gpt3,
}

/// An activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nonlinearity {
    /// x Φ(x), exact.
    Gelu,
    /// 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))).
    GeluTanh,
}

/// The type of weights on the wire and of the inputs of matrix products; sums and master weights are f32 in either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
}

/// What the sum of a batch's token losses is divided by, before the factor `loss_weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossScaling {
    /// The number of tokens that count in the batch.
    NumTokens,
    /// The number of samples in the batch.
    BatchSize,
}

/// Initial values of the weights, by what a weight is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Initializers {
    /// Token and position embeddings.
    pub embedding: Initializer,
    /// Query, key and value projections and the first feed-forward layer.
    pub hidden: Initializer,
    /// The layers that write into the residual stream: attention output and second feed-forward layer.
    pub residual_output: Initializer,
    /// The output layer over the vocabulary, when it does not share the embedding's weights.
    pub lm_head: Initializer,
}

/// A distribution of initial values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Initializer {
    /// Normal distribution.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Normal distribution, values outside of [a, b] drawn again.
    TruncatedNormal {
        /// Mean before truncation.
        mean: f64,
        /// Standard deviation before truncation.
        std: f64,
        /// Lower bound.
        a: f64,
        /// Upper bound.
        b: f64,
    },
    /// Uniform distribution over [a, b).
    Uniform {
        /// Lower bound.
        a: f64,
        /// Upper bound.
        b: f64,
    },
    /// One value everywhere.
    Constant {
        /// The value.
        val: f64,
    },
}

impl Initializer {
    /// A normal distribution around 0, truncated at two standard deviations.
    pub fn truncated_normal(std: f64) -> Self {
        Self::TruncatedNormal { mean: 0.0, std, a: -2.0 * std, b: 2.0 * std }
    }
}
