//! The device seam: the one trait through which a system's agent drives the arithmetic.
//!
//! A round of a training step is [`Device::begin`], then for each layer in order `load` of the chunks that
//! [`StreamPlan::down_train`](crate::plan::StreamPlan::down_train) names and [`Device::forward`]; then
//! [`Device::losses`]; then for each layer in reverse order `load`, [`Device::backward`] and [`Device::gradient`] of
//! every chunk the layer uses. An evaluation ends with the losses.
//!
//! Invariants:
//! * Results are a function of plan, seed, weights and samples: not of the number of threads, of how leaves are divided
//!   between devices and rounds (once their sums are joined along the leaf tree), nor of recomputation.
//! * Nothing that arrives can make a device panic; what does not fit is a [`DeviceError`], and the round is lost.

use crate::graph::LayerId;
use crate::plan::{ChunkId, Encoding, Pass};
use crate::tree::Node;

mod activations;
mod cpu;
mod gradients;
mod packs;
mod weights;

pub use cpu::{CpuDevice, DeviceOptions, OperatorTime};

/// The samples of one leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafInput<'a> {
    /// Its index in the batch.
    pub leaf: u32,
    /// Number of its first sample since the start of the job; names the dropout masks.
    pub first_sample: u64,
    /// Tokens, sample after sample.
    pub input_ids: &'a [i32],
    /// Labels, sample after sample; a negative one does not count.
    pub labels: &'a [i32],
}

/// What one leaf came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeafLoss {
    /// Its index in the batch.
    pub leaf: u32,
    /// Sum of the losses of its tokens.
    pub loss: f64,
    /// Tokens that count.
    pub tokens: u64,
    /// Of these, how many have no logit above that of their label.
    pub correct: u64,
    /// Where a loss is not finite: the first layer that made a number which is not. In an evaluation, where activations
    /// are gone by then, always `None`.
    pub bad_layer: Option<LayerId>,
}

/// Bytes that a device holds. It never holds less later, so these are also its peaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Weights, and the copies of them that products read.
    pub weights: u64,
    /// Activations of all leaves, and the samples.
    pub activations: u64,
    /// Partial sums of gradients.
    pub gradients: u64,
    /// Scratch memory of the kernels.
    pub scratch: u64,
}

/// Something that computes layers of a plan for the leaves of a round. See the module text.
pub trait Device: Send {
    /// Starts a round with these leaves, contiguous and ascending; there may be none. `nodes` are the partial sums
    /// wanted of a training round: the cover of its leaves. An evaluation has no dropout, keeps nothing and makes no
    /// sums.
    ///
    /// # Errors
    /// When leaves, samples or nodes are not what the plan says, or a token is none of the vocabulary.
    fn begin(&mut self, training: bool, nodes: &[Node], leaves: &[LeafInput<'_>]) -> Result<(), DeviceError>;

    /// Puts a chunk of weights on the wafer.
    ///
    /// # Errors
    /// When there is no such chunk, or the payload has another length.
    fn load(&mut self, chunk: ChunkId, encoding: Encoding, payload: &[u8]) -> Result<(), DeviceError>;

    /// Computes a layer for all leaves of the round; afterwards its weights are gone, unless the plan says they stay.
    ///
    /// # Errors
    /// When it is another layer's turn, or a chunk is missing.
    fn forward(&mut self, layer: LayerId) -> Result<(), DeviceError>;

    /// Computes a layer's gradients for all leaves of the round, summed along the leaf tree.
    ///
    /// # Errors
    /// When it is another layer's turn, or a chunk is missing.
    fn backward(&mut self, layer: LayerId) -> Result<(), DeviceError>;

    /// The gradient of `chunk` from its use in `layer`, summed over `node`: there from `backward(layer)` until the next
    /// one.
    fn gradient(&self, layer: LayerId, chunk: ChunkId, node: Node) -> Option<&[f32]>;

    /// One entry for each leaf of the round, once the last layer is computed; empty before.
    fn losses(&self) -> &[LeafLoss];

    /// Bytes held.
    fn memory(&self) -> DeviceMemory;

    /// Floating-point operations done so far, as the plan counts them: in products, without repeated ones.
    fn flops(&self) -> u64;
}

/// Why a device refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The plan can't be carried out here.
    #[error("the device cannot run this plan: {0}")]
    Plan(String),
    /// Threads could not be started, or an instruction set is missing.
    #[error("the device cannot start: {0}")]
    Start(String),
    /// A round with leaves that the plan does not have, or not in order.
    #[error(
        "a round was started with leaves {found}; they must be contiguous, at most {most}, and among the plan's {leaves}"
    )]
    Leaves {
        /// What was given.
        found: String,
        /// Most leaves of a round.
        most: usize,
        /// Leaves of the plan.
        leaves: u32,
    },
    /// A leaf with too many or too few tokens or labels.
    #[error("leaf {leaf} came with {found} {what}, but the plan's leaves have {expected}")]
    Samples {
        /// The leaf.
        leaf: u32,
        /// Tokens or labels.
        what: &'static str,
        /// How many the plan says.
        expected: usize,
        /// How many came.
        found: usize,
    },
    /// A token or label beyond the vocabulary.
    #[error("leaf {leaf} has {what} {token} at place {place}, but the vocabulary has {vocabulary} entries")]
    Token {
        /// The leaf.
        leaf: u32,
        /// Token or label.
        what: &'static str,
        /// What it is.
        token: i32,
        /// Where in the leaf.
        place: usize,
        /// Entries of the vocabulary.
        vocabulary: usize,
    },
    /// Partial sums were asked for that aren't those of the leaves.
    #[error("partial sums {wanted} were asked for, but the leaves of the round make {made}")]
    Nodes {
        /// What was asked for.
        wanted: String,
        /// What there will be.
        made: String,
    },
    /// A chunk the plan does not have.
    #[error("chunk {chunk} was loaded, but the plan has {chunks}")]
    UnknownChunk {
        /// The chunk.
        chunk: ChunkId,
        /// Number of chunks.
        chunks: usize,
    },
    /// A chunk of another length than the plan says.
    #[error("chunk {chunk} came with {found} bytes, but it has {expected}")]
    Payload {
        /// The chunk.
        chunk: ChunkId,
        /// Bytes it has.
        expected: usize,
        /// Bytes that came.
        found: usize,
    },
    /// A layer's turn came before its weights.
    #[error("can't compute layer {layer:?}: chunk {chunk} of its weights is missing")]
    MissingWeights {
        /// The layer.
        layer: String,
        /// The first chunk missing.
        chunk: ChunkId,
    },
    /// A pass out of order.
    #[error("{pass:?} of layer {layer} was requested out of order")]
    Order {
        /// Which pass.
        pass: Pass,
        /// Which layer.
        layer: LayerId,
    },
}
