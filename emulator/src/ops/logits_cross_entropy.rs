//! `(logits [.., V], labels i32 [..], weight []?) -> loss`: the sum over rows with label >= 0 of the cross-entropy of
//! the logits, times a factor. The positions of a sequence may be the classes, as in question answering.

use serde::{Deserialize, Serialize};

use super::{OpError, Operator, SavedForBackward, Signature};
use crate::graph::Shape;

/// See the module documentation. Saves its inputs and the log-sum-exp of each row.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LogitsCrossEntropy {
    /// Weight of this loss in the sum of the graph's losses.
    pub factor: f32,
}

impl Operator for LogitsCrossEntropy {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        io.without_weight(2)?.rows_with_labels()?;
        io.params(&[], 0)?;
        if !self.factor.is_finite() {
            return Err(OpError::Attribute { name: "factor", value: self.factor, range: "finite" });
        }
        Ok(None)
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let (rows, _) = io.input(0);
        SavedForBackward { inputs: &[0, 1], output: false, floats: rows }
    }

    fn index_bound(&self, io: &Signature<'_>, input: usize) -> Option<usize> {
        io.inputs.first().map(|logits| logits.columns()).filter(|_| input == 1)
    }

    fn ignores_negative(&self, input: usize) -> bool {
        input == 1
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input == 0
    }

    fn weight_input(&self) -> Option<usize> {
        Some(2)
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::LogitsCrossEntropy;
    use crate::kernels::loss;
    use crate::ops::execute::{BackwardArgs, Executor, ForwardArgs, OperatorContext, TargetMut};

    impl Executor for LogitsCrossEntropy {
        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let [logits, labels, ..] = io.inputs;
            let mut sums =
                loss::forward_of_logits(context.cx, logits.values(), labels.integers(), io.extra, context.loss);
            sums.loss *= f64::from(self.factor);
            context.sums[0] = sums;
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(gradient, _), ..] = io.targets else { return };
            let [logits, labels, ..] = io.inputs;
            loss::backward_of_logits(context.cx, logits.values(), labels.integers(), io.extra, self.factor, gradient);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::LogitsCrossEntropy;
    use crate::graph::{Graph, Shape};
    use crate::ops::Transpose;
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, X, accepts, f32_shape, rejects,
    };

    const OP: LogitsCrossEntropy = LogitsCrossEntropy { factor: 0.5 };

    impl OperatorTests for LogitsCrossEntropy {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let row = |(row, &label): (&[f64], &f64)| {
                let max = row.iter().fold(f64::MIN, |max, &logit| max.max(logit));
                let sum: f64 = row.iter().map(|logit| (logit - max).exp()).sum();
                if label < 0.0 { 0.0 } else { max + sum.ln() - row[label as usize] }
            };
            let rows = args.inputs[0].chunks(args.io.inputs[0].columns()).zip(args.inputs[1]);
            vec![f64::from(self.factor) * rows.map(row).sum::<f64>()]
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(OP, &[X, TOKENS], &[], None),
                accepts(OP, &[X, TOKENS, f32_shape(&[])], &[], None),
                rejects(OP, &[X, TOKENS, X], &[], "input 2"),
                rejects(OP, &[X, Shape::integers(7)], &[], "input 1"),
                rejects(OP, &[X, TOKENS], &[&[50, 4]], "0 tensors"),
                rejects(LogitsCrossEntropy { factor: f32::NAN }, &[X, TOKENS], &[], "factor"),
            ]
        }

        fn graphs() -> Vec<Graph> {
            // The classes are the columns of each row, and the rows of each column.
            vec![false, true]
                .into_iter()
                .map(|is_transposed| {
                    TestGraph::build(|s, x| {
                        let mut logits = s.linear(x, 7, true);
                        if is_transposed {
                            logits = s.node(Transpose, &[logits], &[]);
                        }
                        let labels = s.labels_of(logits);
                        s.loss_of(OP, &[logits, labels], &[]);
                        s.end_layer();
                        x
                    })
                })
                .collect()
        }
    }
}
