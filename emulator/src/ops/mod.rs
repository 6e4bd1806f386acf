//! Operators: one file per operator, with everything specific to it.
//!
//! [`Operator`] has the static properties that the compiler needs: shapes, work, and what the backward pass needs from
//! the forward pass. Outside of this module only model families construct an [`OpKind`], and only
//! `device/activations.rs` matches on it. A new operator is a variant of [`OpKind`], a file here and a line in
//! [`operator`].
//!
//! What an operator *saves* is a contract with the [schedule](crate::schedule): in a layer that is not recomputed,
//! exactly the values named by [`SavedForBackward`] and [`SavedForBackward::floats`] extra numbers per sample are kept
//! from the forward to the backward pass. Dropout masks are never saved, because they are a function of their key.
//!
//! The execution of an operator is in the same file, behind the feature `kernels`; see `execute`.

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

    /// Token numbers, one per row.
    pub const fn tokens(rows: usize) -> Self {
        Self { rows, columns: 1, kind: ValueType::Token }
    }

    /// Returns the elements of one sample.
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

/// The inputs and tensors of an operator.
#[derive(Clone, Debug)]
pub struct Signature<'a> {
    /// Shapes of the values it reads.
    pub inputs: Vec<Shape>,
    /// Dimensions of the tensors it uses.
    pub params: Vec<&'a [usize]>,
}

impl<'a> Signature<'a> {
    /// Returns the signature of `node`, whose indices must be in range of `graph` (see [`Graph::validate`]).
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

    /// Returns the inputs, if there are exactly `N` of these element types.
    fn inputs<const N: usize>(&self, kinds: [ValueType; N]) -> Result<[Shape; N], OpError> {
        let inputs: [Shape; N] =
            self.inputs.as_slice().try_into().map_err(|_| OpError::Inputs { expected: N, found: self.inputs.len() })?;
        match inputs.iter().zip(kinds).position(|(input, kind)| input.kind != kind) {
            Some(input) => Err(OpError::InputKind { input, expected: kinds[input] }),
            None => Ok(inputs),
        }
    }

    /// Checks that the tensors are `expected`; those from index `required` on may be missing.
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

    /// Returns the dimensions of tensor `param`, or `(0, 0)` if [`Operator::output`] would reject it.
    fn matrix(&self, param: usize) -> (u64, u64) {
        match self.params.get(param) {
            Some(&[rows, columns]) => (*rows as u64, *columns as u64),
            _ => (0, 0),
        }
    }

    /// Returns rows and columns of input `input`, or `(0, 0)` if [`Operator::output`] would reject it.
    fn input(&self, input: usize) -> (u64, u64) {
        self.inputs.get(input).map_or((0, 0), |shape| (shape.rows as u64, shape.columns as u64))
    }
}

/// Reason why an operator rejects its signature.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    /// Wrong number of values.
    #[error("it reads {expected} values, not {found}")]
    Inputs {
        /// Number of values it takes.
        expected: usize,
        /// Number of values given.
        found: usize,
    },
    /// Tokens instead of activations, or the reverse.
    #[error("its input {input} must be of type {expected:?}")]
    InputKind {
        /// Position of the value.
        input: usize,
        /// Expected element type.
        expected: ValueType,
    },
    /// Two values that must agree differ.
    #[error("its input {input} must be {expected}, not {found}")]
    InputShape {
        /// Position of the value.
        input: usize,
        /// Expected shape.
        expected: Shape,
        /// Shape given.
        found: Shape,
    },
    /// Wrong number of tensors.
    #[error("it uses {least} to {most} tensors, not {found}")]
    Params {
        /// Minimum number of tensors.
        least: usize,
        /// Maximum number of tensors.
        most: usize,
        /// Number of tensors given.
        found: usize,
    },
    /// A tensor must be a matrix and is not.
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
        /// Expected dimensions.
        expected: Vec<usize>,
        /// Dimensions given.
        found: Vec<usize>,
    },
    /// A position table is shorter than the sequence.
    #[error("its table has {positions} positions, too few for {rows} rows")]
    TooFewPositions {
        /// Rows of the table.
        positions: usize,
        /// Rows of a sample.
        rows: usize,
    },
    /// Columns can't be divided into heads.
    #[error("{columns} columns can't be split into queries, keys and values of {heads} equal heads")]
    Heads {
        /// Columns of the input.
        columns: usize,
        /// Number of heads.
        heads: usize,
    },
    /// An attribute is out of range.
    #[error("its {name} is {value}, but must be {range}")]
    Attribute {
        /// The attribute.
        name: &'static str,
        /// Its value.
        value: f32,
        /// Allowed range.
        range: &'static str,
    },
}

