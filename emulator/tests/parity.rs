//! Trains in process, with device and optimizer kernels only, and compares with recorded PyTorch runs in
//! `tests/parity/fixtures`.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use common::*;
use millrace_emulator::compile::{BatchSpec, CompileRequest, compile};
use millrace_emulator::device::{CpuDevice, Device};
use millrace_emulator::families;
use millrace_emulator::kernels::Simd;
use millrace_emulator::numerics::bf16;
use millrace_emulator::optimizers::{Optimizer as _, UpdateArrays, UpdateStep};
use millrace_emulator::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, Pass, StreamPlan};
use millrace_params::optimizers::AdamW;
use millrace_params::{ModelSpec, Nonlinearity};
use safetensors::SafeTensors;
use serde_json::Value;

/// A recorded run with its inputs.
struct Fixture {
    name: &'static str,
    weights: BTreeMap<String, Vec<f32>>,
    input_ids: Vec<i32>,
    labels: Vec<i32>,
    recorded: BTreeMap<String, Vec<f32>>,
    json: Value,
}

fn numbers<T>(bytes: &[u8], from: fn([u8; 4]) -> T) -> Vec<T> {
    bytes.as_chunks::<4>().0.iter().map(|word| from(*word)).collect()
}

fn floats(path: PathBuf) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(name, view)| (name.to_owned(), numbers(view.data(), f32::from_le_bytes))).collect()
}

impl Fixture {
    fn read(name: &'static str) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixtures").join(name);
        let samples = std::fs::read(path.join("samples.safetensors")).unwrap();
        let samples = SafeTensors::deserialize(&samples).unwrap();
        let tokens = |name: &str| numbers(samples.tensor(name).unwrap().data(), i32::from_le_bytes);
        Self {
            name,
            weights: floats(path.join("weights/model.safetensors")),
            input_ids: tokens("input_ids"),
            labels: tokens("labels"),
            recorded: floats(path.join("fixture.safetensors")),
            json: serde_json::from_slice(&std::fs::read(path.join("fixture.json")).unwrap()).unwrap(),
        }
    }

    fn config(&self, key: &str) -> usize {
        self.json["config"][key].as_u64().unwrap() as usize
    }

    fn list(&self, key: &str) -> Vec<f64> {
        self.json[key].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    }

    fn spec(&self) -> ModelSpec {
        let mut spec = spec(
            self.config("n_layer"),
            self.config("n_embd"),
            self.config("n_head"),
            self.config("vocab_size"),
            self.config("n_positions"),
        );
        spec.nonlinearity = match self.json["config"]["activation_function"].as_str().unwrap() {
            "gelu_new" => Nonlinearity::GeluTanh,
            _ => Nonlinearity::Gelu,
        };
        spec.share_embedding_weights = self.json["config"]["tie_word_embeddings"].as_bool().unwrap();
        spec.use_bias_in_output = self.weights.contains_key("lm_head.bias");
        spec.use_projection_bias_in_attention = self.weights.contains_key("transformer.h.0.attn.c_attn.bias");
        spec
    }

    /// The plan of its batch in leaves of two samples; evaluation in single samples.
    fn plan(&self, encoding: Encoding) -> Arc<StreamPlan> {
        let batch = self.json["inputs"]["samples_shape"][1].as_u64().unwrap() as usize;
        let sequence = self.config("n_positions");
        Arc::new(
            compile(CompileRequest {
                graph: families::decoder(&self.spec(), sequence).unwrap(),
                train: BatchSpec { samples: batch, leaf_bound: 2 },
                trains: true,
                eval: Some(BatchSpec { samples: sequence, leaf_bound: 1 }),
                encoding,
                wafer_memory: LARGE,
                chunk_elements: DEFAULT_CHUNK_ELEMENTS,
                window_chunks: 8,
                memoryx_memory: u64::MAX,
                whole_tensor_state: None,
                extra_state_tensors: 0,
            })
            .unwrap(),
        )
    }

    /// The samples of one step.
    fn step(&self, plan: &StreamPlan, step: usize) -> Samples {
        let width = plan.leaves.batch() as usize * plan.sequence;
        let range = step * width..(step + 1) * width;
        Samples {
            inputs: [&self.input_ids[range.clone()], &self.labels[range]].map(|all| Elements::I32(all.to_vec())).into(),
            first: 0,
        }
    }
}

