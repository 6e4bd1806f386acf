//! `(x) -> i32`: for each position of the other dimensions, the index of the largest element along one dimension, which
//! is removed: the first of equal ones. NaN is larger than every number, as in PyTorch.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. There is no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ArgMax {
    /// Which dimension.
    pub axis: usize,
}

impl Operator for ArgMax {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x] = io.inputs([DType::F32])?;
        io.params(&[], 0)?;
        if self.axis >= x.dimensions().len() {
            return Err(OpError::NoAxis { axis: self.axis, found: x.to_string() });
        }
        Ok(Some(x.with_dimensions(x.dimension_list().without(&[self.axis])).with_dtype(DType::I32)))
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::ArgMax;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, integers_mut};

    impl Executor for ArgMax {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let sizes = &io.shape.inputs[0].dimensions()[self.axis..];
            let inner: usize = sizes[1..].iter().product();
            let rows = io.inputs[0].values().chunks_exact(sizes[0] * inner);
            for (x, indices) in rows.zip(integers_mut(io.output).chunks_exact_mut(inner)) {
                for (at, index) in indices.iter_mut().enumerate() {
                    *index = largest(x[at..].iter().step_by(inner));
                }
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }

    /// Returns the position of the largest number.
    fn largest<'a>(numbers: impl Iterator<Item = &'a f32>) -> i32 {
        let (mut largest, mut at) = (f32::NEG_INFINITY, 0);
        for (position, &number) in (0..).zip(numbers) {
            if number > largest || (number.is_nan() && !largest.is_nan()) {
                (largest, at) = (number, position);
            }
        }
        at
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn first_of_equal_numbers_and_nan_are_the_largest() {
            let of = |numbers: &[f32]| super::largest(numbers.iter());
            assert_eq!(of(&[1.0, 3.0, 3.0, 2.0]), 1);
            assert_eq!(of(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), 0);
            assert_eq!(of(&[1.0, f32::NAN, f32::INFINITY, f32::NAN]), 1);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::ArgMax;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, rejects};
    use crate::ops::{Cast, OneHot};

    impl OperatorTests for ArgMax {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let sizes = &args.io.inputs[0].dimensions()[self.axis..];
            let inner: usize = sizes[1..].iter().product();
            let of = |row: &[f64], at: usize| {
                let column: Vec<f64> = row.iter().skip(at).step_by(inner).copied().collect();
                let most = column.iter().copied().fold(f64::MIN, f64::max);
                column.iter().position(|&x| x == most).unwrap() as f64
            };
            args.inputs[0].chunks(sizes[0] * inner).flat_map(|row| (0..inner).map(move |at| of(row, at))).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let along = |axis| ArgMax { axis };
            let indices = |dimensions: &[usize]| Shape::new(DType::I32, dimensions).unwrap();
            vec![
                accepts(along(1), &[X], &[], indices(&[8])),
                accepts(along(0), &[X], &[], indices(&[4])),
                rejects(along(2), &[X], &[], "f32 [8, 4] has no dimension 2"),
                rejects(along(0), &[TOKENS], &[], "type f32"),
                rejects(along(0), &[X], &[&[4]], "0 tensors"),
            ]
        }

        /// Factors that are the indices of each row, as classes, and of each column, as numbers.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let of_rows = s.node(ArgMax { axis: 1 }, &[x], &[]);
                let classes = s.node(OneHot { classes: WIDTH }, &[of_rows], &[]);
                let y = s.mul(x, classes);
                let of_columns = s.node(ArgMax { axis: 0 }, &[x], &[]);
                let of_columns = s.node(Cast { to: DType::F32 }, &[of_columns], &[]);
                let of_columns = s.reshape(of_columns, &[1, WIDTH]);
                let z = s.mul(x, of_columns);
                s.add(y, z)
            })]
        }
    }
}
