//! `(x [.., H], labels [..], weight []?; table [V, H], bias [V]?) -> loss`: the sum over rows with label >= 0 of the
//! cross-entropy of `x table^T + bias`, in blocks of the vocabulary, times a factor.

use serde::{Deserialize, Serialize};

use super::operator::check_softcap;
use super::{Flops, OpError, Operator, RowDependency, SavedForBackward, Signature};
use crate::graph::{DType, Shape};

/// Vocabulary entries whose logits exist at the same time.
pub const VOCABULARY_BLOCK: usize = 2048;

/// Maximum logits of a sample that are saved, 4 MiB: as much as a few activations of a layer. Without them, the
/// backward pass computes three products instead of two.
const MAX_SAVED_LOGITS: u64 = 1 << 20;

/// See the module documentation. Saves its inputs, the log-sum-exp of each row, and the logits of a large vocabulary if
/// a sample has few rows; otherwise the backward pass recomputes the logits, block by block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CrossEntropy {
    /// Weight of this loss in the sum of the graph's losses.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub factor: f32,
    /// Bound of the logits: a logit l becomes `softcap` tanh(l / `softcap`). `None` for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softcap: Option<f32>,
}

impl CrossEntropy {
    /// Returns the loss with factor 1.
    pub const fn new() -> Self {
        Self::with_factor(1.0)
    }

    /// Returns the loss times a factor.
    pub const fn with_factor(factor: f32) -> Self {
        Self { factor, softcap: None }
    }
}

impl Default for CrossEntropy {
    fn default() -> Self {
        Self::new()
    }
}

const fn one() -> f32 {
    1.0
}

#[allow(clippy::trivially_copy_pass_by_ref, clippy::float_cmp, reason = "serde's signature; exactly the default")]
fn is_one(factor: &f32) -> bool {
    *factor == 1.0
}

