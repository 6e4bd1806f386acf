//! Trains a small model of each decoder family for ten steps, and compares its losses with those that PyTorch and
//! `transformers` recorded in `tests/parity/fixtures/decoders`.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::*;
use millrace_emulator::compile::BatchSpec;
use millrace_emulator::families;
use millrace_emulator::kernels::Simd;
use millrace_emulator::optimizers::{Optimizer as _, UpdateArrays, UpdateStep};
use millrace_emulator::plan::{Encoding, StreamPlan};
use millrace_params::optimizers::AdamW;
use millrace_params::{FlagOverrides, ModelSpec, Params};
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// The settings of the recorded runs.
const ADAMW: AdamW = AdamW { betas: [0.9, 0.95], eps: 1e-8, correct_bias: true };
const LEARNING_RATE: f64 = 1e-2;
const WEIGHT_DECAY: f64 = 0.1;

/// Largest relative difference of a loss.
const TOLERANCE: f64 = 1e-5;

const FAMILIES: [&str; 8] = ["llama", "mistral", "gptj", "gpt_neox", "falcon", "bloom", "mpt", "starcoder"];

/// A recorded run.
struct Recorded {
    spec: ModelSpec,
    weights: BTreeMap<String, Vec<f32>>,
    samples: Samples,
    losses: Vec<f64>,
    batch: usize,
    length: usize,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixtures/decoders")
}

impl Recorded {
    fn read(family: &str) -> Self {
        let text = std::fs::read_to_string(directory().join(format!("{family}.json"))).unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        let weights = std::fs::read(directory().join(format!("{family}.safetensors"))).unwrap();
        let weights = SafeTensors::deserialize(&weights).unwrap();
        let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let list = |value: &Value| value.as_array().unwrap().clone();
        let (batch, length) = (list(&json["input_ids"]).len(), list(&json["input_ids"][0]).len());
        let number = |token: Value| i32::try_from(token.as_i64().unwrap()).unwrap();
        let tokens = |key: &str| list(&json[key]).iter().flat_map(list).map(number).collect();
        Self {
            spec: model_spec(&json["model"], length),
            weights: weights.iter().map(|(name, view)| (name.to_owned(), floats(view.data()))).collect(),
            samples: Samples { inputs: vec![tokens("input_ids"), tokens("labels")], first: 0 },
            losses: list(&json["loss"]).iter().map(|loss| loss.as_f64().unwrap()).collect(),
            batch,
            length,
        }
    }
}

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

/// Returns the content of each group of the plan.
fn groups(plan: &StreamPlan, weights: &BTreeMap<String, Vec<f32>>) -> Vec<Vec<f32>> {
    let mut used = 0;
    let groups = plan.groups.iter().map(|group| {
        let tensors = group.tensors.iter().map(|(tensor, _)| {
            let about = &plan.graph.tensors[*tensor];
            let values = weights.get(&about.name).unwrap_or_else(|| panic!("the fixture lacks {}", about.name));
            assert_eq!(values.len(), about.elements(), "{}", about.name);
            used += 1;
            values
        });
        tensors.flatten().copied().collect()
    });
    let groups = groups.collect();
    assert_eq!(used, weights.len(), "the model lacks a tensor of the fixture");
    groups
}

/// Returns the loss of each step.
fn train(recorded: &Recorded) -> Vec<f64> {
    let graph = families::decoder(&recorded.spec, recorded.length).unwrap();
    let plan = plan(graph, BatchSpec { samples: recorded.batch, leaf_bound: 1 }, Encoding::F32, LARGE);
    let mut device = device(&plan, 1);
    let mut weights = groups(&plan, &recorded.weights);
    let mut moments = [weights.clone(), weights.clone()];
    moments.iter_mut().flatten().for_each(|values| values.fill(0.0));
    let mut losses = Vec::new();
    let tokens = recorded.samples.inputs[1].iter().filter(|label| **label >= 0).count() as f64;
    for step_number in 1..=recorded.losses.len() as u64 {
        let (sum, gradients) = step(&mut device, &plan, &weights, &recorded.samples);
        losses.push(sum / tokens);
        for (id, group) in plan.groups.iter().enumerate() {
            for (tensor, range) in &group.tensors {
                let decays = plan.graph.tensors[*tensor].role.decays();
                let update = UpdateStep {
                    step: step_number,
                    learning_rate: LEARNING_RATE,
                    weight_decay: if decays { WEIGHT_DECAY } else { 0.0 },
                    gradient_scale: (1.0 / tokens) as f32,
                };
                let state = moments.each_mut().map(|moment| &mut moment[id][range.clone()]);
                let (weights, gradient) = (&mut weights[id][range.clone()], &gradients[id][range.clone()]);
                ADAMW.update(Simd::detect(), &update, UpdateArrays { weights, gradient, state });
            }
        }
    }
    losses
}

#[test]
fn ten_steps_of_every_family_agree_with_transformers() {
    for family in FAMILIES {
        let recorded = Recorded::read(family);
        let losses = train(&recorded);
        let apart = losses.iter().zip(&recorded.losses).map(|(ours, theirs)| (ours / theirs - 1.0).abs());
        let worst = apart.fold(0.0, f64::max);
        println!("{family}: {worst:.1e}");
        assert!(worst < TOLERANCE, "{family}: {worst:e} off: {losses:?} for {:?}", recorded.losses);
    }
}

#[test]
fn every_fixture_is_compared() {
    let names = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().file_name());
    let families = names.filter_map(|name| Some(name.to_str()?.strip_suffix(".json")?.to_owned()));
    let mut families: Vec<String> = families.collect();
    families.sort_unstable();
    let mut compared = FAMILIES;
    compared.sort_unstable();
    assert_eq!(families, compared);
}
