//! `(x [..], weight []?) -> x`: returns x unchanged, and reports its mean for each training step and evaluation: the
//! sum over all samples, divided by that of the weight, or by the number of samples. The name of the output is that of
//! the metric.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Metric;

impl Operator for Metric {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        io.params(&[], 0)?;
        let [x] = io.without_weight(1)?.inputs([DType::F32])?;
        Ok(Some(x))
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn gradient(&self, input: usize) -> GradientForm {
        if input == 0 { GradientForm::Same } else { GradientForm::None }
    }

    fn in_place_inputs(&self) -> &'static [usize] {
        &[0]
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Metric;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput};

    impl Executor for Metric {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            if let OperatorInput::Values(x) = io.inputs[0] {
                io.output.copy_from_slice(x);
            }
            let width = io.output.len() / context.samples;
            let Some((sums, weight)) = context.metric.split_at_mut_checked(width) else { return };
            for sample in io.output.chunks_exact(width) {
                sums.iter_mut().zip(sample).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            if let [weight] = weight {
                *weight += io.inputs[1].values().iter().map(|weight| f64::from(*weight)).sum::<f64>();
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Metric;
    use crate::graph::Graph;
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, f32_shape, rejects,
    };

    impl OperatorTests for Metric {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].to_vec()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let weight = f32_shape(&[]);
            vec![
                accepts(Metric, &[X], &[], X),
                accepts(Metric, &[X, weight], &[], X),
                rejects(Metric, &[X, X], &[], "input 1"),
                rejects(Metric, &[TOKENS], &[], "type f32"),
                rejects(Metric, &[X], &[&[4]], "0 tensors"),
            ]
        }

        /// A value that is used afterwards, and one that is not.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let y = s.mul(x, x);
                s.node(Metric, &[y], &[]);
                s.node(Metric, &[y], &[])
            })]
        }
    }
}
