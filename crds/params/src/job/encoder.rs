//! The encoder of a resolved job.

use serde::{Deserialize, Serialize};

use super::model::Nonlinearity;

/// What a model has if it is an encoder: blocks that attend in both directions, and a head for one task (BERT, RoBERTa,
/// ESM-2). Positions, and factors of embeddings and logits, are those of its
/// [`DecoderOptions`](crate::DecoderOptions).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderOptions {
    /// Whether each token belongs to one of two segments, which have an embedding.
    pub use_segment_embedding: bool,
    /// Activation of the pooler, the layer over the first token.
    pub pooler_nonlinearity: Nonlinearity,
    /// What the model is trained for.
    pub task: EncoderTask,
    /// Whether blocks normalize their input instead of their output (ESM-2). The last block is then followed by a norm.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub norm_first: bool,
    /// Whether the sum of embeddings is not normalized (ESM-2).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_embedding_plain: bool,
    /// The token that masks others, if the params name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_token: Option<u32>,
    /// Whether embeddings of `mask_token`, which is then present, are 0, and all others are scaled by the share that is
    /// left (ESM-2).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_token_dropout: bool,
}

/// What an encoder is trained for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum EncoderTask {
    /// To predict masked tokens and, optionally, whether the second segment follows the first.
    Pretraining {
        /// Number of masked tokens of a sample; fewer are padded. `None` for labels at all positions.
        max_predictions: Option<usize>,
        /// Factor of the sum of the losses of masked tokens.
        masked_token_weight: f64,
        /// Activation of the layer before the output layer.
        nonlinearity: Nonlinearity,
        /// Whether the model predicts if the second segment follows the first.
        predicts_next_sentence: bool,
    },
    /// To assign a class to each sample.
    Classifier {
        /// Number of classes.
        classes: usize,
        /// Dropout before the output layer, in [0, 1).
        dropout_rate: f64,
    },
    /// To assign a class to each token.
    TokenClassifier {
        /// Number of classes.
        classes: usize,
        /// Dropout before the output layer, in [0, 1).
        dropout_rate: f64,
        /// Whether padding counts, as class 0.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        counts_padding: bool,
    },
    /// To decide of each sentence whether it belongs to the summary, from the token before it.
    Summarization {
        /// Number of sentences of a sample; fewer are padded.
        max_sentences: usize,
        /// Whether evaluations compare the words of predicted and actual summaries (ROUGE).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        compares_words: bool,
    },
    /// To find the first and the last token of an answer in a text.
    QuestionAnswering {},
}

/// How tokens are chosen whose prediction an encoder is trained for, if the data do not say so.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MaskingSpec {
    /// Share of the tokens that are predicted, in (0, 1).
    pub probability: f64,
    /// Whether all tokens of a word are chosen together.
    pub whole_words: bool,
}
