//! Next tokens of a decoder, computed row by row: the forward pass of a graph with a cache of keys and values.
//!
//! ```text
//! extend([The, cat])  rows 0 and 1 of every value; logits of the token after "cat"
//! extend([sat])       row 2 of every value, from row 2 of most inputs, and rows 0 to 2 of queries, keys and values
//! ```
//!
//! * It executes the operators of the graph that was trained, by their kernels: `Operator::row_dependency` says which
//!   rows an operator reads. What a row depends on is kept from call to call; other values exist during a call only.
//! * Logits have the same bits however the tokens are divided into calls, and on any number of threads.
//! * No token can cause a panic.

use std::sync::Arc;

use crate::graph::{DType, Graph, INPUT_IDS, NodeId, OpNode, Shape, TensorId};
use crate::kernels::attention::AttentionWorkspace;
use crate::kernels::embedding::TokenPosition;
use crate::kernels::loss::{LossSums, LossWorkspace};
use crate::kernels::pool::PoolError;
use crate::kernels::rotary::RotaryTable;
use crate::kernels::{ComputeThreads, Context, GemmWorkspace, MatRef, PackedB, Simd};
use crate::numerics::{Precision, bf16};
use crate::ops::execute::{
    ForwardArgs, MAX_INPUTS, MAX_PARAMS, NodeShape, OperatorContext, OperatorInput, OperatorWeights,
};
use crate::ops::{CrossEntropy, Linear, OpKind, RowDependency, Signature};

mod decoder;
mod memory;
mod sampling;

pub use decoder::{NotADecoder, decoder_vocabulary, max_positions};
use memory::TensorUses;
pub use memory::memory_bytes;
pub use sampling::{Sampler, SamplingError, SamplingOptions};

/// Tokens that are computed together: bounds the memory of values that exist during a call only.
const MAX_CALL_ROWS: usize = 64;

/// How to compute.
#[derive(Clone, Copy, Debug)]
pub struct InferenceOptions {
    /// Number of compute threads, at least one.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub simd: Simd,
    /// Type of weights on the wire and of the operands of products, as in training.
    pub precision: Precision,
    /// Maximum number of tokens, at least one. Learned positions may permit fewer.
    pub positions: usize,
}

/// A decoder with its weights, and the tokens so far. See the module documentation.
#[derive(Debug)]
pub struct InferenceModel {
    graph: Graph,
    options: InferenceOptions,
    pool: Arc<ComputeThreads>,
    nodes: Vec<NodeState>,
    /// Weights that are read in place; empty for those that only exist packed.
    tensors: Vec<Vec<f32>>,
    scratch: Scratch,
    vocabulary: usize,
    tokens: usize,
    logits: Vec<f32>,
}

/// What an operator keeps.
#[derive(Debug, Default)]
struct NodeState {
    /// The packed transpose of its matrix, if it reads that.
    packed: Option<PackedB>,
    /// The output: the rows of this call, or all rows if a later operator depends on earlier rows.
    output: Vec<f32>,
    is_kept: bool,
    extra: Vec<f32>,
    scratch: Vec<f32>,
}

#[derive(Debug, Default)]
struct Scratch {
    products: GemmWorkspace,
    attention: AttentionWorkspace,
    rotary: RotaryTable,
    loss: LossWorkspace,
    order: Vec<TokenPosition>,
    sums: [LossSums; 1],
}

/// Why a model can't be loaded. `E` is the error of the source of the weights.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum InferenceStartError<E> {
    #[error(transparent)]
    Graph(#[from] NotADecoder),
    #[error("can't start threads")]
    Threads(#[from] PoolError),
    #[error(transparent)]
    Weights(E),
}

/// Tokens that a model can't continue.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferenceError {
    #[error("there are no tokens to continue")]
    Empty,
    #[error("token {token} is not in the model's vocabulary of {vocabulary}")]
    Vocabulary { token: u32, vocabulary: usize },
    #[error("{tokens} tokens are more than the model's {positions} positions")]
    Positions { tokens: usize, positions: usize },
}

/// Checks that `tokens` may follow `before` tokens, in a model with this vocabulary and these positions.
///
/// # Errors
/// There are no tokens, too many, or one is not in the vocabulary.
pub fn check_tokens(tokens: &[u32], before: usize, vocabulary: usize, positions: usize) -> Result<(), InferenceError> {
    let all = before.saturating_add(tokens.len());
    if tokens.is_empty() {
        return Err(InferenceError::Empty);
    }
    if all > positions {
        return Err(InferenceError::Positions { tokens: all, positions });
    }
    match tokens.iter().find(|token| **token as usize >= vocabulary) {
        Some(&token) => Err(InferenceError::Vocabulary { token, vocabulary }),
        None => Ok(()),
    }
}

