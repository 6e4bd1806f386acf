//! What a resolved job reads.

use serde::{Deserialize, Serialize};

/// One of the two inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputSpec {
    /// Where tokens come from.
    pub source: Source,
    /// Which part of the tokens is read.
    pub split: Split,
    /// Samples in a batch, over all systems together; at least 1.
    pub batch_size: usize,
    /// Upper bound on the samples of a leaf, from 1 to `batch_size`.
    pub micro_batch_size: usize,
    /// Whether the params leave that bound to the appliance. Training that goes on from a checkpoint of an equally
    /// large batch then keeps the checkpoint's leaves, whatever bound `auto` stands for now. False in documents of
    /// releases that did not record it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_micro_batch_auto: bool,
    /// Tokens of a sample, T; at least 1.
    pub max_sequence_length: usize,
    /// Whether samples come in a random order, another one each epoch.
    pub shuffle: bool,
    /// Seed of that order.
    pub shuffle_seed: u64,
}

impl InputSpec {
    /// Samples of a leaf: the largest divisor of the batch within the bound.
    pub fn leaf_size(&self) -> usize {
        let fits = |size: &usize| self.batch_size.is_multiple_of(*size);
        (1..=self.micro_batch_size.min(self.batch_size)).rev().find(fits).unwrap_or(1)
    }

    /// K: the leaves that make a batch.
    pub fn leaves(&self) -> usize {
        self.batch_size / self.leaf_size()
    }

    /// The files, directories and globs that it reads; none of a synthetic source.
    pub fn paths(&self) -> &[String] {
        match &self.source {
            Source::Text { paths, .. } | Source::Tokens { paths } => paths,
            Source::Synthetic {} => &[],
        }
    }

    /// [`InputSpec::paths`], to be changed.
    pub fn paths_mut(&mut self) -> Option<&mut Vec<String>> {
        match &mut self.source {
            Source::Text { paths, .. } | Source::Tokens { paths } => Some(paths),
            Source::Synthetic {} => None,
        }
    }

    /// Tokens of a batch.
    pub fn tokens_per_batch(&self) -> usize {
        self.batch_size * self.max_sequence_length
    }
}

/// Where tokens come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// UTF-8 text files.
    Text {
        /// Files, directories (their `*.txt`, sorted by name) or globs, in order; at least one.
        paths: Vec<String>,
        /// How text becomes tokens.
        tokenizer: Tokenizer,
    },
    /// Token files of little-endian u16.
    Tokens {
        /// Files, directories (their `*.bin`, sorted by name) or globs, in order; at least one.
        paths: Vec<String>,
    },
    /// Generated tokens, a function of seed and sample number; endless.
    Synthetic {},
}

/// How text becomes tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// GPT-2's byte-pair encoding.
    Gpt2,
    /// One token a byte.
    Bytes,
}

impl Tokenizer {
    /// Number of different tokens it gives.
    pub fn vocab_size(self) -> usize {
        match self {
            Self::Gpt2 => 50_257,
            Self::Bytes => 256,
        }
    }
}

/// Which part of a source's tokens an input reads. The validation part is the last `fraction` of the tokens, the
/// training part all before it. Of a synthetic source, the two are different streams.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum Split {
    /// All of it.
    All {},
    /// All but the validation part.
    Train {
        /// Share of the tokens that the validation part holds, in (0, 1).
        fraction: f64,
    },
    /// The validation part.
    Validation {
        /// Share of the tokens that the validation part holds, in (0, 1).
        fraction: f64,
    },
}
