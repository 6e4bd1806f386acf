//! `(a, b) -> bool`: whether a relation holds, for each element of operands of one type that are
//! [broadcast](super::broadcast) to one shape. NaN is different from every number, and neither less nor greater.

use serde::{Deserialize, Serialize};

use super::broadcast::broadcast_operands;
use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// A relation of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// a = b.
    Eq,
    /// a ≠ b.
    Ne,
    /// a < b.
    Lt,
    /// a ≤ b.
    Le,
    /// a > b.
    Gt,
    /// a ≥ b.
    Ge,
}

impl Relation {
    /// Returns whether the relation holds.
    pub fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Self::Eq => a == b,
            Self::Ne => a != b,
            Self::Lt => a < b,
            Self::Le => a <= b,
            Self::Gt => a > b,
            Self::Ge => a >= b,
        }
    }
}

/// See the module documentation. There are no gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Compare {
    /// Which relation.
    pub relation: Relation,
}

impl Operator for Compare {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [a, b] = io.operands()?;
        io.inputs([a.dtype(); 2])?;
        io.params(&[], 0)?;
        Ok(Some(Shape::of(DType::Bool, broadcast_operands(&a, b.dimensions())?)))
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::{Compare, Relation};
    use crate::graph::DType;
    use crate::kernels::strided;
    use crate::ops::broadcast::run as operands;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, integers, integers_mut};

    impl Relation {
        fn compare<T: PartialOrd + Copy>(self, a: &[T], b: &[T], out: &mut [f32]) {
            for (out, (a, b)) in integers_mut(out).iter_mut().zip(a.iter().zip(b)) {
                *out = i32::from(self.holds(*a, *b));
            }
        }
    }

    impl Executor for Compare {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let views = operands::views(context.samples, [0, 1].map(|input| io.shape.inputs[input].dimensions()));
            let data = [0, 1].map(|input| io.inputs[input].words());
            let is_float = io.shape.inputs[0].dtype() == DType::F32;
            strided::map(context.cx, views, data, io.output, |[a, b], out| {
                if is_float {
                    self.relation.compare(a, b, out);
                } else {
                    self.relation.compare(integers(a), integers(b), out);
                }
            });
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::{Compare, Relation};
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, at_broadcast, f32_shape,
        rejects,
    };
    use crate::ops::{Cast, Operator as _};

    const RELATIONS: [Relation; 6] =
        [Relation::Eq, Relation::Ne, Relation::Lt, Relation::Le, Relation::Gt, Relation::Ge];

    impl OperatorTests for Compare {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let output = self.output(&args.io).unwrap().unwrap();
            let [a, b] = [0, 1]
                .map(|input| at_broadcast(output.dimensions(), args.io.inputs[input].dimensions(), args.inputs[input]));
            let is_true = |(a, b): (f64, f64)| match self.relation {
                Relation::Eq => a == b,
                Relation::Ne => a != b,
                Relation::Lt => a < b,
                Relation::Le => a <= b,
                Relation::Gt => a > b,
                Relation::Ge => a >= b,
            };
            a.into_iter().zip(b).map(is_true).map(|is_true| f64::from(u8::from(is_true))).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let less = Compare { relation: Relation::Lt };
            let mask = |dimensions: &[usize]| Shape::new(DType::Bool, dimensions).unwrap();
            vec![
                accepts(less, &[X, f32_shape(&[4])], &[], mask(&[8, 4])),
                accepts(less, &[TOKENS, TOKENS], &[], mask(&[8])),
                accepts(less, &[mask(&[2]), mask(&[])], &[], mask(&[2])),
                rejects(less, &[X, TOKENS], &[], "input 1 must be of type f32"),
                rejects(less, &[X, f32_shape(&[3])], &[], "can't be broadcast"),
                rejects(less, &[X, X], &[&[4]], "0 tensors"),
                rejects(less, &[X], &[], "reads 2 values, not 1"),
            ]
        }

        /// Values are multiplied by the truth of relations: of numbers, and of an integer input with a constant.
        fn graphs() -> Vec<Graph> {
            let graph = |relation| {
                TestGraph::build(|s, x| {
                    let other = s.linear(x, WIDTH, true);
                    let of_values = s.node(Compare { relation }, &[x, other], &[]);
                    let input = s.integers(Shape::new(DType::I32, &[ROWS, 1]).unwrap());
                    let one = s.integer_constant(1);
                    let of_integers = s.node(Compare { relation }, &[input, one], &[]);
                    let factors = [of_values, of_integers].map(|mask| s.node(Cast { to: DType::F32 }, &[mask], &[]));
                    factors.into_iter().fold(x, |sum, factor| {
                        let product = s.mul(x, factor);
                        s.add(sum, product)
                    })
                })
            };
            RELATIONS.map(graph).into()
        }
    }
}
