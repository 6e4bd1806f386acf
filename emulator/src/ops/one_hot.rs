//! `(index i32 [..]) -> [.., C]`: 1 at the index, 0 elsewhere.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::{DType, Shape};

/// See the module documentation. There is no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OneHot {
    /// Number of possible indices.
    pub classes: usize,
}

impl Operator for OneHot {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [index] = io.inputs([DType::I32])?;
        io.params(&[], 0)?;
        let max = index.dimensions().len();
        index.with_features(self.classes).map(Some).ok_or(OpError::TooManyDimensions { input: 0, max })
    }

    fn index_bound(&self, _: &Signature<'_>, _: usize) -> Option<usize> {
        Some(self.classes)
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::OneHot;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext};

    impl Executor for OneHot {
        fn forward(&self, _: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            io.output.fill(0.0);
            for (row, index) in io.output.chunks_exact_mut(self.classes).zip(io.inputs[0].integers()) {
                row[*index as usize] = 1.0;
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::OneHot;
    use crate::graph::{DType, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, WIDTH, X, accepts, f32_shape, rejects,
    };

    impl OperatorTests for OneHot {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let row = |&index: &f64| (0..self.classes).map(move |class| f64::from(u8::from(class as f64 == index)));
            args.inputs[0].iter().flat_map(row).collect()
        }

        fn shape_cases() -> Vec<ShapeCase> {
            let op = OneHot { classes: 3 };
            vec![
                accepts(op, &[TOKENS], &[], f32_shape(&[8, 3])),
                rejects(op, &[Shape::new(DType::I32, &[1; 6]).unwrap()], &[], "more than is supported"),
                rejects(op, &[X], &[], "type i32"),
                rejects(op, &[TOKENS], &[&[4]], "0 tensors"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let index = s.labels_of(x);
                let factor = s.node(OneHot { classes: WIDTH }, &[index], &[]);
                let y = s.mul(x, factor);
                s.add(x, y)
            })]
        }
    }
}
