//! The samples of a round: checked when the round begins, then read by operators. The graph's constants beside them.

use std::ops::Range;

use super::{DeviceError, InputData, LeafInput};
use crate::graph::{Constant, DType, Graph, ValueId};
use crate::ops::IndexBounds;
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
    /// One for each constant of the graph.
    constants: Vec<RepeatedConstant>,
}

/// A constant, once for each sample of a leaf.
#[derive(Debug)]
struct RepeatedConstant {
    /// Elements per sample.
    elements: usize,
    data: Elements,
}

impl RepeatedConstant {
    fn new(graph: &Graph, constant: &Constant, samples: usize) -> Self {
        let shape = graph.values[constant.value].shape;
        let data = match shape.dtype() {
            DType::F32 => Elements::F32(bytemuck::cast_slice(&constant.bits).repeat(samples)),
            DType::I32 | DType::Bool => Elements::I32(bytemuck::cast_slice(&constant.bits).repeat(samples)),
        };
        Self { elements: shape.elements() as usize, data }
    }
}

/// One input of all leaves of a round.
#[derive(Debug)]
struct RoundInput {
    name: String,
    /// Elements per sample.
    elements: usize,
    /// Elements per leaf of this round.
    width: usize,
    bounds: Option<IndexBounds>,
    data: Elements,
}

#[derive(Debug)]
enum Elements {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl Elements {
    fn part(&self, range: Range<usize>) -> OperatorInput<'_> {
        match self {
            Self::F32(numbers) => OperatorInput::Values(&numbers[range]),
            Self::I32(integers) => OperatorInput::Integers(&integers[range]),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::F32(numbers) => size_of::<f32>() * numbers.capacity(),
            Self::I32(integers) => size_of::<i32>() * integers.capacity(),
        }
    }
}

impl RoundSamples {
    /// Creates memory for the inputs of `graph`, and the constants for leaves of up to `samples` samples.
    pub fn new(graph: &Graph, samples: usize) -> Self {
        let input = |&id: &ValueId| {
            let value = &graph.values[id];
            let is_float = value.shape.dtype() == DType::F32;
            RoundInput {
                name: value.name.clone(),
                elements: value.shape.elements() as usize,
                width: 0,
                bounds: IndexBounds::of(graph, id),
                data: if is_float { Elements::F32(Vec::new()) } else { Elements::I32(Vec::new()) },
            }
        };
        let constants = graph.constants.iter().map(|constant| RepeatedConstant::new(graph, constant, samples));
        Self { leaves: Vec::new(), inputs: graph.inputs.iter().map(input).collect(), constants: constants.collect() }
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

    /// Returns input `input` of the leaves at positions `leaves` of the round.
    pub fn of(&self, input: usize, leaves: Range<usize>) -> OperatorInput<'_> {
        let RoundInput { data, width, .. } = &self.inputs[input];
        data.part(leaves.start * width..leaves.end * width)
    }

    /// Returns the numbers of the leaves of the round, which follow one another.
    pub fn leaf_range(&self) -> Range<u32> {
        self.leaves.first().map_or(0..0, |first| first.leaf..first.leaf + self.leaves.len() as u32)
    }

    /// Returns a constant, once for each of `samples` samples.
    pub fn constant(&self, constant: usize, samples: usize) -> OperatorInput<'_> {
        let RepeatedConstant { elements, data } = &self.constants[constant];
        data.part(0..elements * samples)
    }

    pub fn bytes(&self) -> usize {
        let inputs = self.inputs.iter().map(|input| input.data.bytes());
        inputs.chain(self.constants.iter().map(|constant| constant.data.bytes())).sum()
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
                    if let Some((element, value, entries)) =
                        self.bounds.and_then(|bounds| bounds.first_outside(data.iter().copied()))
                    {
                        return Err(DeviceError::Index {
                            leaf: leaf.leaf,
                            input: input(),
                            value,
                            position: element,
                            entries,
                        });
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