/// Work of an operator on one sample.
///
/// Only matrix products count, a multiply-add as two operations: pointwise work is bound by memory bandwidth, and this
/// is the convention of the field. Products of the backward pass that repeat the forward pass (attention scores,
/// logits) are not counted, so recomputation does not increase a rate based on these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flops {
    /// Operations of the forward pass.
    pub forward: u64,
    /// Operations of the backward pass.
    pub backward: u64,
    /// Numbers of the forward pass that are summed over the cores that share a feature dimension.
    pub forward_sums: u64,
    /// The same for the backward pass, without gradients of tensors, which all samples share.
    pub backward_sums: u64,
}

impl Flops {
    /// Returns the work of a product of `rows x inputs` with a matrix, with `outputs` result columns. Its backward pass
    /// is two such products; the one with the matrix sums over `outputs`.
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

/// What the backward pass of an operator needs in addition to the gradient of its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedForBackward {
    /// Whether each input is needed.
    pub inputs: &'static [usize],
    /// Whether the output is needed.
    pub output: bool,
    /// Extra f32 numbers per sample (means, log-sum-exps).
    pub floats: u64,
}

/// How the backward pass of an operator computes the gradient of one of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientForm {
    /// There is no gradient.
    None,
    /// The gradient of the output, unchanged: nothing is computed.
    Same,
    /// Overwrites the gradient of the output.
    Overwrite,
    /// Written to separate memory.
    Store,
    /// Written to separate memory, or added to its previous content.
    StoreOrAdd,
}

/// The static properties of an operator. Shapes are per sample; the module documentation defines *saved*.
///
/// All methods except [`Operator::output`] may assume a signature that `output` accepts.
pub trait Operator: std::fmt::Debug + Send + Sync {
    /// Name, for error messages.
    fn name(&self) -> &'static str;

    /// Shape of the output, `None` for a loss.
    ///
    /// # Errors
    /// Values, tensors or attributes do not match.
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError>;

    /// Work on one sample.
    fn flops(&self, io: &Signature<'_>) -> Flops {
        let _ = io;
        Flops::default()
    }

    /// Returns what the backward pass needs from the forward pass.
    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let _ = io;
        SavedForBackward::default()
    }

    /// Returns whether the backward pass computes a gradient of input `input`.
    fn has_input_gradient(&self, input: usize) -> bool {
        let _ = input;
        true
    }

    /// Returns how the backward pass computes the gradient of input `input`.
    fn gradient(&self, input: usize) -> GradientForm {
        if self.has_input_gradient(input) { GradientForm::Store } else { GradientForm::None }
    }

    /// Returns whether the gradient of input 0 may overwrite that input. The backward pass then first computes the
    /// gradients of tensors, for which it reads the input, and afterwards the gradient of the input, for which it does
    /// not.
    fn gradient_replaces_input(&self) -> bool {
        false
    }

    /// Returns the inputs that the output may overwrite if nothing reads them later. Each element of such an input is
    /// read before its position is written.
    fn in_place_inputs(&self) -> &'static [usize] {
        &[]
    }

    /// Returns whether the backward pass reads tensor `param` itself, in addition to computing its gradient.
    fn backward_reads_param(&self, param: usize) -> bool {
        let _ = param;
        false
    }

    /// Returns the number of packed weight elements of each direction. The emulation packs them once for all leaves of
    /// a pass.
    fn packed(&self, io: &Signature<'_>) -> u64 {
        let _ = io;
        0
    }

    /// Returns the f32 numbers per sample needed only during computation, in the pass that needs more of them.
    fn scratch(&self, io: &Signature<'_>) -> u64 {
        let _ = io;
        0
    }
}

/// Returns the operator of `op`.
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

/// Returns the work of an operator of a valid graph on one sample.
pub fn node_flops(graph: &Graph, node: NodeId) -> Flops {
    let node = &graph.nodes[node];
    operator(&node.op).flops(&Signature::of(graph, node))
}

/// Returns the work of all operators of a layer of a valid graph on one sample.
pub fn layer_flops(graph: &Graph, layer: LayerId) -> Flops {
    let nodes = graph.layers[layer].nodes.clone().map(|node| node_flops(graph, node));
    nodes.fold(Flops::default(), |sum, flops| Flops {
        forward: sum.forward.saturating_add(flops.forward),
        backward: sum.backward.saturating_add(flops.backward),
        forward_sums: sum.forward_sums.saturating_add(flops.forward_sums),
        backward_sums: sum.backward_sums.saturating_add(flops.backward_sums),
    })
}

/// Checks that a dropout probability is in `[0, 1)`.
fn check_rate(name: &'static str, rate: f32) -> Result<(), OpError> {
    if (0.0..1.0).contains(&rate) {
        return Ok(());
    }
    Err(OpError::Attribute { name, value: rate, range: "at least 0 and less than 1" })
}

#[cfg(test)]
mod tests;
