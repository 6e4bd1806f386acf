//! `(tokens [rows x 1]; table [V, H]) -> [rows x H]`: a row of the table per token.

use super::{OpError, Operator, SavedForBackward, Shape, Signature};
use crate::graph::ValueType;

/// See the module documentation. The backward pass adds rows of the gradient to rows of the table's gradient and reads
/// no weights.
#[derive(Clone, Copy, Debug)]
pub struct Embedding;

impl Operator for Embedding {
    fn name(&self) -> &'static str {
        "Embedding"
    }

    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [tokens] = io.inputs([ValueType::Token])?;
        let (entries, width) = (io.matrix_dimension(0, 0)?, io.matrix_dimension(0, 1)?);
        io.params(&[&[entries, width]], 1)?;
        Ok(Some(Shape::float(tokens.rows, width)))
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0], ..SavedForBackward::default() }
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Embedding;
    use crate::kernels::embedding;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, ROW_GRAIN};

    impl Executor for Embedding {
        fn forward(&self, kit: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, table, (_, width)) = (kit.cx.simd, io.weights.tensors[0], io.shape.matrix());
            let tokens = io.inputs[0].tokens();
            let data = (rows(tokens, 1), rows_mut(io.output, width));
            kit.cx.pool.for_each_rows(tokens.len(), ROW_GRAIN, data, |_, (tokens, out)| {
                embedding::gather(simd, table, width, tokens.data, out.data);
            });
        }

        fn backward(&self, kit: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [Some(table), _] = io.tensors else { return };
            let (entries, width) = io.shape.matrix();
            if !table.adds() {
                let zero = rows_mut(&mut *table.data, width);
                kit.cx.pool.for_each_rows(entries, ROW_GRAIN, zero, |_, zero| zero.data.fill(0.0));
            }
            embedding::scatter_add(kit.cx.simd, io.gradient, width, io.inputs[0].tokens(), 0, width, table.data);
        }

        /// Tokens are added one by one to the previous content.
        fn is_accumulation_exact(&self) -> bool {
            false
        }
    }
}
