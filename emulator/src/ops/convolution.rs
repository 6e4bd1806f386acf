//! `(x [C, H, W]; weight [O, C/G, h, w], bias [O]?) -> [O, H', W']`: the convolution of an image, as `conv2d` of
//! PyTorch. Channels are divided into G groups, each of which is convolved with its own weights.

use serde::{Deserialize, Serialize};

use super::operator::{is_one, one};
use super::window::{Window, WindowSizes};
use super::{Flops, OpError, Operator, SavedForBackward, Signature};
use crate::graph::{DType, Dimensions, Shape};

/// See the module documentation. Saves its input.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Convolution {
    /// How the kernel moves over the image.
    #[serde(flatten)]
    pub window: Window,
    /// Number of groups; divides the channels of input and output.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub groups: usize,
}

/// The sizes of a convolution. A product of `outputs x inputs` with `inputs x windows` for each group.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Channels of the input and of the output, of one group.
    channels: usize,
    outputs: usize,
    windows: WindowSizes,
}

impl Convolution {
    /// Returns the sizes for an input and weights of these dimensions; `None` if they do not fit together.
    fn sizes(&self, x: &[usize], weight: &[usize]) -> Option<Sizes> {
        let (&[all_channels, height, width], &[all_outputs, channels, rows, columns]) = (x, weight) else {
            return None;
        };
        let is_valid =
            self.groups > 0 && all_outputs % self.groups == 0 && channels.checked_mul(self.groups)? == all_channels;
        let windows = self.window.sizes([rows, columns], [height, width])?;
        is_valid.then(|| Sizes { channels, outputs: all_outputs / self.groups, windows })
    }

    fn sizes_of(&self, io: &Signature<'_>) -> Option<Sizes> {
        self.sizes(io.inputs.first()?.dimensions(), io.params.first()?)
    }
}

impl Sizes {
    /// Returns the elements that an element of the output is computed from.
    const fn inputs(&self) -> usize {
        self.channels * self.windows.kernel_elements()
    }
}

