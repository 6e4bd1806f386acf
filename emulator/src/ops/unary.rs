//! `(x) -> f(x)`, for each element: the functions of one number that are not [activations](super::Activation).

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnaryFunction {
    /// -x.
    Neg,
    /// |x|.
    Abs,
    /// -1, 0 or 1.
    Sign,
    /// The largest integer that is at most x.
    Floor,
    /// e^x.
    Exp,
    /// ln x.
    Log,
    /// √x.
    Sqrt,
    /// 1/√x.
    Rsqrt,
    /// 1/x.
    Reciprocal,
    /// x².
    Square,
    /// sin x.
    Sin,
    /// cos x.
    Cos,
    /// The error function.
    Erf,
}

/// See the module documentation. Saves its input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unary {
    /// Which function.
    pub function: UnaryFunction,
}

impl Operator for Unary {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        Ok(Some(x))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0], ..SavedForBackward::default() }
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::Overwrite
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::{Unary, UnaryFunction};
    use crate::kernels::arithmetic::{self, UnaryKernels};
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, ELEMENT_GRAIN, Executor, ForwardArgs, OperatorContext};

    const fn kernels(function: UnaryFunction) -> UnaryKernels {
        match function {
            UnaryFunction::Neg => arithmetic::NEG,
            UnaryFunction::Abs => arithmetic::ABS,
            UnaryFunction::Sign => arithmetic::SIGN,
            UnaryFunction::Floor => arithmetic::FLOOR,
            UnaryFunction::Exp => arithmetic::EXP,
            UnaryFunction::Log => arithmetic::LOG,
            UnaryFunction::Sqrt => arithmetic::SQRT,
            UnaryFunction::Rsqrt => arithmetic::RSQRT,
            UnaryFunction::Reciprocal => arithmetic::RECIPROCAL,
            UnaryFunction::Square => arithmetic::SQUARE,
            UnaryFunction::Sin => arithmetic::SIN,
            UnaryFunction::Cos => arithmetic::COS,
            UnaryFunction::Erf => arithmetic::ERF,
        }
    }

    impl Executor for Unary {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, function) = (context.cx.simd, kernels(self.function).forward);
            let data = (rows(io.inputs[0].values(), 1), rows_mut(io.output, 1));
            context
                .cx
                .pool
                .for_each_rows(data.0.data.len(), ELEMENT_GRAIN, data, |_, (x, y)| function(simd, x.data, y.data));
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (simd, slope) = (context.cx.simd, kernels(self.function).backward);
            let data = (rows(io.inputs[0].values(), 1), rows_mut(io.gradient, 1));
            context
                .cx
                .pool
                .for_each_rows(data.0.data.len(), ELEMENT_GRAIN, data, |_, (x, dy)| slope(simd, x.data, dy.data));
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::{Unary, UnaryFunction};
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};

    const FUNCTIONS: [UnaryFunction; 13] = [
        UnaryFunction::Neg,
        UnaryFunction::Abs,
        UnaryFunction::Sign,
        UnaryFunction::Floor,
        UnaryFunction::Exp,
        UnaryFunction::Log,
        UnaryFunction::Sqrt,
        UnaryFunction::Rsqrt,
        UnaryFunction::Reciprocal,
        UnaryFunction::Square,
        UnaryFunction::Sin,
        UnaryFunction::Cos,
        UnaryFunction::Erf,
    ];

    impl OperatorTests for Unary {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let function: fn(f64) -> f64 = match self.function {
                UnaryFunction::Neg => |x| -x,
                UnaryFunction::Abs => f64::abs,
                UnaryFunction::Sign => f64::signum,
                UnaryFunction::Floor => f64::floor,
                UnaryFunction::Exp => f64::exp,
                UnaryFunction::Log => f64::ln,
                UnaryFunction::Sqrt => f64::sqrt,
                UnaryFunction::Rsqrt => |x| 1.0 / x.sqrt(),
                UnaryFunction::Reciprocal => |x| 1.0 / x,
                UnaryFunction::Square => |x| x * x,
                UnaryFunction::Sin => f64::sin,
                UnaryFunction::Cos => f64::cos,
                UnaryFunction::Erf => libm::erf,
            };
            args.inputs[0].iter().map(|&x| function(x)).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let sine = Unary { function: UnaryFunction::Sin };
            vec![
                accepts(sine, &[X], &[], X),
                rejects(sine, &[TOKENS], &[], "type f32"),
                rejects(sine, &[X], &[&[4]], "0 to 0 tensors"),
            ]
        }

        /// Each function of numbers that are at least 1, because some functions need that.
        fn graphs() -> Vec<Graph> {
            let graph = |function| {
                TestGraph::build(|s, x| {
                    let y = s.at_least_one(x);
                    s.node(Unary { function }, &[y], &[])
                })
            };
            FUNCTIONS.map(graph).into()
        }
    }
}
