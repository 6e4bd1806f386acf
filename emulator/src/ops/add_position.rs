//! `(x [rows x H]; table [R >= rows, H]) -> [rows x H]`: adds row `i` of the table to row `i` of each sample.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, Signature};
use crate::graph::Shape;

/// See the module documentation. The backward pass needs only the gradient, which passes unchanged; the gradient of the
/// table is its sum over samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AddPosition;

impl Operator for AddPosition {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let x = io.sequence()?;
        let positions = io.matrix_dimension(0, 0)?;
        io.params(&[&[positions, x.columns()]], 1)?;
        if positions < x.rows() {
            return Err(OpError::TooFewPositions { positions, rows: x.rows() });
        }
        Ok(Some(x))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::Same
    }

    fn in_place_inputs(&self) -> &'static [usize] {
        &[0]
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::AddPosition;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::kernels::{elementwise, embedding};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, ROW_GRAIN};

    impl Executor for AddPosition {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            self.forward_rows(context, 0, io);
        }

        fn forward_rows(&self, context: &mut OperatorContext<'_>, first: usize, io: ForwardArgs<'_>) {
            let (simd, width, length) = (context.cx.simd, io.shape.columns(), io.shape.rows());
            let table = &io.weights.tensors[0][first * width..][..length * width];
            let source = if let OperatorInput::Values(values) = io.inputs[0] { Some(values) } else { None };
            for (sample, out) in io.output.chunks_exact_mut(length * width).enumerate() {
                let data = (rows(table, width), rows_mut(out, width));
                let from = source.map(|x| &x[sample * length * width..][..length * width]);
                context.cx.pool.for_each_rows(length, ROW_GRAIN, data, |first, (table, out)| match from {
                    Some(x) => elementwise::add(simd, &x[first * width..][..out.data.len()], table.data, out.data),
                    None => elementwise::add_assign(simd, out.data, table.data),
                });
            }
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [Some(table), _] = io.tensors else { return };
            let used = io.shape.rows() * io.shape.columns();
            let adds = table.adds();
            let (used, unused) = table.data.split_at_mut(used);
            embedding::position_backward(context.cx.simd, io.gradient, used, adds);
            if !adds {
                unused.fill(0.0);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::AddPosition;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ROWS, ReferenceArgs, ShapeCase, TestGraph, WIDTH, X, accepts, rejects};

    impl OperatorTests for AddPosition {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].iter().zip(args.params[0]).map(|(x, position)| x + position).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![accepts(AddPosition, &[X], &[&[9, 4]], X), rejects(AddPosition, &[X], &[&[7, 4]], "7 positions")]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let table = s.tensor(&[ROWS + 2, WIDTH]);
                s.node(AddPosition, &[x], &[table])
            })]
        }
    }
}