/// Returns the Hugging Face name of a tensor, and whether it is transposed there.
fn hugging_face(name: &str) -> (String, bool) {
    let pairs =
        [("attn.qkv", "attn.c_attn"), ("attn.proj", "attn.c_proj"), ("mlp.fc", "mlp.c_fc"), ("mlp.proj", "mlp.c_proj")];
    let projection = pairs.iter().find(|(name_part, _)| name.contains(name_part));
    let hf_name = projection.map_or(name.to_owned(), |(name_part, hf_part)| name.replace(name_part, hf_part));
    let prefix = if name.starts_with("lm_head") { "" } else { "transformer." };
    (format!("{prefix}{hf_name}"), projection.is_some() && name.ends_with("weight"))
}

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

/// Returns the content of the groups as tensors in Hugging Face's layout.
fn tensors(plan: &StreamPlan, groups: &[Vec<f32>]) -> BTreeMap<String, Vec<f32>> {
    let mut tensors = BTreeMap::new();
    for (group, values) in plan.groups.iter().zip(groups) {
        for (tensor, range) in &group.tensors {
            let (tensor, values) = (&plan.graph.tensors[*tensor], &values[range.clone()]);
            let (name, is_transposed) = hugging_face(&tensor.name);
            let values =
                if is_transposed { transposed(values, tensor.shape[0], tensor.shape[1]) } else { values.to_vec() };
            tensors.insert(name, values);
        }
    }
    tensors
}

/// The reverse of [`tensors`].
fn groups(plan: &StreamPlan, tensors: &BTreeMap<String, Vec<f32>>) -> Vec<Vec<f32>> {
    let group = |group: &millrace_emulator::plan::Group| {
        let mut values = Vec::with_capacity(group.elements);
        for (tensor, _) in &group.tensors {
            let tensor = &plan.graph.tensors[*tensor];
            let (name, is_transposed) = hugging_face(&tensor.name);
            let recorded = &tensors[&name];
            assert_eq!(recorded.len(), tensor.elements(), "{name}");
            match is_transposed {
                true => values.extend(transposed(recorded, tensor.shape[1], tensor.shape[0])),
                false => values.extend(recorded),
            }
        }
        values
    };
    plan.groups.iter().map(group).collect()
}

