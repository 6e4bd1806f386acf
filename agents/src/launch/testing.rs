//! A local run for tests.

use millrace_params::{FlagOverrides, MachineSpec, Params};

use super::{LaunchDocument, LocalRun};

/// Returns a run of the smallest job on one system.
pub fn local_run() -> LocalRun {
    let params_yaml = "
train_input: {data_processor: SyntheticDataProcessor, batch_size: 4, max_sequence_length: 8}
model: {name: gpt2, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, num_heads: 1, max_position_embeddings: 8}
optimizer: {optimizer_type: SGD, learning_rate: 0.1}
runconfig: {max_steps: 1}
";
    let resolved = Params::parse_yaml(params_yaml).and_then(|params| params.resolve(&FlagOverrides::default()));
    LocalRun::new(LaunchDocument::new(resolved.unwrap(), MachineSpec::default(), params_yaml.into()))
}
