//! `(x, index i32) -> the elements of x at the indices`, along one dimension, in which alone their sizes may differ; as
//! `gather` of PyTorch.
//!
//! ```text
//! axis 1:  out[i, j, k] = x[i, index[i, j, k], k]
//! ```

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. The gradients of an element that several indices name are added in their order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gather {
    /// Which dimension.
    pub axis: usize,
}

impl Operator for Gather {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x, index] = io.inputs([DType::F32, DType::I32])?;
        io.params(&[], 0)?;
        if self.axis >= x.dimensions().len() {
            return Err(OpError::NoAxis { axis: self.axis, found: x.to_string() });
        }
        let size = index.dimensions().get(self.axis).copied().unwrap_or(1);
        let expected = x.with_dimensions(x.dimension_list().with_size(self.axis, size));
        if index != expected.with_dtype(DType::I32) {
            return Err(OpError::input_shape(1, expected.with_dtype(DType::I32), index));
        }
        Ok(Some(expected))
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[1], ..SavedForBackward::default() }
    }

    fn index_bound(&self, io: &Signature<'_>, input: usize) -> Option<usize> {
        io.inputs.first().and_then(|x| x.dimensions().get(self.axis).copied()).filter(|_| input == 1)
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input == 0
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Gather;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl Gather {
        /// Returns the elements of a row of the input and of the index, and of one position of the dimension.
        fn widths(&self, shape: &NodeShape) -> [usize; 3] {
            let [x, index] = [0, 1].map(|input| shape.inputs[input].dimensions()[self.axis..].iter().product());
            [x, index, shape.inputs[0].dimensions()[self.axis + 1..].iter().product()]
        }
    }

    /// Returns the offset in a row of the element that the index at `position` selects.
    fn offset(index: i32, position: usize, inner: usize) -> usize {
        index as usize * inner + position % inner
    }

    impl Executor for Gather {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let [width, count, inner] = self.widths(io.shape);
            let (x, index) = (io.inputs[0].values(), io.inputs[1].integers());
            let data = (rows(x, width), rows(index, count), rows_mut(io.output, count));
            context.cx.pool.for_each_rows(x.len() / width, 1, data, |_, (x, index, y)| {
                for (position, (y, index)) in y.data.iter_mut().zip(index.data).enumerate() {
                    *y = x.data[offset(*index, position, inner)];
                }
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let [width, count, inner] = self.widths(io.shape);
            let outer = dx.len() / width;
            let data = (rows_mut(dx, width), rows(io.inputs[1].integers(), count), rows(&*io.gradient, count));
            context.cx.pool.for_each_rows(outer, 1, data, |_, (dx, index, dy)| {
                dx.data.fill(0.0);
                for (position, (dy, index)) in dy.data.iter().zip(index.data).enumerate() {
                    dx.data[offset(*index, position, inner)] += dy;
                }
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Gather;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TestGraph, WIDTH, X, accepts, f32_shape, positions, rejects,
    };

    impl OperatorTests for Gather {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let sizes = args.io.inputs[0].dimensions();
            let element = |(mut coordinates, index): (Vec<usize>, &f64)| {
                coordinates[self.axis] = *index as usize;
                args.inputs[0]
                    [coordinates.iter().zip(sizes).fold(0, |offset, (coordinate, size)| offset * size + coordinate)]
            };
            positions(args.io.inputs[1].dimensions()).zip(args.inputs[1]).map(element).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let index = |dimensions: &[usize]| Shape::new(DType::I32, dimensions).unwrap();
            let along = |axis| Gather { axis };
            vec![
                accepts(along(1), &[X, index(&[8, 2])], &[], f32_shape(&[8, 2])),
                accepts(along(0), &[X, index(&[20, 4])], &[], f32_shape(&[20, 4])),
                rejects(along(0), &[X, index(&[20, 3])], &[], "input 1 must be i32 [20, 4], not i32 [20, 3]"),
                rejects(along(0), &[X, index(&[8])], &[], "input 1 must be i32 [8, 4], not i32 [8]"),
                rejects(along(2), &[X, index(&[8, 4])], &[], "has no dimension 2"),
                rejects(along(0), &[X, X], &[], "type i32"),
                rejects(along(0), &[X, index(&[8, 4])], &[&[4]], "0 tensors"),
            ]
        }

        /// Along rows and columns; most indices occur more than once.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                for (axis, sizes) in [(0, [9, WIDTH]), (1, [ROWS, 20])] {
                    let index = s.integers(Shape::new(DType::I32, &sizes).unwrap());
                    let y = s.node(Gather { axis }, &[x, index], &[]);
                    s.weighted_loss(y);
                }
                x
            })]
        }
    }
}
