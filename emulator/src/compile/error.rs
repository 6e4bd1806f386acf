//! Errors of the compiler.

use crate::graph::GraphError;
use crate::plan::{MAX_FRAME_ELEMENTS, StreamPlan};
use crate::sparsity::SparsityError;

/// Reason why a job can't be compiled. `Display` is one sentence; [`CompileError::hint`] returns the remedy.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CompileError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A batch without samples, a leaf bound of zero, or more samples than supported.
    #[error("{input} has a batch of {samples} samples in leaves of at most {bound}; both must be from 1 to 2^24")]
    Batch {
        input: &'static str,
        samples: usize,
        /// Upper bound on a leaf's samples.
        bound: usize,
    },
    /// Training and evaluation samples differ in length.
    #[error(
        "train_input has samples of {train} tokens and eval_input of {eval}; one plan streams the layers for both, so they must be equal"
    )]
    SequencesDiffer {
        /// Tokens of a training sample.
        train: usize,
        /// Tokens of an evaluation sample.
        eval: usize,
    },
    /// The samples have another length than those that the graph reads.
    #[error("train_input has samples of {found} tokens, but the model's graph reads samples of {expected}")]
    SampleLength { found: usize, expected: usize },
    /// The model is in a file that the caller has to read.
    #[error("model.graph names the file {0:?}, which can be used only by `millrace-agent` on one machine")]
    GraphFile(String),
    /// More parameters than MemoryX can hold.
    #[error(
        "the weights and optimizer states need {} of MemoryX's memory, but the appliance has {} for a copy of them",
        format_bytes(*.needed), format_bytes(*.available)
    )]
    MemoryXTooSmall {
        needed: u64,
        /// Bytes for one replica of all shards.
        available: u64,
    },
    /// More parameters than the emulation can stream.
    #[error("a model of {parameters} parameters can be planned, but is too large for this emulation to stream")]
    TooLargeToStream { parameters: u64 },
    #[error(transparent)]
    Sparsity(#[from] SparsityError),
    /// A group of the optimizer names a tensor that does not exist.
    #[error("optimizer.params names {0:?}, which matches no tensor of the model")]
    OptimizerGroup(String),
    /// One sample is too large for the wafer.
    #[error(
        "layer {layer:?} needs {} of wafer memory for a single sample ({} of it for weights and gradients), but the wafer has {}",
        format_bytes(*.needed), format_bytes(*.weights), format_bytes(*.available)
    )]
    DoesNotFit {
        /// The layer that needs most memory.
        layer: String,
        /// Bytes needed with every layer recomputed.
        needed: u64,
        /// Part of `needed` that weights and gradients take.
        weights: u64,
        /// Bytes of the wafer.
        available: u64,
        /// Tiles that the sample is divided into.
        tiles: u32,
    },
}

impl CompileError {
    /// Returns what the user can do about the error.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Graph(GraphError::Op { source: crate::ops::OpError::TooFewPositions { .. }, .. }) => {
                Some("lower max_sequence_length or raise max_position_embeddings")
            }
            Self::Graph(GraphError::Op { source: crate::ops::OpError::Heads { .. }, .. }) => {
                Some("choose num_heads so that it divides hidden_size")
            }
            Self::Graph(_) => None,
            Self::SampleLength { .. } => {
                Some("set max_sequence_length to the length that the graph reads, or leave it out")
            }
            Self::GraphFile(_) => Some("run `millrace-agent train` where the file is"),
            Self::Batch { .. } => Some("give batch_size and micro_batch_size as numbers of samples, at least 1"),
            Self::SequencesDiffer { .. } => Some("give both inputs the same max_sequence_length"),
            Self::MemoryXTooSmall { .. } => Some("choose a smaller model, or an appliance with more MemoryX memory"),
            Self::OptimizerGroup(_) => Some("give the exact name of a tensor, or a pattern such as *.bias"),
            Self::Sparsity(_) => Some("compare the pattern with the names in docs/reference/sparsity.md"),
            Self::TooLargeToStream { .. } => Some("use `plan` or `train --compile_only`, or choose a smaller model"),
            Self::DoesNotFit { needed, weights, available, tiles: 1, .. }
                if weights.saturating_mul(2) > (*needed).min(*available) =>
            {
                Some("choose smaller link.chunkBytes or link.windowChunks, or an appliance with a larger wafer")
            }
            Self::DoesNotFit { .. } => {
                Some("choose a smaller hidden_size or max_sequence_length, or an appliance with a larger wafer")
            }
        }
    }
}

/// Formats a size for display, such as `40.0 GB`, in powers of ten as hardware is sold.
pub(crate) fn format_bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

impl StreamPlan {
    /// Checks that links can carry the plan's chunks. A plan of more than 1.1e12 parameters has larger chunks and is
    /// for planning only.
    ///
    /// # Errors
    /// [`CompileError::TooLargeToStream`].
    pub fn check_streamable(&self) -> Result<(), CompileError> {
        match self.chunks.iter().map(|chunk| chunk.elements).max() {
            Some(elements) if elements > MAX_FRAME_ELEMENTS => {
                Err(CompileError::TooLargeToStream { parameters: self.parameters() })
            }
            _ => Ok(()),
        }
    }
}
