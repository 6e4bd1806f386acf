//! The steps of each pass over each layer, and the storage of values between them.
//!
//! A schedule follows from the graph and the set of recomputed layers. Both the memory that a plan accounts for and the
//! steps that a device executes are derived from it.
//!
//! * A *pass* is one direction through one layer; all leaves of a system go through it, one [block](leaves_per_block)
//!   of leaves after the other. Storage touched in only one pass holds one block at a time; storage touched in several
//!   passes holds every leaf of the round.
//! * A layer that is not recomputed keeps from its forward to its backward pass exactly its inputs and what its
//!   operators declare to save. A recomputed layer keeps only its inputs and repeats the forward steps that contribute
//!   to something needed. The numbers that a loss saves (one per row) are kept in both cases.
//! * An operator overwrites its input if it supports that and nothing reads the input later. A gradient overwrites the
//!   input it belongs to if the operator was the last reader of that input. Equal gradients share storage until one of
//!   them is modified.
//! * A value that depends on no tensor, such as a mask that is computed from an input, has no gradient.
//! * The gradient of a value with several uses is summed in the order of the backward pass: last use first.

use crate::graph::{Graph, LayerId, NodeId};
use crate::plan::Pass;

mod blocks;
mod build;
mod demand;
mod layout;
mod liveness;

pub use blocks::leaves_per_block;
pub use demand::PassMemory;
pub use layout::{ArenaLayout, Extent};
pub(crate) use liveness::Liveness;

/// Index into [`PassSchedule::storage`].
pub type StorageId = usize;

/// The content of a storage slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageKind {
    /// Activations and their gradients, in the machine's number format.
    Values,
    /// Extra numbers that operators save, f32 on every machine.
    Scratch,
}

/// A piece of activation memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageSlot {
    /// Its content.
    pub kind: StorageKind,
    /// Elements per sample.
    pub elements: u64,
    /// First and last pass that touch it.
    pub passes: (usize, usize),
    /// First and last step in its pass, if only one pass touches it.
    pub steps: (usize, usize),
}

impl StorageSlot {
    /// Returns whether it holds every leaf of the round rather than only those of the current block.
    pub const fn every_leaf(&self) -> bool {
        self.passes.0 != self.passes.1
    }
}

/// Source of an input of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// The input is not needed.
    Absent,
    /// The given input of the graph, which is part of the samples: a position in [`Graph::inputs`].
    Sample(usize),
    /// The given constant of the graph: a position in [`Graph::constants`].
    Constant(usize),
    /// The given slot.
    Stored(StorageId),
    /// The slot that the output is written to.
    Overwritten,
}

/// Destination of the gradient of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientTarget {
    /// The step computes no gradient.
    None,
    /// The gradient overwrites the gradient of the output.
    Overwrite,
    /// The gradient is stored in this slot.
    Store(StorageId),
    /// The gradient is added to this slot.
    Add(StorageId),
    /// The gradient is stored in this slot, which holds the input, after the gradients of tensors are computed.
    Replace(StorageId),
}

/// An operator's forward step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardStep {
    /// The operator.
    pub node: NodeId,
    /// Its inputs.
    pub inputs: Vec<InputSource>,
    /// Its output; `None` for a loss.
    pub output: Option<StorageId>,
    /// The extra numbers it saves.
    pub extra: Option<StorageId>,
    /// Its scratch memory.
    pub scratch: Option<StorageId>,
}

/// An operator's backward step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackwardStep {
    /// The operator.
    pub node: NodeId,
    /// The inputs that it saved.
    pub inputs: Vec<InputSource>,
    /// Its output, if it saved it.
    pub output: Option<StorageId>,
    /// The extra numbers saved by the forward step.
    pub extra: Option<StorageId>,
    /// Its scratch memory.
    pub scratch: Option<StorageId>,
    /// The gradient of its output; `None` for a loss.
    pub gradient: Option<StorageId>,
    /// The gradients of its inputs.
    pub targets: Vec<GradientTarget>,
}

/// One step of a pass, for one block of leaves.
#[allow(missing_docs, reason = "the variants describe their fields")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An operator computes its output.
    Forward(ForwardStep),
    /// An operator computes gradients of inputs and tensors.
    Backward(BackwardStep),
    /// Zeroes the gradients of this operator's tensors: no later operator depends on it.
    Unreached(NodeId),
    /// `to = from`.
    Copy { from: StorageId, to: StorageId },
    /// `to = to + from`.
    Add { from: StorageId, to: StorageId },
}

impl Step {
    /// Returns the operator that the step executes, and its pass; `None` if the step executes none.
    pub const fn operator(&self) -> Option<(NodeId, Pass)> {
        match self {
            Step::Forward(step) => Some((step.node, Pass::Forward)),
            Step::Backward(step) => Some((step.node, Pass::Backward)),
            Step::Unreached(_) | Step::Copy { .. } | Step::Add { .. } => None,
        }
    }
}

/// Every pass of a training or evaluation round; see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassSchedule {
    /// Steps of the forward pass of each layer.
    pub forward: Vec<Vec<Step>>,
    /// Steps of the backward pass of each layer; empty for an evaluation.
    pub backward: Vec<Vec<Step>>,
    /// The storage that the steps use.
    pub storage: Vec<StorageSlot>,
}

impl PassSchedule {
    /// Builds the schedule of training with the marked layers recomputed. The graph is valid, and there is one flag per
    /// layer.
    pub fn training(graph: &Graph, recompute: &[bool]) -> Self {
        build::ScheduleBuilder::new(graph).training(recompute)
    }

    /// Builds the schedule of an evaluation: forward passes only. The graph is valid.
    pub fn evaluation(graph: &Graph) -> Self {
        build::ScheduleBuilder::new(graph).evaluation()
    }

    /// Returns the number of the backward pass of `layer`, counting all passes in execution order.
    pub fn backward_pass(&self, layer: LayerId) -> usize {
        2 * self.forward.len() - 1 - layer
    }
}

#[cfg(test)]
mod tests;
