//! `(x [C, H, W]) -> [C, H', W']`: the largest element of each window of each channel, as `max_pool2d` of PyTorch. Of
//! equal ones, the first has the gradient.

use serde::{Deserialize, Serialize};

use super::window::{Window, pooling_output};
use super::{OpError, Operator, SavedForBackward, Signature};
use crate::graph::Shape;

/// See the module documentation. Saves its input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MaxPool {
    /// Rows and columns of a window.
    pub kernel: [usize; 2],
    /// How windows move over the image; the padding is at most half a window.
    #[serde(flatten)]
    pub window: Window,
}

impl Operator for MaxPool {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        pooling_output(io, self.kernel, self.window)
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0], ..SavedForBackward::default() }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::MaxPool;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, TargetMut};
    use crate::ops::window::{WindowSizes, pooling};

    /// Returns the place of the largest element of a window, or of the last NaN.
    fn largest(sizes: &WindowSizes, window: usize, image: &[f32]) -> usize {
        let mut best = None;
        sizes.for_each_element([window / sizes.windows[1], window % sizes.windows[1]], |element| {
            if best.is_none_or(|best: usize| image[element] > image[best] || image[element].is_nan()) {
                best = Some(element);
            }
        });
        best.unwrap_or_default()
    }

    impl Executor for MaxPool {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let Ok(sizes) = pooling(io.shape.inputs[0], self.kernel, self.window) else { return };
            let (image, count) = (sizes.image_elements(), sizes.window_count());
            let x = io.inputs[0].values();
            let data = (rows(x, image), rows_mut(io.output, count));
            context.cx.pool.for_each_rows(x.len() / image, 1, data, |_, (x, y)| {
                for (x, y) in x.data.chunks_exact(image).zip(y.data.chunks_exact_mut(count)) {
                    y.iter_mut().enumerate().for_each(|(window, y)| *y = x[largest(&sizes, window, x)]);
                }
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let Ok(sizes) = pooling(io.shape.inputs[0], self.kernel, self.window) else { return };
            let (image, count) = (sizes.image_elements(), sizes.window_count());
            let channels = dx.len() / image;
            let data = (rows(io.inputs[0].values(), image), rows(&*io.gradient, count), rows_mut(dx, image));
            context.cx.pool.for_each_rows(channels, 1, data, |_, (x, dy, dx)| {
                let images = x.data.chunks_exact(image).zip(dy.data.chunks_exact(count));
                for ((x, dy), dx) in images.zip(dx.data.chunks_exact_mut(image)) {
                    dx.fill(0.0);
                    dy.iter().enumerate().for_each(|(window, dy)| dx[largest(&sizes, window, x)] += dy);
                }
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::MaxPool;
    use crate::graph::Graph;
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, f32_shape, positions, rejects,
    };
    use crate::ops::window::pooling;
    use crate::ops::{Operator as _, Window};

    const PLAIN: MaxPool =
        MaxPool { kernel: [2, 2], window: Window { stride: [2, 2], padding: [0; 2], dilation: [1; 2] } };
    const ODD: MaxPool =
        MaxPool { kernel: [3, 2], window: Window { stride: [1, 2], padding: [1, 0], dilation: [1, 2] } };

    impl OperatorTests for MaxPool {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let output = self.output(&args.io).unwrap().unwrap();
            let sizes = pooling(args.io.inputs[0], self.kernel, self.window).unwrap();
            let element = |coordinates: Vec<usize>| {
                let mut max = f64::NEG_INFINITY;
                let image = &args.inputs[0][coordinates[0] * sizes.image_elements()..];
                sizes.for_each_element([coordinates[1], coordinates[2]], |element| max = max.max(image[element]));
                max
            };
            positions(output.dimensions()).map(element).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let image = f32_shape(&[3, 8, 9]);
            let padded = MaxPool { window: Window { padding: [2, 0], ..PLAIN.window }, ..PLAIN };
            vec![
                accepts(PLAIN, &[image], &[], f32_shape(&[3, 4, 4])),
                accepts(ODD, &[image], &[], f32_shape(&[3, 8, 4])),
                rejects(padded, &[image], &[], "windows of [2, 2] do not fit f32 [3, 8, 9]"),
                rejects(MaxPool { kernel: [9, 1], ..PLAIN }, &[image], &[], "do not fit"),
                rejects(PLAIN, &[X], &[], "three dimensions"),
                rejects(PLAIN, &[image], &[&[3]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let graph = |op: MaxPool| {
                TestGraph::build(|s, x| {
                    let image = s.reshape(x, &[3, 5, 4]);
                    let y = s.node(op, &[image], &[]);
                    s.weighted_loss(y);
                    x
                })
            };
            [PLAIN, ODD].map(graph).into()
        }
    }
}