impl InferenceModel {
    /// Creates a model without tokens. `read` returns the elements of a tensor.
    ///
    /// # Errors
    /// The graph is not a decoder, a tensor can't be read, or threads can't be started.
    pub fn new<E>(
        graph: Graph,
        options: InferenceOptions,
        read: impl FnMut(TensorId) -> Result<Vec<f32>, E>,
    ) -> Result<Self, InferenceStartError<E>> {
        let vocabulary = decoder_vocabulary(&graph)?;
        let pool = Arc::new(ComputeThreads::new(options.threads)?);
        let positions = options.positions.min(max_positions(&graph));
        let kept_outputs = memory::kept_outputs(&graph);
        let mut model = Self {
            options: InferenceOptions { positions, ..options },
            nodes: kept_outputs.into_iter().map(|is_kept| NodeState { is_kept, ..NodeState::default() }).collect(),
            tensors: vec![Vec::new(); graph.tensors.len()],
            graph,
            pool,
            scratch: Scratch::default(),
            vocabulary,
            tokens: 0,
            logits: vec![0.0; vocabulary],
        };
        model.load(read)?;
        Ok(model)
    }

    /// Returns the number of tokens so far.
    pub const fn tokens(&self) -> usize {
        self.tokens
    }

    /// Returns the maximum number of tokens.
    pub const fn positions(&self) -> usize {
        self.options.positions
    }

    /// Returns the number of logits.
    pub const fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Returns the logits of the token that follows the tokens so far; before the first token, zeros.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Adds tokens, and returns the logits of the token that follows them.
    ///
    /// # Errors
    /// There are no tokens, too many, or one is not in the vocabulary; nothing is added then.
    pub fn extend(&mut self, tokens: &[u32]) -> Result<&[f32], InferenceError> {
        check_tokens(tokens, self.tokens, self.vocabulary, self.options.positions)?;
        for part in tokens.chunks(MAX_CALL_ROWS) {
            let ids: Vec<i32> = part.iter().map(|token| *token as i32).collect();
            self.run(&ids);
            self.tokens += part.len();
        }
        Ok(&self.logits)
    }

    /// Reads the weights and packs the operands of products, operator by operator. A tensor is dropped after its last
    /// product, unless it is also read in place.
    fn load<E>(&mut self, mut read: impl FnMut(TensorId) -> Result<Vec<f32>, E>) -> Result<(), InferenceStartError<E>> {
        let uses = TensorUses::of(&self.graph);
        let Self { graph, options, pool, nodes, tensors, .. } = self;
        let cx = Context { simd: options.simd, pool, precision: options.precision };
        for (index, (node, state)) in graph.nodes.iter().zip(nodes).enumerate() {
            for &tensor in &node.params {
                if !tensors[tensor].is_empty() {
                    continue;
                }
                let mut values = read(tensor).map_err(InferenceStartError::Weights)?;
                if options.precision == Precision::Bf16 && !graph.tensors[tensor].is_vector() {
                    values.iter_mut().for_each(|value| *value = bf16::round(*value));
                }
                tensors[tensor] = values;
            }
            let shape = NodeShape::of(graph, node);
            let op = product_of(&node.op);
            if let (true, Some(matrix)) = (op.operator().packs_matrix(), node.params.first()) {
                let (rows, columns) = shape.matrix();
                let matrix = MatRef::row_major(&tensors[*matrix], rows, columns);
                let packed = state.packed.insert(PackedB::new());
                cx.pool.install(|| packed.pack(cx, matrix.t()));
            }
            for &tensor in node.params.iter().filter(|tensor| uses.last[**tensor] == Some(index)) {
                if !uses.in_place[tensor] {
                    tensors[tensor] = Vec::new();
                }
            }
        }
        Ok(())
    }

    /// Computes the rows of `ids`, and the logits of the last.
    fn run(&mut self, ids: &[i32]) {
        let pool = Arc::clone(&self.pool);
        let cx = Context { simd: self.options.simd, pool: &pool, precision: self.options.precision };
        pool.install(|| (0..self.graph.nodes.len()).for_each(|node| self.run_node(cx, node, ids)));
        let head = self.graph.nodes.last().map(|node| node.op);
        if let Some(OpKind::CrossEntropy(CrossEntropy { softcap: Some(cap), .. })) = head {
            self.logits.iter_mut().for_each(|logit| *logit = cap * libm::tanhf(*logit / cap));
        }
    }

