//! Trains a small BERT of each task, a RoBERTa and an ESM-2 for ten steps, and compares the losses with those that
//! PyTorch and `transformers` recorded in `tests/parity/fixtures/encoders`.

mod common;
#[path = "common/recorded.rs"]
mod recorded;

use common::Elements;
use millrace_emulator::families;
use millrace_params::{DecoderOptions, EncoderOptions, ModelSize, ModelSpec};
use recorded::{Recorded, check_names, integers};

const TASKS: [&str; 7] =
    ["pretraining", "masked_tokens", "classifier", "token_classifier", "question_answering", "roberta", "esm2"];

/// The sizes of `tests/parity/make_encoders.py`.
const SIZE: ModelSize =
    ModelSize { vocab_size: 53, hidden_size: 36, num_hidden_layers: 2, num_heads: 3, max_position_embeddings: 50 };
const FILTER_SIZE: usize = 60;

#[test]
fn ten_steps_of_every_task_agree_with_transformers() {
    for task in TASKS {
        let recorded = Recorded::read("encoders", task);
        let options: EncoderOptions = serde_json::from_value(recorded.json["encoder"].clone()).unwrap();
        let positions = serde_json::from_value(recorded.json["positions"].clone()).unwrap();
        let decoder = DecoderOptions { positions, ..DecoderOptions::default() };
        let spec = ModelSpec { filter_size: FILTER_SIZE, encoder: Some(options), decoder, ..ModelSpec::gpt2(SIZE) };
        let input_ids = recorded.json["inputs"]["input_ids"].as_array().unwrap();
        let graph = families::graph(&spec, input_ids[0].as_array().unwrap().len()).unwrap();
        let input = |&input: &usize| Elements::I32(integers(&recorded.json["inputs"][&graph.values[input].name]));
        let inputs = graph.inputs.iter().map(input).collect();
        recorded.compare(graph, inputs, input_ids.len(), input_ids.len() as f64);
    }
}

#[test]
fn every_fixture_is_compared() {
    check_names("encoders", &TASKS);
}
