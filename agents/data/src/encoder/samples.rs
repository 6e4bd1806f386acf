//! What samples of encoders contain, and the arrays that hold it.

use super::Masking;

/// Inputs from whose words ROUGE is computed: the sentence of each token, and its word.
pub(super) const SENTENCE_IDS: &str = "sentence_ids";
pub(super) const WORD_IDS: &str = "word_ids";

/// What a sample of an encoder contains.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSamples {
    /// What is predicted.
    pub task: EncoderLabels,
    /// Whether there are segments.
    pub has_segments: bool,
    /// Size of the model's vocabulary.
    pub vocab_size: u32,
    /// The token that masks others; `None` for that of the words, or the first special token of a text.
    pub mask_token: Option<u32>,
    /// How tokens are masked; `None` if the data contain masked tokens, or none are predicted.
    pub masking: Option<Masking>,
    /// Seed of the masks.
    pub seed: u64,
    /// Whether a sample may contain several sequences, and says where they are.
    pub is_packed: bool,
}

/// What an encoder predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderLabels {
    /// Masked tokens.
    Tokens {
        /// Maximum number in a sample, whose positions are an input; `None` for labels at all positions.
        max_predictions: Option<usize>,
        /// Whether the model also predicts that the second segment does not follow the first.
        predicts_next_sentence: bool,
    },
    /// The class of the sample, below this number.
    Class { classes: u32 },
    /// The class of each token, below this number.
    TokenClasses {
        classes: u32,
        /// Whether padding counts, as class 0.
        counts_padding: bool,
    },
    /// Of each sentence, whether it belongs to the summary.
    Sentences {
        max_sentences: usize,
        /// Whether samples contain the sentence and the word of each token.
        has_words: bool,
    },
    /// The first and the last position of an answer.
    Span,
}

impl EncoderSamples {
    pub(super) fn predicts_next_sentence(&self) -> bool {
        matches!(self.task, EncoderLabels::Tokens { predicts_next_sentence: true, .. })
    }

    /// Returns the tokens of a window of a text, beside the special tokens of a sample of `length`.
    pub(crate) fn window_length(&self, length: usize) -> usize {
        length.saturating_sub(if self.predicts_next_sentence() { 3 } else { 2 }).max(1)
    }

    /// Returns the names of the arrays of a sample, and the number of elements of each.
    pub(super) fn arrays(&self, length: usize) -> Vec<(&'static str, usize)> {
        let mut arrays = vec![("input_ids", length), ("attention_mask", length)];
        if self.has_segments {
            arrays.push(("token_type_ids", length));
        }
        match self.task {
            EncoderLabels::Tokens { max_predictions: Some(count), .. } => {
                arrays.extend([("masked_lm_positions", count), ("labels", count)]);
            }
            EncoderLabels::Tokens { max_predictions: None, .. } | EncoderLabels::TokenClasses { .. } => {
                arrays.push(("labels", length));
            }
            EncoderLabels::Class { .. } => arrays.push(("labels", 1)),
            EncoderLabels::Span => arrays.push(("labels", 2)),
            EncoderLabels::Sentences { max_sentences, has_words } => {
                arrays.extend([("cls_token_positions", max_sentences), ("labels", max_sentences)]);
                if has_words {
                    arrays.extend([(SENTENCE_IDS, length), (WORD_IDS, length)]);
                }
            }
        }
        if self.predicts_next_sentence() {
            arrays.push(("next_sentence_label", 1));
        }
        if self.is_packed {
            arrays.extend([("attention_span", length), ("position_ids", length)]);
        }
        arrays
    }

    pub(super) fn hash(&self, hasher: &mut blake3::Hasher) {
        let (kind, count) = match self.task {
            EncoderLabels::Tokens { max_predictions, .. } => (0, max_predictions.map_or(0, |count| count as u64 + 1)),
            EncoderLabels::Class { classes } => (1, u64::from(classes)),
            EncoderLabels::Sentences { max_sentences, has_words: false } => (2, max_sentences as u64),
            EncoderLabels::Sentences { max_sentences, has_words: true } => (6, max_sentences as u64),
            EncoderLabels::TokenClasses { classes, counts_padding: false } => (3, u64::from(classes)),
            EncoderLabels::TokenClasses { classes, counts_padding: true } => (4, u64::from(classes)),
            EncoderLabels::Span => (5, 2),
        };
        let flags = u64::from(self.has_segments) + 2 * u64::from(self.predicts_next_sentence());
        for number in [kind, count, flags, self.vocab_size.into(), self.seed] {
            hasher.update(&number.to_le_bytes());
        }
        if self.is_packed {
            hasher.update(b"packed");
        }
        if let Some(token) = self.mask_token {
            hasher.update(b"mask").update(&token.to_le_bytes());
        }
        if let Some(masking) = self.masking {
            hasher.update(&masking.probability.to_le_bytes()).update(&[u8::from(masking.whole_words)]);
        }
    }
}