fn norm<'a>(values: impl IntoIterator<Item = &'a f32>) -> f64 {
    values.into_iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

/// AdamW over all groups, biases and norms without decay.
struct Optimizer {
    first: Vec<Vec<f32>>,
    second: Vec<Vec<f32>>,
    settings: Value,
}

impl Optimizer {
    fn new(fixture: &Fixture, weights: &[Vec<f32>]) -> Self {
        let zeros: Vec<Vec<f32>> = weights.iter().map(|group| vec![0.0; group.len()]).collect();
        let settings = fixture.json["spec"]["optimizer"].clone();
        Self { first: zeros.clone(), second: zeros, settings }
    }

    fn update(
        &mut self,
        plan: &StreamPlan,
        weights: &mut [Vec<f32>],
        gradients: &[Vec<f32>],
        scale: f32,
        rate: f64,
        step: usize,
    ) {
        let number = |value: &Value| value.as_f64().unwrap();
        for (id, group) in plan.groups.iter().enumerate() {
            for (tensor, range) in &group.tensors {
                let decays = plan.graph.tensors[*tensor].role.decays();
                let adamw = AdamW {
                    betas: [0, 1].map(|index| number(&self.settings["betas"][index])),
                    eps: number(&self.settings["eps"]),
                    correct_bias: true,
                    epsilon_hat: false,
                    amsgrad: false,
                };
                let step = UpdateStep {
                    step: step as u64 + 1,
                    learning_rate: rate,
                    weight_decay: if decays { number(&self.settings["weight_decay"]) } else { 0.0 },
                    gradient_scale: scale,
                    momentum_schedule: None,
                };
                let [m, v] = [&mut self.first, &mut self.second].map(|state| &mut state[id][range.clone()]);
                let (weights, gradient) = (&mut weights[id][range.clone()], &gradients[id][range.clone()]);
                let arrays = UpdateArrays { weights, gradient, state: [m, v, &mut []], shape: &[] };
                adamw.update(Simd::detect(), &step, arrays);
            }
        }
    }
}

/// The results of a run.
struct Run {
    plan: Arc<StreamPlan>,
    device: CpuDevice,
    losses: Vec<f64>,
    norms: Vec<f64>,
    /// Of step 0, scaled but not clipped, in Hugging Face's layout.
    gradients: BTreeMap<String, Vec<f32>>,
    weights: Vec<Vec<f32>>,
}

fn train(fixture: &Fixture, encoding: Encoding) -> Run {
    let plan = fixture.plan(encoding);
    let mut device = device(&plan, 1);
    let mut weights = groups(&plan, &fixture.weights);
    let mut optimizer = Optimizer::new(fixture, &weights);
    let (tokens, rates) = (fixture.list("tokens"), fixture.list("learning_rate"));
    let limit = fixture.json["spec"]["optimizer"]["max_gradient_norm"].as_f64().unwrap();
    let (mut losses, mut norms, mut first) = (Vec::new(), Vec::new(), BTreeMap::new());
    for step_number in 0..rates.len() {
        let (samples, wire) = (fixture.step(&plan, step_number), wire(&plan, &weights));
        let (leaves, sums) = round_as(Encoding::F32, &mut device, &plan, &wire, &samples, 0..plan.leaves.count);
        let (loss, gradients) = (leaves.iter().map(|leaf| leaf.loss).sum::<f64>(), total(&plan, sums));
        let counted: u64 = device.losses().iter().map(|leaf| leaf.tokens).sum();
        assert_eq!(counted as f64, tokens[step_number]);
        let scale = match fixture.json["spec"]["loss_scaling"].as_str() {
            Some("num_tokens") => 1.0 / tokens[step_number],
            _ => fixture.json["spec"]["loss_weight"].as_f64().unwrap() / plan.leaves.batch() as f64,
        };
        let total = norm(gradients.iter().flatten()) * scale;
        losses.push(loss * scale);
        norms.push(total);
        if step_number == 0 {
            let scaled = |values: Vec<f32>| values.into_iter().map(|g| (f64::from(g) * scale) as f32).collect();
            first = tensors(&plan, &gradients).into_iter().map(|(name, values)| (name, scaled(values))).collect();
        }
        let clip = (limit / (total + 1e-6)).min(1.0);
        optimizer.update(&plan, &mut weights, &gradients, (scale * clip) as f32, rates[step_number], step_number);
    }
    Run { plan, device, losses, norms, gradients: first, weights }
}

/// Returns the weights as sent: matrices in the plan's encoding; vectors (norms, biases) in f32, as with autocast.
fn wire(plan: &StreamPlan, weights: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let mut wire = weights.to_vec();
    for (group, values) in plan.groups.iter().zip(&mut wire) {
        for (tensor, range) in &group.tensors {
            if plan.encoding == Encoding::Bf16 && plan.graph.tensors[*tensor].shape.len() > 1 {
                values[range.clone()].iter_mut().for_each(|value| *value = bf16::round(*value));
            }
        }
    }
    wire
}

fn worst(values: &[f64], truth: &[f64]) -> f64 {
    values.iter().zip(truth).map(|(value, truth)| ((value - truth) / truth).abs()).fold(0.0, f64::max)
}

/// Norm of the difference divided by the norm of the expected value.
fn difference(values: &[f32], truth: &[f32]) -> (f64, f64) {
    let differences: Vec<f32> = values.iter().zip(truth).map(|(a, b)| a - b).collect();
    (norm(&differences), norm(truth))
}

#[test]
fn twenty_steps_agree_with_pytorch_in_f32() {
    for fixture in [Fixture::read("tied"), Fixture::read("untied")] {
        let mut run = train(&fixture, Encoding::F32);
        let name = fixture.name;
        let (loss, grad_norm) =
            (worst(&run.losses, &fixture.list("loss")), worst(&run.norms, &fixture.list("grad_norm")));
        println!("{name}: loss {loss:.1e}, gradient norm {grad_norm:.1e}");
        assert!(loss < 1e-4 && grad_norm < 1e-3, "{name}: loss {loss:e}, gradient norm {grad_norm:e}");
        let global = fixture.list("grad_norm")[0];
        for (tensor, gradient) in &run.gradients {
            let (difference, size) = difference(gradient, &fixture.recorded[&format!("grad.{tensor}")]);
            assert!(
                difference <= 1e-4 * size + 1e-6 * global,
                "{name}: {tensor} is {difference:e} off, its norm is {size:e}"
            );
        }
        for (tensor, values) in tensors(&run.plan, &run.weights) {
            let third = values.len() / 3;
            // The key third of this bias is rounding noise.
            let counted = if tensor.ends_with("c_attn.bias") {
                [&values[..third], &values[2 * third..]].concat()
            } else {
                values
            };
            let expected = fixture.json["final_norm"][&tensor].as_f64().unwrap();
            let difference = (norm(&counted) / expected - 1.0).abs();
            assert!(difference < 1e-4, "{name}: the final norm of {tensor} is {difference:e} off");
        }
        check_logits(&fixture, &mut run);
    }
}

/// The device returns losses, not logits: evaluation leaves in which one token counts give single log-probabilities.
fn check_logits(fixture: &Fixture, run: &mut Run) {
    let (plan, sequence, vocabulary) = (&run.plan, run.plan.sequence, fixture.config("vocab_size"));
    let logits = &fixture.recorded["logits"];
    for turn in 0..4 {
        let word = |position: usize| (position * 37 + turn * 101) % vocabulary;
        let mut labels = vec![-1; sequence * sequence];
        (0..sequence).for_each(|position| labels[position * sequence + position] = word(position) as i32);
        let samples = Samples {
            inputs: [fixture.input_ids[..sequence].repeat(sequence), labels].map(Elements::I32).into(),
            first: 0,
        };
        let leaves = samples.leaves(plan.eval_leaves, 0..plan.eval_leaves.count);
        begin(&mut run.device, false, &[], &leaves).unwrap();
        for layer in 0..plan.layers.len() {
            load(&mut run.device, plan, &run.weights, Pass::Forward, layer);
            run.device.forward(layer).unwrap();
        }
        for (position, leaf) in run.device.losses().iter().enumerate() {
            let row = &logits[position * vocabulary..][..vocabulary];
            let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
            let expected = sum.ln() - f64::from(row[word(position)]);
            assert_eq!(leaf.tokens, 1);
            assert!((leaf.loss - expected).abs() < 1e-4, "{}: {} for {expected}", fixture.name, leaf.loss);
        }
    }
}

/// Compares rounding errors statistically: their root mean square over steps and tensors; that of a single tensor may
/// be half as large again.
#[test]
fn bf16_differs_from_f32_no_more_than_pytorchs_autocast_does() {
    let mean_square =
        |errors: &[f64]| (errors.iter().map(|error| error * error).sum::<f64>() / errors.len() as f64).sqrt();
    for fixture in [Fixture::read("tied"), Fixture::read("untied")] {
        let (name, run, tolerance) = (fixture.name, train(&fixture, Encoding::Bf16), &fixture.json["autocast_bf16"]);
        let exact = fixture.list("loss");
        let errors =
            |losses: &[f64]| losses.iter().zip(&exact).map(|(loss, exact)| loss / exact - 1.0).collect::<Vec<_>>();
        let cast: Vec<f64> = tolerance["loss"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect();
        let (loss, allowed) = (mean_square(&errors(&run.losses)), mean_square(&errors(&cast)));
        println!("{name}: loss {loss:.2e}, autocast {allowed:.2e}");
        let mut ratios = Vec::new();
        for (tensor, gradient) in &run.gradients {
            let (difference, size) = difference(gradient, &fixture.recorded[&format!("grad.{tensor}")]);
            ratios.push(difference / size / tolerance["relative_gradient"][tensor].as_f64().unwrap());
        }
        println!("{name}: gradients {:.2} of autocast's", mean_square(&ratios));
        assert!(loss <= allowed, "{name}: loss {loss:e}, autocast {allowed:e}");
        assert!(mean_square(&ratios) <= 1.0 && ratios.iter().all(|ratio| *ratio <= 1.5), "{name}: {ratios:?}");
    }
}
