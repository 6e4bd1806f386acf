//! `(x [R, H]) -> [H]`: one row of `x`, the same of every sample, such as that of the first token of a sequence.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::Shape;

/// See the module documentation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SelectRow {
    /// The row, counted from 0.
    pub row: usize,
}

impl Operator for SelectRow {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let x = io.sequence()?;
        io.params(&[], 0)?;
        let rows = x.rows();
        if self.row < rows { Ok(Some(x.row())) } else { Err(OpError::RowOutside { row: self.row, rows }) }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::SelectRow;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, TargetMut};

    impl SelectRow {
        /// Returns the elements of a sample, and of the row in it.
        fn element_range(&self, shape: &NodeShape) -> (usize, std::ops::Range<usize>) {
            let (sample, width) = (shape.rows() * shape.columns(), shape.columns());
            (sample, self.row * width..(self.row + 1) * width)
        }
    }

    impl Executor for SelectRow {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (sample, row) = self.element_range(io.shape);
            let samples = io.inputs[0].values().chunks_exact(sample);
            for (x, out) in samples.zip(io.output.chunks_exact_mut(row.len())) {
                out.copy_from_slice(&x[row.clone()]);
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), ..] = io.targets else { return };
            let (sample, row) = self.element_range(io.shape);
            for (dx, dy) in dx.chunks_exact_mut(sample).zip(io.gradient.chunks_exact(row.len())) {
                dx.fill(0.0);
                dx[row.clone()].copy_from_slice(dy);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::SelectRow;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::CrossEntropy;
    use crate::ops::testing::{OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, rejects};

    impl OperatorTests for SelectRow {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let width = args.io.inputs[0].columns();
            args.inputs[0][self.row * width..][..width].to_vec()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(SelectRow { row: 7 }, &[X], &[], X.row()),
                rejects(SelectRow { row: 8 }, &[X], &[], "selects row 8, but its input has 8"),
                rejects(SelectRow { row: 0 }, &[X.row()], &[], "two dimensions"),
                rejects(SelectRow { row: 0 }, &[TOKENS], &[], "type f32"),
                rejects(SelectRow { row: 0 }, &[X], &[&[4]], "0 tensors"),
            ]
        }

        /// A classifier of whole samples before the loss of the tokens, as a second loss.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let row = s.node(SelectRow { row: 2 }, &[x], &[]);
                let label = s.integers(Shape::new(DType::I32, &[]).unwrap());
                let params = [s.tensor(&[3, WIDTH]), s.tensor(&[3])];
                s.loss_of(CrossEntropy::with_factor(2.0), &[row, label], &params);
                s.end_layer();
                x
            })]
        }
    }
}
