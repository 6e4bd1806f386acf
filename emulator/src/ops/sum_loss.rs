//! `(x [..], weight []?) -> loss`: the sum of all elements, times a factor. A loss that is computed by other operators
//! ends here.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. A sample counts as one token, and as no correct prediction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SumLoss {
    /// Weight of this loss in the sum of the graph's losses.
    pub factor: f32,
}

impl Operator for SumLoss {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        io.without_weight(1)?.inputs([DType::F32])?;
        io.params(&[], 0)?;
        if !self.factor.is_finite() {
            return Err(OpError::Attribute { name: "factor", value: self.factor, range: "finite" });
        }
        Ok(None)
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn weight_input(&self) -> Option<usize> {
        Some(1)
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::SumLoss;
    use crate::kernels::loss::LossSums;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, TargetMut};

    impl Executor for SumLoss {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let sum: f64 = io.inputs[0].values().iter().map(|&x| f64::from(x)).sum();
            context.sums[0] =
                LossSums { loss: sum * f64::from(self.factor), tokens: context.samples as u64, correct: 0 };
        }

        fn backward(&self, _: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            dx.fill(self.factor);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::SumLoss;
    use crate::graph::Graph;
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, f32_shape, rejects,
    };

    impl OperatorTests for SumLoss {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            vec![f64::from(self.factor) * args.inputs[0].iter().sum::<f64>()]
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let loss = SumLoss { factor: 0.5 };
            vec![
                accepts(loss, &[X], &[], None),
                accepts(loss, &[f32_shape(&[])], &[], None),
                accepts(loss, &[X, f32_shape(&[])], &[], None),
                rejects(loss, &[X, X], &[], "input 1 must be f32 [], not"),
                rejects(loss, &[X, f32_shape(&[]), f32_shape(&[])], &[], "it reads 1 values, not 3"),
                rejects(loss, &[TOKENS], &[], "type f32"),
                rejects(loss, &[X], &[&[4]], "0 tensors"),
                rejects(SumLoss { factor: f32::INFINITY }, &[X], &[], "factor"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let squares = s.mul(x, x);
                s.loss_of(SumLoss { factor: 0.5 }, &[squares], &[]);
                x
            })]
        }
    }
}
