//! What each pass over each layer does, step by step, and where values lie meanwhile.
//!
//! A schedule follows from the graph and from which layers are recomputed; it is the one source of both the memory that
//! a plan accounts for and the steps a device carries out.
//!
//! Invariants:
//! * A *pass* is one direction through one layer; all of a system's leaves go through it, one after the other. Memory
//!   touched in one pass only holds one leaf at a time; memory touched in several holds every leaf of the round.
//! * What lives on from the forward to the backward pass of a layer that is not recomputed: its inputs, what its
//!   operators say they save, nothing else. A recomputed layer keeps its inputs only and carries out those forward
//!   steps again that lead to something needed; the numbers that a loss saves (one a row) are kept even then.
//! * An operator writes over its input where it can and nobody needs that input any more, and a gradient over the input
//!   that it is the gradient of where the operator was the last to need that; gradients that are equal share
//!   their memory until one of them is written to.
//! * The gradient of a value used several times is summed in the order of the backward pass: last use first.

use crate::graph::{Graph, LayerId, NodeId, ValueId};

mod build;
mod demand;
mod layout;
mod liveness;

pub use demand::PassMemory;
pub use layout::{ArenaLayout, Extent};
pub(crate) use liveness::Liveness;

/// Index into [`PassSchedule::storage`].
pub type StorageId = usize;

/// What a piece of memory is for.
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
    /// What it is for.
    pub kind: StorageKind,
    /// Numbers a sample.
    pub elements: u64,
    /// First and last pass that touches it.
    pub passes: (usize, usize),
    /// First and last step in its pass, where that is only one.
    pub steps: (usize, usize),
}

impl StorageSlot {
    /// Whether it holds every leaf of the round rather than the one being worked on.
    pub const fn every_leaf(&self) -> bool {
        self.passes.0 != self.passes.1
    }
}

/// Where a step finds an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// It is not needed.
    Absent,
    /// The samples' tokens or labels: that value.
    Tokens(ValueId),
    /// In this memory.
    Stored(StorageId),
    /// In the memory that the output is written to.
    Overwritten,
}

/// What becomes of the gradient of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientTarget {
    /// The step makes none.
    None,
    /// It is written over the gradient of the output.
    Overwrite,
    /// It is stored here.
    Store(StorageId),
    /// It is added to what is here.
    Add(StorageId),
    /// It is stored here, where the input lies, once the gradients of tensors are made.
    Replace(StorageId),
}

/// An operator's forward step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardStep {
    /// The operator.
    pub node: NodeId,
    /// Its inputs.
    pub inputs: Vec<InputSource>,
    /// Its output, `None` for a loss.
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
    /// Those of its inputs that it saves.
    pub inputs: Vec<InputSource>,
    /// Its output, if it saves that.
    pub output: Option<StorageId>,
    /// The extra numbers saved by the forward step.
    pub extra: Option<StorageId>,
    /// Its scratch memory.
    pub scratch: Option<StorageId>,
    /// The gradient of its output, `None` for a loss.
    pub gradient: Option<StorageId>,
    /// The gradients of its inputs.
    pub targets: Vec<GradientTarget>,
}

/// One step of a pass, for one leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An operator computes its output.
    Forward(ForwardStep),
    /// An operator computes gradients of inputs and tensors.
    Backward(BackwardStep),
    /// The gradients of this operator's tensors are zero: no later operator depends on it.
    Unreached(NodeId),
    /// `to = from`.
    Copy {
        /// Read.
        from: StorageId,
        /// Written.
        to: StorageId,
    },
    /// `to = to + from`.
    Add {
        /// Read.
        from: StorageId,
        /// Added to.
        to: StorageId,
    },
}

/// Every pass of a training or evaluation round. See the module text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassSchedule {
    /// Steps of each layer's forward pass.
    pub forward: Vec<Vec<Step>>,
    /// Steps of each layer's backward pass; empty for an evaluation.
    pub backward: Vec<Vec<Step>>,
    /// The memory the steps use.
    pub storage: Vec<StorageSlot>,
}

impl PassSchedule {
    /// Training with these layers recomputed; the graph is valid and there is one flag a layer.
    pub fn training(graph: &Graph, recompute: &[bool]) -> Self {
        build::ScheduleBuilder::new(graph).training(recompute)
    }

    /// Evaluation: the forward passes alone; the graph is valid.
    pub fn evaluation(graph: &Graph) -> Self {
        build::ScheduleBuilder::new(graph).evaluation()
    }

    /// Number of the pass of `layer` backward, counting all passes in the order in which they happen.
    pub fn backward_pass(&self, layer: LayerId) -> usize {
        2 * self.forward.len() - 1 - layer
    }
}

#[cfg(test)]
mod tests;
