//! `(x [R, H], indices i32 [K]) -> [K, H]`: the rows of `x` at the indices, such as the masked positions of a sequence.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. An index may occur more than once: the gradients of its rows are added in the order of
/// the indices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GatherRows;

impl Operator for GatherRows {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x, indices] = io.inputs([DType::F32, DType::I32])?;
        io.params(&[], 0)?;
        if x.dimensions().len() != 2 {
            return Err(OpError::NotASequence { input: 0, found: x.to_string() });
        }
        match *indices.dimensions() {
            [count] => Ok(Some(Shape::matrix(count, x.columns()))),
            _ => Err(OpError::NotAVector { input: 1, found: indices.to_string() }),
        }
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[1], ..SavedForBackward::default() }
    }

    fn index_bound(&self, io: &Signature<'_>, input: usize) -> Option<usize> {
        io.inputs.first().map(|x| x.rows()).filter(|_| input == 1)
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input == 0
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::GatherRows;
    use crate::kernels::embedding;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, TargetMut};

    impl Executor for GatherRows {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width, sample) = (context.cx.simd, io.shape.columns(), io.shape.inputs[0].elements() as usize);
            let (x, indices) = (io.inputs[0].values(), io.inputs[1].integers());
            let count = indices.len() / context.samples.max(1);
            let data = (rows(x, sample), rows(indices, count), rows_mut(io.output, count * width));
            context.cx.pool.for_each_rows(context.samples, 1, data, |_, (x, indices, out)| {
                let parts = x.data.chunks_exact(sample).zip(indices.data.chunks_exact(count));
                for ((x, indices), out) in parts.zip(out.data.chunks_exact_mut(count * width)) {
                    embedding::gather(simd, x, width, indices, out);
                }
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let (simd, width, sample) = (context.cx.simd, io.shape.columns(), io.shape.inputs[0].elements() as usize);
            let indices = io.inputs[1].integers();
            let count = indices.len() / context.samples.max(1);
            let data = (rows_mut(dx, sample), rows(indices, count), rows(&*io.gradient, count * width));
            context.cx.pool.for_each_rows(context.samples, 1, data, |_, (dx, indices, dy)| {
                let parts = dx.data.chunks_exact_mut(sample).zip(indices.data.chunks_exact(count));
                for ((dx, indices), dy) in parts.zip(dy.data.chunks_exact(count * width)) {
                    dx.fill(0.0);
                    embedding::scatter_add(simd, dy, width, indices, dx);
                }
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::GatherRows;
    use crate::graph::{Graph, Shape};
    use crate::ops::testing::{OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};

    impl OperatorTests for GatherRows {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let width = args.io.inputs[0].columns();
            args.inputs[1].iter().flat_map(|&row| &args.inputs[0][row as usize * width..][..width]).copied().collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(GatherRows, &[X, TOKENS], &[], X),
                accepts(GatherRows, &[X, Shape::integers(3)], &[], Shape::matrix(3, 4)),
                rejects(GatherRows, &[X, X], &[], "type i32"),
                rejects(GatherRows, &[X.row(), TOKENS], &[], "two dimensions"),
                rejects(GatherRows, &[X, TOKENS.one_integer_per_row()], &[], "one dimension"),
                rejects(GatherRows, &[X, TOKENS], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let indices = s.integers(Shape::integers(ROWS));
                s.node(GatherRows, &[x, indices], &[])
            })]
        }
    }
}
