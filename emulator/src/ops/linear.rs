//! `(x [rows x I]; weight [O, I], bias [O]?) -> [rows x O]`: `x weight^T + bias`.

use serde::{Deserialize, Serialize};

use super::{Flops, GradientForm, OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. Backward: `dx = dy weight`, `dweight = dy^T x`; `dbias` is the sum of the rows of
/// `dy`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Linear;

impl Operator for Linear {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        let outputs = io.matrix_dimension(0, 0)?;
        io.params(&[&[outputs, x.columns()], &[outputs]], 1)?;
        Ok(Some(x.with_columns(outputs)))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        let ((rows, _), (outputs, inputs)) = (io.input(0), io.matrix(0));
        Flops::product(rows, inputs, outputs)
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0], ..SavedForBackward::default() }
    }

    fn backward_reads_param(&self, param: usize) -> bool {
        param == 0
    }

    fn packs_matrix(&self) -> bool {
        true
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::StoreOrAdd
    }

    fn gradient_replaces_input(&self) -> bool {
        true
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Linear;
    use crate::kernels::pool::rows_mut;
    use crate::kernels::{Accumulate, MatMut, MatRef, elementwise, gemm, gemm_over_leaves};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, TargetMut, TensorGradient};

    /// Columns of a bias gradient per thread and work item.
    const COLUMN_GRAIN: usize = 192;

    impl Executor for Linear {
        fn spans_leaves(&self) -> bool {
            true
        }

        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (outputs, inputs) = io.shape.matrix();
            let rows = context.samples * io.shape.rows();
            let x = MatRef::row_major(io.inputs[0].values(), rows, inputs);
            let y = MatMut::row_major(io.output, rows, outputs);
            let bias = io.weights.bias(io.shape);
            gemm(context.cx, x, io.weights.transposed(io.shape), y, Accumulate::Store, bias, context.products);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (outputs, inputs) = io.shape.matrix();
            let rows = context.samples * io.shape.rows();
            let dy = &*io.gradient;
            let gradient = MatRef::row_major(dy, rows, outputs);
            let [weight, bias] = io.tensors;
            if let Some(TensorGradient { data, accumulate }) = weight {
                let x = MatRef::row_major(io.inputs[0].values(), rows, inputs);
                let dw = MatMut::row_major(data, outputs, inputs);
                gemm_over_leaves(context.cx, gradient.t(), x, context.leaves, dw, accumulate, context.products);
            }
            if let Some(bias) = bias {
                let (simd, leaves, adds) = (context.cx.simd, context.leaves, bias.adds());
                context.cx.pool.for_each_rows(outputs, COLUMN_GRAIN, rows_mut(bias.data, 1), |first, sums| {
                    elementwise::column_sums(simd, dy, outputs, leaves, first, sums.data, adds);
                });
            }
            if let [TargetMut::Memory(dx, accumulate), ..] = io.targets {
                let dx = MatMut::row_major(dx, rows, inputs);
                gemm(context.cx, gradient, io.weights.matrix(io.shape), dx, accumulate, None, context.products);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Linear;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, WIDE, WIDTH, X, accepts, rejects};
    use crate::ops::{Flops, Operator, Signature};

    impl OperatorTests for Linear {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.product()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(Linear, &[X], &[&[12, 4], &[12]], WIDE),
                accepts(Linear, &[X], &[&[12, 4]], WIDE),
                rejects(Linear, &[X], &[&[4, 12]], "must be [4, 4]"),
                rejects(Linear, &[X], &[&[48]], "two dimensions"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            [false, true].map(|biased| TestGraph::build(|s, x| s.linear(x, WIDTH, biased))).into()
        }
    }

    #[test]
    fn multiply_add_counts_as_two_operations() {
        let (forward, backward) = (2 * 8 * 4 * 12, 4 * 8 * 4 * 12);
        let flops = Linear.flops(&Signature { inputs: vec![X], params: vec![&[12, 4]] });
        assert_eq!(flops, Flops { forward, backward, forward_sums: 8 * 12, backward_sums: 8 * 4 });
    }
}
