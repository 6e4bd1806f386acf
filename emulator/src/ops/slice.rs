//! `(x) -> x[.., start..end..step, ..]`: a part of one dimension. With `drop`, a part of one element loses the
//! dimension (`select` of PyTorch).

use serde::{Deserialize, Serialize};

use super::operator::{is_one, one};
use super::{OpError, Operator, Signature};
use crate::graph::Shape;

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Slice {
    /// Which dimension.
    pub axis: usize,
    /// The first element.
    pub start: usize,
    /// The end: no element from it on.
    pub end: usize,
    /// Distance between elements, at least 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub step: usize,
    /// Whether a dimension of one element is removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drop: bool,
}

impl Slice {
    /// Returns the number of elements.
    const fn size(&self) -> usize {
        self.end.saturating_sub(self.start).div_ceil(if self.step == 0 { 1 } else { self.step })
    }
}

impl Operator for Slice {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.operands()?;
        io.params(&[], 0)?;
        let Self { axis, start, end, step, drop } = *self;
        let error = || OpError::Slice { axis, start, end, step, found: x.to_string() };
        let size = *x.dimensions().get(axis).ok_or_else(error)?;
        if start >= end || end > size || step == 0 || (drop && self.size() != 1) {
            return Err(error());
        }
        let sizes = x.dimension_list();
        let dimensions = if drop { sizes.without(&[axis]) } else { sizes.with_size(axis, self.size()) };
        Ok(Some(x.with_dimensions(dimensions)))
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Slice;
    use crate::kernels::strided::{self, View};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl Slice {
        fn view(&self, shape: &NodeShape, samples: usize) -> View {
            let view = View::of_samples(samples, shape.inputs[0].dimensions());
            view.sliced(self.axis + 1, self.start, self.step, self.size())
        }
    }

    impl Executor for Slice {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            strided::copy(context.cx, self.view(io.shape, context.samples), io.inputs[0].words(), io.output);
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            dx.fill(0.0);
            strided::copy_to(self.view(io.shape, context.samples), io.gradient, dx);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Slice;
    use crate::graph::{Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, f32_shape, rejects,
    };

    fn part(axis: usize, start: usize, end: usize, step: usize) -> Slice {
        Slice { axis, start, end, step, drop: false }
    }

    impl OperatorTests for Slice {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let sizes = args.io.inputs[0].dimensions();
            let inner: usize = sizes[self.axis + 1..].iter().product();
            let rows = args.inputs[0].chunks(sizes[self.axis] * inner);
            let part = |row: &[f64]| -> Vec<f64> {
                let elements = (self.start..self.end).step_by(self.step);
                elements.flat_map(|element| row[element * inner..][..inner].to_vec()).collect()
            };
            rows.flat_map(part).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let row = Slice { drop: true, ..part(0, 3, 4, 1) };
            vec![
                accepts(part(0, 1, 8, 3), &[X], &[], Shape::matrix(3, 4)),
                accepts(part(0, 2, 7, 1), &[TOKENS], &[], Shape::integers(5)),
                accepts(row, &[X], &[], f32_shape(&[4])),
                rejects(part(2, 0, 1, 1), &[X], &[], "elements 0 to 1 of dimension 2 of f32 [8, 4]"),
                rejects(part(1, 0, 5, 1), &[X], &[], "elements 0 to 5"),
                rejects(part(1, 2, 2, 1), &[X], &[], "elements 2 to 2"),
                rejects(part(1, 0, 2, 0), &[X], &[], "in steps of 0"),
                rejects(Slice { drop: true, ..part(0, 3, 5, 1) }, &[X], &[], "elements 3 to 5"),
                rejects(part(1, 0, 2, 1), &[X], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let rows = s.node(part(0, 1, ROWS, 2), &[x], &[]);
                s.weighted_loss(rows);
                let columns = s.node(part(1, 2, 9, 1), &[x], &[]);
                s.weighted_loss(columns);
                let row = s.node(Slice { drop: true, ..part(0, 2, 3, 1) }, &[x], &[]);
                s.mul(x, row)
            })]
        }
    }
}
