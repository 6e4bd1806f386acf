//! Trains a small vision transformer and a plain network for ten steps, and compares the losses with those that PyTorch
//! and `transformers` recorded in `tests/parity/fixtures/images`.

mod common;
#[path = "common/recorded.rs"]
mod recorded;

use common::Elements;
use millrace_emulator::families;
use millrace_emulator::graph::IMAGE;
use millrace_params::{ImageOptions, ModelSize, ModelSpec, Nonlinearity};
use recorded::{Recorded, check_names, integers};
use serde_json::Value;

const MODELS: [&str; 2] = ["vision_transformer", "fc_mnist"];

/// The sizes of `tests/parity/make_images.py`.
const SIZE: ModelSize =
    ModelSize { vocab_size: 5, hidden_size: 36, num_hidden_layers: 2, num_heads: 3, max_position_embeddings: 1 };
const FILTER_SIZE: usize = 60;

/// Returns the numbers of a JSON array of any depth.
fn numbers(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        value => vec![value.as_f64().unwrap() as f32],
    }
}

#[test]
fn ten_steps_of_every_model_agree_with_torch() {
    for name in MODELS {
        let recorded = Recorded::read("images", name);
        let options: ImageOptions = serde_json::from_value(recorded.json["image"].clone()).unwrap();
        let nonlinearity = if name == "fc_mnist" { Nonlinearity::Relu } else { Nonlinearity::Gelu };
        let gpt2 = ModelSpec::gpt2(SIZE);
        let spec = ModelSpec { filter_size: FILTER_SIZE, nonlinearity, image: Some(options), ..gpt2 };
        let graph = families::graph(&spec, 1).unwrap();
        let inputs = &recorded.json["inputs"];
        let batch = inputs["labels"].as_array().unwrap().len();
        let input = |&input: &usize| match graph.values[input].name.as_str() {
            IMAGE => Elements::F32(numbers(&inputs[IMAGE])),
            name => Elements::I32(integers(&inputs[name])),
        };
        let inputs = graph.inputs.iter().map(input).collect();
        recorded.compare(graph, inputs, batch, batch as f64);
    }
}

#[test]
fn every_fixture_is_compared() {
    check_names("images", &MODELS);
}
