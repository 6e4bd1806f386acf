//! Measures how fast one device trains: tokens per second, share of the measured peak, and time by operator.
//!
//! `cargo run --release -p millrace-emulator --example device_rate [MODEL] [threads] [leaves]`
//!
//! * `small`: a GPT of 10.8 million parameters on bytes (T 256, leaves of 4 samples)
//! * `gpt2`: the GPT of 124 million parameters (T 1024, leaves of 1 sample)
//! * `bert`: BERT-base (T 128, leaves of 2 samples with 20 masked tokens each)
//! * `known`: a decoder of the sizes of `small`, whose graph has generic operators that the compiler replaces by
//!   macro-operators
//! * `unknown`: one that the compiler leaves as it is
//!
//! Weights are loaded for every pass, as in streamed training.

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_emulator::compile::{BatchSpec, CompileRequest, compile, system_bytes};
use millrace_emulator::device::{CpuDevice, Device, DeviceOptions, InputData, LeafInput};
use millrace_emulator::families;
use millrace_emulator::graph::Graph;
use millrace_emulator::kernels::{ComputeThreads, Simd, peak};
use millrace_emulator::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, Pass, StreamPlan};
use millrace_params::{EncoderOptions, EncoderTask, MachineSpec, ModelSize, ModelSpec, Nonlinearity};

#[path = "../tests/common/generic.rs"]
mod generic;

type Failure = Box<dyn std::error::Error>;

struct Model {
    layers: usize,
    hidden: usize,
    heads: usize,
    vocabulary: usize,
    sequence: usize,
    leaf: usize,
    /// For a graph of generic operators, whether the compiler knows their patterns.
    generic: Option<bool>,
    /// Masked tokens of a sample that an encoder predicts.
    masked: Option<usize>,
}

const SMALL: Model =
    Model { layers: 6, hidden: 384, heads: 6, vocabulary: 256, sequence: 256, leaf: 4, generic: None, masked: None };
const GPT2: Model = Model {
    layers: 12,
    hidden: 768,
    heads: 12,
    vocabulary: 50_257,
    sequence: 1024,
    leaf: 1,
    generic: None,
    masked: None,
};
const BERT: Model = Model { vocabulary: 30_522, sequence: 128, leaf: 2, masked: Some(20), ..GPT2 };
const KNOWN: Model = Model { generic: Some(true), ..SMALL };
const UNKNOWN: Model = Model { generic: Some(false), ..SMALL };

/// The masked-token task of BERT.
fn pretraining(masked: usize) -> EncoderOptions {
    EncoderOptions {
        use_segment_embedding: true,
        pooler_nonlinearity: Nonlinearity::Tanh,
        task: EncoderTask::Pretraining {
            max_predictions: Some(masked),
            masked_token_weight: 1.0,
            nonlinearity: Nonlinearity::Gelu,
            predicts_next_sentence: false,
        },
        norm_first: false,
        is_embedding_plain: false,
        mask_token: None,
        has_token_dropout: false,
    }
}

impl Model {
    fn spec(&self) -> ModelSpec {
        let decoder = ModelSpec::gpt2(ModelSize {
            vocab_size: self.vocabulary,
            hidden_size: self.hidden,
            num_hidden_layers: self.layers,
            num_heads: self.heads,
            max_position_embeddings: self.sequence,
        });
        ModelSpec { encoder: self.masked.map(pretraining), ..decoder }
    }

    fn graph(&self) -> Result<Graph, Failure> {
        let Some(is_known) = self.generic else { return Ok(families::graph(&self.spec(), self.sequence)?) };
        Ok(generic::decoder(generic::DecoderSizes {
            vocabulary: self.vocabulary,
            tokens: self.sequence,
            blocks: self.layers,
            heads: self.heads,
            head_dim: self.hidden / self.heads,
            dropout: 0.0,
            is_known,
        }))
    }

