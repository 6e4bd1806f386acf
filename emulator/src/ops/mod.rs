//! One file per operator, with everything that is particular to it.
//!
//! [`Operator`] is what the compiler asks: shapes, work, what the backward pass needs of the forward pass. Outside
//! this module only the graph's families build an [`OpKind`], and only `device/activations.rs` looks at which one it
//! is; a new operator is a variant of [`OpKind`] (or a new form of one), a file here and a line in [`operator`].
//!
//! What an operator *saves* is a contract with the [schedule](crate::schedule): of a layer that is not recomputed,
//! exactly the values named by [`SavedForBackward`] and [`SavedForBackward::floats`] extra numbers a sample live from
//! the forward to the backward pass. Dropout masks are never saved, they are a function of their key.
//!
//! How an operator is carried out stands in its file, too, behind the feature `kernels`; see `execute`.

use crate::graph::{Graph, LayerId, NodeId, OpKind, OpNode, ValueType};

mod activation;
mod add;
mod add_position;
mod causal_attention;
mod cross_entropy;
mod dropout;
mod embedding;
#[cfg(feature = "kernels")]
pub mod execute;
mod layer_norm;
mod linear;

pub use activation::Activation;
pub use add::Add;
pub use add_position::AddPosition;
pub use causal_attention::CausalAttention;
pub use cross_entropy::{CrossEntropy, VOCABULARY_BLOCK};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use layer_norm::LayerNorm;
pub use linear::Linear;

/// Shape of a value: `rows x columns` per sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows per sample.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Element type.
    pub kind: ValueType,
}

impl Shape {
    /// Activations of `rows x columns`.
    pub const fn float(rows: usize, columns: usize) -> Self {
        Self { rows, columns, kind: ValueType::Float }
    }

    /// Numbers of tokens, one per row.
    pub const fn tokens(rows: usize) -> Self {
        Self { rows, columns: 1, kind: ValueType::Token }
    }

    /// Elements of one sample.
    pub const fn elements(self) -> u64 {
        self.rows as u64 * self.columns as u64
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.kind == ValueType::Token { "tokens" } else { "floats" };
        write!(f, "{} x {} {kind}", self.rows, self.columns)
    }
}

/// What an operator is given.
#[derive(Clone, Debug)]
pub struct Signature<'a> {
    /// Shapes of the values read.
    pub inputs: Vec<Shape>,
    /// Dimensions of the tensors used.
    pub params: Vec<&'a [usize]>,
}

impl<'a> Signature<'a> {
    /// The signature of `node`, whose indices must be inside `graph` (as [`Graph::validate`] proves).
    pub fn of(graph: &'a Graph, node: &OpNode) -> Self {
        let shape = |&value: &usize| {
            let value = &graph.values[value];
            Shape { rows: value.rows, columns: value.columns, kind: value.kind }
        };
        Self {
            inputs: node.inputs.iter().map(shape).collect(),
            params: node.params.iter().map(|&tensor| graph.tensors[tensor].shape.as_slice()).collect(),
        }
    }

    /// The inputs, if there are exactly `N` of these kinds.
    fn inputs<const N: usize>(&self, kinds: [ValueType; N]) -> Result<[Shape; N], OpError> {
        let inputs: [Shape; N] =
            self.inputs.as_slice().try_into().map_err(|_| OpError::Inputs { expected: N, found: self.inputs.len() })?;
        match inputs.iter().zip(kinds).position(|(input, kind)| input.kind != kind) {
            Some(input) => Err(OpError::InputKind { input, expected: kinds[input] }),
            None => Ok(inputs),
        }
    }

    /// Checks that there are the tensors `expected`, of which the last ones from `required` on may be missing.
    fn params(&self, expected: &[&[usize]], required: usize) -> Result<(), OpError> {
        if self.params.len() < required || self.params.len() > expected.len() {
            return Err(OpError::Params { least: required, most: expected.len(), found: self.params.len() });
        }
        for (param, (found, expected)) in self.params.iter().zip(expected).enumerate() {
            if found != expected {
                return Err(OpError::ParamShape { param, expected: expected.to_vec(), found: found.to_vec() });
            }
        }
        Ok(())
    }

