//! The model of a resolved job.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::encoder::EncoderOptions;
use super::image::ImageOptions;
use super::seq2seq::Seq2SeqOptions;

/// A completely specified decoder, encoder or model of images, or the graph of a document. A decoder has blocks that
/// normalize their input, a final norm, and an output layer over the vocabulary; what differs from GPT-2 is in
/// [`DecoderOptions`]. What an encoder has is in [`EncoderOptions`], what a model of images has in [`ImageOptions`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// The family, named in reports and exports.
    pub family: ModelFamily,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder blocks.
    pub num_hidden_layers: usize,
    /// Number of attention heads; divides the width of the attention.
    pub num_heads: usize,
    /// Width of the feed-forward network.
    pub filter_size: usize,
    /// Rows of the position embedding; the default length of samples of models without one.
    pub max_position_embeddings: usize,
    /// Whether the model knows the positions of tokens, by the means of [`DecoderOptions::positions`].
    pub use_position_embedding: bool,
    /// Whether the output layer shares the token embedding's weights.
    pub share_embedding_weights: bool,
    /// Dropout of both residual branches, in [0, 1).
    pub dropout_rate: f64,
    /// Dropout of the sum of embeddings, in [0, 1).
    pub embedding_dropout_rate: f64,
    /// Dropout of the attention weights, in [0, 1).
    pub attention_dropout_rate: f64,
    /// Term added to the variance in every layer norm.
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
    /// Initial values of the weights. Biases begin at 0, scales of layer norms at 1.
    pub initializers: Initializers,
    /// Type of the weights on the wire and of the inputs of matrix products.
    pub precision: Precision,
    /// Divisor of a batch's summed loss.
    pub loss_scaling: LossScaling,
    /// Factor of the loss.
    pub loss_weight: f64,
    /// Whether evaluation reports perplexity and accuracy besides the loss.
    pub compute_eval_metrics: bool,
    /// What the decoder has instead of the parts of GPT-2.
    #[serde(default, skip_serializing_if = "DecoderOptions::is_gpt2")]
    pub decoder: DecoderOptions,
    /// What an encoder has; `None` if the model is a decoder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<EncoderOptions>,
    /// What an encoder with a decoder has; `None` if the model has one sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq2seq: Option<Seq2SeqOptions>,
    /// What a model of images has; `None` if the model reads tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageOptions>,
    /// Path of the document of the model's graph; `None` if the other fields describe the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<String>,
}

/// What a decoder has instead of the parts of GPT-2. The default is GPT-2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecoderOptions {
    /// How the model knows the positions of tokens.
    pub positions: Positions,
    /// Kind of all norms.
    pub norm: Norm,
    /// Whether the sum of embeddings is normalized.
    pub is_embedding_normalized: bool,
    /// Whether attention and feed-forward network read the same input, and both are added to it.
    pub parallel_blocks: Option<ParallelBlocks>,
    /// Number of heads of keys and values, which divides the number of heads; `None` for one for each.
    pub num_key_heads: Option<usize>,
    /// Number of tokens that a token attends to, itself included; `None` for all before it.
    pub attention_window: Option<usize>,
    /// Number of first tokens that a token attends to besides; 0 without a window.
    #[serde(skip_serializing_if = "is_zero")]
    pub attention_sinks: usize,
    /// Whether only every other block, beginning with the first, has this bound.
    pub is_window_alternating: bool,
    /// Bound of the products of queries and keys, by a tangent.
    pub attention_softcap: Option<f64>,
    /// Width of all heads of queries together; `None` for that of the residual stream.
    pub attention_width: Option<usize>,
    /// Whether `attention_scale` is divided by the number of the block, which begins with 1.
    pub is_attention_scaled_by_block: bool,
    /// Whether the feed-forward network multiplies its activation by a second projection.
    pub is_gated: bool,
    /// Whether the outputs of attention and feed-forward network are normalized before they are added.
    pub is_branch_normalized: bool,
    /// Factor of the sum of embeddings, after their norm.
    pub embeddings_scale: f64,
    /// Factor of the logits, before the bias of the output layer.
    pub logits_scale: f64,
    /// Bound of the logits, by a tangent.
    pub logits_softcap: Option<f64>,
    /// Whether a sample may contain several sequences, which do not see each other.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_packed: bool,
}

