//! The encoder of a resolved job.

use serde::{Deserialize, Serialize};

use super::model::Nonlinearity;

/// What a model has if it is an encoder: blocks that attend in both directions and normalize their output, and a head
/// for one task (BERT, RoBERTa).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderOptions {
    /// Whether each token belongs to one of two segments, which have an embedding.
    pub use_segment_embedding: bool,
    /// Activation of the pooler, the layer over the first token.
    pub pooler_nonlinearity: Nonlinearity,
    /// What the model is trained for.
    pub task: EncoderTask,
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
    },
}
