//! Compares a Hugging Face GPT-2 with the model of a plan, and reads its tensors.

use std::collections::HashSet;

use millrace_emulator::graph::{Graph, TensorId};

use super::config::hf_activation_name;
use super::directory::HfDirectory;
use super::gpt2::{Gpt2, TensorMapping};
use super::transpose;
use crate::error::{Error, ModelDifference, Result};

/// A GPT-2, and where its tensors are in a directory.
pub(super) struct Gpt2Source {
    model: Box<Gpt2>,
    mapping: Vec<TensorMapping>,
}

impl Gpt2Source {
    /// Compares the model in the directory with `graph`.
    pub fn open(source: &HfDirectory, graph: &Graph) -> Result<Self> {
        let model = Gpt2::from_graph(graph)?;
        let mapping = model.mapping();
        check_settings(source, &model)?;
        check_tensors(source, &model, &mapping)?;
        Ok(Self { model: Box::new(model), mapping })
    }

    /// Reads a tensor of the graph; zeros for a head bias, which the directory does not have.
    pub fn read(&self, source: &HfDirectory, tensor: TensorId, elements: usize) -> Result<Vec<f32>> {
        let of_tensor = |(_, mapped): &(usize, &TensorMapping)| mapped.tensor == Some(tensor);
        let Some((index, mapped)) = self.mapping.iter().enumerate().find(of_tensor) else {
            return Ok(vec![0.0; elements]);
        };
        let mut values = source.read(&mapped.name)?;
        if let (true, &[rows, columns]) = (mapped.transposed, mapped.shape.as_slice()) {
            values = transpose(&values, rows, columns);
        }
        // Blocks have twelve tensors each, after the two embeddings.
        let source_scale = source_attention_scale(source, &self.model, index.saturating_sub(2) / 12);
        let factor = mapped.queries.map_or(1.0, |(_, factor)| factor) / source_scale;
        let queries = if mapped.name.contains(".c_attn.") { values.len() / 3 } else { 0 };
        if factor != 1.0 {
            values.iter_mut().take(queries).for_each(|value| *value /= factor);
        }
        Ok(values)
    }
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
    let mismatch = |key: &str, found: String, expected: String| {
        let difference = ModelDifference::Setting { key: key.into(), found, expected };
        Err(Error::ModelMismatch { path: source.dir.clone(), difference })
    };
    if config.n_head != model.heads {
        return mismatch("n_head", config.n_head.to_string(), model.heads.to_string());
    }
    if config.layer_norm_epsilon != model.epsilon {
        return mismatch("layer_norm_epsilon", config.layer_norm_epsilon.to_string(), model.epsilon.to_string());
    }
    if config.activation() != Some(model.activation) {
        let expected = hf_activation_name(model.activation).unwrap_or("a function that transformers does not have");
        return mismatch("activation_function", config.activation_function.clone(), expected.into());
    }
    if config.tie_word_embeddings != model.tied() {
        return mismatch("tie_word_embeddings", config.tie_word_embeddings.to_string(), model.tied().to_string());
    }
    Ok(())
}

fn check_tensors(source: &HfDirectory, model: &Gpt2, mapping: &[TensorMapping]) -> Result<()> {
    let mismatch = |difference| Err(Error::ModelMismatch { path: source.dir.clone(), difference });
    for mapped in mapping {
        let name = mapped.name.clone();
        match (source.shape(&name), mapped.tensor) {
            (None, None) => {}
            (None, Some(_)) => return mismatch(ModelDifference::Missing { name }),
            (Some(found), _) if found != mapped.shape => {
                return mismatch(ModelDifference::Shape {
                    name,
                    found: found.to_vec(),
                    expected: mapped.shape.clone(),
                });
            }
            // A bias of zeros is equivalent to no bias.
            (Some(_), None) if source.read(&name)?.iter().any(|&value| value != 0.0) => {
                return mismatch(ModelDifference::Unknown { name });
            }
            (Some(_), _) => {}
        }
    }
    let expected: HashSet<&str> = mapping.iter().map(|mapped| mapped.name.as_str()).collect();
    // With tied embeddings a saved head equals the embedding.
    let ignored = |name: &str| model.tied() && name == "lm_head.weight";
    match source.names().find(|name| !expected.contains(name) && !ignored(name)) {
        Some(name) => mismatch(ModelDifference::Unknown { name: name.into() }),
        None => Ok(()),
    }
}
