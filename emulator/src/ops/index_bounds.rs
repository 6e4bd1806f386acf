//! Bounds of integers that index a table: constants are checked with the graph, inputs when a round begins, and
//! integers that operators compute before they are used.

use super::Signature;
#[cfg(feature = "kernels")]
use crate::graph::ValueId;
use crate::graph::{Graph, OpNode};

/// The integers that the operators that read a value accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IndexBounds {
    /// Whether negative integers are ignored rather than rejected.
    ignores_negative: bool,
    /// Number of entries of the smallest table that the integers index.
    entries: usize,
}

impl IndexBounds {
    /// Returns the bounds that follow from all uses of `input`; `None` if no operator restricts it.
    #[cfg(feature = "kernels")]
    pub fn of(graph: &Graph, input: ValueId) -> Option<Self> {
        let uses = graph.nodes.iter().flat_map(|node| {
            let positions = (0..node.inputs.len()).filter(|&position| node.inputs[position] == input);
            positions.filter_map(|position| Self::of_use(graph, node, position))
        });
        uses.reduce(|a, b| Self {
            ignores_negative: a.ignores_negative && b.ignores_negative,
            entries: a.entries.min(b.entries),
        })
    }

    /// Returns the bounds of input `position` of an operator; `None` if the operator does not restrict it.
    pub fn of_use(graph: &Graph, node: &OpNode, position: usize) -> Option<Self> {
        let operator = node.op.operator();
        let entries = operator.index_bound(&Signature::of(graph, node), position)?;
        Some(Self { ignores_negative: operator.ignores_negative(position), entries })
    }

    fn accepts(self, integer: i32) -> bool {
        usize::try_from(integer).map_or(self.ignores_negative, |index| index < self.entries)
    }

    /// Returns position, value and bound of the first integer outside the bounds.
    pub fn first_outside(self, integers: impl IntoIterator<Item = i32>) -> Option<(usize, i32, usize)> {
        let (position, value) = integers.into_iter().enumerate().find(|(_, integer)| !self.accepts(*integer))?;
        Some((position, value, self.entries))
    }
}
