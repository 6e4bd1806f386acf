//! `(a, b) -> a + b`, same shape.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. The gradient of both inputs is that of the output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Add;

impl Operator for Add {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [a, b] = io.inputs([DType::F32; 2])?;
        io.params(&[], 0)?;
        if a != b {
            return Err(OpError::input_shape(1, a, b));
        }
        Ok(Some(a))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::Same
    }

    fn in_place_inputs(&self) -> &'static [usize] {
        &[0, 1]
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Add;
    use crate::kernels::elementwise;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, ROW_GRAIN};

    impl Executor for Add {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width) = (context.cx.simd, io.shape.columns());
            let count = context.samples * io.shape.rows();
            match io.inputs {
                [OperatorInput::Values(a), OperatorInput::Values(b), ..] => {
                    let data = (rows(a, width), rows(b, width), rows_mut(io.output, width));
                    context.cx.pool.for_each_rows(count, ROW_GRAIN, data, |_, (a, b, out)| {
                        elementwise::add(simd, a.data, b.data, out.data);
                    });
                }
                [one, other, ..] => {
                    let separate = if let OperatorInput::Values(values) = one { values } else { other.values() };
                    let data = (rows(separate, width), rows_mut(io.output, width));
                    context.cx.pool.for_each_rows(count, ROW_GRAIN, data, |_, (x, out)| {
                        elementwise::add_assign(simd, out.data, x.data);
                    });
                }
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Add;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, WIDE, WIDTH, X, accepts, rejects};

    impl OperatorTests for Add {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].iter().zip(args.inputs[1]).map(|(a, b)| a + b).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(Add, &[X, X], &[], X),
                rejects(Add, &[X, WIDE], &[], "must be f32 [8, 4]"),
                rejects(Add, &[X], &[], "reads 2 values, not 1"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let two_values = TestGraph::build(|s, x| {
                let y = s.norm(x);
                s.add(x, y)
            });
            let twice_the_same = TestGraph::build(|s, x| {
                let x = s.linear(x, WIDTH, false);
                s.add(x, x)
            });
            vec![two_values, twice_the_same]
        }
    }
}
