//! Tests export and import with files read and written by the `safetensors` crate.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::gpt2::Gpt2;
use super::{Choices, export_hf, import_hf, params_text};
use crate::testing::{HIDDEN, INNER, Model, POSITIONS, bits, facts, graph, lock, plan_of, tensor_values, write};
use crate::{Checkpoint, Error, Moments, Section};
use millrace_emulator::plan::StreamPlan;

/// Shape and values by name.
type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

fn plan(change: impl Fn(&mut Model)) -> StreamPlan {
    let mut model = Model::default();
    change(&mut model);
    plan_of(graph(model), 4, 100)
}

fn exported(dir: &Path, plan: &StreamPlan) -> crate::Result<crate::ExportSummary> {
    let checkpoint = Checkpoint::open(write(&lock(&dir.join("run")), plan, 3, &Moments::none())).unwrap();
    export_hf(&checkpoint, &dir.join("hf"), None)
}

/// Name in an exported model, name in the graph, and whether it is transposed.
fn names(block: usize) -> Vec<(String, String, bool)> {
    let pairs = [
        ("ln_1", "ln_1", false),
        ("attn.c_attn", "attn.qkv", true),
        ("attn.c_proj", "attn.proj", true),
        ("ln_2", "ln_2", false),
        ("mlp.c_fc", "mlp.fc", true),
        ("mlp.c_proj", "mlp.proj", true),
    ];
    let tensors = pairs.iter().flat_map(|(hf_name, name, linear)| {
        [("weight", *linear), ("bias", false)].map(|(part, transposed)| {
            (format!("h.{block}.{hf_name}.{part}"), format!("h.{block}.{name}.{part}"), transposed)
        })
    });
    tensors.collect()
}

#[test]
fn export_has_names_shapes_and_values_of_gpt2() {
    for tied in [true, false] {
        for bias in [true, false] {
            let (dir, plan) = (tempfile::tempdir().unwrap(), plan(|model| (model.tied, model.bias) = (tied, bias)));
            let report = exported(dir.path(), &plan).unwrap();
            let bytes = std::fs::read(dir.path().join("hf/model.safetensors")).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!((file.len(), bytes.len() as u64), (report.tensors, report.bytes));
            assert_eq!(file.len(), 2 * 12 + 4 + usize::from(!tied));
            assert_eq!(file.tensor("lm_head.weight").is_ok(), !tied);
            let ids: HashMap<&str, usize> =
                plan.graph.tensors.iter().enumerate().map(|(id, t)| (t.name.as_str(), id)).collect();
            let mut all: Vec<_> = (0..2).flat_map(names).collect();
            all.extend(
                ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"].map(|name| (name.into(), name.into(), false)),
            );
            for (hf_name, name, transposed) in all {
                let found = file.tensor(&format!("transformer.{hf_name}")).unwrap();
                let Some(&id) = ids.get(name.as_str()) else {
                    assert!(!bias && name.ends_with(".bias") && found.data().iter().all(|&byte| byte == 0));
                    continue;
                };
                let (values, shape) = (tensor_values(&plan, id, 0), plan.graph.tensors[id].shape.clone());
                for (index, bytes) in found.data().chunks(4).enumerate() {
                    // The exported tensor is [in, out]: its element (i, o) is the graph's (o, i).
                    let index = if transposed { (index % shape[0]) * shape[1] + index / shape[0] } else { index };
                    assert_eq!(bytes, values[index].to_le_bytes(), "{hf_name}");
                }
            }
            let config: Value =
                serde_json::from_slice(&std::fs::read(dir.path().join("hf/config.json")).unwrap()).unwrap();
            let expected = json!({"n_layer": 2, "n_head": 2, "n_embd": HIDDEN, "n_inner": INNER, "n_positions": POSITIONS,
                "vocab_size": 11, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.1,
                "resid_pdrop": 0.2, "embd_pdrop": 0.0, "tie_word_embeddings": tied});
            for (key, value) in expected.as_object().unwrap() {
                assert_eq!(&config[key], value, "{key}");
            }
        }
    }
}

#[test]
fn export_then_import_is_byte_identical() {
    for (tied, bias, head_bias) in [(true, true, false), (false, false, false), (false, true, true)] {
        let dir = tempfile::tempdir().unwrap();
        let plan_out = plan(|model| (model.tied, model.bias) = (tied, bias));
        exported(dir.path(), &plan_out).unwrap();
        let plan_in = plan(|model| (model.tied, model.bias, model.head_bias) = (tied, bias, head_bias));
        let imported =
            import_hf(&dir.path().join("hf"), &lock(&dir.path().join("tuned")), &plan_in, facts(&plan_in)).unwrap();
        let checkpoint = Checkpoint::open(imported.path).unwrap();
        checkpoint.verify().unwrap();
        assert!((checkpoint.step(), checkpoint.moments()) == (0, &Moments::none()));
        for (id, tensor) in plan_in.graph.tensors.iter().enumerate() {
            let found = checkpoint.read_tensor(id, Section::Parameters).unwrap();
            let new = tensor.name == "lm_head.bias";
            let expected = if new { vec![0.0; found.len()] } else { tensor_values(&plan_in, id, 0) };
            assert_eq!(bits(&found), bits(&expected), "{}", tensor.name);
        }
    }
}

