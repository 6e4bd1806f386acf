//! `(x) -> factor x`.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, RowDependency, Signature};
use crate::graph::{DType, Shape};

/// Multiplies by a constant.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Scale {
    /// The factor.
    pub factor: f32,
}

impl Operator for Scale {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        if !self.factor.is_finite() {
            return Err(OpError::Attribute { name: "factor", value: self.factor, range: "finite" });
        }
        Ok(Some(x))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn gradient(&self, _: usize) -> GradientForm {
        GradientForm::Overwrite
    }

    fn in_place_inputs(&self) -> &'static [usize] {
        &[0]
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Scale;
    use crate::kernels::elementwise;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, ROW_GRAIN};

    impl Scale {
        fn in_place(self, context: &OperatorContext<'_>, width: usize, x: &mut [f32]) {
            let (simd, count) = (context.cx.simd, x.len() / width);
            context.cx.pool.for_each_rows(count, ROW_GRAIN, rows_mut(x, width), |_, x| {
                elementwise::scale(simd, self.factor, x.data);
            });
        }
    }

    impl Executor for Scale {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (simd, width) = (context.cx.simd, io.shape.columns());
            let OperatorInput::Values(x) = io.inputs[0] else { return self.in_place(context, width, io.output) };
            let data = (rows(x, width), rows_mut(io.output, width));
            context.cx.pool.for_each_rows(context.samples * io.shape.rows(), ROW_GRAIN, data, |_, (x, y)| {
                elementwise::scaled_copy(simd, self.factor, x.data, y.data);
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            self.in_place(context, io.shape.columns(), io.gradient);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Scale;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, rejects};

    impl OperatorTests for Scale {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].iter().map(|x| f64::from(self.factor) * x).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![accepts(Scale { factor: 2.0 }, &[X], &[], X), rejects(Scale { factor: f32::NAN }, &[X], &[], "factor")]
        }

        fn graphs() -> Vec<Graph> {
            // An input that nothing else reads, and one that an addition reads later.
            let single = TestGraph::build(|s, x| s.node(Scale { factor: 0.7 }, &[x], &[]));
            let shared = TestGraph::build(|s, x| {
                let y = s.node(Scale { factor: -1.5 }, &[x], &[]);
                s.add(x, y)
            });
            vec![single, shared]
        }
    }
}
