//! Gated linear units.

use millrace_params::Nonlinearity;

use super::matcher::{Matcher, Replacement, binary_operands};
use crate::graph::NodeId;
use crate::ops::{Activation, BinaryFunction, Gate, OpKind};

/// Recognizes f(gate) · value.
pub(super) fn gate(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let [a, b] = binary_operands(&matcher.graph.nodes[root], BinaryFunction::Mul)?;
    [(a, b), (b, a)].into_iter().find_map(|(activated, value)| {
        matcher.attempt(|matcher| {
            let node = matcher.inner(activated)?;
            match node.op {
                OpKind::Activation(Activation { kind }) if kind != Nonlinearity::Identity && activated != value => {
                    Some(Replacement::new(Gate { kind }, &[node.inputs[0], value], &[]))
                }
                _ => None,
            }
        })
    })
}
