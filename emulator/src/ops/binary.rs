//! `(a, b) -> f(a, b)` or `(a; b) -> f(a, b)`, for each element of operands that are [broadcast](super::broadcast) to
//! one shape. The second operand is a value, or a tensor that all samples share.

use serde::{Deserialize, Serialize};

use super::broadcast::broadcast_operands;
use super::{OpError, Operator, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum BinaryFunction {
    /// a + b.
    Add,
    /// a - b.
    Sub,
    /// a·b.
    Mul,
    /// a/b.
    Div,
    /// The larger of both.
    Max,
    /// The smaller of both.
    Min,
    /// a^b.
    Pow,
}

impl BinaryFunction {
    /// Returns whether the derivatives depend on the operands.
    const fn reads_operands(self) -> bool {
        !matches!(self, Self::Add | Self::Sub)
    }
}

/// See the module documentation. Saves its inputs, unless the derivatives do not depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Binary {
    /// Which function.
    pub function: BinaryFunction,
}

impl Operator for Binary {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let (a, dimensions) = match io.params[..] {
            [] => {
                let [a, b] = io.inputs([DType::F32; 2])?;
                (a, broadcast_operands(&a, b.dimensions())?)
            }
            [b] => {
                let [a] = io.inputs([DType::F32])?;
                (a, broadcast_operands(&a, b)?)
            }
            _ => return Err(OpError::Params { min: 0, max: 1, found: io.params.len() }),
        };
        Ok(Some(a.with_dimensions(dimensions)))
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let inputs: &[usize] = match (self.function.reads_operands(), io.inputs.len()) {
            (false, _) => &[],
            (true, 1) => &[0],
            (true, _) => &[0, 1],
        };
        SavedForBackward { inputs, ..SavedForBackward::default() }
    }

    fn backward_reads_param(&self, _: usize) -> bool {
        self.function.reads_operands()
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::{Binary, BinaryFunction};
    use crate::kernels::arithmetic::{self, BinaryKernels};
    use crate::kernels::strided::{self, View};
    use crate::ops::broadcast::{broadcast, run as operands};
    use crate::ops::execute::{
        BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, OperatorInput, OperatorWeights, TargetMut,
    };

    const fn kernels(function: BinaryFunction) -> BinaryKernels {
        match function {
            BinaryFunction::Add => arithmetic::ADD,
            BinaryFunction::Sub => arithmetic::SUB,
            BinaryFunction::Mul => arithmetic::MUL,
            BinaryFunction::Div => arithmetic::DIV,
            BinaryFunction::Max => arithmetic::MAX,
            BinaryFunction::Min => arithmetic::MIN,
            BinaryFunction::Pow => arithmetic::POW,
        }
    }

    /// Returns the views of both operands and of the result.
    fn views(shape: &NodeShape, samples: usize) -> [View; 3] {
        let a = shape.inputs[0].dimensions();
        let (b, is_tensor) = match shape.params.first() {
            Some(tensor) => (tensor.as_slice(), true),
            None => (shape.inputs[1].dimensions(), false),
        };
        let (sizes, rank) = operands::leaf_sizes(samples, broadcast(a, b).unwrap_or_default());
        let sizes = &sizes[..rank];
        let second = if is_tensor { View::of_each_sample(samples, b) } else { View::of_samples(samples, b) };
        [View::of_samples(samples, a).broadcast(sizes), second.broadcast(sizes), View::dense(sizes)]
    }

    /// Returns the elements of the second operand.
    fn second_operand<'a>(inputs: &[OperatorInput<'a>], weights: &OperatorWeights<'a>, shape: &NodeShape) -> &'a [f32] {
        if shape.params.is_empty() { inputs[1].values() } else { weights.tensors[0] }
    }

    impl Executor for Binary {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, function) = (context.cx.simd, kernels(self.function).forward);
            let [a, b, _] = views(io.shape, context.samples);
            let data = [io.inputs[0].values(), second_operand(&io.inputs, &io.weights, io.shape)];
            strided::map(context.cx, [a, b], data, io.output, |operands, y| function(simd, operands, y));
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (simd, [first, second]) = (context.cx.simd, kernels(self.function).backward);
            let [a, b, y] = views(io.shape, context.samples);
            let dy = &*io.gradient;
            // Functions whose derivatives do not depend on the operands are given something of the right size.
            let (views, data) = if self.function.reads_operands() {
                ([y, a, b], [dy, io.inputs[0].values(), second_operand(&io.inputs, &io.weights, io.shape)])
            } else {
                ([y; 3], [dy; 3])
            };
            let [to_a, to_b, _] = io.targets;
            if let TargetMut::Memory(da, accumulate) = to_a {
                operands::gradient(context.cx, a, (views, data), (da, accumulate), |x, d| first(simd, x, d));
            }
            let [tensor, _] = io.tensors;
            let target = match (to_b, tensor) {
                (TargetMut::Memory(db, accumulate), _) => Some((db, accumulate)),
                (TargetMut::None, tensor) => tensor.map(|tensor| (tensor.data, tensor.accumulate)),
            };
            if let Some(target) = target {
                operands::gradient(context.cx, b, (views, data), target, |x, d| second(simd, x, d));
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::{Binary, BinaryFunction};
    use crate::graph::Graph;
    use crate::ops::Operator as _;
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, at_broadcast, f32_shape,
        rejects,
    };

    const FUNCTIONS: [BinaryFunction; 7] = [
        BinaryFunction::Add,
        BinaryFunction::Sub,
        BinaryFunction::Mul,
        BinaryFunction::Div,
        BinaryFunction::Max,
        BinaryFunction::Min,
        BinaryFunction::Pow,
    ];

    impl OperatorTests for Binary {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let function: fn(f64, f64) -> f64 = match self.function {
                BinaryFunction::Add => |a, b| a + b,
                BinaryFunction::Sub => |a, b| a - b,
                BinaryFunction::Mul => |a, b| a * b,
                BinaryFunction::Div => |a, b| a / b,
                BinaryFunction::Max => f64::max,
                BinaryFunction::Min => f64::min,
                BinaryFunction::Pow => f64::powf,
            };
            let output = self.output(&args.io).unwrap().unwrap();
            let (shape, second) = match args.params.first() {
                Some(tensor) => (args.io.params[0], *tensor),
                None => (args.io.inputs[1].dimensions(), args.inputs[1]),
            };
            let [a, b] = [(args.io.inputs[0].dimensions(), args.inputs[0]), (shape, second)]
                .map(|(shape, data)| at_broadcast(output.dimensions(), shape, data));
            a.into_iter().zip(b).map(|(a, b)| function(a, b)).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let mul = Binary { function: BinaryFunction::Mul };
            vec![
                accepts(mul, &[X, X], &[], X),
                accepts(mul, &[f32_shape(&[8, 1]), f32_shape(&[3, 1, 4])], &[], f32_shape(&[3, 8, 4])),
                accepts(mul, &[X], &[&[4]], X),
                accepts(mul, &[f32_shape(&[])], &[&[2, 3]], f32_shape(&[2, 3])),
                rejects(mul, &[X, f32_shape(&[8])], &[], "[8, 4] and [8] can't be broadcast"),
                rejects(mul, &[X, TOKENS], &[], "type f32"),
                rejects(mul, &[X, X], &[&[4]], "reads 1 values, not 2"),
                rejects(mul, &[X], &[], "reads 2 values, not 1"),
                rejects(mul, &[X], &[&[4], &[4]], "0 to 1 tensors, not 2"),
            ]
        }

        /// Each function of numbers that are at least 1, because some functions need that; and operands of other
        /// shapes, in both positions.
        fn graphs() -> Vec<Graph> {
            let mul = Binary { function: BinaryFunction::Mul };
            let of_function = |function| {
                TestGraph::build(|s, x| {
                    let (a, b) = (s.linear(x, WIDTH, true), s.linear(x, WIDTH, true));
                    let (a, b) = (s.at_least_one(a), s.at_least_one(b));
                    s.node(Binary { function }, &[a, b], &[])
                })
            };
            let of_tensor = |dimensions: &[usize], function| {
                TestGraph::build(|s, x| {
                    let tensor = s.tensor(dimensions);
                    s.node(Binary { function }, &[x], &[tensor])
                })
            };
            let of_columns = TestGraph::build(|s, x| {
                let column = s.linear(x, 1, true);
                let y = s.node(mul, &[column, x], &[]);
                s.node(mul, &[y, column], &[])
            });
            let of_constant = TestGraph::build(|s, x| {
                let constant = s.constant(&[ROWS, 1]);
                let y = s.node(mul, &[constant, x], &[]);
                s.node(mul, &[y, y], &[])
            });
            FUNCTIONS
                .map(of_function)
                .into_iter()
                .chain([
                    of_tensor(&[WIDTH], BinaryFunction::Mul),
                    of_tensor(&[ROWS, 1], BinaryFunction::Sub),
                    of_tensor(&[], BinaryFunction::Mul),
                    of_columns,
                    of_constant,
                ])
                .collect()
        }
    }
}
