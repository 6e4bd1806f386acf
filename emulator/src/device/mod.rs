//! The [`Device`] trait, through which the agent of a system drives the computation.
//!
//! A round of a training step is [`Device::begin`], then for each layer in order `load` of the chunks that
//! [`StreamPlan::down_train`](crate::plan::StreamPlan::down_train) names and [`Device::forward`]; then
//! [`Device::losses`]; then for each layer in reverse order `load`, [`Device::backward`] and [`Device::gradient`] of
//! every chunk the layer uses. An evaluation ends with the losses.
//!
//! Invariants:
//! * Results are a function of plan, seed, weights and samples: not of the number of threads, of how leaves are divided
//!   between devices and rounds (once partial sums are joined along the leaf tree), nor of recomputation.
//! * No input can make a device panic. Invalid input is a [`DeviceError`], and the round is lost.

use crate::graph::LayerId;
use crate::kernels::loss::LossSums;
use crate::plan::{ChunkId, Encoding, Pass};
use crate::tree::Node;

mod activations;
mod cpu;
mod gradients;
mod group_layout;
mod loss_weights;
mod packs;
mod samples;
#[cfg(test)]
mod tests;
mod weights;

pub(crate) use cpu::check_operator;
pub use cpu::{CpuDevice, DeviceOptions, DeviceStartError, OperatorTime};
pub use loss_weights::{LossWeights, LossWeightsError};

/// The samples of one leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafInput<'a> {
    /// Its index in the batch.
    pub leaf: u32,
    /// Number of its first sample since the start of the job; the key of its dropout masks.
    pub first_sample: u64,
    /// The inputs of the graph, in its order, each sample after sample.
    pub inputs: &'a [InputData<'a>],
}

/// An input of the samples of one leaf.
#[derive(Clone, Copy, Debug)]
pub enum InputData<'a> {
    /// An input of type f32.
    F32(&'a [f32]),
    /// An input of type i32.
    I32(&'a [i32]),
}

impl InputData<'_> {
    /// Returns the number of elements.
    pub const fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::I32(integers) => integers.len(),
        }
    }

    /// Returns whether there are no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The results of one leaf.
#[derive(Clone, Debug, PartialEq)]
pub struct LeafLoss {
    /// Its index in the batch.
    pub leaf: u32,
    /// Sum of the losses of its tokens: of all losses of the graph, each times its factor.
    pub loss: f64,
    /// Number of tokens that count in the main loss.
    pub tokens: u64,
    /// Number of tokens whose label has the highest logit in the main loss.
    pub correct: u64,
    /// Sums of the losses beside the main one, each loss times its factor; zero if there are none.
    pub other: LossSums,
    /// Sums of the [metrics](crate::graph::Graph::metrics); then, for each [loss with a weight]
    /// (crate::graph::WeightedLoss), the sum of the loss times its factor, and that of the weight.
    pub metrics: Vec<f64>,
    /// If a loss is not finite: the first layer that computed a non-finite number. Always `None` in an evaluation,
    /// which keeps no activations.
    pub bad_layer: Option<LayerId>,
}

/// Bytes that a device holds. They never decrease, so they are also peaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Weights and their packed copies.
    pub weights: u64,
    /// Activations of all leaves, and the samples.
    pub activations: u64,
    /// Partial sums of gradients.
    pub gradients: u64,
    /// Scratch memory of the kernels.
    pub scratch: u64,
}

