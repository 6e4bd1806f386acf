//! `(x [R, C]) -> [C, R]`.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// Exchanges rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Transpose;

impl Operator for Transpose {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        match *x.dimensions() {
            [rows, columns] => Ok(Some(Shape::matrix(columns, rows))),
            _ => Err(OpError::NotASequence { input: 0, found: x.to_string() }),
        }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Transpose;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, TargetMut};

    /// Writes the transpose of each sample's matrix of `columns` columns.
    fn transpose(context: &OperatorContext<'_>, [height, width]: [usize; 2], x: &[f32], y: &mut [f32]) {
        let data = (rows(x, height * width), rows_mut(y, height * width));
        context.cx.pool.for_each_rows(context.samples, 1, data, |_, (x, y)| {
            let samples = x.data.chunks_exact(height * width).zip(y.data.chunks_exact_mut(height * width));
            for (x, y) in samples {
                for (column, y) in y.chunks_exact_mut(height).enumerate() {
                    for (y, x) in y.iter_mut().zip(x.iter().skip(column).step_by(width)) {
                        *y = *x;
                    }
                }
            }
        });
    }

    impl Executor for Transpose {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            transpose(context, [io.shape.rows(), io.shape.columns()], io.inputs[0].values(), io.output);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            transpose(context, [io.shape.columns(), io.shape.rows()], io.gradient, dx);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Transpose;
    use crate::graph::{Graph, Shape};
    use crate::ops::Linear;
    use crate::ops::testing::{OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};

    impl OperatorTests for Transpose {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let width = args.io.inputs[0].columns();
            let column = |column| args.inputs[0].iter().skip(column).step_by(width).copied();
            (0..width).flat_map(column).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(Transpose, &[X], &[], Shape::matrix(4, 8)),
                rejects(Transpose, &[TOKENS], &[], "type f32"),
                rejects(Transpose, &[X.row()], &[], "two dimensions"),
                rejects(Transpose, &[X], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            // Twice, with a layer between over what were rows.
            vec![TestGraph::build(|s, x| {
                let y = s.node(Transpose, &[x], &[]);
                let weight = s.tensor(&[ROWS, ROWS]);
                let y = s.node(Linear, &[y], &[weight]);
                s.node(Transpose, &[y], &[])
            })]
        }
    }
}
