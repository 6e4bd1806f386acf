//! Imports a Hugging Face directory as a checkpoint at step 0.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_emulator::graph::TensorId;
use millrace_emulator::plan::StreamPlan;

use super::config::hf_activation_name;
use super::decoder::Decoder;
use super::directory::HfDirectory;
use super::families::{MappedTensor, differing_key, family};
use super::gpt2::{Gpt2, TensorMapping};
use super::json_file::{not_importable, read_json};
use super::transpose;
use crate::error::{Error, ModelDifference, Result};
use crate::layout::Moments;
use crate::lock::ModelDirLock;
use crate::manifest::{CheckpointMetadata, WriterEpoch};
use crate::section::Section;
use crate::write::{RangeWriter, Staging};

/// Imports the weights in `hf_dir` as `checkpoint_0` of the lock's model_dir, without moments, and returns its
/// directory. 16-bit weights are widened without loss.
///
/// # Errors
/// [`Error::NotImportable`] if `hf_dir` can't be read, [`Error::ModelMismatch`] with the first difference from the
/// plan's model, [`Error::NotExportable`] if transformers has no such model, or an error of the file system.
pub fn import_hf(
    hf_dir: &Path,
    lock: &Arc<ModelDirLock>,
    plan: &StreamPlan,
    mut facts: CheckpointMetadata,
) -> Result<PathBuf> {
    let source = HfDirectory::open(hf_dir)?;
    let tensors = TensorSource::open(&source, plan)?;
    // Nothing has been trained yet, whatever run the metadata come from.
    (facts.next_sample, facts.loss, facts.grad_norm) = (0, None, None);
    facts.notes.push(format!("imported from {}", hf_dir.display()));
    let epoch = WriterEpoch { attempt: lock.attempt(), number: 0 };
    let mut staging = Staging::create(lock, plan, 0, epoch, &Moments::none())?;
    let mut writer = RangeWriter::open(staging.path(), plan, &Moments::none())?;
    let (mut held, mut values) = (None, Vec::new());
    for chunk in 0..plan.chunks.len() {
        let mut out = vec![0.0; plan.chunks[chunk].elements];
        for (tensor, start, range) in plan.chunk_pieces(chunk) {
            if held != Some(tensor) {
                values = tensors.read(&source, tensor, plan.graph.tensors[tensor].elements())?;
                held = Some(tensor);
            }
            // Zeros for a head bias, the only tensor that GPT-2 does not have.
            if let Some(part) = values.get(start..start + range.len()) {
                out[range].copy_from_slice(part);
            }
        }
        staging.record_digest(Section::Parameters, chunk, writer.write_chunk(chunk, Section::Parameters, &out)?)?;
    }
    writer.finish()?;
    staging.publish(facts)
}

/// Where the values of our tensors are in a directory.
enum TensorSource {
    Gpt2(Box<Gpt2>, Vec<TensorMapping>),
    Family(Vec<MappedTensor>),
}

impl TensorSource {
    /// Compares the model in the directory with that of the plan.
    fn open(source: &HfDirectory, plan: &StreamPlan) -> Result<Self> {
        let name = source.config.model_type.as_str();
        if name == "gpt2" {
            let model = Gpt2::from_graph(&plan.graph)?;
            let mapping = model.mapping();
            check_settings(source, &model)?;
            check_tensors(source, &model, &mapping)?;
            return Ok(Self::Gpt2(Box::new(model), mapping));
        }
        let Some(family) = family(name) else {
            let reason = format!("its config.json has model_type {name:?}");
            let hint = "gpt2, llama, mistral, gptj, gpt_neox, falcon, bloom, mpt and gpt_bigcode can be imported";
            return Err(not_importable(&source.dir, reason, hint));
        };
        let other = |difference| Err(Error::ModelMismatch { path: source.dir.clone(), difference });
        let decoder = Decoder::from_graph(&plan.graph);
        let model = decoder.and_then(|decoder| {
            family.describe(&plan.graph, &decoder).map_err(|reason| Error::NotExportable {
                reason: format!("{name} {reason}"),
                hint: "write params of the model that config.json describes".into(),
            })
        });
        let model = match model {
            Err(Error::NotExportable { reason, .. }) => {
                return other(ModelDifference::Setting {
                    key: "model_type".into(),
                    found: name.into(),
                    expected: format!("another model ({reason})"),
                });
            }
            model => model?,
        };
        let theirs = read_json(&source.dir.join("config.json"), "download the directory again")?;
        if let Some((key, found, expected)) = differing_key(&model.config, &theirs, &(family.defaults)()) {
            let (found, expected) = (found.to_string(), expected.to_string());
            return other(ModelDifference::Setting { key, found, expected });
        }
        check_family_tensors(source, &model.tensors)?;
        Ok(Self::Family(model.tensors))
    }

    /// Reads one of our tensors.
    fn read(&self, source: &HfDirectory, tensor: TensorId, elements: usize) -> Result<Vec<f32>> {
        match self {
            Self::Gpt2(model, mapping) => read(source, model, mapping, tensor),
            Self::Family(tensors) => {
                let mut ours = vec![0.0; elements];
                for mapped in tensors.iter().filter(|mapped| mapped.ours == Some(tensor)) {
                    if let Some(name) = stored_name(source, mapped) {
                        mapped.import(&source.read(name)?, &mut ours);
                    }
                }
                Ok(ours)
            }
        }
    }
}

