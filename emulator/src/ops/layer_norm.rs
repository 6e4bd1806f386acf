//! `(x; gain [H], offset [H]?) -> [rows x H]`: each row normalized to mean 0 and variance 1, times gain, plus offset.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves its input with mean and reciprocal deviation of each row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LayerNorm {
    /// Added to the variance.
    pub epsilon: f32,
}

impl Operator for LayerNorm {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[&[x.columns()], &[x.columns()]], 1)?;
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
        SavedForBackward { inputs: &[0], output: false, floats: 2 * rows }
    }

    fn backward_reads_param(&self, param: usize) -> bool {
        param == 0
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::StoreOrAdd
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::LayerNorm;
    use crate::kernels::Accumulate;
    use crate::kernels::elementwise::column_sums;
    use crate::kernels::norm::{layer_norm_backward_input, layer_norm_backward_params, layer_norm_forward};
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, ROW_GRAIN, TargetMut};

    /// Columns of parameter gradients per thread and work item.
    const COLUMN_GRAIN: usize = 64;

    impl Executor for LayerNorm {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width, epsilon) = (context.cx.simd, io.shape.columns(), self.epsilon);
            let (gain, offset) = (io.weights.tensors[0], io.weights.bias(io.shape));
            let count = context.samples * io.shape.rows();
            let (mean, rstd) = io.extra.split_at_mut(count);
            let x = rows(io.inputs[0].values(), width);
            let data = (x, rows_mut(io.output, width), rows_mut(mean, 1), rows_mut(rstd, 1));
            context.cx.pool.for_each_rows(count, ROW_GRAIN, data, |_, (x, y, mean, rstd)| {
                layer_norm_forward(simd, x.data, gain, offset, epsilon, y.data, mean.data, rstd.data);
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (simd, width) = (context.cx.simd, io.shape.columns());
            let gain = io.weights.tensors[0];
            let count = context.samples * io.shape.rows();
            let (mean, rstd) = io.extra.split_at(count);
            let (x, dy) = (io.inputs[0].values(), &*io.gradient);
            match io.tensors {
                [Some(gain), Some(offset)] => {
                    let (adds, offset_adds) = (gain.adds(), offset.adds());
                    let data = (rows_mut(gain.data, 1), rows_mut(offset.data, 1));
                    context.cx.pool.for_each_rows(width, COLUMN_GRAIN, data, |first, (gain, offset)| {
                        // One of them may be shared with another norm and already have a gradient.
                        let buffer: &mut [f32] = if adds == offset_adds {
                            offset.data
                        } else {
                            column_sums(simd, dy, width, 1, first, offset.data, offset_adds);
                            &mut []
                        };
                        layer_norm_backward_params(simd, x, width, mean, rstd, dy, first, gain.data, buffer, adds);
                    });
                }
                [Some(gain), None] => {
                    let adds = gain.adds();
                    context.cx.pool.for_each_rows(width, COLUMN_GRAIN, rows_mut(gain.data, 1), |first, gain| {
                        layer_norm_backward_params(simd, x, width, mean, rstd, dy, first, gain.data, &mut [], adds);
                    });
                }
                [None, _] => {}
            }
            let [TargetMut::Memory(dx, accumulate), ..] = io.targets else { return };
            let adds = accumulate == Accumulate::Add;
            let data = (rows(x, width), rows(mean, 1), rows(rstd, 1), rows(dy, width), rows_mut(dx, width));
            context.cx.pool.for_each_rows(count, ROW_GRAIN, data, |_, (x, mean, rstd, dy, dx)| {
                layer_norm_backward_input(simd, x.data, gain, mean.data, rstd.data, dy.data, dx.data, adds);
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::LayerNorm;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, WIDTH, X, accepts, rejects};

    impl OperatorTests for LayerNorm {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let gain = args.params[0];
            let zeros = vec![0.0; gain.len()];
            let offset = args.params.get(1).copied().unwrap_or(&zeros);
            let width = gain.len() as f64;
            let row = |row: &[f64]| -> Vec<f64> {
                let mean = row.iter().sum::<f64>() / width;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width;
                let scale = 1.0 / (variance + f64::from(self.epsilon)).sqrt();
                row.iter().zip(gain).zip(offset).map(|((x, gain), offset)| (x - mean) * scale * gain + offset).collect()
            };
            args.inputs[0].chunks(gain.len()).flat_map(row).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let norm = LayerNorm { epsilon: 1e-5 };
            vec![
                accepts(norm, &[X], &[&[4], &[4]], X),
                accepts(norm, &[X], &[&[4]], X),
                rejects(norm, &[X], &[&[4], &[5]], "tensor 1 must be [4]"),
                rejects(LayerNorm { epsilon: 0.0 }, &[X], &[&[4], &[4]], "epsilon"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let without_offset = TestGraph::build(|s, x| {
                let gain = s.tensor(&[WIDTH]);
                s.node(LayerNorm { epsilon: 1e-5 }, &[x], &[gain])
            });
            vec![TestGraph::build(|s, x| s.norm(x)), without_offset]
        }
    }
}
