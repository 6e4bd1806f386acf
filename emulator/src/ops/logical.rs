//! `(a bool, b bool) -> bool`, for each element of operands that are [broadcast](super::broadcast) to one shape. The
//! negation of a mask is its [comparison](super::Compare) with false.

use serde::{Deserialize, Serialize};

use super::broadcast::broadcast_operands;
use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// A function of two truth values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LogicalFunction {
    /// Both.
    And,
    /// At least one.
    Or,
    /// Exactly one.
    Xor,
}

/// See the module documentation. There are no gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Logical {
    /// Which function.
    pub function: LogicalFunction,
}

impl Operator for Logical {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [a, b] = io.inputs([DType::Bool; 2])?;
        io.params(&[], 0)?;
        Ok(Some(a.with_dimensions(broadcast_operands(&a, b.dimensions())?)))
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::{Logical, LogicalFunction};
    use crate::kernels::strided;
    use crate::ops::broadcast::run as operands;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, integers, integers_mut};

    impl Executor for Logical {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let views = operands::views(context.samples, [0, 1].map(|input| io.shape.inputs[input].dimensions()));
            let data = [0, 1].map(|input| io.inputs[input].words());
            let function: fn(i32, i32) -> i32 = match self.function {
                LogicalFunction::And => |a, b| a & b,
                LogicalFunction::Or => |a, b| a | b,
                LogicalFunction::Xor => |a, b| a ^ b,
            };
            strided::map(context.cx, views, data, io.output, |[a, b], out| {
                for (out, (a, b)) in integers_mut(out).iter_mut().zip(integers(a).iter().zip(integers(b))) {
                    *out = function(*a, *b);
                }
            });
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::{Logical, LogicalFunction};
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TestGraph, WIDTH, X, accepts, at_broadcast, rejects,
    };
    use crate::ops::{Cast, Compare, Operator as _, Relation};

    const FUNCTIONS: [LogicalFunction; 3] = [LogicalFunction::And, LogicalFunction::Or, LogicalFunction::Xor];

    impl OperatorTests for Logical {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let output = self.output(&args.io).unwrap().unwrap();
            let [a, b] = [0, 1]
                .map(|input| at_broadcast(output.dimensions(), args.io.inputs[input].dimensions(), args.inputs[input]));
            let is_true = |(a, b): (f64, f64)| match self.function {
                LogicalFunction::And => a + b > 1.0,
                LogicalFunction::Or => a + b > 0.0,
                LogicalFunction::Xor => a != b,
            };
            a.into_iter().zip(b).map(is_true).map(|is_true| f64::from(u8::from(is_true))).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let and = Logical { function: LogicalFunction::And };
            let mask = |dimensions: &[usize]| Shape::new(DType::Bool, dimensions).unwrap();
            vec![
                accepts(and, &[mask(&[8, 1]), mask(&[4])], &[], mask(&[8, 4])),
                rejects(and, &[mask(&[8, 3]), mask(&[4])], &[], "can't be broadcast"),
                rejects(and, &[X, X], &[], "type bool"),
                rejects(and, &[mask(&[2]), mask(&[2])], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let graph = |function| {
                TestGraph::build(|s, x| {
                    let zero = s.number(0.0);
                    let row = s.constant(&[WIDTH]);
                    let [a, b] =
                        [[x, zero], [row, zero]].map(|both| s.node(Compare { relation: Relation::Gt }, &both, &[]));
                    let mask = s.node(Logical { function }, &[a, b], &[]);
                    let factor = s.node(Cast { to: DType::F32 }, &[mask], &[]);
                    s.mul(x, factor)
                })
            };
            FUNCTIONS.map(graph).into()
        }
    }
}