#[test]
fn attention_scale_is_folded_into_queries() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan(|model| model.scale = 0.25));
    exported(dir.path(), &plan).unwrap();
    let bytes = std::fs::read(dir.path().join("hf/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let bias = file.tensor("transformer.h.1.attn.c_attn.bias").unwrap();
    let id = plan.graph.tensors.iter().position(|tensor| tensor.name == "h.1.attn.qkv.bias").unwrap();
    for (index, (found, value)) in bias.data().chunks(4).zip(tensor_values(&plan, id, 0)).enumerate() {
        // 0.25 instead of 1 / sqrt(4): half the queries, the first third.
        let expected = if index < HIDDEN { value * 0.5 } else { value };
        let found = f32::from_le_bytes(found.try_into().unwrap());
        assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{index}");
    }
}

#[test]
fn rejects_other_models_and_existing_targets() {
    let dir = tempfile::tempdir().unwrap();
    let error = exported(dir.path(), &plan(|model| model.head_bias = true)).unwrap_err();
    assert!(matches!(&error, Error::NotExportable { hint, .. } if hint.contains("use_bias_in_output")), "{error}");
    let mut other = plan(|_| ());
    other.graph.nodes.swap(3, 4);
    let dir = tempfile::tempdir().unwrap();
    let error = exported(dir.path(), &other).unwrap_err().to_string();
    assert!(error.contains("operator 3 is CausalAttention") && error.contains("have a norm"), "{error}");
    assert!(!dir.path().join("hf").exists());
    std::fs::create_dir(dir.path().join("hf")).unwrap();
    std::fs::write(dir.path().join("hf/mine"), "").unwrap();
    let dir_plan = plan(|_| ());
    assert!(matches!(exported(dir.path(), &dir_plan), Err(Error::Exists { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing half-written is left");
}

#[test]
fn every_gpt_of_the_params_is_a_gpt2() {
    for (tied, bias, dropout) in [(true, true, 0.1), (false, false, 0.0)] {
        let text = format!(
            "{{train_input: {{data_processor: GptTextDataProcessor, data_files: x, tokenizer: bytes, batch_size: 4, max_sequence_length: 16}}, \
             model: {{name: gpt2, vocab_size: 256, hidden_size: 8, num_hidden_layers: 2, num_heads: 2, filter_size: 20, \
             max_position_embeddings: 16, share_embedding_weights: {tied}, use_ffn_bias: {bias}, dropout_rate: {dropout}, \
             nonlinearity: gelu}}, \
             optimizer: {{optimizer_type: AdamW, learning_rate: 0.1}}, runconfig: {{max_steps: 1}}}}"
        );
        let params = millrace_params::Params::parse_yaml(&text).unwrap();
        let job = params.resolve(&millrace_params::FlagOverrides::default()).unwrap().job;
        let model = Gpt2::from_graph(&millrace_emulator::families::decoder(&job.model, 16).unwrap()).unwrap();
        assert_eq!((model.tied(), model.blocks.len(), model.heads, model.inner), (tied, 2, 2, 20));
        assert_eq!((model.rates.embedding, model.rates.residual), (dropout, dropout));
        assert!(model.mapping().iter().all(|mapped| mapped.queries.is_none()));
    }
}

/// A directory as written by other programs: two files, 16-bit types, no prefix, mask buffers.
fn write_foreign_directory(dir: &Path, plan: &StreamPlan, change: impl Fn(&mut Tensors, &mut Value)) {
    let mut tensors = HashMap::new();
    let values = |elements: usize| (0..elements).map(|index| index as f32 / 8.0 - 3.0).collect::<Vec<f32>>();
    let shape_of = |name: &str| plan.graph.tensors.iter().find(|t| t.name == name).unwrap().shape.clone();
    for (hf_name, name, transposed) in (0..2).flat_map(names) {
        let mut shape = shape_of(&name);
        if transposed {
            shape.reverse();
        }
        tensors.insert(hf_name, (shape.clone(), values(shape.iter().product())));
    }
    for name in ["wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"] {
        let shape = shape_of(name);
        tensors.insert(name.to_owned(), (shape.clone(), values(shape.iter().product())));
    }
    tensors.insert("h.0.attn.bias".into(), (vec![1, 1, 6, 6], vec![1.0; 36]));
    tensors.insert("lm_head.weight".into(), tensors["wte.weight"].clone());
    let mut config = json!({"model_type": "gpt2", "n_head": 2, "activation_function": "gelu_pytorch_tanh"});
    change(&mut tensors, &mut config);
    let mut names: Vec<&String> = tensors.keys().collect();
    names.sort();
    let mut weight_map = serde_json::Map::new();
    for (index, part) in names.chunks(names.len().div_ceil(2)).enumerate() {
        let file = format!("model-{index}.safetensors");
        // Values are multiples of 1/8 below 16: exact in both types.
        let bytes: Vec<Vec<u8>> =
            part.iter().map(|name| tensors[*name].1.iter().flat_map(|v| half(*v, index)).collect()).collect();
        let dtype = [Dtype::F16, Dtype::BF16][index];
        let views = part.iter().zip(&bytes).map(|(name, bytes)| {
            weight_map.insert((*name).clone(), file.clone().into());
            (*name, TensorView::new(dtype, tensors[*name].0.clone(), bytes).unwrap())
        });
        std::fs::write(dir.join(&file), safetensors::serialize(views, None).unwrap()).unwrap();
    }
    let index = json!({"weight_map": weight_map});
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

/// A value that fits binary16 (`kind` 0) or bfloat16 exactly.
fn half(value: f32, kind: usize) -> [u8; 2] {
    let word = value.to_bits();
    if kind == 1 || value == 0.0 {
        return ((word >> 16) as u16).to_le_bytes();
    }
    let exponent = (word >> 23 & 255) - 112;
    ((word >> 31 << 15 | exponent << 10 | word >> 13 & 1023) as u16).to_le_bytes()
}

#[test]
fn foreign_directories_import_and_differences_are_reported() {
    let plan = plan(|_| ());
    let import = |change: &dyn Fn(&mut Tensors, &mut Value)| {
        let dir = tempfile::tempdir().unwrap();
        write_foreign_directory(dir.path(), &plan, change);
        let lock = lock(&dir.path().join("run"));
        import_hf(dir.path(), &lock, &plan, facts(&plan)).map(|imported| {
            let checkpoint = Checkpoint::open(imported.path).unwrap();
            (0..plan.graph.tensors.len())
                .map(|id| checkpoint.read_tensor(id, Section::Parameters).unwrap())
                .collect::<Vec<_>>()
        })
    };
    let tensor_index = |name: &str| plan.graph.tensors.iter().position(|tensor| tensor.name == name).unwrap();
    let tensors = import(&|_, _| ()).unwrap();
    let fc = &tensors[tensor_index("h.1.mlp.fc.weight")];
    // [20, 8] in the graph, [8, 20] in the directory.
    assert!((0..INNER * HIDDEN).all(|n| fc[n] == ((n % HIDDEN) * INNER + n / HIDDEN) as f32 / 8.0 - 3.0));
    assert_eq!(tensors[tensor_index("ln_f.bias")], (0..HIDDEN).map(|n| n as f32 / 8.0 - 3.0).collect::<Vec<f32>>());
    // Scores are neither divided by sqrt(4) nor, in the first block, by its number: twice the queries.
    let unscaled = import(&|_, config| config["scale_attn_weights"] = false.into()).unwrap();
    let (values, scaled) = (&unscaled[tensor_index("h.0.attn.qkv.bias")], &tensors[tensor_index("h.0.attn.qkv.bias")]);
    assert!((0..3 * HIDDEN).all(|n| values[n] == scaled[n] * if n < HIDDEN { 2.0 } else { 1.0 }));

    type Change = fn(&mut Tensors, &mut Value);
    let cases: [(Change, &str); 7] = [
        (|t, _| drop(t.remove("h.1.ln_2.bias")), "it has no tensor h.1.ln_2.bias"),
        (
            |t, _| drop(t.insert("wte.weight".into(), (vec![1, 8], vec![0.0; 8]))),
            "wte.weight has shape [1, 8] in the checkpoint and [11, 8] in the params",
        ),
        (
            |t, _| drop(t.insert("h.2.x".into(), (vec![1], vec![0.0]))),
            "it has a tensor h.2.x that the model of the params does not have",
        ),
        (|_, c| c["n_head"] = 4.into(), "n_head is 4 in the checkpoint and 2 in the params"),
        (
            |_, c| c["activation_function"] = "gelu".into(),
            "activation_function is gelu in the checkpoint and gelu_new in the params",
        ),
        (
            |_, c| c["tie_word_embeddings"] = false.into(),
            "tie_word_embeddings is false in the checkpoint and true in the params",
        ),
        (
            |_, c| c["model_type"] = "llama".into(),
            "model_type is llama in the checkpoint and another model (llama has RMS norms) in the params",
        ),
    ];
    for (change, expected) in cases {
        let error = import(&change).unwrap_err();
        assert!(error.to_string().ends_with(expected) && error.is_bad_input() && error.hint().is_some(), "{error}");
    }
}

#[test]
fn params_match_config_json_and_unsupported_key_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let text = |config: Value| {
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        params_text(dir.path(), Choices { model_dir: "tuned \"1\"\n: {", num_csx: 2 })
    };
    let job = |config: Value| {
        let params = millrace_params::Params::parse_yaml(&text(config).unwrap()).unwrap();
        params.resolve(&millrace_params::FlagOverrides::default()).unwrap().job
    };
    let specific = job(json!({"model_type": "gpt2", "vocab_size": 300, "n_positions": 32, "n_embd": 24, "n_layer": 3,
        "n_head": 4, "n_inner": 40, "activation_function": "gelu", "resid_pdrop": 0, "embd_pdrop": 0.25,
        "layer_norm_epsilon": 1e-6, "tie_word_embeddings": false, "unknown": [1]}));
    assert_eq!((specific.run.model_dir.as_str(), specific.run.num_csx), ("tuned \"1\"\n: {", 2));
    let model = Gpt2::from_graph(&millrace_emulator::families::decoder(&specific.model, 32).unwrap()).unwrap();
    assert_eq!((model.vocabulary, model.positions, model.hidden, model.blocks.len()), (300, 32, 24, 3));
    assert_eq!((model.heads, model.inner, model.epsilon, model.tied()), (4, 40, 1e-6, false));
    assert_eq!((model.rates.residual, model.rates.embedding, model.rates.attention), (0.0, 0.25, 0.1));
    let standard = job(json!({"model_type": "gpt2"}));
    assert_eq!((standard.model.hidden_size, standard.model.filter_size), (768, 3072));
    assert_eq!(standard.train_input.max_sequence_length, 1024);

    for (key, value) in [
        ("model_type", json!("mamba")),
        ("activation_function", json!("mish")),
        ("n_head", json!(5)),
        ("n_head", json!(0)),
        ("n_inner", json!(1 << 30)),
        ("vocab_size", json!(0)),
        ("attn_pdrop", json!(1.0)),
        ("layer_norm_epsilon", json!(0.0)),
        ("add_cross_attention", json!(true)),
        ("quantization_config", json!({"bits": 4})),
    ] {
        let mut config = json!({"model_type": "gpt2"});
        config[key] = value;
        let error = text(config).unwrap_err();
        assert!(error.to_string().contains(key) && error.is_bad_input() && error.hint().is_some(), "{error}");
    }
    for (changed, message) in [
        (json!({"hidden_act": "gelu"}), "hidden_act \"gelu\""),
        (json!({"num_key_value_heads": 9}), "num_key_value_heads 9"),
        (json!({"hidden_size": 0}), "hidden_size 0"),
        (json!({"rope_scaling": {"type": "yarn", "factor": 2}}), "rope_scaling"),
        (json!({"rope_scaling": {"type": "linear", "factor": "x"}}), "rope_scaling \"x\""),
    ] {
        let mut config = json!({"model_type": "llama", "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 4, "intermediate_size": 40});
        config.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        let error = text(config).unwrap_err();
        assert!(error.to_string().contains(message) && error.is_bad_input() && error.hint().is_some(), "{error}");
    }
    for wrong in
        [json!({"model_type": "gpt2", "n_layer": 12.5}), json!({"model_type": "gpt2", "n_embd": "768"}), json!([])]
    {
        assert!(matches!(text(wrong), Err(Error::NotImportable { .. })));
    }
}

#[test]
fn broken_directories_are_rejected_without_panic() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan(|_| ()));
    write_foreign_directory(dir.path(), &plan, |_, _| ());
    let lock = lock(&dir.path().join("run"));
    for name in ["config.json", "model.safetensors.index.json", "model-1.safetensors"] {
        let file = dir.path().join(name);
        let original = std::fs::read(&file).unwrap();
        let outside = br#"{"weight_map": {"a": "../x"}}"#.to_vec();
        let huge = [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat();
        for content in
            [Vec::new(), original[..original.len() - 1].to_vec(), b"\xff{".to_vec(), outside, huge, b"[[[[".to_vec()]
        {
            std::fs::write(&file, &content).unwrap();
            let error = import_hf(dir.path(), &lock, &plan, facts(&plan)).unwrap_err();
            assert!(error.is_bad_input(), "{name}: {error}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(import_hf(dir.path(), &lock, &plan, facts(&plan)).unwrap_err().is_bad_input());
        std::fs::write(&file, original).unwrap();
    }
    assert!(crate::list(lock.model_dir()).unwrap().complete.is_empty());
}
