//! `(x) -> f(x)` over some dimensions: sum, mean, largest or smallest element. The dimensions are removed, or kept with
//! a size of 1.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, SavedForBackward, Signature};
use crate::graph::{Axes, DType, Dimensions, Shape};

/// What is computed of several elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest. Equal ones share the gradient, as those of `amax` of PyTorch.
    Max,
    /// The smallest. Equal ones share the gradient.
    Min,
}

impl Reduction {
    /// Returns whether the result is one of the elements.
    const fn is_extreme(self) -> bool {
        matches!(self, Self::Max | Self::Min)
    }
}

/// See the module documentation. Sums are computed in f64. An extreme saves its input and its output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reduce {
    /// What is computed.
    pub reduction: Reduction,
    /// The dimensions, each once, in rising order.
    pub axes: Axes,
    /// Whether the dimensions are kept with a size of 1.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
}

impl Reduce {
    /// Returns these dimensions with a size of 1 at each axis that is reduced.
    fn reduced(&self, sizes: Dimensions) -> Dimensions {
        self.axes.iter().fold(sizes, |sizes, &axis| sizes.with_size(axis, 1))
    }
}

impl Operator for Reduce {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        let is_rising = self.axes.windows(2).all(|two| two[0] < two[1]);
        if self.axes.is_empty() || !is_rising || self.axes.iter().any(|&axis| axis >= x.dimensions().len()) {
            return Err(OpError::Axes { axes: self.axes.to_vec(), found: x.to_string() });
        }
        let sizes = x.dimension_list();
        Ok(Some(x.with_dimensions(if self.keep { self.reduced(sizes) } else { sizes.without(&self.axes) })))
    }

    fn saved(&self, _: &Signature<'_>) -> SavedForBackward {
        let inputs: &[usize] = if self.reduction.is_extreme() { &[0] } else { &[] };
        SavedForBackward { inputs, output: self.reduction.is_extreme(), floats: 0 }
    }

    /// The number of elements that equal each extreme.
    fn scratch(&self, io: &Signature<'_>) -> u64 {
        match self.output(io) {
            Ok(Some(output)) if self.reduction.is_extreme() => output.elements(),
            _ => 0,
        }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::{Reduce, Reduction};
    use crate::kernels::Accumulate;
    use crate::kernels::strided::{self, Fold, View};
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl Reduce {
        /// Returns the views of the input and, of the same size, of the output.
        fn views(&self, shape: &NodeShape, samples: usize) -> [View; 2] {
            let x = shape.inputs[0];
            let input = View::of_samples(samples, x.dimensions());
            [input, View::of_samples(samples, &self.reduced(x.dimension_list())).broadcast(input.sizes())]
        }

        /// Returns whether a dimension of a view stays. Samples are dimension 0.
        fn is_kept(&self, axis: usize) -> bool {
            axis == 0 || !self.axes.contains(&(axis - 1))
        }

        /// Returns the number of elements that become one.
        fn elements(&self, shape: &NodeShape) -> usize {
            self.axes.iter().map(|&axis| shape.inputs[0].dimensions()[axis]).product()
        }
    }

    impl Executor for Reduce {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let [x, _] = self.views(io.shape, context.samples);
            let fold = match self.reduction {
                Reduction::Sum | Reduction::Mean => Fold::Sum,
                Reduction::Max => Fold::Max,
                Reduction::Min => Fold::Min,
            };
            let data = [io.inputs[0].values()];
            strided::fold(
                context.cx,
                fold,
                [x],
                |axis| self.is_kept(axis),
                data,
                io.output,
                Accumulate::Store,
                |[x], out| {
                    out.copy_from_slice(x);
                },
            );
            if self.reduction == Reduction::Mean {
                let count = self.elements(io.shape) as f32;
                io.output.iter_mut().for_each(|sum| *sum /= count);
            }
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let [x, y] = self.views(io.shape, context.samples);
            if !self.reduction.is_extreme() {
                let count = if self.reduction == Reduction::Mean { self.elements(io.shape) as f32 } else { 1.0 };
                return strided::map(context.cx, [y], [&*io.gradient], dx, |[dy], dx| {
                    dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = dy / count);
                });
            }
            let (data, equal) = ([io.inputs[0].values(), io.output], |x: f32, y: f32| f32::from(u8::from(x == y)));
            let counts = &mut io.scratch[..io.gradient.len()];
            let is_kept = |axis| self.is_kept(axis);
            strided::fold(context.cx, Fold::Sum, [x, y], is_kept, data, counts, Accumulate::Store, |[x, y], out| {
                out.iter_mut().zip(x.iter().zip(y)).for_each(|(out, (x, y))| *out = equal(*x, *y));
            });
            for (dy, count) in io.gradient.iter_mut().zip(&*counts) {
                *dy /= count;
            }
            let [x_data, y_data] = data;
            strided::map(context.cx, [x, y, y], [x_data, y_data, &*io.gradient], dx, |[x, y, dy], dx| {
                for (((dx, x), y), dy) in dx.iter_mut().zip(x).zip(y).zip(dy) {
                    *dx = equal(*x, *y) * dy;
                }
            });
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::{Reduce, Reduction};
    use crate::graph::{Axes, Graph};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, f32_shape, positions,
        rejects,
    };

    fn of(reduction: Reduction, axes: &[usize], keep: bool) -> Reduce {
        Reduce { reduction, axes: Axes::new(axes).unwrap(), keep }
    }

    impl OperatorTests for Reduce {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let sizes = args.io.inputs[0].dimensions();
            let kept_axes: Vec<usize> = (0..sizes.len()).filter(|axis| !self.axes.contains(axis)).collect();
            let offset_of = |coordinates: &[usize]| {
                kept_axes.iter().fold(0, |offset, &axis| offset * sizes[axis] + coordinates[axis])
            };
            let mut parts = vec![Vec::new(); kept_axes.iter().map(|&axis| sizes[axis]).product()];
            for (coordinates, &x) in positions(sizes).zip(args.inputs[0]) {
                parts[offset_of(&coordinates)].push(x);
            }
            let reduce = |part: Vec<f64>| match self.reduction {
                Reduction::Sum => part.iter().sum(),
                Reduction::Mean => part.iter().sum::<f64>() / part.len() as f64,
                Reduction::Max => part.into_iter().fold(f64::NEG_INFINITY, f64::max),
                Reduction::Min => part.into_iter().fold(f64::INFINITY, f64::min),
            };
            parts.into_iter().map(reduce).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let sum = |axes: &[usize], keep| of(Reduction::Sum, axes, keep);
            vec![
                accepts(sum(&[0], false), &[X], &[], f32_shape(&[4])),
                accepts(sum(&[1], true), &[X], &[], f32_shape(&[8, 1])),
                accepts(sum(&[0, 2], false), &[f32_shape(&[2, 3, 4])], &[], f32_shape(&[3])),
                accepts(sum(&[0, 1], false), &[X], &[], f32_shape(&[])),
                rejects(sum(&[2], false), &[X], &[], "dimensions [2] of f32 [8, 4]"),
                rejects(sum(&[1, 0], false), &[X], &[], "dimensions [1, 0]"),
                rejects(sum(&[1, 1], false), &[X], &[], "dimensions [1, 1]"),
                rejects(sum(&[], false), &[X], &[], "dimensions []"),
                rejects(sum(&[0], false), &[TOKENS], &[], "type f32"),
                rejects(sum(&[0], false), &[X], &[&[4]], "0 tensors"),
            ]
        }

        /// Each reduction of rows, of columns, of both, and of the middle of three dimensions.
        fn graphs() -> Vec<Graph> {
            let graph = |reduction| {
                TestGraph::build(|s, x| {
                    let row = s.node(of(reduction, &[0], false), &[x], &[]);
                    let column = s.node(of(reduction, &[1], true), &[x], &[]);
                    let number = s.node(of(reduction, &[0, 1], false), &[x], &[]);
                    let three = s.reshape(x, &[ROWS, 4, WIDTH / 4]);
                    let middle = s.node(of(reduction, &[1], false), &[three], &[]);
                    s.weighted_loss(middle);
                    [row, column, number].into_iter().fold(x, |x, factor| s.mul(x, factor))
                })
            };
            [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min].map(graph).into()
        }
    }
}
