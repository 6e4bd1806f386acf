//! Exports a small model of each decoder family, and imports the export again. The weights are those that
//! `transformers` had (see `tests/parity/make_decoders.py`).
//!
//! With `MILLRACE_HF_EXPORTS=DIR` the exports stay in DIR, for `tests/parity/check_exports.py`, which loads them with
//! `transformers` and compares logits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_checkpoint::hf::{export_hf, import_hf};
use millrace_checkpoint::{
    Checkpoint, CheckpointMetadata, LockRequest, ModelDirLock, Moments, RangeWriter, Section, Staging, WriterEpoch,
};
use millrace_emulator::compile::compile_job;
use millrace_emulator::plan::StreamPlan;
use millrace_params::{FlagOverrides, JobSpec, MachineSpec, Params};
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// Columns of the models of the fixtures, which have 3 heads of 12.
const HIDDEN: usize = 36;

type Tensors = BTreeMap<String, Vec<f32>>;

fn read_tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    file.iter().map(|(name, view)| (name.to_owned(), floats(view.data()))).collect()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixtures/decoders").join(name)
}

/// The job of a recorded model, whose data are tokens.
fn job(family: &str, change: impl Fn(&mut Value)) -> JobSpec {
    let recorded = std::fs::read(fixture(&format!("{family}.json"))).unwrap();
    let mut model = serde_json::from_slice::<Value>(&recorded).unwrap()["model"].take();
    change(&mut model);
    let document = json!({
        "train_input": {"data_processor": "GptTokenDataProcessor", "data_files": "x", "batch_size": 2,
            "max_sequence_length": 40},
        "model": model,
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.1},
        "runconfig": {"max_steps": 1},
    });
    Params::read_json(&document).unwrap().resolve(&FlagOverrides::default()).unwrap().job
}

fn facts(plan: &StreamPlan, job: &JobSpec) -> CheckpointMetadata {
    CheckpointMetadata {
        plan: plan.hash(),
        seed: 0,
        next_sample: 0,
        numerics_profile: String::new(),
        precision: String::new(),
        optimizer: String::new(),
        loss: None,
        grad_norm: None,
        notes: Vec::new(),
        job: job.to_json(),
        recovery: false,
    }
}

fn lock(dir: &Path) -> Arc<ModelDirLock> {
    Arc::new(ModelDirLock::acquire(dir, &LockRequest::local()).unwrap())
}

/// Writes a checkpoint with these weights, by our names.
fn write(dir: &Path, plan: &StreamPlan, job: &JobSpec, weights: &Tensors) -> Checkpoint {
    let lock = lock(dir);
    let epoch = WriterEpoch { attempt: lock.attempt(), number: 0 };
    let mut staging = Staging::create(&lock, plan, 1, epoch, &Moments::none()).unwrap();
    let mut writer = RangeWriter::open(staging.path(), plan, &Moments::none()).unwrap();
    for chunk in 0..plan.chunks.len() {
        let mut values = vec![0.0; plan.chunks[chunk].elements];
        for (tensor, start, range) in plan.chunk_pieces(chunk) {
            let weights = &weights[&plan.graph.tensors[tensor].name];
            let length = range.len();
            values[range].copy_from_slice(&weights[start..start + length]);
        }
        let digest = writer.write_chunk(chunk, Section::Parameters, &values).unwrap();
        staging.record_digest(Section::Parameters, chunk, digest).unwrap();
    }
    writer.finish().unwrap();
    Checkpoint::open(staging.publish(facts(plan, job)).unwrap()).unwrap()
}

/// A tensor of `transformers`, ours, and our row that is their row 13.
type Row = (&'static str, &'static str, usize);

/// For each family of `transformers`: the fixture, `model_type`, and rows of a few tensors.
const FAMILIES: [(&str, &str, &[Row]); 8] = [
    (
        "llama",
        "llama",
        &[
            ("model.layers.1.self_attn.q_proj.weight", "h.1.attn.qkv.weight", 13),
            ("model.layers.1.mlp.up_proj.weight", "h.1.mlp.fc.weight", 13),
            ("model.layers.0.mlp.gate_proj.weight", "h.0.mlp.gate.weight", 13),
        ],
    ),
    ("mistral", "mistral", &[("model.layers.1.self_attn.o_proj.weight", "h.1.attn.proj.weight", 13)]),
    (
        "gptj",
        "gptj",
        &[
            ("transformer.h.1.attn.v_proj.weight", "h.1.attn.qkv.weight", 2 * HIDDEN + 13),
            ("transformer.h.0.mlp.fc_out.weight", "h.0.mlp.proj.weight", 13),
        ],
    ),
    // Row 13 is element 1 of the keys of the first head.
    (
        "gpt_neox",
        "gpt_neox",
        &[("gpt_neox.layers.1.attention.query_key_value.weight", "h.1.attn.qkv.weight", HIDDEN + 1)],
    ),
    ("falcon", "falcon", &[("transformer.h.1.self_attention.query_key_value.weight", "h.1.attn.qkv.weight", 13)]),
    ("bloom", "bloom", &[("transformer.h.1.self_attention.query_key_value.weight", "h.1.attn.qkv.weight", HIDDEN + 1)]),
    ("mpt", "mpt", &[("transformer.blocks.1.attn.Wqkv.weight", "h.1.attn.qkv.weight", 13)]),
    ("starcoder", "gpt_bigcode", &[("transformer.h.1.attn.c_attn.weight", "h.1.attn.qkv.weight", 13)]),
];

