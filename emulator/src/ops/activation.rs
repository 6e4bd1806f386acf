//! `(x) -> f(x)`, pointwise.

use millrace_params::Nonlinearity;
use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves its input, which determines the derivative.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Activation {
    /// Which function.
    pub kind: Nonlinearity,
}

impl Operator for Activation {
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

    fn in_place_inputs(&self) -> &'static [usize] {
        &[0]
    }
}

#[cfg(feature = "kernels")]
pub(super) mod run {
    use millrace_params::Nonlinearity;

    use super::Activation;
    use crate::kernels::Simd;
    use crate::kernels::activation::{self, PointwiseKernels};
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, ROW_GRAIN};

    /// Returns the kernels of a function.
    pub(in crate::ops) const fn kernels(function: Nonlinearity) -> PointwiseKernels {
        match function {
            Nonlinearity::Gelu => activation::GELU,
            Nonlinearity::GeluTanh => activation::GELU_TANH,
            Nonlinearity::QuickGelu => activation::QUICK_GELU,
            Nonlinearity::SquaredGelu => activation::SQUARED_GELU,
            Nonlinearity::Relu => activation::RELU,
            Nonlinearity::SquaredRelu => activation::SQUARED_RELU,
            Nonlinearity::Silu => activation::SILU,
            Nonlinearity::Sigmoid => activation::SIGMOID,
            Nonlinearity::Tanh => activation::TANH,
            Nonlinearity::Identity => activation::IDENTITY,
        }
    }

    impl Executor for Activation {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width, function) = (context.cx.simd, io.shape.columns(), kernels(self.kind).forward);
            let count = context.samples * io.shape.rows();
            if let OperatorInput::Values(x) = io.inputs[0] {
                let data = (rows(x, width), rows_mut(io.output, width));
                context.cx.pool.for_each_rows(count, ROW_GRAIN, data, |_, (x, y)| function(simd, x.data, y.data));
            } else {
                context.cx.pool.for_each_rows(count, ROW_GRAIN, rows_mut(io.output, width), |_, x| {
                    in_place(simd, function, x.data);
                });
            }
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (simd, width, slope) = (context.cx.simd, io.shape.columns(), kernels(self.kind).backward);
            let count = context.samples * io.shape.rows();
            let data = (rows(io.inputs[0].values(), width), rows_mut(io.gradient, width));
            context.cx.pool.for_each_rows(count, ROW_GRAIN, data, |_, (x, dy)| slope(simd, x.data, dy.data));
        }
    }

    /// Applies a function of separate operands in place, in small blocks.
    fn in_place(simd: Simd, function: fn(Simd, &[f32], &mut [f32]), x: &mut [f32]) {
        let mut copy = [0.0; 512];
        for part in x.chunks_mut(copy.len()) {
            let copy = &mut copy[..part.len()];
            copy.copy_from_slice(part);
            function(simd, copy, part);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
pub(super) mod tests {
    use millrace_params::Nonlinearity;

    use super::Activation;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, rejects};

    /// All functions. Those with a kink are tested at values that are rarely close to it.
    pub(in crate::ops) const KINDS: [Nonlinearity; 10] = [
        Nonlinearity::Gelu,
        Nonlinearity::GeluTanh,
        Nonlinearity::QuickGelu,
        Nonlinearity::SquaredGelu,
        Nonlinearity::Relu,
        Nonlinearity::SquaredRelu,
        Nonlinearity::Silu,
        Nonlinearity::Sigmoid,
        Nonlinearity::Tanh,
        Nonlinearity::Identity,
    ];

    impl OperatorTests for Activation {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].iter().map(|&x| function(self.kind, x)).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let gelu = Activation { kind: Nonlinearity::Gelu };
            vec![accepts(gelu, &[X], &[], X), rejects(gelu, &[X], &[&[4]], "0 to 0 tensors")]
        }

        fn graphs() -> Vec<Graph> {
            KINDS.map(|kind| TestGraph::build(|s, x| s.node(Activation { kind }, &[x], &[]))).into()
        }
    }

    pub(in crate::ops) fn function(kind: Nonlinearity, x: f64) -> f64 {
        let gelu = || 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match kind {
            Nonlinearity::Gelu => gelu(),
            Nonlinearity::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            Nonlinearity::QuickGelu => x * sigmoid(1.702 * x),
            Nonlinearity::SquaredGelu => gelu().powi(2),
            Nonlinearity::Relu => x.max(0.0),
            Nonlinearity::SquaredRelu => x.max(0.0).powi(2),
            Nonlinearity::Silu => x * sigmoid(x),
            Nonlinearity::Sigmoid => sigmoid(x),
            Nonlinearity::Tanh => x.tanh(),
            Nonlinearity::Identity => x,
        }
    }
}
