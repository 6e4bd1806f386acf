//! Norms by the root of the mean square.

use super::activation::is_power;
use super::matcher::{Matcher, Replacement};
use crate::graph::{NodeId, ValueId};
use crate::ops::{Binary, BinaryFunction, OpKind, Reduce, Reduction, RmsNorm, UnaryFunction};

/// Recognizes x / √(mean(x²) + ε) · gain, whose mean is that of the last dimension.
pub(super) fn rms_norm(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let node = &matcher.graph.nodes[root];
    let (&[normalized], &[gain]) = (&node.inputs[..], &node.params[..]) else { return None };
    if !matches!(node.op, OpKind::Binary(Binary { function: BinaryFunction::Mul })) {
        return None;
    }
    let (x, epsilon) = matcher.attempt(|matcher| multiplied(matcher, normalized)).or_else(|| {
        let [x, root] = matcher.binary(normalized, BinaryFunction::Div)?;
        let sum = matcher.unary(root, UnaryFunction::Sqrt)?;
        Some((x, epsilon_of(matcher, sum, x)?))
    })?;
    Some(Replacement::new(RmsNorm { epsilon }, &[x], &[gain]))
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
    let node = matcher.inner(mean)?;
    let last = matcher.graph.values[x].shape.dimensions().len().checked_sub(1)?;
    let OpKind::Reduce(Reduce { reduction: Reduction::Mean, axes, keep: true }) = node.op else { return None };
    let square = node.inputs[0];
    let is_square = matcher.unary(square, UnaryFunction::Square) == Some(x)
        || matcher.binary(square, BinaryFunction::Mul) == Some([x; 2])
        || is_power(matcher, square, x, 2.0);
    (is_square && *axes == [last]).then_some(epsilon)
}
