//! `(x) -> x`, each element of one dimension the sum of the elements up to it.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CumulativeSum {
    /// Which dimension.
    pub axis: usize,
}

impl Operator for CumulativeSum {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        if self.axis >= x.dimensions().len() {
            return Err(OpError::NoAxis { axis: self.axis, found: x.to_string() });
        }
        Ok(Some(x))
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::CumulativeSum;
    use crate::kernels::elementwise;
    use crate::kernels::pool::rows_mut;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl CumulativeSum {
        /// Replaces each element of the dimension by the sum of the elements up to it, or from it on.
        fn accumulate(&self, context: &OperatorContext<'_>, shape: &NodeShape, x: &mut [f32], is_backward: bool) {
            let sizes = &shape.inputs[0].dimensions()[self.axis..];
            let inner: usize = sizes[1..].iter().product();
            let (simd, row) = (context.cx.simd, sizes[0] * inner);
            context.cx.pool.for_each_rows(x.len() / row, 1, rows_mut(x, row), |_, x| {
                for row in x.data.chunks_exact_mut(row) {
                    for position in 1..sizes[0] {
                        let position = if is_backward { sizes[0] - 1 - position } else { position };
                        let (earlier, later) = row.split_at_mut((position + usize::from(is_backward)) * inner);
                        if is_backward {
                            elementwise::add_assign(simd, &mut earlier[position * inner..], &later[..inner]);
                        } else {
                            elementwise::add_assign(simd, &mut later[..inner], &earlier[(position - 1) * inner..]);
                        }
                    }
                }
            });
        }
    }

    impl Executor for CumulativeSum {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            io.output.copy_from_slice(io.inputs[0].values());
            self.accumulate(context, io.shape, io.output, false);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            dx.copy_from_slice(io.gradient);
            self.accumulate(context, io.shape, dx, true);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::CumulativeSum;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};

    impl OperatorTests for CumulativeSum {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let sizes = &args.io.inputs[0].dimensions()[self.axis..];
            let inner: usize = sizes[1..].iter().product();
            let mut sums = args.inputs[0].to_vec();
            for index in 0..sums.len() {
                if !(index / inner).is_multiple_of(sizes[0]) {
                    sums[index] += sums[index - inner];
                }
            }
            sums
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let along = |axis| CumulativeSum { axis };
            vec![
                accepts(along(1), &[X], &[], X),
                rejects(along(2), &[X], &[], "f32 [8, 4] has no dimension 2"),
                rejects(along(0), &[TOKENS], &[], "type f32"),
                rejects(along(0), &[X], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let y = s.node(CumulativeSum { axis: 0 }, &[x], &[]);
                s.node(CumulativeSum { axis: 1 }, &[y], &[])
            })]
        }
    }
}
