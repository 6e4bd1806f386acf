//! Carrying operators out: what a device hands to an operator, and what it asks of it.
//!
//! An operator works on one leaf at a time: the rows of its samples, one sample after the other. It allocates nothing,
//! and its result does not depend on the number of threads.

use super::{
    Activation, Add, AddPosition, CausalAttention, CrossEntropy, Dropout, Embedding, LayerNorm, Linear, Operator,
    Shape, Signature,
};
use crate::graph::{Graph, OpKind, OpNode};
use crate::kernels::attention::AttentionWorkspace;
use crate::kernels::loss::{LossSums, LossWorkspace};
use crate::kernels::{Accumulate, Context, GemmWorkspace, PackedB};

/// Most inputs of an operator.
pub const MAX_INPUTS: usize = 2;
/// Most tensors of an operator.
pub const MAX_PARAMS: usize = 2;

/// Rows that one thread takes at a time in work between the products.
pub(super) const ROW_GRAIN: usize = 32;

/// Shapes of what an operator works on, per sample.
#[derive(Clone, Debug)]
pub struct NodeShape {
    /// Of its inputs.
    pub inputs: Vec<Shape>,
    /// Dimensions of its tensors.
    pub params: Vec<Vec<usize>>,
}

impl NodeShape {
    /// The shapes of a valid graph's node.
    pub fn of(graph: &Graph, node: &OpNode) -> Self {
        let Signature { inputs, params } = Signature::of(graph, node);
        Self { inputs, params: params.into_iter().map(<[usize]>::to_vec).collect() }
    }

    /// Rows of the first input, per sample.
    pub(super) fn rows(&self) -> usize {
        self.inputs[0].rows
    }

    /// Columns of the first input.
    pub(super) fn columns(&self) -> usize {
        self.inputs[0].columns
    }

    /// Rows and columns of the first tensor, which is a matrix.
    pub(super) fn matrix(&self) -> (usize, usize) {
        (self.params[0][0], self.params[0][1])
    }
}

/// What an operator computes with.
#[derive(Debug)]
pub struct OperatorContext<'a> {
    /// Instruction set, threads, precision of products.
    pub cx: Context<'a>,
    /// Whether dropout drops and sums are saved for a backward pass.
    pub training: bool,
    /// Number of samples in the leaf.
    pub samples: usize,
    /// The operator's dropout key for each of them.
    pub keys: &'a [u64],
    /// Scratch memory of matrix products.
    pub products: &'a mut GemmWorkspace,
    /// Scratch memory of attention.
    pub attention: &'a mut AttentionWorkspace,
    /// Scratch memory of the loss.
    pub loss: &'a mut LossWorkspace,
    /// Where a loss puts its sums.
    pub sums: &'a mut LossSums,
}

/// An input of an operator.
#[derive(Clone, Copy, Debug)]
pub enum OperatorInput<'a> {
    /// Not needed, not there.
    Absent,
    /// Token numbers.
    Tokens(&'a [i32]),
    /// Activations.
    Values(&'a [f32]),
    /// Activations that lie where the output is to be written.
    Overwritten,
}

impl<'a> OperatorInput<'a> {
    /// The activations; empty if there are none apart from the output.
    pub(super) fn values(self) -> &'a [f32] {
        if let OperatorInput::Values(values) = self { values } else { &[] }
    }

    /// The tokens; empty if there are none.
    pub(super) fn tokens(self) -> &'a [i32] {
        if let OperatorInput::Tokens(tokens) = self { tokens } else { &[] }
    }
}

/// Weights of an operator: its tensors, and these again in the order in which products read them.
#[derive(Clone, Copy, Debug)]
pub struct OperatorWeights<'a> {
    /// The tensors; empty where the operator has none, or does not read it in this pass.
    pub tensors: [&'a [f32]; MAX_PARAMS],
    /// Packed by [`Executor::pack_forward`].
    pub forward: &'a [PackedB],
    /// Packed by [`Executor::pack_backward`].
    pub backward: &'a [PackedB],
}

impl<'a> OperatorWeights<'a> {
    /// The second tensor, where the operator has one.
    pub(super) fn bias(&self, shape: &NodeShape) -> Option<&'a [f32]> {
        (shape.params.len() > 1).then_some(self.tensors[1])
    }
}

/// Operands of a forward step.
#[derive(Debug)]
pub struct ForwardArgs<'a> {
    /// Shapes.
    pub shape: &'a NodeShape,
    /// Inputs.
    pub inputs: [OperatorInput<'a>; MAX_INPUTS],
    /// Tensors.
    pub weights: OperatorWeights<'a>,
    /// Written; empty for a loss.
    pub output: &'a mut [f32],
    /// Written: the numbers to be saved.
    pub extra: &'a mut [f32],
    /// Scratch memory, as large as [`Operator::scratch`] says.
    pub scratch: &'a mut [f32],
}