/// Returns the name of a tensor in the directory, if it is there.
fn stored_name<'a>(source: &HfDirectory, mapped: &'a MappedTensor) -> Option<&'a str> {
    let name = mapped.name.strip_prefix("transformer.").unwrap_or(&mapped.name);
    // The head of GPT-NeoX has a second name in newer versions.
    let names = [name, if name == "embed_out.weight" { "lm_head.weight" } else { name }];
    names.into_iter().find(|name| source.shape(name).is_some())
}

fn check_family_tensors(source: &HfDirectory, tensors: &[MappedTensor]) -> Result<()> {
    let other = |difference| Err(Error::ModelMismatch { path: source.dir.clone(), difference });
    let mut known = HashSet::new();
    for mapped in tensors {
        let Some(stored) = stored_name(source, mapped) else {
            match mapped.ours {
                None => continue,
                Some(_) => return other(ModelDifference::Missing { name: mapped.name.clone() }),
            }
        };
        known.insert(stored);
        let (name, expected) = (mapped.name.clone(), mapped.shape.clone());
        let found = source.shape(stored).unwrap_or_default();
        if found != expected {
            return other(ModelDifference::Shape { name, found: found.to_vec(), expected });
        }
        // A bias of zeros is equivalent to no bias.
        if mapped.ours.is_none() && source.read(stored)?.iter().any(|&value| value != 0.0) {
            return other(ModelDifference::Unknown { name });
        }
    }
    let is_tied = !tensors.iter().any(|mapped| ["lm_head.weight", "embed_out.weight"].contains(&mapped.name.as_str()));
    // With tied embeddings a saved head equals the embedding.
    let ignored = |name: &str| is_tied && name == "lm_head.weight";
    match source.names().find(|name| !known.contains(name) && !ignored(name)) {
        Some(name) => other(ModelDifference::Unknown { name: name.into() }),
        None => Ok(()),
    }
}

/// Reads one of our tensors of a GPT-2; zeros for a head bias.
fn read(source: &HfDirectory, model: &Gpt2, mapping: &[TensorMapping], tensor: TensorId) -> Result<Vec<f32>> {
    let Some((at, mapped)) = mapping.iter().enumerate().find(|(_, mapped)| mapped.tensor == Some(tensor)) else {
        return Ok(Vec::new());
    };
    let mut values = source.read(&mapped.name)?;
    if let (true, &[rows, columns]) = (mapped.transposed, mapped.shape.as_slice()) {
        values = transpose(&values, rows, columns);
    }
    // Blocks have twelve tensors each, after the two embeddings.
    let theirs = source_attention_scale(source, model, at.saturating_sub(2) / 12);
    let factor = mapped.queries.map_or(1.0, |(_, factor)| factor) / theirs;
    let queries = if mapped.name.contains(".c_attn.") { values.len() / 3 } else { 0 };
    if factor != 1.0 {
        values.iter_mut().take(queries).for_each(|value| *value /= factor);
    }
    Ok(values)
}

/// Returns the source's factor on query-key products in a block, relative to `1 / sqrt(head)`.
fn source_attention_scale(source: &HfDirectory, model: &Gpt2, block: usize) -> f32 {
    let head = (model.hidden / model.heads) as f32;
    let base = if source.config.scale_attn_weights { 1.0 } else { head.sqrt() };
    if source.config.scale_attn_by_inverse_layer_idx { base / (block + 1) as f32 } else { base }
}

/// Checks settings that are not visible in shapes.
fn check_settings(source: &HfDirectory, model: &Gpt2) -> Result<()> {
    let config = &source.config;
    config.check_family(&source.dir)?;
    let differs = |key: &str, found: String, expected: String| {
        let difference = ModelDifference::Setting { key: key.into(), found, expected };
        Err(Error::ModelMismatch { path: source.dir.clone(), difference })
    };
    if config.n_head != model.heads {
        return differs("n_head", config.n_head.to_string(), model.heads.to_string());
    }
    if config.layer_norm_epsilon != model.epsilon {
        return differs("layer_norm_epsilon", config.layer_norm_epsilon.to_string(), model.epsilon.to_string());
    }
    if config.activation() != Some(model.activation) {
        let expected = hf_activation_name(model.activation).unwrap_or("a function that transformers does not have");
        return differs("activation_function", config.activation_function.clone(), expected.into());
    }
    if config.tie_word_embeddings != model.tied() {
        return differs("tie_word_embeddings", config.tie_word_embeddings.to_string(), model.tied().to_string());
    }
    Ok(())
}

fn check_tensors(source: &HfDirectory, model: &Gpt2, mapping: &[TensorMapping]) -> Result<()> {
    let other = |difference| Err(Error::ModelMismatch { path: source.dir.clone(), difference });
    for mapped in mapping {
        let name = mapped.name.clone();
        match (source.shape(&name), mapped.tensor) {
            (None, None) => {}
            (None, Some(_)) => return other(ModelDifference::Missing { name }),
            (Some(found), _) if found != mapped.shape => {
                return other(ModelDifference::Shape { name, found: found.to_vec(), expected: mapped.shape.clone() });
            }
            // A bias of zeros is equivalent to no bias.
            (Some(_), None) if source.read(&name)?.iter().any(|&value| value != 0.0) => {
                return other(ModelDifference::Unknown { name });
            }
            (Some(_), _) => {}
        }
    }
    let known: HashSet<&str> = mapping.iter().map(|mapped| mapped.name.as_str()).collect();
    // With tied embeddings a saved head equals the embedding.
    let ignored = |name: &str| model.tied() && name == "lm_head.weight";
    match source.names().find(|name| !known.contains(name) && !ignored(name)) {
        Some(name) => other(ModelDifference::Unknown { name: name.into() }),
        None => Ok(()),
    }
}
