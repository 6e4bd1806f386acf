//! `(x) -> f(x)`, pointwise.

use super::{GradientForm, OpError, Operator, SavedForBackward, Shape, Signature};
use crate::graph::{ActivationKind, ValueType};

/// See the module documentation. Saves its input, which determines the derivative.
#[derive(Clone, Copy, Debug)]
pub struct Activation {
    /// Which function.
    pub kind: ActivationKind,
}

impl Operator for Activation {
    fn name(&self) -> &'static str {
        "Activation"
    }

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
    use super::Activation;
    use crate::graph::ActivationKind;
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
