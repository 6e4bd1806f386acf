//! Targets for directories that are imported: safetensors, config.json.

use std::cell::OnceCell;
use std::fs;
use std::sync::Arc;

use millrace_checkpoint::{
    Checkpoint, CheckpointMetadata, LockRequest, ModelDirLock, StepHistory, export_weights, hf, import_weights,
};
use millrace_emulator::compile::{BatchSpec, CompileRequest, compile};
use millrace_emulator::families;
use millrace_emulator::plan::{DEFAULT_CHUNK_ELEMENTS, Encoding, StreamPlan};
use millrace_params::{EncoderOptions, EncoderTask, FlagOverrides, ModelSize, ModelSpec, Nonlinearity, Params};

use crate::disk::{with_dir, write};

/// Opens a safetensors file for an import.
pub fn safetensors(bytes: &[u8]) {
    const CONFIG: &str =
        r#"{"model_type":"gpt2","vocab_size":32,"n_positions":8,"n_embd":8,"n_layer":1,"n_head":1,"n_inner":null}"#;
    with_dir("hf", |dir| {
        write(&dir.join("config.json"), CONFIG.as_bytes());
        write(&dir.join("model.safetensors"), bytes);
        drop(hf::tensors(dir));
    });
}

/// Reads the config.json of a model for an import. The params made from it must be valid; of models besides GPT-2 the
/// sizes may contradict each other.
pub fn hf_config(bytes: &[u8]) {
    with_dir("hf_config", |dir| {
        write(&dir.join("config.json"), bytes);
        let model_dir = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
        let choices = hf::Choices { model_dir: &model_dir, num_csx: 1 };
        let Ok(text) = hf::params_text(dir, choices) else { return };
        let resolved = Params::parse_yaml(&text).and_then(|params| params.resolve(&FlagOverrides::default()));
        match resolved {
            Ok(resolved) => assert_eq!(resolved.job.run.model_dir, model_dir),
            Err(error) => {
                let is_gpt2 = text.contains("\n    name: gpt2\n");
                let may_fail = |key: &str| key == "runconfig.model_dir" || !is_gpt2 && key.starts_with("model.");
                assert!(error.problems().all(|problem| may_fail(&problem.key)), "{error}");
            }
        }
    });
}

/// Imports the weights of a small BERT that classifies tokens. What was imported is exported, too, in both formats, and
/// its own tensors are imported again.
pub fn hf_import(bytes: &[u8]) {
    const CONFIG: &str = r#"{"model_type":"bert","vocab_size":8,"hidden_size":4,"num_hidden_layers":1,
        "num_attention_heads":1,"intermediate_size":4,"max_position_embeddings":4,"layer_norm_eps":1e-5}"#;
    thread_local! {
        static PLAN: OnceCell<StreamPlan> = const { OnceCell::new() };
    }
    with_dir("hf_import", |dir| {
        let source = dir.join("source");
        fs::create_dir_all(&source).expect("a directory");
        write(&source.join("config.json"), CONFIG.as_bytes());
        write(&source.join("model.safetensors"), bytes);
        let named = dir.join("named.safetensors");
        let _ = fs::remove_file(&named);
        for made in ["model_dir", "again", "exported"] {
            let _ = fs::remove_dir_all(dir.join(made));
        }
        let lock = |name| ModelDirLock::acquire(dir.join(name), &LockRequest::local()).map(Arc::new).expect("a lock");
        PLAN.with(|plan| {
            let plan = plan.get_or_init(classifier_plan);
            let Ok(imported) = hf::import_hf(&source, &lock("model_dir"), plan, metadata(plan)) else {
                drop(import_weights(&source.join("model.safetensors"), &lock("again"), plan, metadata(plan)));
                return;
            };
            let checkpoint = Checkpoint::open(imported.path).expect("the checkpoint is complete");
            hf::export_hf(&checkpoint, &dir.join("exported"), None).expect("what was imported can be exported");
            export_weights(&checkpoint, &named).expect("the weights can be exported");
            import_weights(&named, &lock("again"), plan, metadata(plan)).expect("exported weights can be imported");
        });
    });
}

fn classifier_plan() -> StreamPlan {
    let size =
        ModelSize { vocab_size: 8, hidden_size: 4, num_hidden_layers: 1, num_heads: 1, max_position_embeddings: 4 };
    let encoder = EncoderOptions {
        use_segment_embedding: true,
        pooler_nonlinearity: Nonlinearity::Tanh,
        task: EncoderTask::TokenClassifier { classes: 2, dropout_rate: 0.0, counts_padding: false },
        norm_first: false,
        is_embedding_plain: false,
        mask_token: None,
        has_token_dropout: false,
    };
    let spec = ModelSpec { filter_size: 4, encoder: Some(encoder), ..ModelSpec::gpt2(size) };
    let request = CompileRequest {
        graph: families::graph(&spec, 4).expect("a graph"),
        train: BatchSpec { samples: 1, leaf_bound: 1 },
        trains: true,
        eval: None,
        encoding: Encoding::F32,
        wafer_memory: 1 << 30,
        chunk_elements: DEFAULT_CHUNK_ELEMENTS,
        window_chunks: 8,
        memoryx_memory: u64::MAX,
        whole_tensor_state: None,
        extra_state_tensors: 0,
    };
    compile(request).expect("a plan")
}

fn metadata(plan: &StreamPlan) -> CheckpointMetadata {
    CheckpointMetadata {
        plan: plan.hash(),
        seed: 1,
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
