//! Exports a small model of each family of `transformers`, and imports the export again. The weights are those that
//! `transformers` had (see `tests/parity/make_decoders.py` and the scripts beside it).
//!
//! With `MILLRACE_HF_EXPORTS=DIR` the exports stay in DIR, for `tests/parity/check_exports.py`, which loads them with
//! `transformers` and compares logits. With `MILLRACE_HF_ORIGINALS=DIR` the directories that `transformers` itself
//! saved there are imported, too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_checkpoint::hf::{Choices, export_hf, import_hf, params_text};
use millrace_checkpoint::{
    Checkpoint, CheckpointMetadata, ImportSummary, LockRequest, ModelDirLock, Moments, RangeWriter, Section, Staging,
    StepHistory, WriterEpoch,
};
use millrace_emulator::compile::{BatchSpec, CompileRequest, compile};
use millrace_emulator::families;
use millrace_emulator::graph::{Graph, Tensor};
use millrace_emulator::numerics::init::tensor_key;
use millrace_emulator::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, StreamPlan};
use millrace_params::{DecoderOptions, FlagOverrides, ModelSize, ModelSpec, Params};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

/// Columns of the models of the fixtures, which have 3 heads of 12, and rows of T5's queries, 3 heads of 10.
const HIDDEN: usize = 36;
const T5_WIDTH: usize = 30;
/// Tokens of a sample.
const SEQUENCE: usize = 40;
const SEED: u64 = 7;

type Tensors = BTreeMap<String, Vec<f32>>;

fn read_tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = |data: &[u8]| data.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect();
    file.iter().map(|(name, view)| (name.to_owned(), floats(view.data()))).collect()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixtures").join(name)
}

/// Returns the recorded options of a model: `KIND/NAME.json`.
fn record(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(&format!("{name}.json"))).unwrap()).unwrap()
}

/// Returns the graph of recorded options.
fn graph(name: &str, record: &Value) -> Graph {
    let size = ModelSize {
        vocab_size: 53,
        hidden_size: HIDDEN,
        num_hidden_layers: 2,
        num_heads: 3,
        max_position_embeddings: 50,
    };
    let spec = ModelSpec { filter_size: 60, ..ModelSpec::gpt2(size) };
    let spec = match name.split_once('/').unwrap().0 {
        "decoders" => job_model(
            record,
            json!({"data_processor": "GptTokenDataProcessor", "data_files": "x", "max_sequence_length": SEQUENCE}),
        ),
        "seq2seq" => job_model(
            record,
            json!({"data_processor": "T5DynamicDataProcessor", "src_data_dir": "x", "src_vocab_file": "x",
                "src_max_sequence_length": SEQUENCE, "tgt_max_sequence_length": 23}),
        ),
        "encoders" => {
            let positions = serde_json::from_value(record["positions"].clone()).unwrap();
            let encoder = serde_json::from_value(record["encoder"].clone()).unwrap();
            let decoder = DecoderOptions { positions, ..DecoderOptions::default() };
            ModelSpec { encoder: Some(encoder), decoder, ..spec }
        }
        _ => {
            let image = serde_json::from_value(record["image"].clone()).unwrap();
            ModelSpec { vocab_size: 5, image: Some(image), ..spec }
        }
    };
    families::graph(&spec, SEQUENCE).unwrap()
}

/// Resolves the section `model` of recorded params.
fn job_model(record: &Value, mut train_input: Value) -> ModelSpec {
    train_input["batch_size"] = 2.into();
    let document = json!({
        "train_input": train_input,
        "model": record["model"],
        "optimizer": {"optimizer_type": "AdamW", "learning_rate": 0.1},
        "runconfig": {"max_steps": 1},
    });
    Params::read_json(&document).unwrap().resolve(&FlagOverrides::default()).unwrap().job.model
}

fn plan(graph: Graph) -> StreamPlan {
    compile(CompileRequest {
        graph,
        train: BatchSpec { samples: 2, leaf_bound: 1 },
        trains: true,
        eval: None,
        encoding: Encoding::F32,
        wafer_memory: 1 << 40,
        chunk_elements: DEFAULT_CHUNK_ELEMENTS,
        window_chunks: 8,
        memoryx_memory: u64::MAX,
        whole_tensor_state: None,
        extra_state_tensors: 0,
    })
    .unwrap()
}

fn facts(plan: &StreamPlan) -> CheckpointMetadata {
    CheckpointMetadata {
        plan: plan.hash(),
        seed: SEED,
        next_sample: 0,
        numerics_profile: String::new(),
        precision: String::new(),
        optimizer: String::new(),
        loss: None,
        grad_norm: None,
        history: StepHistory::default(),
        notes: Vec::new(),
        job: String::new(),
        recovery: false,
    }
}

