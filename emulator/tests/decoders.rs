//! Trains a small model of each decoder family for ten steps, and compares its losses with those that PyTorch and
//! `transformers` recorded in `tests/parity/fixtures/decoders`.

mod common;
#[path = "common/recorded.rs"]
mod recorded;

use common::Elements;
use millrace_emulator::families;
use millrace_params::{FlagOverrides, ModelSpec, Params};
use recorded::{LEARNING_RATE, Recorded, check_names, integers};
use serde_json::{Value, json};

const FAMILIES: [&str; 9] = ["llama", "mistral", "gptj", "gpt_neox", "falcon", "bloom", "mpt", "starcoder", "gemma2"];

/// Resolves a section `model`.
fn model_spec(model: &Value, length: usize) -> ModelSpec {
    let document = json!({
        "train_input": {"data_processor": "GptTokenDataProcessor", "data_files": "x", "batch_size": 2,
            "max_sequence_length": length},
        "model": model,
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": LEARNING_RATE},
        "runconfig": {"max_steps": 1},
    });
    Params::read_json(&document).unwrap().resolve(&FlagOverrides::default()).unwrap().job.model
}

#[test]
fn ten_steps_of_every_family_agree_with_transformers() {
    for family in FAMILIES {
        let recorded = Recorded::read("decoders", family);
        let batch = recorded.json["input_ids"].as_array().unwrap().len();
        let inputs = ["input_ids", "labels"].map(|name| integers(&recorded.json[name]));
        let length = inputs[0].len() / batch;
        let tokens = inputs[1].iter().filter(|label| **label >= 0).count();
        let graph = families::decoder(&model_spec(&recorded.json["model"], length), length).unwrap();
        recorded.compare(graph, inputs.map(Elements::I32).to_vec(), batch, tokens as f64);
    }
}

#[test]
fn every_fixture_is_compared() {
    check_names("decoders", &FAMILIES);
}