    /// Dimension `axis` of tensor `param`, which must have two.
    fn matrix_dimension(&self, param: usize, axis: usize) -> Result<usize, OpError> {
        match self.params.get(param) {
            Some(&[rows, columns]) => Ok(*[rows, columns][axis]),
            Some(found) => Err(OpError::NotAMatrix { param, found: found.to_vec() }),
            None => Err(OpError::Params { least: param + 1, most: param + 1, found: self.params.len() }),
        }
    }

    /// Dimensions of tensor `param`, `(0, 0)` where [`Operator::output`] would refuse.
    fn matrix(&self, param: usize) -> (u64, u64) {
        match self.params.get(param) {
            Some(&[rows, columns]) => (*rows as u64, *columns as u64),
            _ => (0, 0),
        }
    }

    /// Rows and columns of input `input`, `(0, 0)` where [`Operator::output`] would refuse.
    fn input(&self, input: usize) -> (u64, u64) {
        self.inputs.get(input).map_or((0, 0), |shape| (shape.rows as u64, shape.columns as u64))
    }
}

/// Why an operator refuses what it is given.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    /// Wrong number of values.
    #[error("it reads {expected} values, not {found}")]
    Inputs {
        /// Values it takes.
        expected: usize,
        /// Values given.
        found: usize,
    },
    /// Tokens where activations belong, or the reverse.
    #[error("its input {input} must be of type {expected:?}")]
    InputKind {
        /// Position of the value.
        input: usize,
        /// What it must be.
        expected: ValueType,
    },
    /// Two values that must agree do not.
    #[error("its input {input} must be {expected}, not {found}")]
    InputShape {
        /// Position of the value.
        input: usize,
        /// What it must be.
        expected: Shape,
        /// What it is.
        found: Shape,
    },
    /// Wrong number of tensors.
    #[error("it uses {least} to {most} tensors, not {found}")]
    Params {
        /// Fewest it takes.
        least: usize,
        /// Most it takes.
        most: usize,
        /// Tensors given.
        found: usize,
    },
    /// A tensor that must be a matrix is none.
    #[error("its tensor {param} must have two dimensions, not {found:?}")]
    NotAMatrix {
        /// Position of the tensor.
        param: usize,
        /// Its dimensions.
        found: Vec<usize>,
    },
    /// A tensor has the wrong dimensions.
    #[error("its tensor {param} must be {expected:?}, not {found:?}")]
    ParamShape {
        /// Position of the tensor.
        param: usize,
        /// What it must be.
        expected: Vec<usize>,
        /// What it is.
        found: Vec<usize>,
    },
    /// A position table that ends before the sequence does.
    #[error("its table has {positions} positions, too few for {rows} rows")]
    TooFewPositions {
        /// Rows of the table.
        positions: usize,
        /// Rows of a sample.
        rows: usize,
    },
    /// Columns that can't be cut into heads.
    #[error("{columns} columns are no queries, keys and values of {heads} equal heads")]
    Heads {
        /// Columns of the input.
        columns: usize,
        /// Number of heads.
        heads: usize,
    },
    /// An attribute out of its range.
    #[error("its {name} is {value}, but must be {range}")]
    Attribute {
        /// The attribute.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What it may be.
        range: &'static str,
    },
}

/// Work of an operator on one sample.
///
/// Only matrix products count, a multiply-add as two operations: pointwise work is bound by memory, and this is how the
/// field counts. Products of the backward pass that merely repeat the forward pass (attention scores, logits) are not
/// counted, so a rate made of these numbers is never flattered by recomputation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// Of the forward pass.
    pub forward: u64,
    /// Of the backward pass.
    pub backward: u64,
    /// Numbers of the forward pass that are summed over the cores which share a feature dimension.
    pub forward_sums: u64,
    /// The same of the backward pass; gradients of tensors are not among them, as all samples share these.
    pub backward_sums: u64,
}

impl Flops {
    /// The product of `rows x inputs` with a matrix that makes `outputs` columns of it; its backward pass is two such
    /// products, of which that with the matrix sums over `outputs`.
    fn product(rows: u64, inputs: u64, outputs: u64) -> Self {
        let forward = [rows, inputs, outputs].into_iter().fold(2u64, u64::saturating_mul);
        Self {
            forward,
            backward: forward.saturating_mul(2),
            forward_sums: rows.saturating_mul(outputs),
            backward_sums: rows.saturating_mul(inputs),
        }
    }
}

