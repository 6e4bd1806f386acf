//! The encoder and decoder of a resolved job of two sequences.

use serde::{Deserialize, Serialize};

use super::model::{InitializerSpec, Nonlinearity};

/// What a model has if it is an encoder and a decoder (T5, Transformer). The encoder is that of the
/// [`ModelSpec`](crate::ModelSpec), whose widths, heads and norms the decoder shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seq2SeqOptions {
    /// Number of tokens in the vocabulary of the decoder.
    pub target_vocab_size: usize,
    /// Number of tokens that the decoder reads, and of labels.
    pub target_length: usize,
    /// Number of decoder blocks.
    pub num_decoder_layers: usize,
    /// Whether encoder and decoder share the token embedding.
    pub shares_embedding: bool,
    /// How both know the positions of tokens.
    pub positions: Seq2SeqPositions,
    /// Whether blocks normalize their input instead of their output.
    pub norm_first: bool,
    /// Activation of the decoder's feed-forward network.
    pub decoder_nonlinearity: Nonlinearity,
    /// Whether that network multiplies its activation by a second projection.
    pub is_decoder_gated: bool,
    /// Dropout of the activation of feed-forward networks, in [0, 1).
    pub ffn_dropout_rate: f64,
    /// Further dropout of both embeddings, in [0, 1).
    pub input_dropout_rate: f64,
    /// Dropout after the last norm of encoder and decoder, in [0, 1).
    pub output_dropout_rate: f64,
    /// Initial values of projections to queries. Those of keys and values are [`Initializers::hidden`].
    ///
    /// [`Initializers::hidden`]: crate::Initializers::hidden
    pub query_initializer: InitializerSpec,
    /// What the decoder has instead of the encoder's settings, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoder: Option<Seq2SeqDecoder>,
}

/// Settings of a decoder that are not those of its encoder. muP distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Seq2SeqDecoder {
    /// Factor of the products of queries and keys.
    pub attention_scale: f64,
    /// Initial values of the layers of attention that add to the residual stream.
    pub residual_output: InitializerSpec,
    /// Initial values of the second feed-forward layer.
    pub ffn_output: InitializerSpec,
}

/// How an encoder and a decoder know the positions of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seq2SeqPositions {
    /// By trained biases of attention scores, a table each for encoder and decoder.
    Relative {
        /// Number of buckets of distances; even.
        buckets: usize,
        /// Distance from which on all distances share a bucket.
        max_distance: usize,
        /// Initial values of the tables.
        initializer: InitializerSpec,
    },
    /// By sines and cosines that are added to the embeddings.
    Fixed,
    /// Not at all.
    Absent,
}
