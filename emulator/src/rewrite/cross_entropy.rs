//! The cross-entropy of a linear layer.

use super::matcher::{Matcher, Replacement};
use crate::graph::{NodeId, ValueId};
use crate::ops::{CrossEntropy, Gather, OpKind, Reduce, Reduction, Softmax, SumLoss};

/// Recognizes the sum over rows of -ln softmax(x wᵀ + b) at the label, times a factor.
pub(super) fn cross_entropy(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let node = &matcher.graph.nodes[root];
    let OpKind::SumLoss(SumLoss { factor }) = node.op else { return None };
    let (&x, weight) = node.inputs.split_first()?;
    let (logs, factor) = summand(matcher, x, factor)?;
    let gather = matcher.inner(logs)?;
    let OpKind::Gather(Gather { axis }) = gather.op else { return None };
    let (logs, index) = (gather.inputs[0], gather.inputs[1]);
    let log_softmax = matcher.inner(logs)?;
    let linear = matcher.inner(*log_softmax.inputs.first()?)?;
    let is_classifier =
        matches!((log_softmax.op, linear.op), (OpKind::Softmax(Softmax { log: true }), OpKind::Linear(_)));
    let shape = matcher.graph.values[logs].shape;
    if !is_classifier || axis + 1 != shape.dimensions().len() {
        return None;
    }
    // One label for each row: an input of that shape, or one that is reshaped only to gather.
    let labels = matcher.attempt(|matcher| {
        let reshape = matcher.inner(index)?;
        let labels = *reshape.inputs.first()?;
        let has_shape = matcher.graph.values[labels].shape == shape.one_integer_per_row();
        (has_shape && matches!(reshape.op, OpKind::Reshape(_))).then_some(labels)
    })?;
    let inputs = [&[linear.inputs[0], labels], weight].concat();
    Some(Replacement::new(CrossEntropy::with_factor(-factor), &inputs, &linear.params))
}

/// Returns the value whose elements `value` is the sum of, and the factor of that sum.
fn summand(matcher: &mut Matcher<'_>, mut value: ValueId, mut factor: f32) -> Option<(ValueId, f32)> {
    // A sum, a product and a change of shape, in any order.
    for _ in 0..4 {
        let product = matcher.product(value);
        factor *= product.number;
        let &[only] = &product.values[..] else { return None };
        let inner = matcher.attempt(|matcher| {
            let node = matcher.inner(only)?;
            let elements = |value: ValueId| matcher.graph.values[value].shape.elements() as f32;
            match node.op {
                OpKind::Reduce(Reduce { reduction: Reduction::Sum, .. }) | OpKind::Reshape(_) => {
                    Some((node.inputs[0], 1.0))
                }
                OpKind::Reduce(Reduce { reduction: Reduction::Mean, .. }) => {
                    Some((node.inputs[0], elements(only) / elements(node.inputs[0])))
                }
                _ => None,
            }
        });
        match inner {
            Some((inner, share)) => (value, factor) = (inner, factor * share),
            None => return Some((only, factor)),
        }
    }
    None
}
