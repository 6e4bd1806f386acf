//! `(x) -> x`, [broadcast](super::broadcast) to larger dimensions: elements are repeated.

use serde::{Deserialize, Serialize};

use super::broadcast::broadcast_operands;
use super::{OpError, Operator, Signature};
use crate::graph::{Dimensions, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Expand {
    /// The larger dimensions.
    pub dimensions: Dimensions,
}

impl Operator for Expand {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.operands()?;
        io.params(&[], 0)?;
        if broadcast_operands(&x, &self.dimensions)? != self.dimensions {
            return Err(OpError::NotBroadcast { first: x.dimensions().to_vec(), second: self.dimensions.to_vec() });
        }
        Ok(Some(x.with_dimensions(self.dimensions)))
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Expand;
    use crate::kernels::strided::{self, View};
    use crate::ops::broadcast::run as operands;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl Expand {
        fn view(&self, shape: &NodeShape, samples: usize) -> View {
            let (sizes, rank) = operands::leaf_sizes(samples, self.dimensions);
            View::of_samples(samples, shape.inputs[0].dimensions()).broadcast(&sizes[..rank])
        }
    }

    impl Executor for Expand {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            strided::copy(context.cx, self.view(io.shape, context.samples), io.inputs[0].words(), io.output);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, accumulate), ..] = io.targets else { return };
            let view = self.view(io.shape, context.samples);
            let dy = ([View::dense(view.sizes())], [&*io.gradient]);
            operands::gradient(context.cx, view, dy, (dx, accumulate), |[dy], d| d.copy_from_slice(dy));
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Expand;
    use crate::graph::{DType, Dimensions, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, at_broadcast, f32_shape,
        rejects,
    };

    fn to(dimensions: &[usize]) -> Expand {
        Expand { dimensions: Dimensions::new(dimensions).unwrap() }
    }

    impl OperatorTests for Expand {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            at_broadcast(&self.dimensions, args.io.inputs[0].dimensions(), args.inputs[0])
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(to(&[3, 8, 4]), &[X], &[], f32_shape(&[3, 8, 4])),
                accepts(to(&[2, 8]), &[TOKENS], &[], Shape::new(DType::I32, &[2, 8]).unwrap()),
                rejects(to(&[8, 5]), &[X], &[], "can't be broadcast"),
                rejects(to(&[4]), &[X], &[], "can't be broadcast"),
                rejects(to(&[8, 4]), &[X], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let column = s.linear(x, 1, true);
                let expanded = s.node(to(&[2, ROWS, WIDTH]), &[column], &[]);
                s.weighted_loss(expanded);
                x
            })]
        }
    }
}
