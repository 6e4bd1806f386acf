//! Norms by the root of the mean square.

use super::activation::is_power;
use super::matcher::{Matcher, Replacement};
use crate::graph::{NodeId, OpNode, TensorId, ValueId};
use crate::ops::{Binary, BinaryFunction, OpKind, Reduce, Reduction, RmsNorm, UnaryFunction};

/// Recognizes x / √(mean(x²) + ε) · gain, whose mean is that of the last dimension.
pub(super) fn rms_norm(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let node = &matcher.graph.nodes[root];
    let (normalized_value, gain) = with_tensor(node, BinaryFunction::Mul)?;
    let (x, epsilon) = normalized(matcher, normalized_value)?;
    Some(Replacement::new(RmsNorm { epsilon }, &[x], &[gain]))
}

/// Returns a and the tensor b if the operator is the function of a value a and a tensor b.
pub(super) fn with_tensor(node: &OpNode, expected: BinaryFunction) -> Option<(ValueId, TensorId)> {
    match (node.op, &node.inputs[..], &node.params[..]) {
        (OpKind::Binary(Binary { function }), &[a], &[b]) if function == expected => Some((a, b)),
        _ => None,
    }
}

/// Returns x and ε if `value` is x / √(mean(x²) + ε), whose mean is that of the last dimension.
pub(super) fn normalized(matcher: &mut Matcher<'_>, value: ValueId) -> Option<(ValueId, f32)> {
    matcher.attempt(|matcher| multiplied(matcher, value)).or_else(|| {
        let [x, root] = matcher.binary(value, BinaryFunction::Div)?;
        let sum = matcher.unary(root, UnaryFunction::Sqrt)?;
        Some((x, epsilon_of(matcher, sum, x)?))
    })
}

/// Returns x and ε if `value` is x times the reciprocal of √(mean(x²) + ε).
fn multiplied(matcher: &mut Matcher<'_>, value: ValueId) -> Option<(ValueId, f32)> {
    let [a, b] = matcher.binary(value, BinaryFunction::Mul)?;
    [(a, b), (b, a)].into_iter().find_map(|(x, factor)| {
        matcher.attempt(|matcher| {
            let sum = matcher.unary(factor, UnaryFunction::Rsqrt).or_else(|| {
                let root = matcher.unary(factor, UnaryFunction::Reciprocal)?;
                matcher.unary(root, UnaryFunction::Sqrt)
            })?;
            Some((x, epsilon_of(matcher, sum, x)?))
        })
    })
}

/// Returns ε if `sum` is mean(x²) + ε.
fn epsilon_of(matcher: &mut Matcher<'_>, sum: ValueId, x: ValueId) -> Option<f32> {
    let [a, b] = matcher.binary(sum, BinaryFunction::Add)?;
    let (mean, epsilon) =
        [(a, b), (b, a)].into_iter().find_map(|(mean, number)| Some((mean, matcher.number(number)?)))?;
    let square = mean_of_rows(matcher, mean)?;
    let is_square = matcher.unary(square, UnaryFunction::Square) == Some(x)
        || matcher.binary(square, BinaryFunction::Mul) == Some([x; 2])
        || is_power(matcher, square, x, 2.0);
    is_square.then_some(epsilon)
}

/// Returns x if `value` is the mean of each row of x, as rows of one element.
pub(super) fn mean_of_rows(matcher: &mut Matcher<'_>, value: ValueId) -> Option<ValueId> {
    matcher.attempt(|matcher| {
        let node = matcher.inner(value)?;
        let OpKind::Reduce(Reduce { reduction: Reduction::Mean, axes, keep: true }) = node.op else { return None };
        let last = matcher.graph.values[node.inputs[0]].shape.dimensions().len().checked_sub(1)?;
        (*axes == [last]).then_some(node.inputs[0])
    })
}
