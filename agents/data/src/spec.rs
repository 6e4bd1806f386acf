//! What the user asks for: a source and how samples are cut from it.

use std::path::PathBuf;

use crate::{DataError, Tokenizer};

/// Where the tokens come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// UTF-8 text, each file one document.
    ///
    /// Files follow each other in the order of `paths`; between two documents stands the tokenizer's
    /// [separator](Tokenizer::separator). Empty files are skipped.
    Text {
        /// Files, globs, or directories (which stand for the `*.txt` files in them). The matches of one entry are
        /// sorted by path; a file named twice is read once, at its first place.
        paths: Vec<String>,
        /// How text becomes tokens.
        tokenizer: Tokenizer,
    },
    /// Ready-made token files: little-endian `u16`, no header, joined in order without a separator.
    Tokens {
        /// As for text; a directory stands for the `*.bin` files in it.
        paths: Vec<String>,
    },
    /// A seeded stream with structure that a model can learn, for tests and benchmarks without data.
    Synthetic {
        /// Size of the vocabulary the tokens are spread over, at least 2.
        vocab_size: u32,
        /// Seed of the stream.
        seed: u64,
    },
}

/// Which part of the token stream samples are cut from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitPart {
    /// All tokens but the validation fraction.
    Train,
    /// The last `validation_fraction` of the tokens.
    Validation,
}

impl std::fmt::Display for SplitPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SplitPart::Train => "training",
            SplitPart::Validation => "validation",
        })
    }
}

/// Everything that decides which samples a job sees.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceSpec {
    /// Where the tokens come from.
    pub kind: SourceKind,
    /// T, tokens of a sample (`max_sequence_length`), at least 1.
    pub seq_len: usize,
    /// Which part of the stream to use.
    pub split: SplitPart,
    /// Share of the stream, counted from its end, that is kept for validation: 0 to 1.
    pub validation_fraction: f64,
    /// Whether every pass over the training windows is in an order of its own. Validation always keeps the order of
    /// the text, so that two evaluations see the same samples.
    pub shuffle: bool,
    /// Seed of those orders.
    pub shuffle_seed: u64,
    /// Where tokenised text is kept. `None` means `$XDG_CACHE_HOME/millrace` or `~/.cache/millrace`, and no cache at
    /// all where that cannot be written; a directory named here must be writable.
    pub cache_dir: Option<PathBuf>,
}

impl SourceSpec {
    /// Refuses values no source could satisfy.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        if self.seq_len == 0 || self.seq_len > i32::MAX as usize {
            return Err(DataError::BadSequenceLength { seq_len: self.seq_len });
        }
        // `contains` is false for NaN as well.
        if !(0.0..=1.0).contains(&self.validation_fraction) {
            return Err(DataError::BadFraction { fraction: self.validation_fraction });
        }
        if let SourceKind::Synthetic { vocab_size, .. } = self.kind
            && !(2..=i32::MAX as u32).contains(&vocab_size)
        {
            return Err(DataError::BadVocabulary { vocab_size });
        }
        Ok(())
    }
}
