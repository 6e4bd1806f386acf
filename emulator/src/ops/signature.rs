//! The shapes that an operator reads and makes, and the reasons to reject them.

use crate::graph::{DType, Dimensions, Graph, OpNode, Shape};

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
        Self {
            inputs: node.inputs.iter().map(|&value| graph.values[value].shape).collect(),
            params: node.params.iter().map(|&tensor| graph.tensors[tensor].shape.as_slice()).collect(),
        }
    }

    /// Returns the inputs, if there are exactly `N`, of any element type.
    pub(super) fn operands<const N: usize>(&self) -> Result<[Shape; N], OpError> {
        self.inputs.as_slice().try_into().map_err(|_| OpError::Inputs { expected: N, found: self.inputs.len() })
    }

    /// Returns the inputs, if there are exactly `N` of these element types.
    pub(super) fn inputs<const N: usize>(&self, dtypes: [DType; N]) -> Result<[Shape; N], OpError> {
        let inputs: [Shape; N] = self.operands()?;
        match inputs.iter().zip(dtypes).position(|(input, dtype)| input.dtype() != dtype) {
            Some(input) => Err(OpError::InputType { input, expected: dtypes[input], found: inputs[input].to_string() }),
            None => Ok(inputs),
        }
    }

    /// Returns the signature without the weight of a loss or metric: a number that may follow the first `count` inputs.
    pub(super) fn without_weight(&self, count: usize) -> Result<Self, OpError> {
        let mut signature = self.clone();
        if let Some(&weight) = self.inputs.get(count).filter(|_| self.inputs.len() == count + 1) {
            let number = Shape::of(DType::F32, Dimensions::default());
            if weight != number {
                return Err(OpError::input_shape(count, number, weight));
            }
            signature.inputs.truncate(count);
        }
        Ok(signature)
    }

    /// Returns the only input, if it is a sequence: f32 of two dimensions, positions and features.
    pub(super) fn sequence(&self) -> Result<Shape, OpError> {
        let [x] = self.inputs([DType::F32])?;
        if x.dimensions().len() == 2 { Ok(x) } else { Err(OpError::NotASequence { input: 0, found: x.to_string() }) }
    }

    /// Returns the first of two inputs, rows of numbers, if the second has an integer for each row.
    pub(super) fn rows_with_labels(&self) -> Result<Shape, OpError> {
        let [rows, labels] = self.inputs([DType::F32, DType::I32])?;
        let expected = rows.one_integer_per_row();
        if labels == expected { Ok(rows) } else { Err(OpError::input_shape(1, expected, labels)) }
    }

    /// Returns the first input, which is a sequence. A second input, if there is one, has an integer for each position.
    pub(super) fn sequence_with_integers(&self) -> Result<Shape, OpError> {
        let &[x, integers] = self.inputs.as_slice() else { return self.sequence() };
        let x = Signature { inputs: vec![x], params: Vec::new() }.sequence()?;
        let expected = x.one_integer_per_row();
        if integers == expected { Ok(x) } else { Err(OpError::input_shape(1, expected, integers)) }
    }

    /// Checks that the tensors are `expected`; those from index `required` on may be missing.
    pub(super) fn params(&self, expected: &[&[usize]], required: usize) -> Result<(), OpError> {
        if self.params.len() < required || self.params.len() > expected.len() {
            return Err(OpError::Params { min: required, max: expected.len(), found: self.params.len() });
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
            None => Err(OpError::Params { min: param + 1, max: param + 1, found: self.params.len() }),
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
        self.inputs.get(input).map_or((0, 0), |shape| (shape.rows() as u64, shape.columns() as u64))
    }
}

impl OpError {
    /// Returns the error of an input that must have another shape.
    pub(super) fn input_shape(input: usize, expected: Shape, found: Shape) -> Self {
        Self::InputShape { input, expected: expected.to_string(), found: found.to_string() }
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
    /// An input has another element type.
    #[error("its input {input} must be of type {expected}, not {found}")]
    InputType {
        /// Position of the value.
        input: usize,
        expected: DType,
        found: String,
    },
    /// An input must have two dimensions, positions and features, and has not.
    #[error("its input {input} must have two dimensions, positions and features, not {found}")]
    NotASequence {
        /// Position of the value.
        input: usize,
        found: String,
    },
    /// The output would have too many dimensions.
    #[error("its input {input} has {max} dimensions, so that its output would have more than is supported")]
    TooManyDimensions {
        /// Position of the value.
        input: usize,
        max: usize,
    },
    /// Two values that must agree differ.
    #[error("its input {input} must be {expected}, not {found}")]
    InputShape {
        /// Position of the value.
        input: usize,
        expected: String,
        found: String,
    },
    #[error("it uses {min} to {max} tensors, not {found}")]
    Params { min: usize, max: usize, found: usize },
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
    /// An input must have one dimension and has not.
    #[error("its input {input} must have one dimension, not {found}")]
    NotAVector {
        /// Position of the value.
        input: usize,
        found: String,
    },
    /// An input must be an image and is not.
    #[error("its input {input} must have three dimensions, channels, rows and columns, not {found}")]
    NotAnImage {
        /// Position of the value.
        input: usize,
        found: String,
    },
    /// An image, weights and a number of groups that do not fit together.
    #[error("{found} with weights {weight:?} can't be convolved: channels, groups, or sizes do not fit")]
    Convolution { found: String, weight: Vec<usize> },
    /// Windows that are larger than the image, whose padding is more than half of them, or that do not move.
    #[error("windows of {kernel:?} do not fit {found}: it needs larger images, strides, or less padding")]
    Window { kernel: [usize; 2], found: String },
    /// An image can't be divided into patches.
    #[error("patches of {height} x {width} do not divide {found}")]
    Patches { height: usize, width: usize, found: String },
    /// A row does not exist.
    #[error("it selects row {row}, but its input has {rows}")]
    RowOutside { row: usize, rows: usize },
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
    /// Operands of different shapes can't be repeated to one shape.
    #[error("{first:?} and {second:?} can't be broadcast to one shape")]
    NotBroadcast { first: Vec<usize>, second: Vec<usize> },
    /// Matrices that have no product.
    #[error("{first} and {second} have no product")]
    Product { first: String, second: String },
    /// A cast to the type that the input has.
    #[error("its input is of type {0} already")]
    NothingToCast(DType),
    /// Dimensions with another number of elements.
    #[error("{found} does not have the elements of {dimensions:?}")]
    Reshape { found: String, dimensions: Vec<usize> },
    /// A list of dimensions that is not one of all, each once.
    #[error("{order:?} is not an order of the dimensions of {found}")]
    Order { order: Vec<usize>, found: String },
    /// A list of dimensions that is empty, not in rising order, or names one that does not exist.
    #[error("it can't reduce the dimensions {axes:?} of {found}: it needs at least one, each once, in rising order")]
    Axes { axes: Vec<usize>, found: String },
    /// A dimension does not exist.
    #[error("{found} has no dimension {axis}")]
    NoAxis { axis: usize, found: String },
    /// A part of a dimension does not exist, is empty, or is not one element where one is needed.
    #[error("it can't take elements {start} to {end} of dimension {axis} of {found} in steps of {step}")]
    Slice { axis: usize, start: usize, end: usize, step: usize, found: String },
    /// A tensor has more dimensions than a value can have.
    #[error("its tensor has the dimensions {found:?}, more than a value can have")]
    TensorDimensions { found: Vec<usize> },
    /// An attribute is out of range.
    #[error("its {name} is {value}, but must be {range}")]
    Attribute { name: &'static str, value: f32, range: &'static str },
}