    fn run_node(&mut self, cx: Context<'_>, id: NodeId, ids: &[i32]) {
        let Self { graph, nodes, tensors, scratch, tokens, logits, .. } = self;
        let node = &graph.nodes[id];
        let (earlier, rest) = nodes.split_at_mut(id);
        let state = &mut rest[0];
        let is_head = node.output.is_none();
        let (op, dependency) = (product_of(&node.op), node.op.operator().row_dependency());
        // Rows of inputs and of the output, and the first row of the output.
        let (read, written, first) = match dependency {
            RowDependency::Earlier => (*tokens + ids.len(), ids.len(), *tokens),
            _ if is_head => (1, 1, *tokens + ids.len() - 1),
            RowDependency::Same | RowDependency::All => (ids.len(), ids.len(), *tokens),
        };
        let shape = node_shape(graph, node, read, is_head);
        let inputs = std::array::from_fn(|input| input_rows(graph, node, input, earlier, ids, (read, is_head)));
        let output = if is_head {
            &mut logits[..]
        } else {
            let columns = node.output.map_or(0, |output| graph.values[output].shape.columns());
            let start = if state.is_kept { *tokens * columns } else { 0 };
            state.output.resize(start + written * columns, 0.0);
            &mut state.output[start..]
        };
        let signature =
            Signature { inputs: shape.inputs.clone(), params: shape.params.iter().map(|p| &p[..]).collect() };
        let operator = op.operator();
        state.extra.resize(operator.saved(&signature).floats as usize, 0.0);
        state.scratch.resize(operator.scratch(&signature) as usize, 0.0);
        let weights: [&[f32]; MAX_PARAMS] =
            std::array::from_fn(|param| node.params.get(param).map_or(&[][..], |tensor| &tensors[*tensor]));
        let weights =
            OperatorWeights { tensors: weights, transposed: state.packed.as_ref().map(PackedB::operand), matrix: None };
        let Scratch { products, attention, rotary, loss, order, sums } = scratch;
        let mut context = OperatorContext {
            cx,
            training: false,
            leaves: 1,
            samples: 1,
            keys: &[],
            products,
            attention,
            rotary,
            loss,
            order,
            sums,
            metric: &mut [],
        };
        let (extra, scratch) = (&mut state.extra[..], &mut state.scratch[..]);
        let io = ForwardArgs { shape: &shape, inputs, weights, output, extra, scratch };
        op.executor().forward_rows(&mut context, first, io);
    }
}

/// Returns the operator to execute: the loss is the product with its weights, which gives logits.
fn product_of(op: &OpKind) -> OpKind {
    match op {
        OpKind::CrossEntropy(_) => Linear.into(),
        op => *op,
    }
}

/// Returns the shapes of a node whose inputs have `rows` rows.
fn node_shape(graph: &Graph, node: &OpNode, rows: usize, is_head: bool) -> NodeShape {
    let mut shape = NodeShape::of(graph, node);
    // The labels of the loss are not read.
    shape.inputs.truncate(if is_head { 1 } else { MAX_INPUTS });
    for input in &mut shape.inputs {
        let is_ids = input.dtype() == DType::I32;
        *input = if is_ids { Shape::integers(rows) } else { Shape::matrix(rows, input.columns()) };
    }
    shape
}

/// Returns the last rows of an input, as many as are read.
fn input_rows<'a>(
    graph: &Graph,
    node: &OpNode,
    position: usize,
    nodes: &'a [NodeState],
    ids: &'a [i32],
    (rows, is_head): (usize, bool),
) -> OperatorInput<'a> {
    let Some(&value) = node.inputs.get(position).filter(|_| position == 0 || !is_head) else {
        return OperatorInput::Absent;
    };
    if graph.input(INPUT_IDS) == Some(value) {
        return OperatorInput::Integers(ids);
    }
    let from = graph.nodes[..nodes.len()].iter().position(|node| node.output == Some(value));
    let output = from.map_or(&[][..], |from| &nodes[from].output);
    let columns = graph.values[value].shape.columns();
    OperatorInput::Values(&output[output.len().saturating_sub(rows * columns)..])
}
