//! `(x [rows x H], labels [rows x 1]; weight [V, H], bias [V]?) -> loss`: the sum over rows with label >= 0 of the
//! cross-entropy of `x weight^T + bias`, in blocks of the vocabulary. Ends the graph.

use super::{Flops, OpError, Operator, SavedForBackward, Shape, Signature};
use crate::graph::ValueType;

/// Vocabulary entries whose logits exist at the same time.
pub const VOCABULARY_BLOCK: usize = 2048;

/// See the module documentation. Saves its inputs and the log-sum-exp of each row; the backward pass recomputes the
/// logits, block by block.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy;

impl Operator for CrossEntropy {
    fn name(&self) -> &'static str {
        "CrossEntropy"
    }

    fn output(&self, io: &Signature<'_>) -> Result<Option<Shape>, OpError> {
        let [x, labels] = io.inputs([ValueType::Float, ValueType::Token])?;
        let expected = Shape::tokens(x.rows);
        if labels != expected {
            return Err(OpError::InputShape { input: 1, expected, found: labels });
        }
        let entries = io.matrix_dimension(0, 0)?;
        io.params(&[&[entries, x.columns], &[entries]], 1)?;
        Ok(None)
    }

    fn flops(&self, io: &Signature<'_>) -> Flops {
        let ((rows, columns), (entries, _)) = (io.input(0), io.matrix(0));
        Flops::product(rows, columns, entries)
    }

    fn saved(&self, io: &Signature<'_>) -> SavedForBackward {
        let (rows, _) = io.input(0);
        SavedForBackward { inputs: &[0, 1], output: false, floats: rows }
    }

    fn has_input_gradient(&self, input: usize) -> bool {
        input == 0
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
    use crate::kernels::loss::{self, Classifier, ClassifierInput, LossGradients};
    use crate::ops::execute::{
        BackwardArgs, Executor, ForwardArgs, NodeShape, OperatorContext, OperatorWeights, TargetMut,
    };

    fn classifier<'a>(shape: &NodeShape, weights: &OperatorWeights<'a>) -> Classifier<'a> {
        let (vocabulary, hidden) = shape.matrix();
        Classifier { weights: weights.tensors[0], vocabulary, hidden, bias: weights.bias(shape) }
    }

    impl Executor for CrossEntropy {
        fn forward(&self, kit: &mut OperatorContext<'_>, io: ForwardArgs<'_>) {
            let classifier = classifier(io.shape, &io.weights);
            let [x, labels] = io.inputs;
            let tokens = ClassifierInput { x: x.values(), labels: labels.tokens() };
            *kit.sums = loss::forward(kit.cx, &classifier, tokens, io.extra, io.scratch, kit.loss);
        }

        fn backward(&self, kit: &mut OperatorContext<'_>, io: BackwardArgs<'_>) {
            let [TargetMut::Memory(dx, _), _] = io.targets else { return };
            let classifier = classifier(io.shape, &io.weights);
            let [x, labels] = io.inputs;
            let tokens = ClassifierInput { x: x.values(), labels: labels.tokens() };
            let [weight, bias] = io.tensors;
            let accumulate = weight.as_ref().map_or(Accumulate::Store, |weight| weight.accumulate);
            let gradients =
                LossGradients { dx, dweights: weight.map(|g| g.data), dbias: bias.map(|g| g.data), accumulate };
            loss::backward(kit.cx, &classifier, tokens, io.extra, gradients, io.scratch, kit.loss);
        }
    }
}
