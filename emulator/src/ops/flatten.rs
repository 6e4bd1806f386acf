//! `(x [..]) -> [N]`: the same elements as one row.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Flatten;

impl Operator for Flatten {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        Ok(Some(x.flattened()))
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
    use super::Flatten;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput};

    impl Executor for Flatten {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            if let OperatorInput::Values(x) = io.inputs[0] {
                io.output.copy_from_slice(x);
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Flatten;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::CrossEntropy;
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, rejects,
    };

    impl OperatorTests for Flatten {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].to_vec()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let shape = |dimensions: &[usize]| Shape::new(DType::F32, dimensions).unwrap();
            vec![
                accepts(Flatten, &[shape(&[3, 4, 5])], &[], shape(&[60])),
                accepts(Flatten, &[shape(&[])], &[], shape(&[1])),
                rejects(Flatten, &[TOKENS], &[], "type f32"),
                rejects(Flatten, &[X], &[&[4]], "0 tensors"),
            ]
        }

        /// A classifier of all positions before the loss of the tokens; and of an image, whose elements are an input.
        fn graphs() -> Vec<Graph> {
            let elements = |is_input: bool| {
                TestGraph::build(|s, x| {
                    let image = if is_input { s.numbers(&[2, ROWS, WIDTH / 2]) } else { x };
                    let row = s.node(Flatten, &[image], &[]);
                    let label = s.integers(Shape::new(DType::I32, &[]).unwrap());
                    let params = [s.tensor(&[3, ROWS * WIDTH]), s.tensor(&[3])];
                    s.loss_of(CrossEntropy::with_factor(2.0), &[row, label], &params);
                    s.end_layer();
                    x
                })
            };
            vec![elements(false), elements(true)]
        }
    }
}
