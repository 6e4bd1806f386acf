//! `(x [C, H, W]) -> [C, H', W']`: the mean of each window of each channel, as `avg_pool2d` of PyTorch.

use serde::{Deserialize, Serialize};

use super::window::{Window, pooling_output};
use super::{OpError, Operator, Signature};
use crate::graph::Shape;

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AveragePool {
    /// Rows and columns of a window.
    pub kernel: [usize; 2],
    /// How windows move over the image; the padding is at most half a window.
    #[serde(flatten)]
    pub window: Window,
    /// Whether the zeros of the padding count as elements of the mean.
    pub counts_padding: bool,
}

impl Operator for AveragePool {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        pooling_output(io, self.kernel, self.window)
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::AveragePool;
    use crate::kernels::pool::{rows, rows_mut};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, TargetMut};
    use crate::ops::window::{WindowSizes, pooling};

    impl AveragePool {
        /// Calls `f` with the places of the elements of a window, and returns their number.
        fn elements(&self, sizes: &WindowSizes, window: usize, mut f: impl FnMut(usize)) -> f32 {
            let mut count = 0;
            sizes.for_each_element([window / sizes.windows[1], window % sizes.windows[1]], |element| {
                f(element);
                count += 1;
            });
            (if self.counts_padding { sizes.kernel_elements() } else { count }) as f32
        }
    }

    impl Executor for AveragePool {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let Ok(sizes) = pooling(io.shape.inputs[0], self.kernel, self.window) else { return };
            let (image, count) = (sizes.image_elements(), sizes.window_count());
            let x = io.inputs[0].values();
            let data = (rows(x, image), rows_mut(io.output, count));
            context.cx.pool.for_each_rows(x.len() / image, 1, data, |_, (x, y)| {
                for (x, y) in x.data.chunks_exact(image).zip(y.data.chunks_exact_mut(count)) {
                    for (window, y) in y.iter_mut().enumerate() {
                        let mut sum = 0.0;
                        let share = 1.0 / self.elements(&sizes, window, |element| sum += f64::from(x[element]));
                        *y = (sum * f64::from(share)) as f32;
                    }
                }
            });
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let Ok(sizes) = pooling(io.shape.inputs[0], self.kernel, self.window) else { return };
            let (image, count) = (sizes.image_elements(), sizes.window_count());
            let channels = dx.len() / image;
            let data = (rows(&*io.gradient, count), rows_mut(dx, image));
            context.cx.pool.for_each_rows(channels, 1, data, |_, (dy, dx)| {
                for (dy, dx) in dy.data.chunks_exact(count).zip(dx.data.chunks_exact_mut(image)) {
                    dx.fill(0.0);
                    for (window, dy) in dy.iter().enumerate() {
                        let share = dy / self.elements(&sizes, window, |_| {});
                        self.elements(&sizes, window, |element| dx[element] += share);
                    }
                }
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::AveragePool;
    use crate::graph::Graph;
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, f32_shape, positions, rejects,
    };
    use crate::ops::window::pooling;
    use crate::ops::{Operator as _, Window};

    const ODD: AveragePool = AveragePool {
        kernel: [3, 2],
        window: Window { stride: [1, 2], padding: [1, 1], dilation: [1; 2] },
        counts_padding: false,
    };

    impl OperatorTests for AveragePool {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let output = self.output(&args.io).unwrap().unwrap();
            let sizes = pooling(args.io.inputs[0], self.kernel, self.window).unwrap();
            let element = |coordinates: Vec<usize>| {
                let (mut sum, mut count) = (0.0, 0);
                let image = &args.inputs[0][coordinates[0] * sizes.image_elements()..];
                sizes.for_each_element([coordinates[1], coordinates[2]], |element| {
                    (sum, count) = (sum + image[element], count + 1)
                });
                sum / f64::from(if self.counts_padding { 6 } else { count })
            };
            positions(output.dimensions()).map(element).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let image = f32_shape(&[3, 8, 9]);
            vec![
                accepts(ODD, &[image], &[], f32_shape(&[3, 8, 5])),
                rejects(AveragePool { kernel: [1, 2], ..ODD }, &[image], &[], "do not fit"),
                rejects(ODD, &[X], &[], "three dimensions"),
                rejects(ODD, &[image], &[&[3]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let graph = |counts_padding| {
                TestGraph::build(|s, x| {
                    let image = s.reshape(x, &[3, 5, 4]);
                    let y = s.node(AveragePool { counts_padding, ..ODD }, &[image], &[]);
                    s.weighted_loss(y);
                    x
                })
            };
            [false, true].map(graph).into()
        }
    }
}
