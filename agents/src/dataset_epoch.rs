//! The size of one pass over the training data.

use std::fmt;

use millrace_emulator::report::format_thousands;
use millrace_params::InputSpec;
use schemars::JsonSchema;
use serde::Serialize;

/// An epoch of a job's training data.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct DatasetEpoch {
    /// Number of samples.
    pub samples: u64,
    /// Number of tokens that are trained on.
    pub tokens: u64,
    /// Number of training steps; a fraction if the last batch also has samples of the next epoch.
    pub steps: f64,
}

impl DatasetEpoch {
    /// Computes the epoch of an input with `samples` samples.
    pub fn new(samples: u64, input: &InputSpec) -> Self {
        let tokens = samples.saturating_mul(input.max_sequence_length as u64);
        Self { samples, tokens, steps: samples as f64 / input.batch_size.max(1) as f64 }
    }
}

impl fmt::Display for DatasetEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, tokens) = (format_thousands(self.samples), format_thousands(self.tokens));
        write!(f, "{samples} samples, {tokens} tokens, {:.1} steps", self.steps)
    }
}

#[cfg(test)]
mod tests {
    use millrace_params::{FlagOverrides, Params};

    use super::*;

    #[test]
    fn epoch_is_displayed_in_samples_tokens_and_steps() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gpt2-kjv.yaml");
        let params = Params::parse_yaml(&std::fs::read_to_string(path).unwrap()).unwrap();
        let input = params.resolve(&FlagOverrides::default()).unwrap().job.train_input;
        assert_eq!((input.batch_size, input.max_sequence_length), (8, 256));
        assert_eq!(DatasetEpoch::new(15_012, &input).to_string(), "15,012 samples, 3,843,072 tokens, 1876.5 steps");
    }
}