/// Computes the layers of a plan for the leaves of a round. See the module documentation.
pub trait Device: Send {
    /// Starts a round with these leaves, contiguous and ascending; may be none. `nodes` are the partial sums that a
    /// training round computes: the cover of its leaves. An evaluation applies no dropout, keeps nothing and computes
    /// no sums.
    ///
    /// # Errors
    /// Leaves, samples or nodes do not match the plan, or an integer is outside the table that it indexes.
    fn begin(&mut self, training: bool, nodes: &[Node], leaves: &[LeafInput<'_>]) -> Result<(), DeviceError>;

    /// Sets the factors of the [losses with a weight](crate::graph::WeightedLoss) in the training rounds that begin
    /// from now on; they are 1 before. Evaluations do not use them.
    ///
    /// # Errors
    /// There are more or fewer factors than such losses.
    fn scale_losses(&mut self, factors: &[f64]) -> Result<(), DeviceError>;

    /// Loads a chunk of weights onto the wafer.
    ///
    /// # Errors
    /// The chunk does not exist, or the payload has the wrong length.
    fn load(&mut self, chunk: ChunkId, encoding: Encoding, payload: &[u8]) -> Result<(), DeviceError>;

    /// Computes a layer for all leaves of the round. Its weights are released afterwards, unless they are resident.
    ///
    /// # Errors
    /// Another layer is next, a chunk is missing, or the graph computes an integer outside the table that it indexes.
    fn forward(&mut self, layer: LayerId) -> Result<(), DeviceError>;

    /// Computes the gradients of a layer for all leaves of the round, summed along the leaf tree.
    ///
    /// # Errors
    /// Another layer is next, or a chunk is missing.
    fn backward(&mut self, layer: LayerId) -> Result<(), DeviceError>;

    /// Returns the gradient of `chunk` from its use in `layer`, summed over `node`. Available from `backward(layer)`
    /// until the next backward pass.
    fn gradient(&self, layer: LayerId, chunk: ChunkId, node: Node) -> Option<&[f32]>;

    /// Returns one result for each leaf of the round once the last layer is computed; empty before that.
    fn losses(&self) -> &[LeafLoss];

    /// Returns the bytes held.
    fn memory(&self) -> DeviceMemory;

    /// Returns the floating-point operations of matrix products done so far, as the plan counts them: without
    /// recomputation.
    fn flops(&self) -> u64;
}

/// Errors of a device.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The leaves of a round do not exist in the plan, or are not contiguous.
    #[error(
        "a round was started with leaves {found}; they must be contiguous, at most {max_leaves}, and among the plan's \
         {leaves}"
    )]
    Leaves {
        found: String,
        /// Maximum leaves of a round.
        max_leaves: usize,
        leaves: u32,
    },
    /// A leaf has the wrong number of inputs.
    #[error("leaf {leaf} has {found} inputs, but the plan's graph has {expected}")]
    Inputs { leaf: u32, expected: usize, found: usize },
    /// An input of a leaf has another element type.
    #[error("{input} of leaf {leaf} is not of the element type of the plan's graph")]
    InputType {
        leaf: u32,
        /// Name of the input.
        input: String,
    },
    /// An input of a leaf has the wrong number of elements.
    #[error("{input} of leaf {leaf} has {found} elements, but the plan's leaves have {expected}")]
    Samples {
        leaf: u32,
        /// Name of the input.
        input: String,
        expected: usize,
        found: usize,
    },
    /// An integer is outside the table that it indexes.
    #[error(
        "{input} of leaf {leaf} is {value} at position {position}, but must be less than {entries}, and at least 0"
    )]
    Index {
        leaf: u32,
        /// Name of the input, or of the value that an operator computes.
        input: String,
        value: i32,
        /// Position in the leaf.
        position: usize,
        /// Entries of the table.
        entries: usize,
    },
    /// The requested partial sums are not the cover of the leaves.
    #[error("partial sums {requested} were requested, but the leaves of the round produce {produced}")]
    Nodes { requested: String, produced: String },
    /// Another number of factors of losses than the graph has losses with a weight.
    #[error("received {found} factors of losses, but the plan's graph has {expected} losses with a weight")]
    LossFactors { expected: usize, found: usize },
    /// The plan has no such chunk.
    #[error("chunk {chunk} was loaded, but the plan has {chunks}")]
    UnknownChunk { chunk: ChunkId, chunks: usize },
    /// The payload of a chunk has the wrong length.
    #[error("received {found} bytes for chunk {chunk}, which has {expected}")]
    Payload { chunk: ChunkId, expected: usize, found: usize },
    /// A layer is computed before its weights are loaded.
    #[error("can't compute layer {layer:?}: chunk {chunk} of its weights is missing")]
    MissingWeights {
        layer: String,
        /// The first missing chunk.
        chunk: ChunkId,
    },
    /// A pass is requested out of order.
    #[error("{pass:?} of layer {layer} was requested out of order")]
    Order { pass: Pass, layer: LayerId },
}
