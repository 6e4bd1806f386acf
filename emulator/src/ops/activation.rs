//! `(x) -> f(x)`, pointwise.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, SavedForBackward, Shape, Signature};
use crate::graph::ValueType;

/// A pointwise function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationKind {
    /// `x Phi(x)` with the exact normal distribution function.
    Gelu,
    /// `x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2`.
    GeluTanh,
    /// `x sigmoid(1.702 x)`.
    QuickGelu,
    /// The square of [`Self::Gelu`].
    SquaredGelu,
    /// `max(x, 0)`.
    Relu,
    /// The square of [`Self::Relu`].
    SquaredRelu,
    /// `x sigmoid(x)`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `x`.
    Identity,
}

/// See the module documentation. Saves its input, which determines the derivative.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activation {
    /// Which function.
    pub kind: ActivationKind,
}

impl Operator for Activation {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([ValueType::Float])?;
        io.params(&[], 0)?;
        Ok(Some(x))
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
mod run {
    use super::{Activation, ActivationKind};
    use crate::kernels::Simd;
    use crate::kernels::activation::{self, PointwiseKernels};
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, ROW_GRAIN};

    impl ActivationKind {
        /// Returns the kernels of the function.
        pub(in crate::ops) const fn kernels(self) -> PointwiseKernels {
            match self {
                Self::Gelu => activation::GELU,
                Self::GeluTanh => activation::GELU_TANH,
                Self::QuickGelu => activation::QUICK_GELU,
                Self::SquaredGelu => activation::SQUARED_GELU,
                Self::Relu => activation::RELU,
                Self::SquaredRelu => activation::SQUARED_RELU,
                Self::Silu => activation::SILU,
                Self::Sigmoid => activation::SIGMOID,
                Self::Tanh => activation::TANH,
                Self::Identity => activation::IDENTITY,
            }
        }
    }

    impl Executor for Activation {
        fn forward(&self, kit: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width, function) = (kit.cx.simd, io.shape.columns(), self.kind.kernels().forward);
            let count = kit.samples * io.shape.rows();
            if let OperatorInput::Values(x) = io.inputs[0] {
                let data = (rows(x, width), rows_mut(io.output, width));
                kit.cx.pool.for_each_rows(count, ROW_GRAIN, data, |_, (x, y)| function(simd, x.data, y.data));
            } else {
                kit.cx.pool.for_each_rows(count, ROW_GRAIN, rows_mut(io.output, width), |_, x| {
                    in_place(simd, function, x.data);
                });
            }
        }

        fn backward(&self, kit: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (simd, width, slope) = (kit.cx.simd, io.shape.columns(), self.kind.kernels().backward);
            let count = kit.samples * io.shape.rows();
            let data = (rows(io.inputs[0].values(), width), rows_mut(io.gradient, width));
            kit.cx.pool.for_each_rows(count, ROW_GRAIN, data, |_, (x, dy)| slope(simd, x.data, dy.data));
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
    use super::{Activation, ActivationKind};
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, rejects};

    /// All functions. Those with a kink are tested at values that are rarely close to it.
    pub(in crate::ops) const KINDS: [ActivationKind; 10] = [
        ActivationKind::Gelu,
        ActivationKind::GeluTanh,
        ActivationKind::QuickGelu,
        ActivationKind::SquaredGelu,
        ActivationKind::Relu,
        ActivationKind::SquaredRelu,
        ActivationKind::Silu,
        ActivationKind::Sigmoid,
        ActivationKind::Tanh,
        ActivationKind::Identity,
    ];

    impl OperatorTests for Activation {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].iter().map(|&x| function(self.kind, x)).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let gelu = Activation { kind: ActivationKind::Gelu };
            vec![accepts(gelu, &[X], &[], X), rejects(gelu, &[X], &[&[4]], "0 to 0 tensors")]
        }

        fn graphs() -> Vec<Graph> {
            KINDS.map(|kind| TestGraph::build(|s, x| s.node(Activation { kind }, &[x], &[]))).into()
        }
    }

    pub(in crate::ops) fn function(kind: ActivationKind, x: f64) -> f64 {
        let gelu = || 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match kind {
            ActivationKind::Gelu => gelu(),
            ActivationKind::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            ActivationKind::QuickGelu => x * sigmoid(1.702 * x),
            ActivationKind::SquaredGelu => gelu().powi(2),
            ActivationKind::Relu => x.max(0.0),
            ActivationKind::SquaredRelu => x.max(0.0).powi(2),
            ActivationKind::Silu => x * sigmoid(x),
            ActivationKind::Sigmoid => sigmoid(x),
            ActivationKind::Tanh => x.tanh(),
            ActivationKind::Identity => x,
        }
    }
}