    fn plan(&self, leaves: usize) -> Result<StreamPlan, Failure> {
        Ok(compile(CompileRequest {
            graph: self.graph()?,
            train: BatchSpec { samples: leaves * self.leaf, leaf_bound: self.leaf },
            trains: true,
            eval: None,
            encoding: Encoding::F32,
            wafer_memory: 40_000_000_000,
            chunk_elements: DEFAULT_CHUNK_ELEMENTS,
            window_chunks: 8,
            memoryx_memory: u64::MAX,
            whole_tensor_state: None,
            extra_state_tensors: 0,
        })?)
    }
}

/// Small random weights: the bytes of each chunk.
fn payloads(plan: &StreamPlan) -> Vec<Vec<u8>> {
    let value = |index: usize| ((index.wrapping_mul(2_654_435_761) >> 8) % 2048) as f32 / 1024.0 - 1.0;
    plan.chunks
        .iter()
        .map(|chunk| (0..chunk.elements).flat_map(|index| (0.04 * value(index)).to_le_bytes()).collect())
        .collect()
}

/// The values of all inputs for a whole batch. Tokens vary, positions are different from each other, and other inputs,
/// such as the attention mask, are 1.
fn inputs(plan: &StreamPlan, vocabulary: usize) -> Vec<Vec<i32>> {
    let batch = plan.leaves.batch() as usize;
    let input = |&value: &usize| {
        let elements = plan.graph.values[value].shape.elements() as usize;
        let element = |index: usize| match plan.graph.values[value].name.as_str() {
            "masked_lm_positions" => index % elements,
            "attention_mask" | "token_type_ids" => 1,
            // Labels are the tokens at the same places, which are as good as any others for the time.
            _ => (index * index + 7 * index) % vocabulary,
        };
        (0..batch * elements).map(|index| element(index) as i32).collect()
    };
    plan.graph.inputs.iter().map(input).collect()
}

