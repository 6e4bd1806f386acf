//! `(condition bool, a, b)`: a where the condition holds and b elsewhere, for each element of operands that are
//! [broadcast](super::broadcast) to one shape; `where` of NumPy and PyTorch. The element that is not selected has no
//! influence, not even if it is NaN.

use serde::{Deserialize, Serialize};

use super::broadcast::broadcast_operands;
use super::{OpError, Operator, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. Saves the condition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Select;

impl Operator for Select {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [_, a, _] = io.operands()?;
        let [condition, a, b] = io.inputs([DType::Bool, a.dtype(), a.dtype()])?;
        io.params(&[], 0)?;
        let both = a.with_dimensions(broadcast_operands(&a, b.dimensions())?);
        Ok(Some(both.with_dimensions(broadcast_operands(&both, condition.dimensions())?)))
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0], ..SavedForBackward::default() }
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input > 0
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Select;
    use crate::kernels::strided::{self, View};
    use crate::ops::broadcast::run as operands;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut, integers};

    /// Returns the views of the condition and both operands.
    fn views(shape: &NodeShape, samples: usize) -> [View; 3] {
        operands::views(samples, [0, 1, 2].map(|input| shape.inputs[input].dimensions()))
    }

    impl Executor for Select {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let [condition, a, b, ..] = io.inputs.map(|input| input.words());
            let (views, data) = (views(io.shape, context.samples), [condition, a, b]);
            strided::map(context.cx, views, data, io.output, |[condition, a, b], out| {
                for (((out, condition), a), b) in out.iter_mut().zip(integers(condition)).zip(a).zip(b) {
                    *out = if *condition == 0 { *b } else { *a };
                }
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [condition, a, b] = views(io.shape, context.samples);
            let views = [condition, View::dense(condition.sizes())];
            let data = [io.inputs[0].words(), &*io.gradient];
            let [_, to_a, to_b] = io.targets;
            for (operand, target, selects) in [(a, to_a, true), (b, to_b, false)] {
                let TargetMut::Memory(target, accumulate) = target else { continue };
                operands::gradient(context.cx, operand, (views, data), (target, accumulate), |[condition, dy], d| {
                    for ((d, condition), dy) in d.iter_mut().zip(integers(condition)).zip(dy) {
                        *d = if (*condition != 0) == selects { *dy } else { 0.0 };
                    }
                });
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Select;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, at_broadcast, f32_shape,
        rejects,
    };
    use crate::ops::{Compare, Operator as _, Relation};

    impl OperatorTests for Select {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let output = self.output(&args.io).unwrap().unwrap();
            let [condition, a, b] = [0, 1, 2]
                .map(|input| at_broadcast(output.dimensions(), args.io.inputs[input].dimensions(), args.inputs[input]));
            let select = |(condition, (a, b))| if condition == 0.0 { b } else { a };
            condition.into_iter().zip(a.into_iter().zip(b)).map(select).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let mask = |dimensions: &[usize]| Shape::new(DType::Bool, dimensions).unwrap();
            vec![
                accepts(Select, &[mask(&[8, 1]), X, f32_shape(&[])], &[], X),
                accepts(Select, &[mask(&[2, 1]), TOKENS, TOKENS], &[], Shape::new(DType::I32, &[2, 8]).unwrap()),
                rejects(Select, &[TOKENS, X, X], &[], "input 0 must be of type bool"),
                rejects(Select, &[mask(&[8]), X, TOKENS], &[], "input 2 must be of type f32"),
                rejects(Select, &[mask(&[3]), X, X], &[], "can't be broadcast"),
                rejects(Select, &[mask(&[8, 4]), X, X], &[&[4]], "0 tensors"),
                rejects(Select, &[X], &[], "reads 3 values, not 1"),
            ]
        }

        /// The larger of two values and of a constant, and a mask of rows from an input.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let other = s.linear(x, WIDTH, true);
                let larger = s.node(Compare { relation: Relation::Gt }, &[x, other], &[]);
                let y = s.node(Select, &[larger, x, other], &[]);
                let (input, zero) = (s.integers(Shape::new(DType::I32, &[ROWS, 1]).unwrap()), s.integer_constant(0));
                let nonzero = s.node(Compare { relation: Relation::Ne }, &[input, zero], &[]);
                let column = s.linear(x, 1, true);
                let y = s.node(Select, &[nonzero, y, column], &[]);
                let number = s.number(0.25);
                let positive = s.node(Compare { relation: Relation::Gt }, &[y, number], &[]);
                s.node(Select, &[positive, y, number], &[])
            })]
        }
    }
}