/// What the backward pass of an operator needs besides the gradient of its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedForBackward {
    /// Positions of the inputs needed.
    pub inputs: &'static [usize],
    /// Whether the output is needed.
    pub output: bool,
    /// Extra f32 numbers a sample (means, log-sum-exps).
    pub floats: u64,
}

/// How the backward pass of an operator makes the gradient of one of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientForm {
    /// There is none.
    None,
    /// It is the gradient of the output, unchanged: nothing is computed.
    Same,
    /// It is written over the gradient of the output.
    Overwrite,
    /// It is written to memory of its own.
    Store,
    /// It is written to memory of its own, or added to what is there.
    StoreOrAdd,
}

/// Everything static about an operator. Shapes are per sample; see the module text for what *saved* means.
///
/// All methods but [`Operator::output`] may assume a signature which that one accepts.
pub trait Operator: std::fmt::Debug + Send + Sync {
    /// Name, for messages.
    fn name(&self) -> &'static str;

    /// Shape of the output, `None` for a loss.
    ///
    /// # Errors
    /// When values, tensors or attributes do not go together.
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError>;

    /// Work on one sample.
    fn flops(&self, io: &Signature<'_>) -> Flops {
        let _ = io;
        Flops::default()
    }

    /// What the backward pass needs of the forward pass.
    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let _ = io;
        SavedForBackward::default()
    }

    /// Whether the backward pass makes a gradient of input `input`.
    fn has_input_gradient(&self, input: usize) -> bool {
        let _ = input;
        true
    }

    /// How the backward pass makes the gradient of input `input`.
    fn gradient(&self, input: usize) -> GradientForm {
        if self.has_input_gradient(input) { GradientForm::Store } else { GradientForm::None }
    }

    /// Whether the gradient of input 0 may be written over that input: its backward pass makes the gradients of
    /// tensors, for which it reads the input, and that of the input, for which it does not, one after the other.
    fn gradient_replaces_input(&self) -> bool {
        false
    }

    /// Inputs whose memory the output may take, where nobody else needs them: an input is read before, element by
    /// element, its place is written.
    fn in_place_inputs(&self) -> &'static [usize] {
        &[]
    }

    /// Whether the backward pass reads tensor `param` itself, besides making its gradient.
    fn backward_reads_param(&self, param: usize) -> bool {
        let _ = param;
        false
    }

    /// Weights that products read from a copy in the order in which they take them, which the emulation makes once for
    /// all leaves of a pass: so many numbers for each direction.
    fn packed(&self, io: &Signature<'_>) -> u64 {
        let _ = io;
        0
    }

    /// f32 numbers a sample needed only while the operator computes, in the pass that needs more of them.
    fn scratch(&self, io: &Signature<'_>) -> u64 {
        let _ = io;
        0
    }
}

/// The operator that carries out `op`.
pub fn operator(op: &OpKind) -> Box<dyn Operator> {
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

/// Work of a valid graph's operator on one sample.
pub fn node_flops(graph: &Graph, node: NodeId) -> Flops {
    let node = &graph.nodes[node];
    operator(&node.op).flops(&Signature::of(graph, node))
}

/// Work of all operators of a valid graph's layer on one sample.
pub fn layer_flops(graph: &Graph, layer: LayerId) -> Flops {
    let nodes = graph.layers[layer].nodes.clone().map(|node| node_flops(graph, node));
    nodes.fold(Flops::default(), |sum, flops| Flops {
        forward: sum.forward.saturating_add(flops.forward),
        backward: sum.backward.saturating_add(flops.backward),
        forward_sums: sum.forward_sums.saturating_add(flops.forward_sums),
        backward_sums: sum.backward_sums.saturating_add(flops.backward_sums),
    })
}

/// Checks a probability of zeroing: in `[0, 1)`.
fn check_rate(name: &'static str, rate: f32) -> Result<(), OpError> {
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(OpError::Attribute { name, value: rate, range: "at least 0 and less than 1" })
}

#[cfg(test)]
mod tests;