impl Default for DecoderOptions {
    fn default() -> Self {
        Self {
            positions: Positions::Learned,
            norm: Norm::LayerNorm,
            is_embedding_normalized: false,
            parallel_blocks: None,
            num_key_heads: None,
            attention_window: None,
            attention_sinks: 0,
            is_window_alternating: false,
            attention_softcap: None,
            attention_width: None,
            is_attention_scaled_by_block: false,
            is_gated: false,
            is_branch_normalized: false,
            embeddings_scale: 1.0,
            logits_scale: 1.0,
            logits_softcap: None,
            is_packed: false,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl DecoderOptions {
    /// Returns whether all parts are those of GPT-2.
    pub fn is_gpt2(&self) -> bool {
        *self == Self::default()
    }
}

/// How a decoder knows the positions of tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// By a trained embedding, added to that of the token.
    #[default]
    Learned,
    /// By rotating queries and keys.
    Rotary(RotaryPositions),
    /// By decreasing attention scores in proportion to the distance (ALiBi).
    Alibi,
}

/// A rotary position embedding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RotaryPositions {
    /// Number of rotated elements of each head; even.
    pub dimensions: usize,
    /// Base of the frequencies.
    pub base: f64,
    /// Whether adjacent elements are rotated together, as in GPT-J, instead of the elements of two halves.
    pub is_adjacent: bool,
    /// Change of the frequencies for long contexts.
    pub scaling: Option<RotaryScaling>,
}

/// Change of the frequencies of a rotary position embedding for contexts longer than those of the original training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum RotaryScaling {
    /// All frequencies are divided by `factor`: positions are interpolated.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// As in LLaMA 3.1: frequencies with wavelengths beyond `original_positions / low_frequency_factor` are divided by
    /// `factor`, those with wavelengths below `original_positions / high_frequency_factor` stay, and those between are
    /// interpolated.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Divisor of the positions that gives the longest interpolated wavelength.
        low_frequency_factor: f64,
        /// Divisor of the positions that gives the shortest interpolated wavelength.
        high_frequency_factor: f64,
        /// Number of positions of the original training.
        original_positions: f64,
    },
}

/// A kind of normalization.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// To mean 0 and variance 1, with gain and offset.
    #[default]
    LayerNorm,
    /// As `LayerNorm`, without an offset.
    BiaslessLayerNorm,
    /// To a mean square of 1, with a gain.
    RmsNorm,
}

/// The norms of a block whose attention and feed-forward network read the same input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParallelBlocks {
    /// One norm for both (GPT-J).
    OneNorm,
    /// One norm for each (GPT-NeoX).
    TwoNorms,
}

/// The size of a GPT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder blocks.
    pub num_hidden_layers: usize,
    /// Number of attention heads; divides `hidden_size`.
    pub num_heads: usize,
    /// Rows of the position embedding.
    pub max_position_embeddings: usize,
}

impl ModelSpec {
    /// Returns a GPT-2 of this size, for programs that have no params: f32, no dropout, every bias but that of the
    /// output layer, which shares the token embedding's weights. Weights begin normal with standard deviation 0.02.
    pub fn gpt2(size: ModelSize) -> Self {
        let normal = InitializerSpec::Normal { mean: 0.0, std: 0.02 };
        Self {
            family: ModelFamily::Gpt2,
            vocab_size: size.vocab_size,
            hidden_size: size.hidden_size,
            num_hidden_layers: size.num_hidden_layers,
            num_heads: size.num_heads,
            filter_size: 4 * size.hidden_size,
            max_position_embeddings: size.max_position_embeddings,
            use_position_embedding: true,
            share_embedding_weights: true,
            dropout_rate: 0.0,
            embedding_dropout_rate: 0.0,
            attention_dropout_rate: 0.0,
            layer_norm_epsilon: 1e-5,
            attention_scale: 1.0 / ((size.hidden_size / size.num_heads) as f64).sqrt(),
            nonlinearity: Nonlinearity::Gelu,
            use_projection_bias_in_attention: true,
            use_ffn_bias_in_attention: true,
            use_ffn_bias: true,
            use_bias_in_output: false,
            initializers: Initializers {
                embedding: normal,
                hidden: normal,
                residual_output: normal,
                lm_head: normal,
                ffn_hidden: None,
                ffn_output: None,
            },
            precision: Precision::F32,
            loss_scaling: LossScaling::NumTokens,
            loss_weight: 1.0,
            compute_eval_metrics: false,
            decoder: DecoderOptions::default(),
            encoder: None,
            seq2seq: None,
            image: None,
            graph: None,
        }
    }

    /// Returns the width of one attention head.
    pub fn head_size(&self) -> usize {
        self.decoder.attention_width.unwrap_or(self.hidden_size) / self.num_heads
    }
}

