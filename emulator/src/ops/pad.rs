//! `(x) -> x` with `before` and `after` more elements in one dimension, which are 0 or false.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::Shape;

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pad {
    /// Which dimension.
    pub axis: usize,
    /// Number of elements before those of the input.
    pub before: usize,
    /// Number of elements after those of the input.
    pub after: usize,
}

impl Operator for Pad {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.operands()?;
        io.params(&[], 0)?;
        let Some(&size) = x.dimensions().get(self.axis) else {
            return Err(OpError::NoAxis { axis: self.axis, found: x.to_string() });
        };
        let size = size.saturating_add(self.before).saturating_add(self.after);
        Ok(Some(x.with_dimensions(x.dimension_list().with_size(self.axis, size))))
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Pad;
    use crate::kernels::strided::{self, View};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl Pad {
        /// Returns the view of the output at the elements of the input.
        fn view(&self, shape: &NodeShape, samples: usize) -> View {
            let x = shape.inputs[0];
            let size = x.dimensions()[self.axis];
            let padded = x.dimension_list().with_size(self.axis, self.before + size + self.after);
            View::of_samples(samples, &padded).sliced(self.axis + 1, self.before, 1, size)
        }
    }

    impl Executor for Pad {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            io.output.fill(0.0);
            strided::copy_to(self.view(io.shape, context.samples), io.inputs[0].words(), io.output);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            strided::copy(context.cx, self.view(io.shape, context.samples), io.gradient, dx);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Pad;
    use crate::graph::{Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, f32_shape, rejects,
    };

    impl OperatorTests for Pad {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let sizes = &args.io.inputs[0].dimensions()[self.axis..];
            let inner: usize = sizes[1..].iter().product();
            let zeros = |count| std::iter::repeat_n(0.0, count * inner);
            let row = |row: &[f64]| -> Vec<f64> {
                zeros(self.before).chain(row.iter().copied()).chain(zeros(self.after)).collect()
            };
            args.inputs[0].chunks(sizes[0] * inner).flat_map(row).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let padded = |axis, before, after| Pad { axis, before, after };
            vec![
                accepts(padded(0, 1, 2), &[X], &[], Shape::matrix(11, 4)),
                accepts(padded(0, 0, 1), &[TOKENS], &[], Shape::integers(9)),
                accepts(padded(1, usize::MAX, 1), &[X], &[], f32_shape(&[8, usize::MAX])),
                rejects(padded(2, 1, 0), &[X], &[], "f32 [8, 4] has no dimension 2"),
                rejects(padded(0, 1, 0), &[X], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let y = s.node(Pad { axis: 0, before: 2, after: 1 }, &[x], &[]);
                let y = s.node(Pad { axis: 1, before: 0, after: 3 }, &[y], &[]);
                s.weighted_loss(y);
                x
            })]
        }
    }
}
