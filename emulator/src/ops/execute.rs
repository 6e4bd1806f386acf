//! Execution of operators: the arguments and methods that a device uses.
//!
//! An operator works on one leaf at a time, or on those of a [block](crate::schedule::leaves_per_block): the rows of
//! their samples, one sample after the other. It allocates nothing, and its result does not depend on the number of
//! threads, nor on the leaves of a block.

use super::{Operator, Signature};
use crate::graph::{DType, Graph, OpNode, Shape};
use crate::kernels::attention::AttentionWorkspace;
use crate::kernels::embedding::TokenPosition;
use crate::kernels::loss::{LossSums, LossWorkspace};
use crate::kernels::rotary::RotaryTable;
use crate::kernels::{Accumulate, Context, GemmWorkspace, MatRef, PackedOperand, RightOperand};
use crate::numerics::GEMM_INNER_BLOCK;

/// Maximum inputs of an operator.
pub const MAX_INPUTS: usize = 4;
/// Maximum inputs with a gradient, which are the first ones.
pub const MAX_TARGETS: usize = 3;
/// Maximum tensors of an operator.
pub const MAX_PARAMS: usize = 2;

/// Rows per thread and work item in operations between the products.
pub(super) const ROW_GRAIN: usize = 32;

/// Elements per thread and work item in operations on each element.
pub(super) const ELEMENT_GRAIN: usize = 4096;

/// Shapes of an operator's operands, per sample.
#[derive(Clone, Debug)]
pub struct NodeShape {
    /// Shapes of its inputs.
    pub inputs: Vec<Shape>,
    /// Dimensions of its tensors.
    pub params: Vec<Vec<usize>>,
}

impl NodeShape {
    /// Returns the shapes of a node of a valid graph.
    pub fn of(graph: &Graph, node: &OpNode) -> Self {
        let Signature { inputs, params } = Signature::of(graph, node);
        Self { inputs, params: params.into_iter().map(<[usize]>::to_vec).collect() }
    }

    /// Rows of the first input, per sample.
    pub(super) fn rows(&self) -> usize {
        self.inputs[0].rows()
    }

    /// Columns of the first input.
    pub(super) fn columns(&self) -> usize {
        self.inputs[0].columns()
    }

    /// Rows and columns of the first tensor, which is a matrix.
    pub(crate) fn matrix(&self) -> (usize, usize) {
        (self.params[0][0], self.params[0][1])
    }
}

/// Resources of an operator.
#[derive(Debug)]
pub struct OperatorContext<'a> {
    /// Instruction set, threads, precision of products.
    pub cx: Context<'a>,
    /// Whether dropout is applied and sums are saved for a backward pass.
    pub training: bool,
    /// Number of leaves; 1 if the operator does not [span](Executor::spans_leaves) them.
    pub leaves: usize,
    /// Number of samples of all leaves.
    pub samples: usize,
    /// The operator's dropout key of each sample.
    pub keys: &'a [u64],
    /// Scratch memory of matrix products.
    pub products: &'a mut GemmWorkspace,
    /// Scratch memory of attention.
    pub attention: &'a mut AttentionWorkspace,
    /// Cosines and sines of rotary position embeddings.
    pub rotary: &'a mut RotaryTable,
    /// Scratch memory of the loss.
    pub loss: &'a mut LossWorkspace,
    /// Memory for the order in which an embedding adds the rows of its gradient.
    pub order: &'a mut Vec<TokenPosition>,
    /// Destination of the sums of a loss, for each leaf.
    pub sums: &'a mut [LossSums],
    /// Destination of the sums of a metric; empty for other operators, and where a forward pass is repeated.
    pub metric: &'a mut [f64],
}

/// An input of an operator.
#[derive(Clone, Copy, Debug)]
pub enum OperatorInput<'a> {
    /// Not needed, or not available.
    Absent,
    /// Integers, or truth values, which are 0 or 1.
    Integers(&'a [i32]),
    /// Numbers.
    Values(&'a [f32]),
    /// Numbers in the memory that the output is written to.
    Overwritten,
}

impl<'a> OperatorInput<'a> {
    /// Returns an input of this type in the arena.
    pub fn stored(dtype: DType, memory: &'a [f32]) -> Self {
        match dtype {
            DType::F32 => Self::Values(memory),
            DType::I32 | DType::Bool => Self::Integers(integers(memory)),
        }
    }

    /// Returns the numbers; empty if there are none, or they are in the output's memory.
    pub fn values(self) -> &'a [f32] {
        if let OperatorInput::Values(values) = self { values } else { &[] }
    }

    /// Returns the elements of any type as they are in memory; empty if there are none, or they are in the output's
    /// memory.
    pub(super) fn words(self) -> &'a [f32] {
        match self {
            OperatorInput::Values(values) => values,
            OperatorInput::Integers(integers) => bytemuck::cast_slice(integers),
            OperatorInput::Absent | OperatorInput::Overwritten => &[],
        }
    }

    /// Returns the integers; empty if there are none.
    pub fn integers(self) -> &'a [i32] {
        if let OperatorInput::Integers(integers) = self { integers } else { &[] }
    }
}

/// Returns memory of the arena as that of integers, or of truth values, which are 0 or 1.
pub fn integers_mut(memory: &mut [f32]) -> &mut [i32] {
    bytemuck::cast_slice_mut(memory)
}

/// Returns memory of the arena as integers or truth values.
pub fn integers(memory: &[f32]) -> &[i32] {
    bytemuck::cast_slice(memory)
}

