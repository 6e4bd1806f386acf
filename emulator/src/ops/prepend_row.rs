//! `(x [R, H]; row [1, H]) -> [R + 1, H]`: puts a trained row before those of each sample.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::Shape;

/// See the module documentation. The gradient of the row is its sum over samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrependRow;

impl Operator for PrependRow {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let x = io.sequence()?;
        io.params(&[&[1, x.columns()]], 1)?;
        Ok(Some(Shape::matrix(x.rows().saturating_add(1), x.columns())))
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::PrependRow;
    use crate::kernels::elementwise;
    use crate::ops::execute::{
        BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, TargetMut, TensorGradient,
    };

    impl Executor for PrependRow {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (width, length) = (io.shape.columns(), io.shape.rows());
            let OperatorInput::Values(x) = io.inputs[0] else { return };
            let samples = x.chunks_exact(length * width);
            for (x, out) in samples.zip(io.output.chunks_exact_mut((length + 1) * width)) {
                let (first, rest) = out.split_at_mut(width);
                first.copy_from_slice(io.weights.tensors[0]);
                rest.copy_from_slice(x);
            }
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (width, length) = (io.shape.columns(), io.shape.rows());
            let sample = (length + 1) * width;
            let [row, _] = io.tensors;
            if let Some(TensorGradient { data, accumulate }) = row {
                let adds = accumulate == crate::kernels::Accumulate::Add;
                elementwise::column_sums(context.cx.simd, io.gradient, sample, 1, 0, data, adds);
            }
            if let [TargetMut::Memory(dx, _), ..] = io.targets {
                for (dx, dy) in dx.chunks_exact_mut(length * width).zip(io.gradient.chunks_exact(sample)) {
                    dx.copy_from_slice(&dy[width..]);
                }
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::PrependRow;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, rejects};
    use crate::ops::{CrossEntropy, SelectRow};

    impl OperatorTests for PrependRow {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            [args.params[0], args.inputs[0]].concat()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(PrependRow, &[X], &[&[1, 4]], Shape::matrix(9, 4)),
                rejects(PrependRow, &[X], &[&[4]], "must be [1, 4]"),
                rejects(PrependRow, &[X], &[], "1 to 1 tensors"),
                rejects(PrependRow, &[TOKENS], &[&[1, 4]], "type f32"),
            ]
        }

        /// Classifiers of the new row and of the one after it, before the loss of the tokens.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let token = s.tensor(&[1, WIDTH]);
                let y = s.node(PrependRow, &[x], &[token]);
                for row in [0, 1] {
                    let row = s.node(SelectRow { row }, &[y], &[]);
                    let label = s.integers(Shape::new(DType::I32, &[]).unwrap());
                    let params = [s.tensor(&[3, WIDTH]), s.tensor(&[3])];
                    s.loss_of(CrossEntropy::with_factor(2.0), &[row, label], &params);
                }
                s.end_layer();
                x
            })]
        }
    }
}