fn lock(dir: &Path) -> Arc<ModelDirLock> {
    Arc::new(ModelDirLock::acquire(dir, &LockRequest::local()).unwrap())
}

/// Writes a checkpoint with these weights, by our names.
fn write(dir: &Path, plan: &StreamPlan, weights: &Tensors) -> Checkpoint {
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
    Checkpoint::open(staging.publish(facts(plan)).unwrap()).unwrap()
}

/// A recorded model, its plan and its weights by our names.
struct Recorded {
    name: &'static str,
    plan: StreamPlan,
    weights: Tensors,
}

impl Recorded {
    fn read(name: &'static str) -> Self {
        Self::with(name, |_| ())
    }

    /// Returns the recorded model with other options.
    fn with(name: &'static str, change: impl Fn(&mut Value)) -> Self {
        let mut record = record(name);
        change(&mut record);
        let weights = read_tensors(&fixture(&format!("{name}.safetensors")));
        Self { name, plan: plan(graph(name, &record)), weights }
    }

    /// Exports the model as `dir/hf`, from a checkpoint in `dir/m`.
    fn export(&self, dir: &Path) -> PathBuf {
        let checkpoint = write(&dir.join("m"), &self.plan, &self.weights);
        let out = dir.join("hf");
        export_hf(&checkpoint, &out, None).unwrap();
        out
    }

    fn import(&self, from: &Path, dir: &Path) -> millrace_checkpoint::Result<ImportSummary> {
        import_hf(from, &lock(dir), &self.plan, facts(&self.plan))
    }

    /// Checks that all tensors of a checkpoint are those of the recorded model.
    fn check(&self, summary: &ImportSummary) {
        assert!(summary.initialized.is_empty(), "{}: {summary:?}", self.name);
        let checkpoint = Checkpoint::open(&summary.path).unwrap();
        for (id, tensor) in self.plan.graph.tensors.iter().enumerate() {
            let found = checkpoint.read_tensor(id, Section::Parameters).unwrap();
            assert_eq!(found, self.weights[&tensor.name], "{}: {}", self.name, tensor.name);
        }
    }
}

/// A tensor of `transformers`, ours, and our row that is their row 1.
type Row = (&'static str, &'static str, usize);

