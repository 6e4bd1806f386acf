//! `(; tensor) -> the tensor`: a tensor as a value, the same in each sample, for operators that read values only.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. An operator that uses the tensor itself, such as [`Linear`](super::Linear) or
/// [`Binary`](super::Binary), needs less memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Parameter;

impl Operator for Parameter {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        io.inputs([])?;
        let [tensor] = io.params[..] else {
            return Err(OpError::Params { min: 1, max: 1, found: io.params.len() });
        };
        Shape::new(DType::F32, tensor).map(Some).ok_or(OpError::TensorDimensions { found: tensor.to_vec() })
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Parameter;
    use crate::kernels::strided::View;
    use crate::ops::broadcast::run as operands;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext};

    impl Executor for Parameter {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let tensor = io.weights.tensors[0];
            io.output.chunks_exact_mut(tensor.len()).take(context.samples).for_each(|y| y.copy_from_slice(tensor));
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [Some(tensor), _] = io.tensors else { return };
            let view = View::of_each_sample(context.samples, &io.shape.params[0]);
            let dy = ([View::dense(view.sizes())], [&*io.gradient]);
            operands::gradient(context.cx, view, dy, (tensor.data, tensor.accumulate), |[dy], d| d.copy_from_slice(dy));
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Parameter;
    use crate::graph::Graph;
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TestGraph, WIDTH, X, accepts, f32_shape, rejects,
    };

    impl OperatorTests for Parameter {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.params[0].to_vec()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(Parameter, &[], &[&[2, 3]], f32_shape(&[2, 3])),
                rejects(Parameter, &[X], &[&[2]], "reads 0 values, not 1"),
                rejects(Parameter, &[], &[], "1 to 1 tensors, not 0"),
                rejects(Parameter, &[], &[&[1; 7]], "[1, 1, 1, 1, 1, 1, 1]"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let tensor = s.tensor(&[ROWS, WIDTH]);
                let [a, b] = [(); 2].map(|()| s.node(Parameter, &[], &[tensor]));
                let y = s.mul(x, a);
                s.mul(y, b)
            })]
        }
    }
}
