//! Trains small models with an encoder and a decoder for ten steps, and compares their losses with those that PyTorch
//! and `transformers` recorded in `tests/parity/fixtures/seq2seq`.

mod common;
#[path = "common/recorded.rs"]
mod recorded;

use common::Elements;
use millrace_emulator::families;
use millrace_params::{FlagOverrides, ModelSpec, Params};
use recorded::{LEARNING_RATE, Recorded, check_names, integers};
use serde_json::{Value, json};

const MODELS: [&str; 3] = ["t5", "t5_gated", "transformer"];

/// Resolves a section `model` for sequences of these lengths.
fn model_spec(model: &Value, source: usize, target: usize) -> ModelSpec {
    let document = json!({
        "train_input": {"data_processor": "T5DynamicDataProcessor", "batch_size": 3,
            "src_data_dir": "x", "src_vocab_file": "x", "src_max_sequence_length": source,
            "tgt_max_sequence_length": target},
        "model": model,
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": LEARNING_RATE},
        "runconfig": {"max_steps": 1},
    });
    Params::read_json(&document).unwrap().resolve(&FlagOverrides::default()).unwrap().job.model
}

#[test]
fn ten_steps_of_every_model_agree_with_the_recorded_ones() {
    for model in MODELS {
        let recorded = Recorded::read("seq2seq", model);
        let integers_of = |name: &str| integers(&recorded.json["inputs"][name]);
        let batch = recorded.json["inputs"]["labels"].as_array().unwrap().len();
        let [source, target] = ["input_ids", "labels"].map(|name| integers_of(name).len() / batch);
        let tokens = integers_of("labels").iter().filter(|label| **label >= 0).count();
        let spec = model_spec(&recorded.json["model"], source, target);
        let graph = families::graph(&spec, source).unwrap();
        let inputs = graph.inputs.iter().map(|input| Elements::I32(integers_of(&graph.values[*input].name))).collect();
        recorded.compare(graph, inputs, batch, tokens as f64);
    }
}

#[test]
fn every_fixture_is_compared() {
    check_names("seq2seq", &MODELS);
}
