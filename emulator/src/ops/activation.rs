//! `(x) -> f(x)`, pointwise.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, SavedForBackward, Shape, Signature};
use crate::graph::ValueType;

/// A pointwise non-linear function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationKind {
    /// `x Phi(x)` with the exact normal distribution function.
    Gelu,
    /// `x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2`.
    GeluTanh,
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
    use crate::kernels::activation::{gelu_backward, gelu_forward, gelu_tanh_backward, gelu_tanh_forward};
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, ROW_GRAIN};

    impl Activation {
        const fn forward(self) -> fn(Simd, &[f32], &mut [f32]) {
            match self.kind {
                ActivationKind::Gelu => gelu_forward,
                ActivationKind::GeluTanh => gelu_tanh_forward,
            }
        }

        const fn backward(self) -> fn(Simd, &[f32], &mut [f32]) {
            match self.kind {
                ActivationKind::Gelu => gelu_backward,
                ActivationKind::GeluTanh => gelu_tanh_backward,
            }
        }
    }

    impl Executor for Activation {
        fn forward(&self, kit: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width, function) = (kit.cx.simd, io.shape.columns(), (*self).forward());
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
            let (simd, width, slope) = (kit.cx.simd, io.shape.columns(), (*self).backward());
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
mod tests {
    use super::{Activation, ActivationKind};
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, rejects};

    const KINDS: [ActivationKind; 2] = [ActivationKind::Gelu, ActivationKind::GeluTanh];

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

    fn function(kind: ActivationKind, x: f64) -> f64 {
        match kind {
            ActivationKind::Gelu => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            ActivationKind::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
        }
    }
}