/// Runs one step of all leaves; returns the time spent loading.
fn step(
    device: &mut CpuDevice,
    plan: &StreamPlan,
    payloads: &[Vec<u8>],
    inputs: &[Vec<i32>],
) -> Result<Duration, Failure> {
    let mut loading = Duration::ZERO;
    let samples: Vec<(u32, u64, Vec<InputData<'_>>)> = (0..plan.leaves.count)
        .map(|leaf| {
            let inputs = inputs.iter().map(|values| {
                let elements = values.len() / plan.leaves.count as usize;
                InputData::I32(&values[leaf as usize * elements..][..elements])
            });
            (leaf, u64::from(leaf * plan.leaves.samples), inputs.collect())
        })
        .collect();
    let leaves: Vec<LeafInput<'_>> = samples
        .iter()
        .map(|(leaf, first_sample, inputs)| LeafInput { leaf: *leaf, first_sample: *first_sample, inputs })
        .collect();
    device.begin(true, &[plan.leaves.tree().root()], &leaves)?;
    let forward = (0..plan.layers.len()).map(|layer| (Pass::Forward, layer));
    let backward = (0..plan.layers.len()).rev().map(|layer| (Pass::Backward, layer));
    for (pass, layer) in forward.chain(backward) {
        let start = Instant::now();
        for slot in plan.down_train.iter().filter(|slot| (slot.pass, slot.layer) == (pass, layer)) {
            device.load(slot.chunk, plan.encoding, &payloads[slot.chunk])?;
        }
        loading += start.elapsed();
        match pass {
            Pass::Forward => device.forward(layer)?,
            Pass::Backward => device.backward(layer)?,
        }
    }
    Ok(loading)
}

/// Returns the processor seconds that this process has used, if the system reports them. On a loaded machine they are
/// more meaningful than wall time.
fn cpu_seconds() -> Option<f64> {
    let task = |entry: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some(std::fs::read_dir("/proc/self/task").ok()?.filter_map(task).sum::<f64>() / 1e9)
}

/// Measures the current peak, by processor time, because other load on this machine affects it like the measured steps.
fn peak_now(simd: Simd, pool: &ComputeThreads) -> f64 {
    let (mut flops, mut seconds) = (0.0, 0.0);
    for _ in 0..40 {
        let (start, start_cpu) = (Instant::now(), cpu_seconds());
        let rate = peak::fma_gflops(simd, pool, 1);
        let elapsed = start.elapsed().as_secs_f64();
        flops += rate * elapsed;
        seconds += cpu_seconds().zip(start_cpu).map_or(elapsed, |(end, start)| (end - start) / pool.threads() as f64);
    }
    flops / seconds
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let model = match arguments.first().map(String::as_str) {
        Some("gpt2") => &GPT2,
        Some("bert") => &BERT,
        Some("known") => &KNOWN,
        Some("unknown") => &UNKNOWN,
        _ => &SMALL,
    };
    let number = |index: usize, default: usize| arguments.get(index).map_or(Ok(default), |text| text.parse::<usize>());
    let (threads, leaves) = (number(1, 1)?, number(2, 4)?);
    let plan = Arc::new(model.plan(leaves)?);
    let options = DeviceOptions { seed: 1, threads, simd: Simd::detect(), leaves };
    let mut device = CpuDevice::new(Arc::clone(&plan), options)?;
    let payloads = payloads(&plan);
    let tokens = plan.leaves.batch() as usize * plan.sequence;
    let inputs = inputs(&plan, model.vocabulary);

    println!("{} parameters, {} leaves of {} tokens, {}", plan.parameters(), leaves, tokens / leaves, device.profile());
    step(&mut device, &plan, &payloads, &inputs)?;
    let pool = ComputeThreads::new(threads)?;
    let (before, times) = (device.flops(), device.times().to_vec());
    let (mut best, mut seconds, mut cpu, mut peaks, mut loading) = (f64::MAX, 0.0, 0.0, 0.0, Duration::ZERO);
    let mut steps = 0.0;
    while seconds < 8.0 || steps < 3.0 {
        peaks += peak_now(options.simd, &pool);
        let (start, start_cpu) = (Instant::now(), cpu_seconds());
        loading += step(&mut device, &plan, &payloads, &inputs)?;
        let elapsed = start.elapsed().as_secs_f64();
        cpu += cpu_seconds().zip(start_cpu).map_or(elapsed, |(end, start)| (end - start) / threads as f64);
        (best, seconds, steps) = (f64::min(best, elapsed), seconds + elapsed, steps + 1.0);
    }
    let flops = (device.flops() - before) as f64 / steps;
    println!("best of {steps} steps: {:.0} tokens/s, {:.1} GFLOP/s", tokens as f64 / best, flops / best / 1e9);
    println!(
        "mean: {:.0} tokens/s, by processor time {:.0}: {:.1}% of the FMA peak of {:.1} GFLOP/s",
        tokens as f64 * steps / seconds,
        tokens as f64 * steps / cpu,
        100.0 * flops * steps * steps / cpu / peaks / 1e9,
        peaks / steps
    );
    println!("{:>16} {:>9} {:>9} {:>9}   (% of the time)", "operator", "forward", "backward", "packing");
    let percent = |time: Duration| 100.0 * time.as_secs_f64() / seconds;
    for (now, then) in device.times().iter().zip(&times) {
        println!(
            "{:>16} {:9.2} {:9.2} {:9.2}",
            now.name,
            percent(now.forward - then.forward),
            percent(now.backward - then.backward),
            percent(now.packing - then.packing)
        );
    }
    println!("{:>16} {:9.2}", "loading", percent(loading));
    let bytes = system_bytes(&plan, leaves as u32, true, &MachineSpec::default().link).host;
    println!("{:?}; the plan has {} of activations", device.memory(), bytes.activations);
    Ok(())
}
