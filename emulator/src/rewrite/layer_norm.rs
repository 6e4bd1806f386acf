//! Norms by mean and variance.

use super::matcher::{Matcher, Replacement};
use super::rms_norm::{mean_of_rows, normalized, with_tensor};
use crate::graph::{NodeId, OpNode, TensorId, ValueId};
use crate::ops::{BinaryFunction, LayerNorm};

/// Recognizes (x - mean) / √(variance + ε) · gain + offset, whose mean and variance are those of the last dimension.
pub(super) fn layer_norm(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let (value, offset) = with_tensor(&matcher.graph.nodes[root], BinaryFunction::Add)?;
    let scaled = matcher.inner(value)?;
    let (x, epsilon, gain) = without_offset(matcher, scaled)?;
    Some(Replacement::new(LayerNorm { epsilon }, &[x], &[gain, offset]))
}

/// Recognizes [`layer_norm`] without an offset.
pub(super) fn biasless_layer_norm(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let (x, epsilon, gain) = without_offset(matcher, &matcher.graph.nodes[root])?;
    Some(Replacement::new(LayerNorm { epsilon }, &[x], &[gain]))
}

/// Returns x, ε and the gain if the operator computes (x - mean) / √(variance + ε) · gain.
fn without_offset(matcher: &mut Matcher<'_>, node: &OpNode) -> Option<(ValueId, f32, TensorId)> {
    let (value, gain) = with_tensor(node, BinaryFunction::Mul)?;
    let (centered, epsilon) = normalized(matcher, value)?;
    let [x, mean] = matcher.binary(centered, BinaryFunction::Sub)?;
    (mean_of_rows(matcher, mean)? == x).then_some((x, epsilon, gain))
}
