//! Imports a GPT-2 that `transformers` saved, compares the logits that the device computes with those of `transformers`
//! (see `tests/parity/make_transformers.py`), and exports the model again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_checkpoint::hf::{Choices, export_hf, import_hf, params_text};
use millrace_checkpoint::{
    Checkpoint, CheckpointMetadata, LoadStrictness, LockRequest, ModelDirLock, Moments, PlanReader, Section,
    StepHistory,
};
use millrace_emulator::compile::compile_job;
use millrace_emulator::device::{CpuDevice, Device, DeviceOptions, InputData, LeafInput};
use millrace_emulator::kernels::Simd;
use millrace_emulator::plan::{Encoding, StreamPlan};
use millrace_params::{FlagOverrides, MachineSpec, Params};
use safetensors::SafeTensors;

const VOCABULARY: usize = 64;

/// The model of the fixture. An evaluation has one leaf, of one sample, for every token of the vocabulary.
const PARAMS: &str = "\
train_input: {data_processor: SyntheticDataProcessor, max_sequence_length: 12, batch_size: 1}
eval_input: {data_processor: SyntheticDataProcessor, max_sequence_length: 12, batch_size: 64, micro_batch_size: 1}
model:
    name: gpt2
    vocab_size: 64
    hidden_size: 16
    num_hidden_layers: 2
    num_heads: 2
    filter_size: 64
    max_position_embeddings: 12
    nonlinearity: gelu_new
    layer_norm_epsilon: 1e-5
    mixed_precision: False
optimizer: {optimizer_type: AdamW, learning_rate: 1e-3}
runconfig: {mode: train_and_eval, max_steps: 1, eval_frequency: 1, eval_steps: 1}
";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixtures/transformers").join(name)
}

fn facts(plan: &StreamPlan) -> CheckpointMetadata {
    let text = String::new;
    CheckpointMetadata {
        plan: plan.hash(),
        seed: 0,
        next_sample: 0,
        numerics_profile: text(),
        precision: text(),
        optimizer: text(),
        loss: None,
        grad_norm: None,
        history: StepHistory::default(),
        notes: Vec::new(),
        job: text(),
        recovery: false,
    }
}

/// Evaluates a round of leaves with the weights of `reader`.
fn losses(device: &mut CpuDevice, plan: &StreamPlan, reader: &mut PlanReader, leaves: &[LeafInput<'_>]) -> Vec<f64> {
    device.begin(false, &[], leaves).unwrap();
    let mut slots = plan.down_eval.iter().peekable();
    for layer in 0..plan.layers.len() {
        while let Some(slot) = slots.next_if(|slot| slot.layer == layer) {
            let mut values = vec![0.0; plan.chunks[slot.chunk].elements];
            reader.read_chunk(slot.chunk, Section::Parameters, &mut values).unwrap();
            let payload: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            device.load(slot.chunk, Encoding::F32, &payload).unwrap();
        }
        device.forward(layer).unwrap();
    }
    device.losses().iter().map(|leaf| leaf.loss).collect()
}

/// Returns ln Σ exp(logit) - logit for every token: the loss if that token is the label.
fn losses_of_words(logits: &[f32]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    logits.iter().map(|&logit| sum.ln() - f64::from(logit)).collect()
}

#[test]
fn import_has_logits_of_transformers_and_export_is_identical() {
    let dir = tempfile::tempdir().unwrap();
    let job = Params::parse_yaml(PARAMS).unwrap().resolve(&FlagOverrides::default()).unwrap().job;
    let written = params_text(&fixture(""), Choices { model_dir: "m", num_csx: 1 }).unwrap();
    let written = Params::parse_yaml(&written).unwrap().resolve(&FlagOverrides::default()).unwrap().job;
    assert_eq!(written.model, job.model, "the params that an import writes");
    let plan = Arc::new(compile_job(&job, &MachineSpec::default()).unwrap());
    let lock = Arc::new(ModelDirLock::acquire(dir.path().join("m"), &LockRequest::local()).unwrap());
    let imported = import_hf(&fixture(""), &lock, &plan, facts(&plan)).unwrap().path;
    let open = || Checkpoint::open(&imported).unwrap();

    let recorded = std::fs::read(fixture("logits.safetensors")).unwrap();
    let recorded = SafeTensors::deserialize(&recorded).unwrap();
    let words = |name: &str| recorded.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    let tokens: Vec<i32> = words("input_ids").into_iter().map(i32::from_le_bytes).collect();
    let logits: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();

    let mut reader = PlanReader::new(open(), &plan, &Moments::none(), LoadStrictness::Strict).unwrap();
    let options = DeviceOptions { seed: 0, threads: 1, simd: Simd::detect(), leaves: VOCABULARY };
    let mut device = CpuDevice::new(Arc::clone(&plan), options).unwrap();
    for (sample, input_ids) in tokens.chunks(plan.sequence).enumerate() {
        for place in 0..plan.sequence {
            // Each leaf has another token as its only label.
            let labels: Vec<Vec<i32>> = (0..VOCABULARY as i32)
                .map(|word| (0..plan.sequence).map(|at| if at == place { word } else { -1 }).collect())
                .collect();
            let inputs: Vec<_> = labels.iter().map(|labels| [input_ids, labels].map(InputData::I32)).collect();
            let leaf = |(leaf, inputs)| LeafInput { leaf, first_sample: 0, inputs };
            let leaves: Vec<_> = (0..).zip(inputs.iter().map(<[_; 2]>::as_slice)).map(leaf).collect();
            let computed = losses(&mut device, &plan, &mut reader, &leaves);
            let at = (sample * plan.sequence + place) * VOCABULARY;
            let expected = losses_of_words(&logits[at..at + VOCABULARY]);
            for (word, (ours, theirs)) in computed.iter().zip(&expected).enumerate() {
                assert!(
                    (ours - theirs).abs() < 1e-4,
                    "sample {sample}, place {place}, word {word}: {ours} for {theirs}"
                );
            }
        }
    }

    let exported = export_hf(&open(), &dir.path().join("exported"), None).unwrap();
    let [ours, theirs] = [exported.path.join("model.safetensors"), fixture("model.safetensors")].map(std::fs::read);
    let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
    let [ours, theirs] = [&ours, &theirs].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let mut names: Vec<_> = theirs.names();
    names.sort_unstable();
    let mut written: Vec<_> = ours.names();
    written.sort_unstable();
    assert_eq!(written, names);
    for name in names {
        let [ours, theirs] = [&ours, &theirs].map(|file| file.tensor(name).unwrap());
        assert_eq!(ours.shape(), theirs.shape(), "{name}");
        assert!(ours.data() == theirs.data(), "{name}");
    }
}