/// Where the gradient of an input goes.
#[derive(Debug)]
pub enum TargetMut<'a> {
    /// It is not made, or written over the gradient of the output.
    None,
    /// Here.
    Memory(&'a mut [f32], Accumulate),
}

/// Where the gradient of a tensor goes.
#[derive(Debug)]
pub struct TensorGradient<'a> {
    /// The gradient.
    pub data: &'a mut [f32],
    /// Stored, or added to what is there.
    pub accumulate: Accumulate,
}

impl TensorGradient<'_> {
    /// Whether it is added to what is there.
    pub(super) fn adds(&self) -> bool {
        self.accumulate == Accumulate::Add
    }
}

/// Operands of a backward step.
#[derive(Debug)]
pub struct BackwardArgs<'a> {
    /// Shapes.
    pub shape: &'a NodeShape,
    /// The inputs that the operator saves.
    pub inputs: [OperatorInput<'a>; MAX_INPUTS],
    /// Tensors.
    pub weights: OperatorWeights<'a>,
    /// The output, where the operator saves it.
    pub output: &'a [f32],
    /// The numbers saved by the forward step.
    pub extra: &'a [f32],
    /// Scratch memory.
    pub scratch: &'a mut [f32],
    /// The gradient of the output, to be written over by that of the input where [`Operator::gradient`] says so; empty
    /// for a loss.
    pub gradient: &'a mut [f32],
    /// Where gradients of inputs go.
    pub targets: [TargetMut<'a>; MAX_INPUTS],
    /// Where gradients of tensors go. Those of a loss are all stored or all added.
    pub tensors: [Option<TensorGradient<'a>>; MAX_PARAMS],
}

/// The dynamic half of an operator.
pub trait Executor: Operator {
    /// Whether the kernels can do this.
    ///
    /// # Errors
    /// Why not.
    fn check_supported(&self, shape: &NodeShape) -> Result<(), String> {
        let _ = shape;
        Ok(())
    }

    /// Number of packed operands of the forward pass.
    fn forward_packs(&self, shape: &NodeShape) -> usize {
        let _ = shape;
        0
    }

    /// Number of packed operands of the backward pass.
    fn backward_packs(&self, shape: &NodeShape) -> usize {
        let _ = shape;
        0
    }

    /// Packs weights for the forward pass, once for all leaves.
    fn pack_forward(&self, cx: Context<'_>, shape: &NodeShape, tensors: [&[f32]; MAX_PARAMS], packs: &mut [PackedB]) {
        let _ = (cx, shape, tensors, packs);
    }

    /// Packs weights for the backward pass, once for all leaves.
    fn pack_backward(&self, cx: Context<'_>, shape: &NodeShape, tensors: [&[f32]; MAX_PARAMS], packs: &mut [PackedB]) {
        let _ = (cx, shape, tensors, packs);
    }

    /// Computes the output.
    fn forward(&self, kit: &mut OperatorContext<'_>, io: ForwardArgs<'_>);

    /// Computes gradients of inputs and tensors. Where the gradient of an input replaces it, called twice: for the
    /// tensors without targets, then for the target without inputs and tensors. Never called for an operator all of
    /// whose input gradients are [`Same`](super::GradientForm::Same) and that has no tensors.
    fn backward(&self, kit: &mut OperatorContext<'_>, io: BackwardArgs<'_>);

    /// Whether adding the gradient of a tensor to what is there has the bits of computing it apart and adding that.
    fn is_accumulation_exact(&self) -> bool {
        true
    }
}

/// The operator that carries out `op`, to be executed.
pub fn executor(op: &OpKind) -> Box<dyn Executor> {
    match *op {
        OpKind::Embedding => Box::new(Embedding),
        OpKind::AddPosition => Box::new(AddPosition),
        OpKind::Dropout { rate } => Box::new(Dropout { rate }),
        OpKind::Add => Box::new(Add),
        OpKind::LayerNorm { epsilon } => Box::new(LayerNorm { epsilon }),
        OpKind::Linear => Box::new(Linear),
        OpKind::Activation { kind } => Box::new(Activation { kind }),
        OpKind::CausalAttention { heads, scale, dropout } => Box::new(CausalAttention { heads, scale, dropout }),
        OpKind::CrossEntropy => Box::new(CrossEntropy),
    }
}