#[test]
fn families_are_exported_and_imported_without_change() {
    for (family, model_type, expected) in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let job = job(family, |_| ());
        let plan = compile_job(&job, &MachineSpec::default()).unwrap();
        let weights = read_tensors(&fixture(&format!("{family}.safetensors")));
        let checkpoint = write(&dir.path().join("m"), &plan, &job, &weights);
        let out = dir.path().join("hf");
        export_hf(&checkpoint, &out, None).unwrap();
        if let Some(kept) = std::env::var_os("MILLRACE_HF_EXPORTS") {
            export_hf(&checkpoint, &Path::new(&kept).join(family), None).unwrap();
        }
        let config: Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["model_type"], model_type);
        assert_eq!(config["eos_token_id"], Value::Null, "tokens have no known end");
        let theirs = read_tensors(&out.join("model.safetensors"));
        for (name, ours, row) in expected {
            let columns = weights[*ours].len() / plan.graph.tensors.iter().find(|t| t.name == *ours).unwrap().shape[0];
            let row_of = |values: &[f32], row: usize| values[row * columns..][..columns].to_vec();
            assert_eq!(row_of(&theirs[*name], 13), row_of(&weights[*ours], *row), "{family}: {name}");
        }

        let lock = lock(&dir.path().join("again"));
        let again = Checkpoint::open(import_hf(&out, &lock, &plan, facts(&plan, &job)).unwrap()).unwrap();
        for (id, tensor) in plan.graph.tensors.iter().enumerate() {
            let found = again.read_tensor(id, Section::Parameters).unwrap();
            assert_eq!(found, weights[&tensor.name], "{family}: {}", tensor.name);
        }
        export_hf(&again, &dir.path().join("hf2"), None).unwrap();
        let [first, second] = ["hf", "hf2"].map(|name| std::fs::read(dir.path().join(name).join("model.safetensors")));
        assert_eq!(first.unwrap(), second.unwrap(), "{family}");
    }
}

#[test]
fn other_settings_and_models_are_rejected_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let job_of = |change: &dyn Fn(&mut Value)| job("llama", change);
    let job_llama = job_of(&|_| ());
    let plan = compile_job(&job_llama, &MachineSpec::default()).unwrap();
    let weights = read_tensors(&fixture("llama.safetensors"));
    let checkpoint = write(&dir.path().join("m"), &plan, &job_llama, &weights);
    let out = dir.path().join("hf");
    export_hf(&checkpoint, &out, None).unwrap();
    let import = |plan: &StreamPlan| import_hf(&out, &lock(&dir.path().join("other")), plan, facts(plan, &job_llama));
    for (key, value, says) in [
        ("rope_theta", json!(10000.0), "rope_theta is 500.0 in the checkpoint and 10000.0 in the params"),
        ("layer_norm_epsilon", json!(1e-6), "rms_norm_eps is 0.00001"),
        ("num_hidden_layers", json!(1), "num_hidden_layers is 2"),
        ("nonlinearity", json!("geglu"), "hidden_act is \"silu\""),
        ("norm_type", json!("layernorm"), "another model (llama has RMS norms)"),
    ] {
        let job = job_of(&|model| model[key] = value.clone());
        let error = import(&compile_job(&job, &MachineSpec::default()).unwrap()).unwrap_err();
        assert!(error.to_string().contains(says) && error.is_bad_input(), "{key}: {error}");
    }
    let config = std::fs::read_to_string(out.join("config.json")).unwrap();
    let change = |from: &str, to: &str| std::fs::write(out.join("config.json"), config.replace(from, to)).unwrap();
    change("\"llama\"", "\"mamba\"");
    let error = import(&plan).unwrap_err().to_string();
    assert!(error.contains("model_type \"mamba\""), "{error}");

    // Jais: ALiBi with a gated network, which no family has.
    let job = job_of(&|model| model["position_embedding_type"] = json!("alibi"));
    let plan = compile_job(&job, &MachineSpec::default()).unwrap();
    let checkpoint = write(&dir.path().join("n"), &plan, &job, &weights);
    let error = export_hf(&checkpoint, &dir.path().join("none"), None).unwrap_err();
    assert!(error.to_string().contains("llama has rotary positions") && error.is_bad_input(), "{error}");
}
