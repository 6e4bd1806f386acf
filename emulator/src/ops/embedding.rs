//! `(tokens [rows x 1]; table [V, H]) -> [rows x H]`: a row of the table per token.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. The backward pass adds rows of the gradient to rows of the table's gradient and reads
/// no weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Embedding;

impl Operator for Embedding {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [tokens] = io.inputs([DType::I32])?;
        let (entries, width) = (io.matrix_dimension(0, 0)?, io.matrix_dimension(0, 1)?);
        io.params(&[&[entries, width]], 1)?;
        let max = tokens.dimensions().len();
        tokens.with_features(width).map(Some).ok_or(OpError::TooManyDimensions { input: 0, max })
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0], ..SavedForBackward::default() }
    }

    fn index_bound(&self, io: &Signature<'_>, _: usize) -> Option<usize> {
        io.matrix_dimension(0, 0).ok()
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Embedding;
    use crate::kernels::embedding::{self, ScatterRows};
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, ROW_GRAIN};

    /// Rows of the table's gradient per thread and work item.
    const TABLE_GRAIN: usize = 512;

    impl Executor for Embedding {
        fn spans_leaves(&self) -> bool {
            true
        }

        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, table, (_, width)) = (context.cx.simd, io.weights.tensors[0], io.shape.matrix());
            let tokens = io.inputs[0].integers();
            let data = (rows(tokens, 1), rows_mut(io.output, width));
            context.cx.pool.for_each_rows(tokens.len(), ROW_GRAIN, data, |_, (tokens, out)| {
                embedding::gather(simd, table, width, tokens.data, out.data);
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [Some(table), _] = io.tensors else { return };
            let (entries, width) = io.shape.matrix();
            embedding::sort_tokens(io.inputs[0].integers(), context.order);
            let gradient =
                ScatterRows { dy: io.gradient, width, order: context.order.as_slice(), leaves: context.leaves };
            let (simd, adds) = (context.cx.simd, table.adds());
            context.cx.pool.for_each_rows(entries, TABLE_GRAIN, rows_mut(table.data, width), |first, table| {
                embedding::scatter(simd, gradient, first, table.data, adds);
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Embedding;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};

    impl OperatorTests for Embedding {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let (table, width) = (args.params[0], args.io.params[0][1]);
            args.inputs[0].iter().flat_map(|&token| &table[token as usize * width..][..width]).copied().collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(Embedding, &[TOKENS], &[&[50, 4]], X),
                rejects(Embedding, &[X], &[&[50, 4]], "type i32, not f32 [8, 4]"),
                rejects(Embedding, &[TOKENS], &[], "1 to 1 tensors, not 0"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|_, x| x)]
        }
    }
}
