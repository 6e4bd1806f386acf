//! The samples of a round: checked when the round begins, then read by operators.

use super::{DeviceError, InputData, LeafInput};
use crate::graph::{DType, Graph, ValueId};
use crate::ops::Signature;
use crate::ops::execute::OperatorInput;

#[derive(Clone, Copy, Debug)]
pub(super) struct RoundLeaf {
    pub leaf: u32,
    pub first_sample: u64,
}

/// The samples of a round. Memory is reused from round to round.
#[derive(Debug)]
pub(super) struct RoundSamples {
    pub leaves: Vec<RoundLeaf>,
    /// One for each input of the graph.
    inputs: Vec<RoundInput>,
}

/// One input of all leaves of a round.
#[derive(Debug)]
struct RoundInput {
    name: String,
    /// Elements per sample.
    elements: usize,
    /// Elements per leaf of this round.
    width: usize,
    bounds: Option<Bounds>,
    data: Elements,
}

#[derive(Debug)]
enum Elements {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

/// The integers that the operators that read an input accept.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Whether negative integers are ignored rather than rejected.
    ignores_negative: bool,
    /// Number of entries of the smallest table that the integers index.
    entries: usize,
}

impl Bounds {
    /// Returns the bounds that follow from all uses of `input`; `None` if no operator restricts it.
    fn of(graph: &Graph, input: ValueId) -> Option<Self> {
        let uses = graph.nodes.iter().flat_map(|node| {
            let positions = (0..node.inputs.len()).filter(|&at| node.inputs[at] == input);
            positions.filter_map(|at| {
                let operator = node.op.operator();
                let entries = operator.index_bound(&Signature::of(graph, node), at)?;
                Some(Self { ignores_negative: operator.ignores_negative(at), entries })
            })
        });
        uses.reduce(|a, b| Self {
            ignores_negative: a.ignores_negative && b.ignores_negative,
            entries: a.entries.min(b.entries),
        })
    }

    fn accepts(self, integer: i32) -> bool {
        usize::try_from(integer).map_or(self.ignores_negative, |index| index < self.entries)
    }
}

impl RoundSamples {
    pub fn new(graph: &Graph) -> Self {
        let input = |&id: &ValueId| {
            let value = &graph.values[id];
            let is_float = value.shape.dtype() == DType::F32;
            RoundInput {
                name: value.name.clone(),
                elements: value.shape.elements() as usize,
                width: 0,
                bounds: Bounds::of(graph, id),
                data: if is_float { Elements::F32(Vec::new()) } else { Elements::I32(Vec::new()) },
            }
        };
        Self { leaves: Vec::new(), inputs: graph.inputs.iter().map(input).collect() }
    }

    /// Checks and copies the samples of a round whose leaves have `samples` samples each.
    pub fn take(&mut self, leaves: &[LeafInput<'_>], samples: usize) -> Result<(), DeviceError> {
        self.leaves.clear();
        let expected = self.inputs.len();
        if let Some(leaf) = leaves.iter().find(|leaf| leaf.inputs.len() != expected) {
            return Err(DeviceError::Inputs { leaf: leaf.leaf, expected, found: leaf.inputs.len() });
        }
        for (position, input) in self.inputs.iter_mut().enumerate() {
            input.take(leaves, position, samples)?;
        }
        self.leaves.extend(leaves.iter().map(|leaf| RoundLeaf { leaf: leaf.leaf, first_sample: leaf.first_sample }));
        Ok(())
    }

    /// Returns input `input` of the leaf at position `at` of the round.
    pub fn of(&self, input: usize, at: usize) -> OperatorInput<'_> {
        let RoundInput { data, width, .. } = &self.inputs[input];
        match data {
            Elements::F32(numbers) => OperatorInput::Values(&numbers[at * width..][..*width]),
            Elements::I32(integers) => OperatorInput::Integers(&integers[at * width..][..*width]),
        }
    }

    pub fn bytes(&self) -> usize {
        let bytes = |input: &RoundInput| match &input.data {
            Elements::F32(numbers) => size_of::<f32>() * numbers.capacity(),
            Elements::I32(integers) => size_of::<i32>() * integers.capacity(),
        };
        self.inputs.iter().map(bytes).sum()
    }
}

impl RoundInput {
    /// Checks and copies the input at `position` of each leaf.
    fn take(&mut self, leaves: &[LeafInput<'_>], position: usize, samples: usize) -> Result<(), DeviceError> {
        self.width = self.elements * samples;
        match &mut self.data {
            Elements::F32(numbers) => numbers.clear(),
            Elements::I32(integers) => integers.clear(),
        }
        for leaf in leaves {
            let input = || self.name.clone();
            let data = leaf.inputs[position];
            if data.len() != self.width {
                let (leaf, expected, found) = (leaf.leaf, self.width, data.len());
                return Err(DeviceError::Samples { leaf, input: input(), expected, found });
            }
            match (&mut self.data, data) {
                (Elements::F32(numbers), InputData::F32(data)) => numbers.extend_from_slice(data),
                (Elements::I32(integers), InputData::I32(data)) => {
                    if let Some((place, value, entries)) = self.bounds.and_then(|bounds| first_outside(bounds, data)) {
                        return Err(DeviceError::Index { leaf: leaf.leaf, input: input(), value, place, entries });
                    }
                    integers.extend_from_slice(data);
                }
                (Elements::F32(_), InputData::I32(_)) | (Elements::I32(_), InputData::F32(_)) => {
                    return Err(DeviceError::InputType { leaf: leaf.leaf, input: input() });
                }
            }
        }
        Ok(())
    }
}

/// Returns position, value and bound of the first integer outside the bounds.
fn first_outside(bounds: Bounds, integers: &[i32]) -> Option<(usize, i32, usize)> {
    let place = integers.iter().position(|&integer| !bounds.accepts(integer))?;
    Some((place, integers[place], bounds.entries))
}
