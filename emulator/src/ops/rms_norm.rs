//! `(x; gain [H]) -> [rows x H]`: each row divided by the root of its mean square, times gain.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves its input with the reciprocal root mean square of each row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RmsNorm {
    /// Added to the mean square.
    pub epsilon: f32,
}

impl Operator for RmsNorm {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[&[x.columns()]], 1)?;
        if !(self.epsilon > 0.0 && self.epsilon.is_finite()) {
            return Err(OpError::Attribute { name: "epsilon", value: self.epsilon, range: "positive" });
        }
        Ok(Some(x))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let (rows, _) = io.input(0);
        SavedForBackward { inputs: &[0], output: false, floats: rows }
    }

    fn backward_reads_param(&self, _: usize) -> bool {
        true
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::StoreOrAdd
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::RmsNorm;
    use crate::kernels::Accumulate;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::kernels::rms_norm::{rms_norm_backward_gamma, rms_norm_backward_input, rms_norm_forward};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, ROW_GRAIN, TargetMut};

    /// Columns of the gain's gradient per thread and work item.
    const COLUMN_GRAIN: usize = 64;

    impl Executor for RmsNorm {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width, epsilon) = (context.cx.simd, io.shape.columns(), self.epsilon);
            let gain = io.weights.tensors[0];
            let data = (rows(io.inputs[0].values(), width), rows_mut(io.output, width), rows_mut(io.extra, 1));
            context.cx.pool.for_each_rows(context.samples * io.shape.rows(), ROW_GRAIN, data, |_, (x, y, rstd)| {
                rms_norm_forward(simd, x.data, gain, epsilon, y.data, rstd.data);
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (simd, width) = (context.cx.simd, io.shape.columns());
            let (gain, rstd, x, dy) = (io.weights.tensors[0], io.extra, io.inputs[0].values(), &*io.gradient);
            if let [Some(gradient), _] = io.tensors {
                let adds = gradient.adds();
                context.cx.pool.for_each_rows(width, COLUMN_GRAIN, rows_mut(gradient.data, 1), |first, gradient| {
                    rms_norm_backward_gamma(simd, x, width, rstd, dy, first, gradient.data, adds);
                });
            }
            let [TargetMut::Memory(dx, accumulate), ..] = io.targets else { return };
            let adds = accumulate == Accumulate::Add;
            let data = (rows(x, width), rows(rstd, 1), rows(dy, width), rows_mut(dx, width));
            context.cx.pool.for_each_rows(
                context.samples * io.shape.rows(),
                ROW_GRAIN,
                data,
                |_, (x, rstd, dy, dx)| {
                    rms_norm_backward_input(simd, x.data, gain, rstd.data, dy.data, dx.data, adds);
                },
            );
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::RmsNorm;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, WIDTH, X, accepts, rejects};

    impl OperatorTests for RmsNorm {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let gain = args.params[0];
            let row = |row: &[f64]| -> Vec<f64> {
                let mean_square = row.iter().map(|x| x * x).sum::<f64>() / gain.len() as f64;
                let scale = 1.0 / (mean_square + f64::from(self.epsilon)).sqrt();
                row.iter().zip(gain).map(|(x, gain)| x * scale * gain).collect()
            };
            args.inputs[0].chunks(gain.len()).flat_map(row).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let norm = RmsNorm { epsilon: 1e-5 };
            vec![
                accepts(norm, &[X], &[&[4]], X),
                rejects(norm, &[X], &[&[5]], "tensor 0 must be [4]"),
                rejects(norm, &[X], &[&[4], &[4]], "1 to 1 tensors"),
                rejects(RmsNorm { epsilon: 0.0 }, &[X], &[&[4]], "epsilon"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let norm = RmsNorm { epsilon: 1e-5 };
            let single = TestGraph::build(|s, x| {
                let gain = s.tensor(&[WIDTH]);
                s.node(norm, &[x], &[gain])
            });
            // One gain for two norms, beside a residual path.
            let shared = TestGraph::build(|s, x| {
                let gain = s.tensor(&[WIDTH]);
                let y = s.node(norm, &[x], &[gain]);
                let x = s.add(x, y);
                s.node(norm, &[x], &[gain])
            });
            vec![single, shared]
        }
    }
}
