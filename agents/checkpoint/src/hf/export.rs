//! Writes a Hugging Face directory.

use std::path::{Path, PathBuf};

use super::config::{decimal, hf_activation_name};
use super::gpt2::{Gpt2, TensorMapping};
use super::tokenizer::{ExportedTokenizer, document};
use super::{families, transpose};
use crate::error::{Error, Result};
use crate::files::{draft_path, remove_dir, rename_synced, write_synced};
use crate::read::Checkpoint;
use crate::section::Section;
use crate::weight_files::{ExportSummary, write_tensors};

/// Writes the parameters of `checkpoint` as a directory that the class of `transformers` named in its `config.json`
/// loads, and the tokenizer as `transformers.AutoTokenizer` loads it. The directory must not exist or be empty; it
/// appears when it is complete.
///
/// # Errors
/// [`Error::NotExportable`] if `transformers` has no such model, [`Error::Exists`], [`Error::Damaged`], or an error of
/// the file system.
pub fn export_hf(
    checkpoint: &Checkpoint,
    out_dir: &Path,
    tokenizer: Option<&ExportedTokenizer>,
) -> Result<ExportSummary> {
    let graph = checkpoint.layout().graph();
    let Ok(model) = Gpt2::from_graph(graph) else {
        let mut model = families::describe(graph)?;
        for (key, id) in tokenizer.map(ExportedTokenizer::config).unwrap_or_default() {
            model.config[key] = id.into();
        }
        let shapes = model.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
        return write_directory(out_dir, files_of(model.config, tokenizer), shapes, |index| {
            let mapped = &model.tensors[index];
            let Some(tensor) = mapped.tensor else { return Ok(mapped.own_values()) };
            Ok(mapped.export(&checkpoint.read_tensor(tensor, Section::Parameters)?))
        });
    };
    if model.head_bias.is_some() {
        return Err(Error::NotExportable {
            reason: "its head has a bias, which Hugging Face's GPT-2 doesn't support".into(),
            hint: "train with use_bias_in_output: false to export".into(),
        });
    }
    let Some(activation) = hf_activation_name(model.activation) else {
        return Err(Error::NotExportable {
            reason: format!("its activation is {:?}, which transformers does not have", model.activation),
            hint: "use `checkpoint info` and the safetensors files of the checkpoint".into(),
        });
    };
    let mut mapping = model.mapping();
    for mapped in mapping.iter_mut().filter(|mapped| mapped.name != "lm_head.weight") {
        mapped.name.insert_str(0, "transformer.");
    }
    let shapes = mapping.iter().map(|mapped| (mapped.name.clone(), mapped.shape.clone())).collect();
    let files = files_of(config(&model, activation), tokenizer);
    write_directory(out_dir, files, shapes, |index| values(checkpoint, &mapping[index]))
}

/// Returns the files beside the weights.
fn files_of(config: serde_json::Value, tokenizer: Option<&ExportedTokenizer>) -> Vec<(&'static str, Vec<u8>)> {
    let mut files = tokenizer.map(ExportedTokenizer::files).unwrap_or_default();
    files.push(("config.json", document(&config)));
    files
}

/// Writes a directory with these files, and these tensors, whose values `values` returns.
fn write_directory(
    out_dir: &Path,
    files: Vec<(&'static str, Vec<u8>)>,
    tensors: Vec<(String, Vec<usize>)>,
    values: impl FnMut(usize) -> Result<Vec<f32>>,
) -> Result<ExportSummary> {
    if millrace_roots::read_dir(out_dir).is_ok_and(|entries| !entries.is_empty()) || millrace_roots::is_file(out_dir) {
        return Err(Error::Exists { path: out_dir.to_owned() });
    }
    let draft = TempDir(draft_path(out_dir));
    remove_dir(&draft.0)?;
    millrace_roots::create_dir_all(&draft.0).map_err(|e| Error::io("create", &draft.0, e))?;
    let exported = write_tensors(&draft.0.join("model.safetensors"), &tensors, values)?;
    for (name, content) in files {
        write_synced(&draft.0.join(name), &content)?;
    }
    crate::files::sync_dir(&draft.0)?;
    rename_synced(&draft.0, out_dir)?;
    Ok(ExportSummary { path: out_dir.to_owned(), ..exported })
}

/// A directory that is removed on drop unless it was renamed.
struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        // After the rename it does not exist; otherwise nothing can be done about a failure.
        let _ = remove_dir(&self.0);
    }
}

fn values(checkpoint: &Checkpoint, mapped: &TensorMapping) -> Result<Vec<f32>> {
    let Some(tensor) = mapped.tensor else {
        return Ok(vec![0.0; mapped.shape.iter().product()]);
    };
    let mut values = checkpoint.read_tensor(tensor, Section::Parameters)?;
    if let Some((elements, factor)) = mapped.queries {
        values.iter_mut().take(elements).for_each(|value| *value *= factor);
    }
    match mapped.shape.as_slice() {
        &[columns, rows] if mapped.transposed => Ok(transpose(&values, rows, columns)),
        _ => Ok(values),
    }
}

fn config(model: &Gpt2, activation: &str) -> serde_json::Value {
    // A GPT-2 vocabulary ends with its only special token; a smaller one has none.
    let special = (model.vocabulary >= 50_257).then_some(50_256);
    serde_json::json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocabulary,
        "n_positions": model.positions,
        "n_embd": model.hidden,
        "n_layer": model.blocks.len(),
        "n_head": model.heads,
        "n_inner": model.inner,
        "activation_function": activation,
        "embd_pdrop": decimal(model.rates.embedding),
        "attn_pdrop": decimal(model.rates.attention),
        "resid_pdrop": decimal(model.rates.residual),
        "layer_norm_epsilon": decimal(model.epsilon),
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "reorder_and_upcast_attn": false,
        "tie_word_embeddings": model.tied(),
        "bos_token_id": special,
        "eos_token_id": special,
        "dtype": "float32",
        "torch_dtype": "float32",
    })
}
