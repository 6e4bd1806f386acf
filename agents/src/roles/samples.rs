//! Decodes samples for a device, as activation servers read and send them.

use millrace_emulator::device::{DeviceError, InputData};
use millrace_emulator::graph::{DType, Graph};
use millrace_emulator::numerics::little_endian;
use millrace_telemetry::journal::OutcomeReason;

use crate::error::AgentError;

/// The samples of a round: one array for each input of the graph, in its order.
pub(super) struct RoundInputs(Vec<Elements>);

/// Why the samples of an activation server can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    #[error("received samples without {0}")]
    Missing(String),
    #[error("received {found} bytes of {name} instead of {expected}")]
    Length { name: String, expected: u64, found: usize },
}

enum Elements {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

impl RoundInputs {
    /// Decodes `samples` samples from the elements of inputs by their names.
    ///
    /// # Errors
    /// An input of the graph is missing, or has another number of bytes. The device checks the elements.
    pub fn decode(graph: &Graph, inputs: &[(&str, &[u8])], samples: u64) -> Result<Self, InputError> {
        let decode = |&id: &usize| {
            let value = &graph.values[id];
            let name = &value.name;
            let input = inputs.iter().find(|(input, _)| input == name);
            let (_, elements) = input.ok_or_else(|| InputError::Missing(name.clone()))?;
            let expected = value.shape.elements().saturating_mul(4).saturating_mul(samples);
            if elements.len() as u64 != expected {
                let found = elements.len();
                return Err(InputError::Length { name: name.clone(), expected, found });
            }
            Ok(match value.shape.dtype() {
                DType::F32 => Elements::F32(decode(elements, little_endian::read_f32)),
                DType::I32 | DType::Bool => Elements::I32(decode(elements, little_endian::read_i32)),
            })
        };
        graph.inputs.iter().map(decode).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the inputs of leaf `index` of `leaves`.
    pub fn of_leaf(&self, index: usize, leaves: usize) -> Vec<InputData<'_>> {
        fn part<T>(values: &[T], index: usize, leaves: usize) -> &[T] {
            let width = values.len() / leaves;
            &values[index * width..][..width]
        }
        let inputs = self.0.iter().map(|elements| match elements {
            Elements::F32(values) => InputData::F32(part(values, index, leaves)),
            Elements::I32(values) => InputData::I32(part(values, index, leaves)),
        });
        inputs.collect()
    }
}

/// Converts an error of the device to a failure. An index that a sample contains is the same in every attempt.
pub(super) fn device_failure(error: DeviceError) -> AgentError {
    match error {
        DeviceError::Index { .. } => AgentError::with_reason(OutcomeReason::BadData, error)
            .hint("compare the data with the classes or the vocabulary of the model"),
        _ => AgentError::local(error),
    }
}

fn decode<T: Clone + Default>(bytes: &[u8], read: fn(&[u8], &mut [T])) -> Vec<T> {
    let mut values = vec![T::default(); bytes.len() / 4];
    read(bytes, &mut values);
    values
}
