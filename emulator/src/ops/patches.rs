//! `(x [C, H, W]) -> [H/h W/w, C h w]`: the patches of an image, one in each row: from left to right, then from top to
//! bottom; within a row by channel, then by line. A product with the rows is a convolution whose stride is the size of
//! its kernel.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Patches {
    /// Lines of a patch; divides H.
    pub height: usize,
    /// Columns of a patch; divides W.
    pub width: usize,
}

impl Operator for Patches {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        let &[channels, height, width] = x.dimensions() else {
            return Err(OpError::NotAnImage { input: 0, found: x.to_string() });
        };
        let is_divisor = |part: usize, all: usize| part > 0 && all.is_multiple_of(part);
        if !is_divisor(self.height, height) || !is_divisor(self.width, width) {
            return Err(OpError::Patches { height: self.height, width: self.width, found: x.to_string() });
        }
        let rows = (height / self.height).saturating_mul(width / self.width);
        let columns = channels.saturating_mul(self.height).saturating_mul(self.width);
        Ok(Some(Shape::matrix(rows, columns)))
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Patches;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl Patches {
        /// Calls `copy` with the offsets of each line of each patch, in the patches and in the image, and its length.
        pub(super) fn for_each_line(&self, shape: &NodeShape, mut copy: impl FnMut(usize, usize, usize)) {
            let &[channels, height, width] = shape.inputs[0].dimensions() else { return };
            let mut offset = 0;
            for (top, left) in (0..height).step_by(self.height).flat_map(|top| {
                let lefts = (0..width).step_by(self.width);
                lefts.map(move |left| (top, left))
            }) {
                for line in (0..channels).flat_map(|channel| {
                    let lines = top..top + self.height;
                    lines.map(move |line| channel * height + line)
                }) {
                    copy(offset, line * width + left, self.width);
                    offset += self.width;
                }
            }
        }
    }

    impl Executor for Patches {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (shape, sample) = (io.shape, io.shape.inputs[0].elements() as usize);
            let data = (rows(io.inputs[0].values(), sample), rows_mut(io.output, sample));
            context.cx.pool.for_each_rows(context.samples, 1, data, |_, (x, out)| {
                for (x, out) in x.data.chunks_exact(sample).zip(out.data.chunks_exact_mut(sample)) {
                    self.for_each_line(shape, |to, from, length| {
                        out[to..to + length].copy_from_slice(&x[from..from + length]);
                    });
                }
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let (shape, sample) = (io.shape, io.shape.inputs[0].elements() as usize);
            let data = (rows_mut(dx, sample), rows(&*io.gradient, sample));
            context.cx.pool.for_each_rows(context.samples, 1, data, |_, (dx, dy)| {
                for (dx, dy) in dx.data.chunks_exact_mut(sample).zip(dy.data.chunks_exact(sample)) {
                    self.for_each_line(shape, |from, to, length| {
                        dx[to..to + length].copy_from_slice(&dy[from..from + length]);
                    });
                }
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Patches;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TestGraph, WIDTH, X, accepts, rejects};
    use crate::ops::{CrossEntropy, Linear, SelectRow};

    const SIZE: Patches = Patches { height: 2, width: 3 };

    impl OperatorTests for Patches {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let &[channels, height, width] = args.io.inputs[0].dimensions() else { panic!("no image") };
            let patch = channels * self.height * self.width;
            let mut out = vec![0.0; channels * height * width];
            for (index, x) in args.inputs[0].iter().enumerate() {
                let (channel, line, column) = (index / width / height, index / width % height, index % width);
                let row = line / self.height * (width / self.width) + column / self.width;
                let within = (channel * self.height + line % self.height) * self.width + column % self.width;
                out[row * patch + within] = *x;
            }
            out
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let image = |dimensions: &[usize]| Shape::new(DType::F32, dimensions).unwrap();
            vec![
                accepts(SIZE, &[image(&[3, 4, 9])], &[], Shape::matrix(6, 18)),
                rejects(SIZE, &[image(&[3, 5, 9])], &[], "2 x 3"),
                rejects(SIZE, &[image(&[3, 4, 8])], &[], "2 x 3"),
                rejects(Patches { height: 0, width: 3 }, &[image(&[3, 4, 9])], &[], "0 x 3"),
                rejects(SIZE, &[X], &[], "channels, rows and columns"),
                rejects(SIZE, &[image(&[3, 4, 9])], &[&[4]], "0 tensors"),
            ]
        }

        /// Patches of an input; and of patches that an operator with a gradient made, put together again as an image of
        /// one channel for each element.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let image = s.numbers(&[3, 4, 9]);
                let rows = s.node(SIZE, &[image], &[]);
                let weight = s.tensor(&[WIDTH, 18]);
                let rows = s.node(Linear, &[rows], &[weight]);
                let row = s.node(SelectRow { row: 2 }, &[rows], &[]);
                let label = s.integers(Shape::new(DType::I32, &[]).unwrap());
                let params = [s.tensor(&[3, WIDTH]), s.tensor(&[3])];
                s.loss_of(CrossEntropy::with_factor(2.0), &[row, label], &params);
                s.end_layer();
                x
            })]
        }
    }

    #[test]
    fn backward_pass_is_the_inverse_of_the_forward_pass() {
        use crate::ops::execute::NodeShape;
        let shape = NodeShape { inputs: vec![Shape::new(DType::F32, &[2, 4, 6]).unwrap()], params: Vec::new() };
        let (mut count, mut visits) = (0, vec![0; 48]);
        SIZE.for_each_line(&shape, |to, from, length| {
            assert_eq!(to, count);
            count += length;
            visits[from..from + length].iter_mut().for_each(|count| *count += 1);
        });
        assert_eq!((count, visits), (48, vec![1; 48]), "every element once");
    }
}
