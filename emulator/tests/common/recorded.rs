//! Training runs that PyTorch and `transformers` recorded, and the same runs on a device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millrace_emulator::compile::BatchSpec;
use millrace_emulator::graph::Graph;
use millrace_emulator::kernels::Simd;
use millrace_emulator::optimizers::{Optimizer as _, UpdateArrays, UpdateStep};
use millrace_emulator::plan::{Encoding, StreamPlan};
use millrace_params::optimizers::AdamW;
use safetensors::SafeTensors;
use serde_json::Value;

use super::common::{Elements, LARGE, Samples, device, plan, step};

/// The settings of the recorded runs.
const ADAMW: AdamW = AdamW { betas: [0.9, 0.95], eps: 1e-8, correct_bias: true, epsilon_hat: false, amsgrad: false };
pub const LEARNING_RATE: f64 = 1e-2;
const WEIGHT_DECAY: f64 = 0.1;

/// Largest relative difference of a loss.
const TOLERANCE: f64 = 1e-5;

/// A recorded run: the same batch in all steps.
pub struct Recorded {
    name: String,
    /// The whole JSON document.
    pub json: Value,
    weights: BTreeMap<String, Vec<f32>>,
    losses: Vec<f64>,
}

/// Returns the directory of the fixtures of `kind`.
pub fn directory(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixtures").join(kind)
}

/// Checks that the fixtures of `kind` are those of `expected`.
pub fn check_names(kind: &str, expected: &[&str]) {
    let names = std::fs::read_dir(directory(kind)).unwrap().map(|entry| entry.unwrap().file_name());
    let mut found: Vec<String> =
        names.filter_map(|name| Some(name.to_str()?.strip_suffix(".json")?.to_owned())).collect();
    found.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Returns the integers of a JSON array of any depth.
pub fn integers(value: &Value) -> Vec<i32> {
    match value {
        Value::Array(values) => values.iter().flat_map(integers).collect(),
        value => vec![i32::try_from(value.as_i64().unwrap()).unwrap()],
    }
}

impl Recorded {
    pub fn read(kind: &str, name: &str) -> Self {
        let read = |suffix: &str| std::fs::read(directory(kind).join(format!("{name}.{suffix}"))).unwrap();
        let json: Value = serde_json::from_slice(&read("json")).unwrap();
        let weights = read("safetensors");
        let weights = SafeTensors::deserialize(&weights).unwrap();
        let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
        Self {
            name: name.to_owned(),
            losses: json["loss"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect(),
            weights: weights.iter().map(|(name, view)| (name.to_owned(), floats(view.data()))).collect(),
            json,
        }
    }

    /// Returns the content of each group of the plan.
    fn groups(&self, plan: &StreamPlan) -> Vec<Vec<f32>> {
        let mut used = 0;
        let groups = plan.groups.iter().map(|group| {
            let tensors = group.tensors.iter().map(|(tensor, _)| {
                let tensor = &plan.graph.tensors[*tensor];
                let values =
                    self.weights.get(&tensor.name).unwrap_or_else(|| panic!("the fixture lacks {}", tensor.name));
                assert_eq!(values.len(), tensor.elements(), "{}", tensor.name);
                used += 1;
                values
            });
            tensors.flatten().copied().collect()
        });
        let groups = groups.collect();
        assert_eq!(used, self.weights.len(), "the model lacks a tensor of the fixture");
        groups
    }

    /// Trains `graph` on these inputs of `batch` samples, and compares the loss of each step. The sum of losses is
    /// divided by `divisor`.
    pub fn compare(&self, graph: Graph, inputs: Vec<Elements>, batch: usize, divisor: f64) {
        let samples = Samples { inputs, first: 0 };
        let plan = plan(graph, BatchSpec { samples: batch, leaf_bound: 1 }, Encoding::F32, LARGE);
        let mut device = device(&plan, 1);
        let mut weights = self.groups(&plan);
        let mut moments = [weights.clone(), weights.clone()];
        moments.iter_mut().flatten().for_each(|values| values.fill(0.0));
        let mut losses = Vec::new();
        for step_number in 1..=self.losses.len() as u64 {
            let (sum, gradients) = step(&mut device, &plan, &weights, &samples);
            losses.push(sum / divisor);
            for (id, group) in plan.groups.iter().enumerate() {
                for (tensor, range) in &group.tensors {
                    let decays = plan.graph.tensors[*tensor].role.decays();
                    let update = UpdateStep {
                        step: step_number,
                        learning_rate: LEARNING_RATE,
                        weight_decay: if decays { WEIGHT_DECAY } else { 0.0 },
                        gradient_scale: (1.0 / divisor) as f32,
                        momentum_schedule: None,
                    };
                    let [m, v] = moments.each_mut().map(|moment| &mut moment[id][range.clone()]);
                    let (weights, gradient) = (&mut weights[id][range.clone()], &gradients[id][range.clone()]);
                    let arrays = UpdateArrays { weights, gradient, state: [m, v, &mut []], shape: &[] };
                    ADAMW.update(Simd::detect(), &update, arrays);
                }
            }
        }
        let differences = losses.iter().zip(&self.losses).map(|(loss, recorded)| (loss / recorded - 1.0).abs());
        let largest = differences.fold(0.0, f64::max);
        println!("{}: {largest:.1e}", self.name);
        assert!(largest < TOLERANCE, "{}: {largest:e} off: {losses:?} for {:?}", self.name, self.losses);
    }
}
