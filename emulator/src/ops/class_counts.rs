//! `(logits [.., C], labels i32 [..]) -> [3, C]`: for each class, the number of rows with label >= 0 that have the
//! class and are predicted to, that are predicted to, and that have it. The predicted class has the highest logit, the
//! first of equal ones. F1 scores are computed from the sums.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, Signature};
use crate::graph::Shape;

/// See the module documentation. There is no gradient.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClassCounts;

impl Operator for ClassCounts {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let logits = io.rows_with_labels()?;
        io.params(&[], 0)?;
        Ok(Some(Shape::matrix(3, logits.columns())))
    }

    fn index_bound(&self, io: &Signature<'_>, input: usize) -> Option<usize> {
        io.inputs.first().map(|logits| logits.columns()).filter(|_| input == 1)
    }

    fn ignores_negative(&self, input: usize) -> bool {
        input == 1
    }

    fn has_input_gradient(&self, _: usize) -> bool {
        false
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::ClassCounts;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext};

    impl Executor for ClassCounts {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let (rows, classes) = (io.shape.rows(), io.shape.columns());
            let [logits, labels, ..] = io.inputs;
            io.output.fill(0.0);
            let samples = logits.values().chunks_exact(rows * classes).zip(labels.integers().chunks_exact(rows));
            debug_assert_eq!(samples.len(), context.samples);
            for ((logits, labels), counts) in samples.zip(io.output.chunks_exact_mut(3 * classes)) {
                for (logits, &label) in logits.chunks_exact(classes).zip(labels) {
                    let Ok(label) = usize::try_from(label) else { continue };
                    let predicted = highest(logits);
                    counts[classes + predicted] += 1.0;
                    counts[2 * classes + label] += 1.0;
                    if predicted == label {
                        counts[label] += 1.0;
                    }
                }
            }
        }

        fn backward(&self, _: &mut OperatorContext<'_>, _: BackwardArgs<'_>) {}
    }

    /// Returns the position of the highest number, the first of equal ones.
    fn highest(numbers: &[f32]) -> usize {
        let higher = |best: usize, (index, number): (usize, &f32)| if *number > numbers[best] { index } else { best };
        numbers.iter().enumerate().fold(0, higher)
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::ClassCounts;
    use crate::graph::{Axes, Graph, Shape};
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, f32_shape, rejects,
    };
    use crate::ops::{Reduce, Reduction};

    impl OperatorTests for ClassCounts {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let classes = args.io.inputs[0].columns();
            let mut counts = vec![0.0; 3 * classes];
            for (row, &label) in args.inputs[0].chunks(classes).zip(args.inputs[1]).filter(|(_, label)| **label >= 0.0)
            {
                let max = row.iter().fold(f64::MIN, |max, &logit| max.max(logit));
                let predicted = row.iter().position(|&logit| logit == max).unwrap();
                counts[classes + predicted] += 1.0;
                counts[2 * classes + label as usize] += 1.0;
                counts[label as usize] += f64::from(u8::from(predicted == label as usize));
            }
            counts
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(ClassCounts, &[X, TOKENS], &[], f32_shape(&[3, 4])),
                rejects(ClassCounts, &[X, Shape::integers(7)], &[], "input 1"),
                rejects(ClassCounts, &[X, TOKENS], &[&[4]], "0 tensors"),
            ]
        }

        /// A factor that is the number of rows of each class.
        fn graphs() -> Vec<Graph> {
            vec![TestGraph::build(|s, x| {
                let labels = s.labels_of(x);
                let counts = s.node(ClassCounts, &[x, labels], &[]);
                let axes = Axes::new(&[0]).unwrap();
                let factor = s.node(Reduce { reduction: Reduction::Sum, axes, keep: false }, &[counts], &[]);
                s.mul(x, factor)
            })]
        }
    }
}
