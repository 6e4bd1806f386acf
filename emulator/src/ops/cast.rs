//! `(x) -> x` as another type: numbers are rounded toward zero to integers, and 0 is false. NaN becomes 0, and a number
//! that no i32 is close to becomes the nearest one.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. There is no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cast {
    /// The other type.
    pub to: DType,
}

impl Operator for Cast {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.operands()?;
        io.params(&[], 0)?;
        if x.dtype() == self.to {
            return Err(OpError::NothingToCast(self.to));
        }
        Ok(Some(x.with_dtype(self.to)))
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Cast;
    use crate::graph::DType;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, OperatorInput, integers_mut};

    impl Executor for Cast {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            match (io.inputs[0], self.to) {
                (OperatorInput::Values(x), DType::Bool) => {
                    integers_mut(io.output).iter_mut().zip(x).for_each(|(y, x)| *y = i32::from(*x != 0.0));
                }
                (OperatorInput::Values(x), _) => {
                    integers_mut(io.output).iter_mut().zip(x).for_each(|(y, x)| *y = *x as i32);
                }
                (x, DType::F32) => io.output.iter_mut().zip(x.integers()).for_each(|(y, x)| *y = *x as f32),
                (x, DType::Bool) => {
                    integers_mut(io.output).iter_mut().zip(x.integers()).for_each(|(y, x)| *y = i32::from(*x != 0));
                }
                (x, DType::I32) => integers_mut(io.output).copy_from_slice(x.integers()),
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Cast;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, rejects};

    impl OperatorTests for Cast {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let cast = |&x: &f64| match self.to {
                DType::F32 => x,
                DType::I32 => x.trunc(),
                DType::Bool => f64::from(u8::from(x != 0.0)),
            };
            args.inputs[0].iter().map(cast).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let to = |to| Cast { to };
            vec![
                accepts(to(DType::I32), &[X], &[], Shape::new(DType::I32, &[8, 4]).unwrap()),
                accepts(to(DType::Bool), &[TOKENS], &[], Shape::new(DType::Bool, &[8]).unwrap()),
                rejects(to(DType::F32), &[X], &[], "is of type f32 already"),
                rejects(to(DType::I32), &[X], &[&[4]], "0 tensors"),
            ]
        }

        /// Factors that are made of integers of an input, of values, and of truth values.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let input = s.integers(Shape::new(DType::I32, &[ROWS, 1]).unwrap());
                let of_input = s.node(Cast { to: DType::F32 }, &[input], &[]);
                let truth = s.node(Cast { to: DType::Bool }, &[input], &[]);
                let truth = s.node(Cast { to: DType::I32 }, &[truth], &[]);
                let of_truth = s.node(Cast { to: DType::F32 }, &[truth], &[]);
                let integers = s.node(Cast { to: DType::I32 }, &[x], &[]);
                let of_values = s.node(Cast { to: DType::F32 }, &[integers], &[]);
                [of_input, of_truth, of_values].into_iter().fold(x, |sum, factor| {
                    let product = s.mul(x, factor);
                    s.add(sum, product)
                })
            })]
        }
    }
}