/// For each family of `transformers`: fixture, `model_type`, architecture, and rows of a few tensors.
const FAMILIES: [(&str, &str, &str, &[Row]); 19] = [
    (
        "decoders/llama",
        "llama",
        "LlamaForCausalLM",
        &[
            ("model.layers.1.self_attn.q_proj.weight", "h.1.attn.qkv.weight", 1),
            ("model.layers.1.mlp.up_proj.weight", "h.1.mlp.fc.weight", 1),
            ("model.layers.0.mlp.gate_proj.weight", "h.0.mlp.gate.weight", 1),
        ],
    ),
    (
        "decoders/mistral",
        "mistral",
        "MistralForCausalLM",
        &[("model.layers.1.self_attn.o_proj.weight", "h.1.attn.proj.weight", 1)],
    ),
    (
        "decoders/gptj",
        "gptj",
        "GPTJForCausalLM",
        &[
            ("transformer.h.1.attn.v_proj.weight", "h.1.attn.qkv.weight", 2 * HIDDEN + 1),
            ("transformer.h.0.mlp.fc_out.weight", "h.0.mlp.proj.weight", 1),
        ],
    ),
    (
        "decoders/gpt_neox",
        "gpt_neox",
        "GPTNeoXForCausalLM",
        &[("gpt_neox.layers.1.attention.query_key_value.weight", "h.1.attn.qkv.weight", 1)],
    ),
    (
        "decoders/falcon",
        "falcon",
        "FalconForCausalLM",
        &[("transformer.h.1.self_attention.query_key_value.weight", "h.1.attn.qkv.weight", 1)],
    ),
    (
        "decoders/bloom",
        "bloom",
        "BloomForCausalLM",
        &[("transformer.h.1.self_attention.query_key_value.weight", "h.1.attn.qkv.weight", 1)],
    ),
    ("decoders/mpt", "mpt", "MptForCausalLM", &[("transformer.blocks.1.attn.Wqkv.weight", "h.1.attn.qkv.weight", 1)]),
    (
        "decoders/starcoder",
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        &[("transformer.h.1.attn.c_attn.weight", "h.1.attn.qkv.weight", 1)],
    ),
    (
        "decoders/gemma2",
        "gemma2",
        "Gemma2ForCausalLM",
        &[("model.layers.1.self_attn.v_proj.weight", "h.1.attn.qkv.weight", HIDDEN + 12 + 1)],
    ),
    (
        "encoders/pretraining",
        "bert",
        "BertForPreTraining",
        &[
            ("bert.encoder.layer.1.attention.self.key.weight", "h.1.attn.qkv.weight", HIDDEN + 1),
            ("cls.seq_relationship.weight", "nsp.weight", 1),
            ("bert.embeddings.token_type_embeddings.weight", "wse.weight", 1),
        ],
    ),
    (
        "encoders/masked_tokens",
        "bert",
        "BertForMaskedLM",
        &[("cls.predictions.transform.dense.weight", "head.dense.weight", 1)],
    ),
    (
        "encoders/classifier",
        "bert",
        "BertForSequenceClassification",
        &[("bert.pooler.dense.weight", "pooler.weight", 1)],
    ),
    (
        "encoders/token_classifier",
        "bert",
        "BertForTokenClassification",
        &[("classifier.weight", "classifier.weight", 1)],
    ),
    (
        "encoders/question_answering",
        "bert",
        "BertForQuestionAnswering",
        &[("qa_outputs.weight", "classifier.weight", 1)],
    ),
    ("encoders/roberta", "bert", "BertForMaskedLM", &[("bert.embeddings.position_embeddings.weight", "wpe.weight", 1)]),
    ("encoders/esm2", "esm", "EsmForMaskedLM", &[("esm.encoder.layer.1.LayerNorm.weight", "h.1.ln_2.weight", 1)]),
    (
        "images/vision_transformer",
        "vit",
        "ViTForImageClassification",
        &[
            ("vit.embeddings.patch_embeddings.projection.weight", "patch.weight", 1),
            ("vit.encoder.layer.1.attention.attention.query.weight", "h.1.attn.qkv.weight", 1),
        ],
    ),
    (
        "seq2seq/t5",
        "t5",
        "T5ForConditionalGeneration",
        &[
            ("decoder.block.2.layer.1.EncDecAttention.v.weight", "decoder.h.2.cross.kv.weight", T5_WIDTH + 1),
            ("encoder.block.1.layer.1.DenseReluDense.wi.weight", "encoder.h.1.mlp.fc.weight", 1),
        ],
    ),
    (
        "seq2seq/t5_gated",
        "t5",
        "T5ForConditionalGeneration",
        &[("decoder.block.0.layer.2.DenseReluDense.wi_0.weight", "decoder.h.0.mlp.gate.weight", 1)],
    ),
];

#[test]
fn families_are_exported_and_imported_without_change() {
    for (name, model_type, architecture, expected) in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let recorded = Recorded::read(name);
        let out = recorded.export(dir.path());
        let model = name.split_once('/').unwrap().1;
        if let Some(kept) = std::env::var_os("MILLRACE_HF_EXPORTS") {
            let checkpoint = Checkpoint::open(dir.path().join("m/checkpoint_1")).unwrap();
            export_hf(&checkpoint, &Path::new(&kept).join(model), None).unwrap();
        }
        let config: Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!((&config["model_type"], &config["architectures"]), (&json!(model_type), &json!([architecture])));
        assert!(!name.starts_with("decoders") || config["eos_token_id"].is_null(), "tokens have no known end");
        let theirs = read_tensors(&out.join("model.safetensors"));
        for (tensor, ours, row) in expected {
            let shape = &recorded.plan.graph.tensors.iter().find(|tensor| tensor.name == *ours).unwrap().shape;
            let columns: usize = shape.iter().skip(1).product();
            let row_of = |values: &[f32], row: usize| values[row * columns..][..columns].to_vec();
            assert_eq!(row_of(&theirs[*tensor], 1), row_of(&recorded.weights[*ours], *row), "{name}: {tensor}");
        }

        let imported = recorded.import(&out, &dir.path().join("again")).unwrap();
        recorded.check(&imported);
        export_hf(&Checkpoint::open(&imported.path).unwrap(), &dir.path().join("hf2"), None).unwrap();
        let [first, second] = ["hf", "hf2"].map(|name| std::fs::read(dir.path().join(name).join("model.safetensors")));
        assert_eq!(first.unwrap(), second.unwrap(), "{name}");
        if let Some(originals) = std::env::var_os("MILLRACE_HF_ORIGINALS") {
            let original = Path::new(&originals).join(model);
            recorded.check(&recorded.import(&original, &dir.path().join("original")).unwrap());
        }
    }
}

