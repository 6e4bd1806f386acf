//! `(x) -> x` with other dimensions: the same elements in the same order.

use serde::{Deserialize, Serialize};

use super::{GradientForm, OpError, Operator, Signature};
use crate::graph::{Dimensions, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reshape {
    /// The other dimensions, with the same product.
    pub dimensions: Dimensions,
}

impl Operator for Reshape {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.operands()?;
        io.params(&[], 0)?;
        if self.dimensions.elements() != x.elements() {
            return Err(OpError::Reshape { found: x.to_string(), dimensions: self.dimensions.to_vec() });
        }
        Ok(Some(x.with_dimensions(self.dimensions)))
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
    use super::Reshape;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput};

    impl Executor for Reshape {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            if !matches!(io.inputs[0], OperatorInput::Overwritten) {
                io.output.copy_from_slice(io.inputs[0].words());
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Reshape;
    use crate::graph::{DType, Dimensions, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, f32_shape, rejects,
    };

    impl OperatorTests for Reshape {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            args.inputs[0].to_vec()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let to = |dimensions: &[usize]| Reshape { dimensions: Dimensions::new(dimensions).unwrap() };
            vec![
                accepts(to(&[2, 4, 4]), &[X], &[], f32_shape(&[2, 4, 4])),
                accepts(to(&[2, 4]), &[TOKENS], &[], Shape::new(DType::I32, &[2, 4]).unwrap()),
                accepts(to(&[]), &[f32_shape(&[1, 1])], &[], f32_shape(&[])),
                rejects(to(&[33]), &[X], &[], "f32 [8, 4] does not have the elements of [33]"),
                rejects(to(&[usize::MAX, 3]), &[X], &[], "does not have the elements"),
                rejects(to(&[32]), &[X], &[&[4]], "0 tensors"),
            ]
        }

        /// To other rows and back, and of an input.
        fn graphs() -> Vec<Graph> {
            let to = |dimensions: &[usize]| Reshape { dimensions: Dimensions::new(dimensions).unwrap() };
            vec![TestGraph::build(|s, x| {
                let y = s.node(to(&[WIDTH, ROWS]), &[x], &[]);
                let number = s.tensor(&[WIDTH, 1]);
                let y = s.mul_tensor(y, number);
                let y = s.node(to(&[ROWS, WIDTH]), &[y], &[]);
                let input = s.numbers(&[ROWS * WIDTH]);
                let input = s.node(to(&[ROWS, WIDTH]), &[input], &[]);
                let z = s.mul(x, y);
                s.mul(z, input)
            })]
        }
    }
}