/// Weights of an operator: its tensors, and packed copies of them.
#[derive(Clone, Copy, Debug)]
pub struct OperatorWeights<'a> {
    /// The tensors; empty if the operator has none, does not read them in this pass, or reads only the packed form.
    pub tensors: [&'a [f32]; MAX_PARAMS],
    /// The packed transpose of the first tensor, if the operator [reads it](Operator::packs_matrix).
    pub transposed: Option<PackedOperand<'a>>,
    /// The packed first tensor, for the backward pass.
    pub matrix: Option<PackedOperand<'a>>,
}

impl<'a> OperatorWeights<'a> {
    /// Returns the second tensor, if the operator has one.
    pub(super) fn bias(&self, shape: &NodeShape) -> Option<&'a [f32]> {
        (shape.params.len() > 1).then_some(self.tensors[1])
    }

    /// Returns the first tensor, a matrix, as the right operand of a product.
    pub(super) fn matrix(&self, shape: &NodeShape) -> RightOperand<'a> {
        let (rows, columns) = shape.matrix();
        self.matrix.map_or_else(|| MatRef::row_major(self.tensors[0], rows, columns).into(), RightOperand::from)
    }

    /// Returns the transpose of the first tensor as the right operand of a product.
    pub(super) fn transposed(&self, shape: &NodeShape) -> RightOperand<'a> {
        let (rows, columns) = shape.matrix();
        let view = || MatRef::row_major(self.tensors[0], rows, columns).t();
        self.transposed.map_or_else(|| view().into(), RightOperand::from)
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
    /// Destination of the output; empty for a loss. Integers and truth values are written to it as [`integers_mut`].
    pub output: &'a mut [f32],
    /// Destination of the numbers to save.
    pub extra: &'a mut [f32],
    /// Scratch memory of the size of [`Operator::scratch`].
    pub scratch: &'a mut [f32],
}

/// Destination of the gradient of an input.
#[derive(Debug)]
pub enum TargetMut<'a> {
    /// Not computed, or overwrites the gradient of the output.
    None,
    /// This memory.
    Memory(&'a mut [f32], Accumulate),
}

/// Destination of the gradient of a tensor.
#[derive(Debug)]
pub struct TensorGradient<'a> {
    /// The gradient.
    pub data: &'a mut [f32],
    /// Whether to store the gradient or add it to the previous content.
    pub accumulate: Accumulate,
}

impl TensorGradient<'_> {
    /// Returns whether the gradient is added to the previous content.
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
    /// The output, if the operator saves it.
    pub output: &'a [f32],
    /// The numbers saved by the forward step.
    pub extra: &'a [f32],
    /// Scratch memory.
    pub scratch: &'a mut [f32],
    /// The gradient of the output, overwritten by that of the input if [`Operator::gradient`] says so; empty for a
    /// loss.
    pub gradient: &'a mut [f32],
    /// Destinations of the gradients of inputs.
    pub targets: [TargetMut<'a>; MAX_TARGETS],
    /// Destinations of the gradients of tensors. Those of a loss are all stored or all added.
    pub tensors: [Option<TensorGradient<'a>>; MAX_PARAMS],
}

/// Why the kernels do not support an operator: the rest of a sentence whose subject is the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedOperator {
    /// It has more inputs or tensors than [`MAX_INPUTS`] or [`MAX_PARAMS`].
    #[error("has too many inputs or tensors")]
    TooManyOperands,
    /// Two of its tensors are the same one.
    #[error("uses one tensor twice")]
    RepeatedTensor,
    /// Its attention heads are wider than a block of the kernels.
    #[error("has heads of {elements} elements; {GEMM_INNER_BLOCK} is the most")]
    WideHeads {
        /// Elements of a head.
        elements: usize,
    },
}

/// Checks that the kernels support heads of `elements`.
pub(super) const fn check_head_width(elements: usize) -> Result<(), UnsupportedOperator> {
    if elements <= GEMM_INNER_BLOCK { Ok(()) } else { Err(UnsupportedOperator::WideHeads { elements }) }
}

/// The execution of an operator.
pub trait Executor: Operator {
    /// Checks that the kernels support this operator with these shapes.
    ///
    /// # Errors
    /// The reason why they do not.
    fn check_supported(&self, shape: &NodeShape) -> Result<(), UnsupportedOperator> {
        let _ = shape;
        Ok(())
    }

    /// Computes the output.
    fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>);

    /// Computes the rows from `first` on of the output of one sample, with the bits of [`Executor::forward`]. The
    /// shapes are those of the operands given. If a row depends on [earlier](super::RowDependency::Earlier) ones,
    /// inputs have all rows and `output` those from `first` on; otherwise both have the rows from `first` on. Called
    /// for operators whose [`Operator::row_dependency`] is not [`All`](super::RowDependency::All).
    fn forward_rows(&self, context: &mut OperatorContext<'_>, first: usize, io: ForwardArgs<'_>) {
        let _ = first;
        self.forward(context, io);
    }

    /// Returns whether one call computes all leaves of a block: the output and the gradients of inputs as if the block
    /// were one leaf; the gradients of tensors of each leaf, added along the leaf tree; and the sums of a loss of each
    /// leaf. Operators with large tensors do that. A device makes such calls only if no input is a constant.
    fn spans_leaves(&self) -> bool {
        false
    }

    /// Computes the gradients of inputs and tensors. If the gradient of an input overwrites it, this is called twice:
    /// first for the tensors without targets, then for the target without inputs and tensors. Not called for an
    /// operator without tensors whose input gradients are all [`Same`](super::GradientForm::Same).
    fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>);

    /// Returns whether accumulating the gradient of a tensor has the same bits as computing it separately and adding
    /// it.
    fn is_accumulation_exact(&self) -> bool {
        true
    }
}