#[test]
fn written_params_describe_the_model_of_the_directory() {
    for (name, ..) in FAMILIES {
        let dir = tempfile::tempdir().unwrap();
        let recorded = Recorded::read(name);
        let out = recorded.export(dir.path());
        let originals = std::env::var_os("MILLRACE_HF_ORIGINALS").map(PathBuf::from);
        let original = originals.map(|originals| originals.join(name.split_once('/').unwrap().1));
        for source in [Some(out), original].into_iter().flatten() {
            let written = params_text(&source, Choices { model_dir: "m", num_csx: 1 });
            if !name.starts_with("decoders") || name.ends_with("gemma2") {
                assert!(written.unwrap_err().hint().unwrap().contains("of decoders only"));
                continue;
            }
            let params = Params::parse_yaml(&written.unwrap()).unwrap();
            let job = params.resolve(&FlagOverrides::default()).unwrap().job;
            let graph = families::graph(&job.model, SEQUENCE).unwrap();
            let parts = |graph: &Graph| {
                let tensors: Vec<_> =
                    graph.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
                (graph.nodes.clone(), tensors)
            };
            // Positions without a table have no effect on the tensors.
            assert_eq!(parts(&graph), parts(&recorded.plan.graph), "{name}");
        }
    }
}

/// Writes a directory with other names and tensors than those in `from`.
fn rewrite(
    from: &Path,
    to: &Path,
    model_type: &str,
    rename: impl Fn(&str, &mut (Vec<usize>, Vec<u8>)) -> Option<String>,
) {
    std::fs::create_dir(to).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let mut tensor = (view.shape().to_vec(), view.data().to_vec());
        if let Some(name) = rename(name, &mut tensor) {
            tensors.insert(name, tensor);
        }
    }
    let views =
        tensors.iter().map(|(name, (shape, data))| (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    std::fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    std::fs::write(to.join("config.json"), config.replace("\"bert\"", &format!("{model_type:?}"))).unwrap();
}

#[test]
fn weights_of_another_task_lack_the_output_layer() {
    let dir = tempfile::tempdir().unwrap();
    let pretrained = Recorded::read("encoders/pretraining").export(dir.path());
    let (classifier, trained) = (Recorded::read("encoders/classifier"), Recorded::read("encoders/pretraining"));
    // As the first BERTs were saved, and without output layers.
    let old = dir.path().join("old");
    let old_name =
        |name: &str| name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
    rewrite(&pretrained, &old, "bert", |name, _| name.strip_prefix("bert.").map(old_name));
    for (source, unused) in [(&pretrained, 7), (&old, 0)] {
        let model_dir = dir.path().join(format!("tuned-{unused}"));
        let imported = classifier.import(source, &model_dir).unwrap();
        assert_eq!(imported.initialized, ["classifier.weight", "classifier.bias"]);
        assert_eq!(imported.unused.len(), unused, "{:?}", imported.unused);
        let checkpoint = Checkpoint::open(&imported.path).unwrap();
        for (id, tensor) in classifier.plan.graph.tensors.iter().enumerate() {
            let mut expected = trained.weights.get(&tensor.name).cloned().unwrap_or(vec![0.0; tensor.elements()]);
            if tensor.name.starts_with("classifier.") {
                tensor.init.fill(tensor_key(SEED, id as u64), 0, &mut expected);
            }
            assert_eq!(checkpoint.read_tensor(id, Section::Parameters).unwrap(), expected, "{}", tensor.name);
        }
    }
    let no_body = dir.path().join("no_body");
    rewrite(&pretrained, &no_body, "bert", |name, _| (!name.contains("layer.1.output.dense")).then(|| name.into()));
    let error = classifier.import(&no_body, &dir.path().join("none")).unwrap_err().to_string();
    assert!(error.ends_with("it has no tensor bert.encoder.layer.1.output.dense.weight"), "{error}");
}

#[test]
fn untied_output_layer_of_bert_has_its_own_bias() {
    let dir = tempfile::tempdir().unwrap();
    let mut recorded = Recorded::read("encoders/masked_tokens");
    let mut graph = recorded.plan.graph.clone();
    let table = graph.tensors[0].clone();
    graph.tensors.push(Tensor { name: "lm_head.weight".into(), ..table });
    graph.nodes.last_mut().unwrap().params[0] = graph.tensors.len() - 1;
    recorded.plan = plan(graph);
    recorded.weights.insert("lm_head.weight".into(), vec![0.5; 53 * HIDDEN]);
    let out = recorded.export(dir.path());
    let theirs = read_tensors(&out.join("model.safetensors"));
    assert_eq!(theirs["cls.predictions.decoder.bias"], recorded.weights["lm_head.bias"]);
    assert_eq!(theirs["cls.predictions.decoder.weight"], recorded.weights["lm_head.weight"]);
    recorded.check(&recorded.import(&out, &dir.path().join("again")).unwrap());
    let older = dir.path().join("older");
    rewrite(&out, &older, "bert", |name, _| (name != "cls.predictions.decoder.bias").then(|| name.into()));
    recorded.check(&recorded.import(&older, &dir.path().join("older-again")).unwrap());
}

#[test]
fn positions_of_roberta_follow_those_of_padding() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = Recorded::read("encoders/roberta");
    let exported = recorded.export(dir.path());
    let original = dir.path().join("original");
    let rename = |name: &str, (shape, data): &mut (Vec<usize>, Vec<u8>)| {
        if name.ends_with("position_embeddings.weight") {
            shape[0] += 2;
            // The unused rows are no zeros.
            data.splice(..0, std::iter::repeat_n(1, 2 * HIDDEN * size_of::<f32>()));
        }
        let name = name.replace("bert.", "roberta.").replace("cls.predictions.transform.dense", "lm_head.dense");
        Some(
            name.replace("cls.predictions.transform.LayerNorm", "lm_head.layer_norm")
                .replace("cls.predictions.bias", "lm_head.bias"),
        )
    };
    rewrite(&exported, &original, "roberta", rename);
    let config = std::fs::read_to_string(original.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["type_vocab_size"] = 1.into();
    std::fs::write(original.join("config.json"), config.to_string()).unwrap();
    recorded.check(&recorded.import(&original, &dir.path().join("again")).unwrap());
    config["pad_token_id"] = 0.into();
    std::fs::write(original.join("config.json"), config.to_string()).unwrap();
    let error = recorded.import(&original, &dir.path().join("none")).unwrap_err().to_string();
    assert!(error.ends_with("pad_token_id is 0 in the checkpoint and 1 in the params"), "{error}");
}

#[test]
fn other_settings_and_models_are_rejected_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let recorded = Recorded::read("decoders/llama");
    let out = recorded.export(dir.path());
    let with =
        |key: &str, value: Value| Recorded::with("decoders/llama", |record| record["model"][key] = value.clone());
    for (key, value, says) in [
        ("rope_theta", json!(10000.0), "rope_theta is 500.0 in the checkpoint and 10000.0 in the params"),
        ("layer_norm_epsilon", json!(1e-6), "rms_norm_eps is 0.00001"),
        ("num_hidden_layers", json!(1), "num_hidden_layers is 2"),
        ("nonlinearity", json!("geglu"), "hidden_act is \"silu\""),
        ("norm_type", json!("layernorm"), "another model (llama has RMS norms)"),
        ("embeddings_scale", json!(2.0), "another model (llama does not scale embeddings)"),
    ] {
        let error = with(key, value).import(&out, &dir.path().join("other")).unwrap_err();
        assert!(error.to_string().contains(says) && error.is_bad_input(), "{key}: {error}");
    }
    let error = Recorded::read("encoders/esm2").import(&out, &dir.path().join("other")).unwrap_err();
    assert!(error.to_string().contains("another model (llama is a decoder)"), "{error}");
    let config = std::fs::read_to_string(out.join("config.json")).unwrap();
    let change = |from: &str, to: &str| std::fs::write(out.join("config.json"), config.replace(from, to)).unwrap();
    change("\"llama\"", "\"mamba\"");
    let error = recorded.import(&out, &dir.path().join("other")).unwrap_err();
    let hint = error.hint().unwrap();
    assert!(error.to_string().contains("model_type \"mamba\"") && hint.contains("t5 can be imported"), "{error}");

    // Jais: ALiBi with a gated network, which no family has.
    for (name, key, value, says) in [
        ("decoders/llama", "position_embedding_type", json!("alibi"), "llama has rotary positions"),
        ("seq2seq/transformer", "use_ffn_bias", json!(true), "models of transformers have"),
    ] {
        let other = Recorded::with(name, |record| record["model"][key] = value.clone());
        let checkpoint = write(&dir.path().join(key), &other.plan, &other.weights);
        let error = export_hf(&checkpoint, &dir.path().join("none"), None).unwrap_err();
        assert!(error.to_string().contains(says) && error.is_bad_input(), "{error}");
    }
}