impl Operator for Convolution {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        let Some(weight) = io.params.first() else {
            return Err(OpError::Params { min: 1, max: 2, found: 0 });
        };
        let Some(Sizes { outputs, windows, .. }) = self.sizes(x.dimensions(), weight) else {
            return Err(OpError::Convolution { found: x.to_string(), weight: weight.to_vec() });
        };
        let outputs = outputs * self.groups;
        io.params(&[weight, &[outputs]], 1)?;
        let dimensions = Dimensions::new(&[outputs, windows.windows[0], windows.windows[1]]);
        Ok(dimensions.map(|dimensions| x.with_dimensions(dimensions)))
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        let Some(sizes) = self.sizes_of(io) else { return Flops::default() };
        let rows = (sizes.windows.window_count() as u64).saturating_mul(self.groups as u64);
        Flops::product(rows, sizes.inputs() as u64, sizes.outputs as u64)
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        SavedForBackward { inputs: &[0], ..SavedForBackward::default() }
    }

    fn backward_reads_param(&self, param: usize) -> bool {
        param == 0
    }

    /// The elements of all windows of a group, one column for each window.
    fn scratch(&self, io: &Signature<'_>) -> u64 {
        let elements = |sizes: Sizes| (sizes.inputs() as u64).saturating_mul(sizes.windows.window_count() as u64);
        self.sizes_of(io).map_or(0, elements)
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::{Convolution, Sizes};
    use crate::kernels::pool::{rows, rows_mut};
    use crate::kernels::{Accumulate, Context, MatMut, MatRef, gemm};
    use crate::ops::execute::{
        BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut, TensorGradient,
    };

    /// Writes the elements of all windows: a row for each channel and place in a window, a column for each window.
    fn unfold(cx: Context<'_>, sizes: &Sizes, x: &[f32], columns: &mut [f32]) {
        let (windows, count) = (&sizes.windows, sizes.windows.window_count());
        cx.pool.for_each_rows(sizes.inputs(), 1, rows_mut(columns, count), |first, columns| {
            for (row, columns) in columns.data.chunks_exact_mut(count).enumerate() {
                let (channel, element) =
                    ((first + row) / windows.kernel_elements(), (first + row) % windows.kernel_elements());
                let image = &x[channel * windows.image_elements()..];
                for (index, to) in columns.iter_mut().enumerate() {
                    let y = windows.input_position(0, index / windows.windows[1], element / windows.kernel[1]);
                    let x = windows.input_position(1, index % windows.windows[1], element % windows.kernel[1]);
                    *to = y.zip(x).map_or(0.0, |(y, x)| image[y * windows.image[1] + x]);
                }
            }
        });
    }

    /// Adds to each element of the image the elements of the windows that are copies of it, in rising order of their
    /// places in a window.
    fn fold(cx: Context<'_>, sizes: &Sizes, columns: &[f32], dx: &mut [f32]) {
        let (windows, count) = (&sizes.windows, sizes.windows.window_count());
        let data = (rows(columns, windows.kernel_elements() * count), rows_mut(dx, windows.image_elements()));
        cx.pool.for_each_rows(sizes.channels, 1, data, |_, (columns, dx)| {
            let channels = columns.data.chunks_exact(windows.kernel_elements() * count);
            for (columns, dx) in channels.zip(dx.data.chunks_exact_mut(windows.image_elements())) {
                dx.fill(0.0);
                for (element, columns) in columns.chunks_exact(count).enumerate() {
                    for (index, from) in columns.iter().enumerate() {
                        let y = windows.input_position(0, index / windows.windows[1], element / windows.kernel[1]);
                        let x = windows.input_position(1, index % windows.windows[1], element % windows.kernel[1]);
                        if let Some((y, x)) = y.zip(x) {
                            dx[y * windows.image[1] + x] += from;
                        }
                    }
                }
            }
        });
    }

    impl Convolution {
        fn leaf_sizes(&self, shape: &NodeShape) -> Option<Sizes> {
            self.sizes(shape.inputs[0].dimensions(), &shape.params[0])
        }

        /// Computes the gradient of the weights: for each group, the sum over samples of the products of the output's
        /// gradient with the windows.
        fn weight_gradient(
            &self,
            context: &mut OperatorContext<'_>,
            sizes: &Sizes,
            (x, dy, columns): (&[f32], &[f32], &mut [f32]),
            gradient: TensorGradient<'_>,
        ) {
            let (inputs, count) = (sizes.inputs(), sizes.windows.window_count());
            let (x_size, y_size) = (sizes.channels * sizes.windows.image_elements(), sizes.outputs * count);
            let groups = gradient.data.chunks_exact_mut(sizes.outputs * inputs).enumerate();
            for (group, gradient_data) in groups {
                let mut accumulate = gradient.accumulate;
                for sample in 0..context.samples {
                    let index = sample * self.groups + group;
                    unfold(context.cx, sizes, &x[index * x_size..(index + 1) * x_size], columns);
                    let dy = MatRef::row_major(&dy[index * y_size..(index + 1) * y_size], sizes.outputs, count);
                    let columns = MatRef::row_major(columns, inputs, count);
                    let target = MatMut::row_major(gradient_data, sizes.outputs, inputs);
                    gemm(context.cx, dy, columns.t(), target, accumulate, None, context.products);
                    accumulate = Accumulate::Add;
                }
            }
        }
    }

    impl Executor for Convolution {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let Some(sizes) = self.leaf_sizes(io.shape) else { return };
            let (inputs, count) = (sizes.inputs(), sizes.windows.window_count());
            let columns = &mut io.scratch[..inputs * count];
            let x = io.inputs[0].values().chunks_exact(sizes.channels * sizes.windows.image_elements());
            let y = io.output.chunks_exact_mut(sizes.outputs * count);
            for ((x, y), weight) in x.zip(y).zip(io.weights.tensors[0].chunks_exact(sizes.outputs * inputs).cycle()) {
                unfold(context.cx, &sizes, x, columns);
                let weight = MatRef::row_major(weight, sizes.outputs, inputs);
                let y = MatMut::row_major(y, sizes.outputs, count);
                gemm(
                    context.cx,
                    weight,
                    MatRef::row_major(columns, inputs, count),
                    y,
                    Accumulate::Store,
                    None,
                    context.products,
                );
            }
            if let Some(bias) = io.weights.bias(io.shape) {
                for (y, bias) in io.output.chunks_exact_mut(count).zip(bias.iter().cycle()) {
                    y.iter_mut().for_each(|y| *y += bias);
                }
            }
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let Some(sizes) = self.leaf_sizes(io.shape) else { return };
            let (inputs, count) = (sizes.inputs(), sizes.windows.window_count());
            let columns = &mut io.scratch[..inputs * count];
            let dy = &*io.gradient;
            let [weight, bias] = io.tensors;
            if let Some(weight) = weight {
                self.weight_gradient(context, &sizes, (io.inputs[0].values(), dy, columns), weight);
            }
            if let Some(TensorGradient { data, accumulate }) = bias {
                let outputs = data.len();
                for (channel, d) in data.iter_mut().enumerate() {
                    let images = dy.chunks_exact(count).skip(channel).step_by(outputs);
                    let sum: f64 = images.flatten().map(|&dy| f64::from(dy)).sum();
                    *d = if accumulate == Accumulate::Add { *d + sum as f32 } else { sum as f32 };
                }
            }
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let dx = dx.chunks_exact_mut(sizes.channels * sizes.windows.image_elements());
            let dy = dy.chunks_exact(sizes.outputs * count);
            for ((dx, dy), weight) in dx.zip(dy).zip(io.weights.tensors[0].chunks_exact(sizes.outputs * inputs).cycle())
            {
                let weight = MatRef::row_major(weight, sizes.outputs, inputs).t();
                let dy = MatRef::row_major(dy, sizes.outputs, count);
                let target = MatMut::row_major(columns, inputs, count);
                gemm(context.cx, weight, dy, target, Accumulate::Store, None, context.products);
                fold(context.cx, &sizes, columns, dx);
            }
        }

        /// The products of several samples are added one after the other.
        fn is_accumulation_exact(&self) -> bool {
            false
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Convolution;
    use crate::graph::Graph;
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TestGraph, X, accepts, f32_shape, positions, rejects,
    };
    use crate::ops::{Flops, Operator as _, Signature, Window};

    const PLAIN: Convolution =
        Convolution { window: Window { stride: [1; 2], padding: [0; 2], dilation: [1; 2] }, groups: 1 };
    const ODD: Convolution =
        Convolution { window: Window { stride: [2, 1], padding: [1, 2], dilation: [1, 2] }, groups: 2 };

    impl OperatorTests for Convolution {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let output = self.output(&args.io).unwrap().unwrap();
            let (x, weight) = (args.io.inputs[0].dimensions(), args.io.params[0]);
            let Window { stride, padding, dilation } = self.window;
            let element = |output: Vec<usize>| {
                let group = output[0] / (weight[0] / self.groups);
                let input_index = |kernel: Vec<usize>| {
                    let position = |axis: usize| {
                        (output[axis + 1] * stride[axis] + kernel[axis + 1] * dilation[axis]).checked_sub(padding[axis])
                    };
                    let y = position(0).filter(|y| *y < x[1])?;
                    let column = position(1).filter(|column| *column < x[2])?;
                    let channel = group * weight[1] + kernel[0];
                    Some(((channel * x[1]) + y) * x[2] + column)
                };
                let start = output[0] * weight[1..].iter().product::<usize>();
                let terms = positions(&weight[1..]).enumerate().filter_map(|(index, kernel)| {
                    Some(args.params[0][start + index] * args.inputs[0][input_index(kernel)?])
                });
                terms.sum::<f64>() + args.params.get(1).map_or(0.0, |bias| bias[output[0]])
            };
            positions(output.dimensions()).map(element).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let image = f32_shape(&[6, 8, 9]);
            vec![
                accepts(PLAIN, &[image], &[&[5, 6, 3, 2]], f32_shape(&[5, 6, 8])),
                accepts(ODD, &[image], &[&[4, 3, 3, 2], &[4]], f32_shape(&[4, 4, 11])),
                rejects(PLAIN, &[image], &[&[5, 3, 3, 2]], "f32 [6, 8, 9] with weights [5, 3, 3, 2]"),
                rejects(ODD, &[image], &[&[5, 3, 3, 2]], "can't be convolved"),
                rejects(PLAIN, &[image], &[&[5, 6, 9, 2]], "can't be convolved"),
                rejects(Convolution { groups: 0, ..PLAIN }, &[image], &[&[5, 6, 3, 2]], "can't be convolved"),
                rejects(PLAIN, &[image], &[&[5, 6, 3, 2], &[6]], "must be [5]"),
                rejects(PLAIN, &[X], &[&[5, 6, 3, 2]], "can't be convolved"),
                rejects(PLAIN, &[image], &[], "1 to 2 tensors, not 0"),
            ]
        }

        /// Of an image of five rows and four columns with three or four channels, with and without bias.
        fn graphs() -> Vec<Graph> {
            let graph = |(op, channels, weight, biased): (Convolution, usize, &[usize], bool)| {
                TestGraph::build(|s, x| {
                    let y = s.linear(x, channels * 4, true);
                    let image = s.reshape(y, &[channels, 5, 4]);
                    let mut params = vec![s.tensor(weight)];
                    if biased {
                        params.push(s.tensor(&weight[..1]));
                    }
                    let y = s.node(op, &[image], &params);
                    s.weighted_loss(y);
                    let input = s.numbers(&[channels, 5, 4]);
                    let y = s.node(op, &[input], &params);
                    s.weighted_loss(y);
                    x
                })
            };
            [(PLAIN, 3, &[2, 3, 3, 2][..], false), (ODD, 4, &[6, 2, 3, 2], true)].map(graph).into()
        }
    }

    #[test]
    fn multiply_add_counts_as_two_operations() {
        let io = Signature { inputs: vec![f32_shape(&[6, 8, 9])], params: vec![&[4, 3, 3, 2]] };
        assert_eq!(ODD.flops(&io), Flops::product(4 * 11 * 2, 3 * 3 * 2, 2));
    }
}