impl Operator for CrossEntropy {
    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x, labels] = io.without_weight(2)?.inputs([DType::F32, DType::I32])?;
        let expected = x.one_integer_per_row();
        if labels != expected {
            return Err(OpError::input_shape(1, expected, labels));
        }
        let entries = io.matrix_dimension(0, 0)?;
        io.params(&[&[entries, x.columns()], &[entries]], 1)?;
        if !self.factor.is_finite() {
            return Err(OpError::Attribute { name: "factor", value: self.factor, range: "finite" });
        }
        check_softcap(self.softcap)?;
        Ok(None)
    }

    fn row_dependency(&self) -> RowDependency {
        RowDependency::Same
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        let ((rows, columns), (entries, _)) = (io.input(0), io.matrix(0));
        Flops::product(rows, columns, entries)
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let (rows, _) = io.input(0);
        let logits = rows * io.matrix(0).0;
        // With a vocabulary of one block, the products are a small part of a model.
        let saves_logits = io.matrix(0).0 > VOCABULARY_BLOCK as u64 && logits <= MAX_SAVED_LOGITS;
        SavedForBackward { inputs: &[0, 1], output: false, floats: rows + if saves_logits { logits } else { 0 } }
    }

    fn index_bound(&self, io: &Signature<'_>, input: usize) -> Option<usize> {
        io.matrix_dimension(0, 0).ok().filter(|_| input == 1)
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

    fn backward_reads_param(&self, _: usize) -> bool {
        true
    }

    fn scratch(&self, io: &Signature<'_>) -> u64 {
        let ((rows, _), (entries, _)) = (io.input(0), io.matrix(0));
        rows * entries.min(VOCABULARY_BLOCK as u64)
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::CrossEntropy;
    use crate::kernels::Accumulate;
    use crate::kernels::loss::{self, Classifier, ClassifierInput, LossGradients, SavedLosses};
    use crate::ops::execute::{
        BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, OperatorWeights, TargetMut,
    };

    impl CrossEntropy {
        fn classifier<'a>(&self, shape: &NodeShape, weights: &OperatorWeights<'a>) -> Classifier<'a> {
            let (vocabulary, hidden) = shape.matrix();
            let (weights, bias) = (weights.tensors[0], weights.bias(shape));
            Classifier { weights, vocabulary, hidden, bias, softcap: self.softcap }
        }
    }

    impl Executor for CrossEntropy {
        fn spans_leaves(&self) -> bool {
            true
        }

        fn forward(&self, context: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let classifier = self.classifier(io.shape, &io.weights);
            let [x, labels, ..] = io.inputs;
            let tokens = ClassifierInput { x: x.values(), labels: labels.integers() };
            let (lse, saved) = io.extra.split_at_mut(tokens.labels.len());
            let logits = if saved.is_empty() { io.scratch } else { saved };
            loss::forward(context.cx, &classifier, tokens, lse, logits, context.sums, context.loss);
            context.sums.iter_mut().for_each(|sums| sums.loss *= f64::from(self.factor));
        }

        fn backward(&self, context: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [target, ..] = io.targets;
            let dx = if let TargetMut::Memory(dx, _) = target { Some(dx) } else { None };
            let classifier = self.classifier(io.shape, &io.weights);
            let [x, labels, ..] = io.inputs;
            let tokens = ClassifierInput { x: x.values(), labels: labels.integers() };
            let [weight, bias] = io.tensors;
            let accumulate = weight.as_ref().map_or(Accumulate::Store, |weight| weight.accumulate);
            let (dweights, dbias) = (weight.map(|g| g.data), bias.map(|g| g.data));
            let leaves = context.leaves;
            let gradients = LossGradients { dx, dweights, dbias, leaves, accumulate, factor: self.factor };
            let (lse, logits) = io.extra.split_at(tokens.labels.len());
            let saved = SavedLosses { lse, logits: Some(logits).filter(|logits| !logits.is_empty()) };
            loss::backward(context.cx, &classifier, tokens, saved, gradients, io.scratch, context.loss);
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::CrossEntropy;
    use crate::graph::Graph;
    use crate::graph::Shape;
    use crate::ops::testing::{
        OperatorTests, ReferenceArgs, ShapeCase, TOKENS, TestGraph, VOCABULARY, WIDTH, X, accepts, f32_shape, rejects,
    };
    use crate::ops::{Operator, Signature};

    impl OperatorTests for CrossEntropy {
        fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64> {
            let (mut logits, labels) = (args.product(), args.inputs[1]);
            let row = |(row, &label): (&[f64], &f64)| {
                let max = row.iter().fold(f64::MIN, |max, &logit| max.max(logit));
                let sum: f64 = row.iter().map(|logit| (logit - max).exp()).sum();
                if label < 0.0 { 0.0 } else { max + sum.ln() - row[label as usize] }
            };
            let cap = |logit: &mut f64| {
                let Some(cap) = self.softcap.map(f64::from) else { return };
                *logit = cap * (*logit / cap).tanh();
            };
            logits.iter_mut().for_each(cap);
            let sum: f64 = logits.chunks(logits.len() / labels.len()).zip(labels).map(row).sum();
            vec![f64::from(self.factor) * sum]
        }

        fn shape_cases() -> Vec<ShapeCase> {
            vec![
                accepts(CrossEntropy::new(), &[X, TOKENS], &[&[50, 4]], None),
                accepts(CrossEntropy::new(), &[X, TOKENS], &[&[50, 4], &[50]], None),
                accepts(CrossEntropy::new(), &[X, TOKENS, f32_shape(&[])], &[&[50, 4]], None),
                rejects(CrossEntropy::new(), &[X, TOKENS, TOKENS], &[&[50, 4]], "input 2"),
                rejects(CrossEntropy::new(), &[X, Shape::integers(7)], &[&[50, 4]], "input 1"),
                rejects(CrossEntropy::with_factor(f32::NAN), &[X, TOKENS], &[&[50, 4]], "factor"),
                rejects(
                    CrossEntropy { softcap: Some(0.0), ..CrossEntropy::new() },
                    &[X, TOKENS],
                    &[&[50, 4]],
                    "softcap",
                ),
            ]
        }

        fn graphs() -> Vec<Graph> {
            let two_losses = TestGraph::build(|s, x| {
                let y = s.linear(x, WIDTH, true);
                let params = [s.tensor(&[VOCABULARY, WIDTH]), s.tensor(&[VOCABULARY])];
                s.loss(CrossEntropy { factor: 0.3, softcap: Some(1.5) }, y, &params);
                s.end_layer();
                s.linear(y, WIDTH, false)
            });
            vec![TestGraph::build_with_head(false, |_, x| x), TestGraph::build_with_head(true, |_, x| x), two_losses]
        }
    }

    #[test]
    fn logits_are_saved_for_few_rows_of_many_words() {
        let floats = |rows: usize, words: usize| {
            let inputs = vec![Shape::matrix(rows, 4), Shape::integers(rows)];
            CrossEntropy::new().saved(&Signature { inputs, params: vec![&[words, 4]] }).floats
        };
        assert_eq!(floats(20, 30_522), 20 + 20 * 30_522);
        assert_eq!(floats(1024, 50_257), 1024);
        assert_eq!(floats(20, 2048), 20);
    }
}
