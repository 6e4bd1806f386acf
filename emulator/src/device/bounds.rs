//! Bounds of integers that index a table: those of inputs are checked when a round begins, those that operators compute
//! before they are used.

use crate::graph::{Graph, OpNode, ValueId};
use crate::ops::Signature;

/// The integers that the operators that read a value accept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Whether negative integers are ignored rather than rejected.
    ignores_negative: bool,
    /// Number of entries of the smallest table that the integers index.
    entries: usize,
}

impl Bounds {
    /// Returns the bounds that follow from all uses of `input`; `None` if no operator restricts it.
    pub fn of(graph: &Graph, input: ValueId) -> Option<Self> {
        let uses = graph.nodes.iter().flat_map(|node| {
            let positions = (0..node.inputs.len()).filter(|&at| node.inputs[at] == input);
            positions.filter_map(|at| Self::of_use(graph, node, at))
        });
        uses.reduce(|a, b| Self {
            ignores_negative: a.ignores_negative && b.ignores_negative,
            entries: a.entries.min(b.entries),
        })
    }

    /// Returns the bounds of input `at` of an operator; `None` if the operator does not restrict it.
    pub fn of_use(graph: &Graph, node: &OpNode, at: usize) -> Option<Self> {
        let operator = node.op.operator();
        let entries = operator.index_bound(&Signature::of(graph, node), at)?;
        Some(Self { ignores_negative: operator.ignores_negative(at), entries })
    }

    fn accepts(self, integer: i32) -> bool {
        usize::try_from(integer).map_or(self.ignores_negative, |index| index < self.entries)
    }

    /// Returns position, value and bound of the first integer outside the bounds.
    pub fn first_outside(self, integers: &[i32]) -> Option<(usize, i32, usize)> {
        let place = integers.iter().position(|&integer| !self.accepts(integer))?;
        Some((place, integers[place], self.entries))
    }
}
