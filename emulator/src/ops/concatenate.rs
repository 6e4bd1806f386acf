//! `(a, b) -> [a, b]` or `(a, b, c) -> [a, b, c]`: values one after the other along one dimension, in which alone their
//! sizes may differ.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::Shape;

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Concatenate {
    /// Which dimension.
    pub axis: usize,
}

impl Operator for Concatenate {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        io.params(&[], 0)?;
        let (&first, others) = match io.inputs.as_slice() {
            [first, others @ ..] if (1..=2).contains(&others.len()) => (first, others),
            inputs => return Err(OpError::Inputs { expected: 2, found: inputs.len() }),
        };
        let Some(&size) = first.dimensions().get(self.axis) else {
            return Err(OpError::NoAxis { axis: self.axis, found: first.to_string() });
        };
        let mut total = size;
        for (index, other) in others.iter().enumerate() {
            let size = other.dimensions().get(self.axis).copied().unwrap_or_default();
            let expected = first.with_dimensions(first.dimension_list().with_size(self.axis, size));
            if *other != expected {
                return Err(OpError::input_shape(index + 1, expected, *other));
            }
            total = total.saturating_add(size);
        }
        Ok(Some(first.with_dimensions(first.dimension_list().with_size(self.axis, total))))
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Concatenate;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl Concatenate {
        /// Returns the elements that each input contributes to a row: those from its axis on.
        fn widths(&self, shape: &NodeShape) -> impl Iterator<Item = usize> {
            shape.inputs.iter().map(|input| input.dimensions()[self.axis..].iter().product())
        }
    }

    impl Executor for Concatenate {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (row, mut start) = (self.widths(io.shape).sum(), 0);
            for (input, width) in io.inputs.iter().zip(self.widths(io.shape)) {
                for (to, from) in io.output.chunks_exact_mut(row).zip(input.words().chunks_exact(width)) {
                    to[start..start + width].copy_from_slice(from);
                }
                start += width;
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let (row, mut start) = (self.widths(io.shape).sum(), 0);
            for (target, width) in io.targets.into_iter().zip(self.widths(io.shape)) {
                if let TargetMut::Memory(dx, _) = target {
                    for (to, from) in dx.chunks_exact_mut(width).zip(io.gradient.chunks_exact(row)) {
                        to.copy_from_slice(&from[start..start + width]);
                    }
                }
                start += width;
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Concatenate;
    use crate::graph::{Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ROWS, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDE, X, accepts, rejects,
    };

    impl OperatorTests for Concatenate {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let width = |input: usize| args.io.inputs[input].dimensions()[self.axis..].iter().product::<usize>();
            let rows = args.inputs[0].len() / width(0);
            let parts = (0..rows).flat_map(|row| (0..args.inputs.len()).map(move |input| (row, input)));
            parts.flat_map(|(row, input)| args.inputs[input][row * width(input)..][..width(input)].to_vec()).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let along = |axis| Concatenate { axis };
            vec![
                accepts(along(1), &[X, WIDE], &[], Shape::matrix(8, 16)),
                accepts(along(0), &[TOKENS, TOKENS, Shape::integers(1)], &[], Shape::integers(17)),
                rejects(along(0), &[X, WIDE], &[], "input 1 must be f32 [8, 4], not f32 [8, 12]"),
                rejects(along(0), &[X, TOKENS], &[], "input 1 must be"),
                rejects(along(2), &[X, X], &[], "f32 [8, 4] has no dimension 2"),
                rejects(along(0), &[X], &[], "reads 2 values, not 1"),
                rejects(along(0), &[X, X], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let (column, wide) = (s.linear(x, 1, false), s.linear(x, 7, false));
                let columns = s.node(Concatenate { axis: 1 }, &[column, x, wide], &[]);
                s.weighted_loss(columns);
                let input = s.numbers(&[2, 12]);
                let rows = s.node(Concatenate { axis: 0 }, &[x, input], &[]);
                let doubled = s.node(Concatenate { axis: 0 }, &[rows, rows], &[]);
                s.weighted_loss(doubled);
                assert_eq!(s.shape(doubled), Shape::matrix(2 * (ROWS + 2), 12));
                x
            })]
        }
    }
}
