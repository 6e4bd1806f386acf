//! `(x [.., C]) -> [.., C]`: the softmax of each row, or its logarithm.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves its output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Softmax {
    /// Whether the logarithm is computed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub log: bool,
}

impl Operator for Softmax {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        Ok(Some(x))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { output: true, ..SavedForBackward::default() }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Softmax;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::kernels::softmax;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, ROW_GRAIN, TargetMut};

    impl Executor for Softmax {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let kernel = if self.log { softmax::log_forward } else { softmax::forward };
            let (simd, width) = (context.cx.simd, io.shape.columns());
            let data = (rows(io.inputs[0].values(), width), rows_mut(io.output, width));
            context.cx.pool.for_each_rows(context.samples * io.shape.rows(), ROW_GRAIN, data, |_, (x, y)| {
                kernel(simd, width, x.data, y.data);
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let kernel = if self.log { softmax::log_backward } else { softmax::backward };
            let (simd, width) = (context.cx.simd, io.shape.columns());
            let data = (rows(io.output, width), rows(&*io.gradient, width), rows_mut(dx, width));
            context.cx.pool.for_each_rows(context.samples * io.shape.rows(), ROW_GRAIN, data, |_, (y, dy, dx)| {
                kernel(simd, width, y.data, dy.data, dx.data);
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Softmax;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};

    const PLAIN: Softmax = Softmax { log: false };

    impl OperatorTests for Softmax {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let row = |row: &[f64]| -> Vec<f64> {
                let sum: f64 = row.iter().map(|x| x.exp()).sum();
                row.iter().map(|x| if self.log { x - sum.ln() } else { x.exp() / sum }).collect()
            };
            args.inputs[0].chunks(args.io.inputs[0].columns()).flat_map(row).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(PLAIN, &[X], &[], X),
                rejects(PLAIN, &[TOKENS], &[], "type f32"),
                rejects(PLAIN, &[X], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            [false, true].map(|log| TestGraph::build(|s, x| s.node(Softmax { log }, &[x], &[]))).into()
        }
    }
}
