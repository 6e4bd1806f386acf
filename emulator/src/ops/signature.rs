//! The shapes that an operator reads and makes, and the reasons to reject them.

use crate::graph::{Graph, OpNode, ValueType};

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
    pub(super) fn inputs<const N: usize>(&self, kinds: [ValueType; N]) -> Result<[Shape; N], OpError> {
        let inputs: [Shape; N] =
            self.inputs.as_slice().try_into().map_err(|_| OpError::Inputs { expected: N, found: self.inputs.len() })?;
        match inputs.iter().zip(kinds).position(|(input, kind)| input.kind != kind) {
            Some(input) => Err(OpError::InputKind { input, expected: kinds[input] }),
            None => Ok(inputs),
        }
    }

    /// Checks that the tensors are `expected`; those from index `required` on may be missing.
    pub(super) fn params(&self, expected: &[&[usize]], required: usize) -> Result<(), OpError> {
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
    pub(super) fn matrix_dimension(&self, param: usize, axis: usize) -> Result<usize, OpError> {
        match self.params.get(param) {
            Some(&[rows, columns]) => Ok(*[rows, columns][axis]),
            Some(found) => Err(OpError::NotAMatrix { param, found: found.to_vec() }),
            None => Err(OpError::Params { least: param + 1, most: param + 1, found: self.params.len() }),
        }
    }

    /// Returns the dimensions of tensor `param`, or `(0, 0)` if [`Operator::output`] would reject it.
    pub(super) fn matrix(&self, param: usize) -> (u64, u64) {
        match self.params.get(param) {
            Some(&[rows, columns]) => (*rows as u64, *columns as u64),
            _ => (0, 0),
        }
    }

    /// Returns rows and columns of input `input`, or `(0, 0)` if [`Operator::output`] would reject it.
    pub(super) fn input(&self, input: usize) -> (u64, u64) {
        self.inputs.get(input).map_or((0, 0), |shape| (shape.rows as u64, shape.columns as u64))
    }
}

/// Reason why an operator rejects its signature.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    #[error("it reads {expected} values, not {found}")]
    Inputs {
        /// Number of values it takes.
        expected: usize,
        found: usize,
    },
    /// Tokens instead of activations, or the reverse.
    #[error("its input {input} must be of type {expected:?}")]
    InputKind {
        /// Position of the value.
        input: usize,
        expected: ValueType,
    },
    /// Two values that must agree differ.
    #[error("its input {input} must be {expected}, not {found}")]
    InputShape {
        /// Position of the value.
        input: usize,
        expected: Shape,
        found: Shape,
    },
    #[error("it uses {least} to {most} tensors, not {found}")]
    Params { least: usize, most: usize, found: usize },
    /// A tensor must be a matrix and is not.
    #[error("its tensor {param} must have two dimensions, not {found:?}")]
    NotAMatrix {
        /// Position of the tensor.
        param: usize,
        found: Vec<usize>,
    },
    /// A tensor has the wrong dimensions.
    #[error("its tensor {param} must be {expected:?}, not {found:?}")]
    ParamShape {
        /// Position of the tensor.
        param: usize,
        expected: Vec<usize>,
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
    /// Columns can't be divided into heads of queries, keys and values.
    #[error("{columns} columns can't be split into {heads} heads of queries and {key_heads} each of keys and values")]
    Heads { columns: usize, heads: usize, key_heads: usize },
    /// Rotated heads do not fit.
    #[error(
        "{columns} columns do not begin with {heads} heads of {head_dim}, with {dimensions} rotated elements: an even \
         number, at least 2"
    )]
    RotatedHeads {
        columns: usize,
        heads: usize,
        head_dim: usize,
        /// Rotated elements of a head.
        dimensions: usize,
    },
    /// An attribute is out of range.
    #[error("its {name} is {value}, but must be {range}")]
    Attribute { name: &'static str, value: f32, range: &'static str },
}
