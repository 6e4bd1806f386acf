//! `(x) -> x`, without a gradient: nothing that is computed from the output changes the input. `detach` of PyTorch.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, RowDependency, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StopGradient;

impl Operator for StopGradient {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        Ok(Some(x))
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::StopGradient;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext};

    impl Executor for StopGradient {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            io.output.copy_from_slice(io.inputs[0].values());
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::StopGradient;
    use crate::graph::Graph;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};
    use crate::ops::{Unary, UnaryFunction};

    impl OperatorTests for StopGradient {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].to_vec()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(StopGradient, &[X], &[], X),
                rejects(StopGradient, &[TOKENS], &[], "type f32"),
                rejects(StopGradient, &[X], &[&[4]], "0 tensors"),
            ]
        }

        /// Differences of integers are 0, as the gradient that is stopped: only that of the other operand remains.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let integers = s.node(Unary { function: UnaryFunction::Floor }, &[x], &[]);
                let stopped = s.node(StopGradient, &[integers], &[]);
                s.mul(x, stopped)
            })]
        }
    }
}