/// A family of models, named in reports. Families of decoders, and of encoders, differ in the defaults of their params.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "names of models")]
pub enum ModelFamily {
    Gpt2,
    /// GPT-3 with dense attention.
    Gpt3,
    /// GPT-J and GPT-NeoX.
    Gptj,
    Llama,
    Mistral,
    Falcon,
    Bloom,
    Mpt,
    Btlm,
    Jais,
    Starcoder,
    Santacoder,
    Gemma2,
    T5,
    /// An encoder and a decoder of the first Transformer.
    Transformer,
    /// BERT and RoBERTa, pre-trained with masked tokens.
    Bert,
    BertClassifier,
    BertTokenClassifier,
    BertSummarization,
    BertQa,
    Esm2,
    /// Linear layers over the pixels of an image.
    FcMnist,
    VisionTransformer,
    /// The graph of a document.
    Graph,
}

impl ModelFamily {
    /// Returns whether models of this family are encoders.
    pub const fn is_encoder(self) -> bool {
        matches!(
            self,
            Self::Bert
                | Self::BertClassifier
                | Self::BertTokenClassifier
                | Self::BertSummarization
                | Self::BertQa
                | Self::Esm2
        )
    }

    /// Returns whether models of the family read one sequence and predict another.
    pub const fn is_seq2seq(self) -> bool {
        matches!(self, Self::T5 | Self::Transformer)
    }
}

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Nonlinearity {
    /// x Φ(x), exact.
    Gelu,
    /// 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))).
    GeluTanh,
    /// x σ(1.702 x).
    QuickGelu,
    /// The square of `Gelu`.
    SquaredGelu,
    /// max(x, 0).
    Relu,
    /// The square of `Relu`.
    SquaredRelu,
    /// x σ(x).
    Silu,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// x.
    Identity,
}

/// Type of the weights on the wire and of the operands of matrix products. Accumulation, sums, elementwise operations
/// and master weights are f32 in both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16: operands are rounded to nearest, ties to even. A product of two of them is exact in f32.
    Bf16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        })
    }
}

/// Divisor of the sum of a batch's token losses, before the factor `loss_weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossScaling {
    /// The number of labelled tokens in the batch.
    NumTokens,
    /// The number of samples in the batch.
    BatchSize,
    /// One. Only the document of a graph can say so.
    Sum,
}

/// Initial values of the weights, by purpose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Initializers {
    /// Token and position embeddings.
    pub embedding: InitializerSpec,
    /// Query, key and value projections and the first feed-forward layer.
    pub hidden: InitializerSpec,
    /// The first feed-forward layer, if it differs from `hidden`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ffn_hidden: Option<InitializerSpec>,
    /// The layers that add to the residual stream: attention output and second feed-forward layer.
    pub residual_output: InitializerSpec,
    /// The second feed-forward layer, if it differs from `residual_output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ffn_output: Option<InitializerSpec>,
    /// The output layer over the vocabulary, if it does not share the embedding's weights.
    pub lm_head: InitializerSpec,
}

impl Initializers {
    /// Returns the same initial values for all weights.
    pub const fn uniform(all: InitializerSpec) -> Self {
        Self { embedding: all, hidden: all, ffn_hidden: None, residual_output: all, ffn_output: None, lm_head: all }
    }
}

/// A distribution of initial values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum InitializerSpec {
    /// Normal distribution.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Normal distribution; values outside of [a, b] are drawn again.
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
    /// The same value everywhere.
    Constant {
        /// The value.
        val: f64,
    },
    /// A distribution around 0 whose variance is `scale`, divided by a size of the tensor.
    VarianceScaling {
        /// The variance times that size.
        scale: f64,
        /// The size.
        fan: Fan,
        /// The distribution.
        distribution: ScalingDistribution,
    },
}

/// The size of a tensor by which a variance is divided. An embedding has an input for each of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fan {
    /// Number of inputs.
    In,
    /// Number of outputs.
    Out,
    /// The mean of both.
    Average,
}

/// A distribution with a given variance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingDistribution {
    /// Normal.
    Normal,
    /// Normal, truncated at two standard deviations.
    TruncatedNormal,
    /// Uniform.
    Uniform,
}

impl InitializerSpec {
    /// Returns a normal distribution around 0, truncated at two standard deviations.
    pub fn truncated_normal(std: f64) -> Self {
        Self::TruncatedNormal { mean: 0.0, std, a: -2.0 * std, b: 2.0 * std }
    }

    /// Returns the distribution with its spread and bounds multiplied by `factor`; `None` if it is uniform or
    /// constant.
    pub fn scaled(self, factor: f64) -> Option<Self> {
        match self {
            Self::Normal { mean, std } => Some(Self::Normal { mean, std: std * factor }),
            Self::TruncatedNormal { mean, std, a, b } => {
                Some(Self::TruncatedNormal { mean, std: std * factor, a: a * factor, b: b * factor })
            }
            Self::VarianceScaling { scale, fan, distribution } => {
                Some(Self::VarianceScaling { scale: scale * factor * factor, fan, distribution })
            }
            Self::Uniform { .. } | Self::Constant { .. } => None,
        }
    }
}
