//! `(x) -> x` with its dimensions in another order.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{Axes, Dimensions, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Permute {
    /// Dimension `i` of the output is dimension `order[i]` of the input.
    pub order: Axes,
}

impl Operator for Permute {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.operands()?;
        io.params(&[], 0)?;
        let rank = x.dimensions().len();
        let is_order = (0..rank).all(|axis| self.order.contains(&axis)) && self.order.len() == rank;
        let sizes = || Dimensions::new(&self.order.iter().map(|&axis| x.dimensions()[axis]).collect::<Vec<_>>());
        match is_order.then(sizes).flatten() {
            Some(dimensions) => Ok(Some(x.with_dimensions(dimensions))),
            None => Err(OpError::Order { order: self.order.to_vec(), found: x.to_string() }),
        }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Permute;
    use crate::graph::{Axes, MAX_DIMENSIONS};
    use crate::kernels::Context;
    use crate::kernels::strided::{self, MAX_VIEW_RANK, View};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, TargetMut};

    /// Copies the values of `samples` samples of these dimensions to another order.
    fn permute(cx: Context<'_>, samples: usize, sizes: &[usize], order: &[usize], x: &[f32], y: &mut [f32]) {
        let mut all = [0; MAX_VIEW_RANK];
        all.iter_mut().skip(1).zip(order).for_each(|(to, axis)| *to = axis + 1);
        let view = View::of_samples(samples, sizes).permuted(&all[..=order.len()]);
        strided::copy(cx, view, x, y);
    }

    impl Permute {
        /// Returns the order that undoes this one.
        fn inverse(&self) -> Axes {
            let mut inverse = [0; MAX_DIMENSIONS];
            self.order.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
            Axes::new(&inverse[..self.order.len()]).unwrap_or_default()
        }
    }

    impl Executor for Permute {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let sizes = io.shape.inputs[0].dimensions();
            permute(context.cx, context.samples, sizes, &self.order, io.inputs[0].words(), io.output);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let mut sizes = [0; MAX_DIMENSIONS];
            sizes.iter_mut().zip(&*self.order).for_each(|(to, &axis)| *to = io.shape.inputs[0].dimensions()[axis]);
            permute(context.cx, context.samples, &sizes[..self.order.len()], &self.inverse(), io.gradient, dx);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Permute;
    use crate::graph::{Axes, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, f32_shape, positions,
        rejects,
    };

    fn to(order: &[usize]) -> Permute {
        Permute { order: Axes::new(order).unwrap() }
    }

    impl OperatorTests for Permute {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let shape = args.io.inputs[0];
            let sizes: Vec<usize> = self.order.iter().map(|&axis| shape.dimensions()[axis]).collect();
            let element = |coordinates: Vec<usize>| {
                let axis_of = |axis| self.order.iter().position(|&from| from == axis).unwrap();
                (0..coordinates.len())
                    .fold(0, |offset, axis| offset * shape.dimensions()[axis] + coordinates[axis_of(axis)])
            };
            positions(&sizes).map(|coordinates| args.inputs[0][element(coordinates)]).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(to(&[1, 0]), &[X], &[], Shape::matrix(4, 8)),
                accepts(to(&[2, 0, 1]), &[f32_shape(&[3, 4, 5])], &[], f32_shape(&[5, 3, 4])),
                accepts(to(&[0]), &[TOKENS], &[], TOKENS),
                rejects(to(&[0]), &[X], &[], "[0] is not an order of the dimensions of f32 [8, 4]"),
                rejects(to(&[1, 1]), &[X], &[], "not an order"),
                rejects(to(&[0, 2]), &[X], &[], "not an order"),
                rejects(to(&[0, 1, 0]), &[X], &[], "not an order"),
                rejects(to(&[1, 0]), &[X], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let heads = s.reshape(x, &[ROWS, 3, WIDTH / 3]);
                let permuted = s.node(to(&[2, 0, 1]), &[heads], &[]);
                let tensor = s.tensor(&[WIDTH / 3, ROWS, 3]);
                let permuted = s.mul_tensor(permuted, tensor);
                let back = s.node(to(&[1, 2, 0]), &[permuted], &[]);
                s.reshape(back, &[ROWS, WIDTH])
            })]
        }
    }
}
