//! Compares a Hugging Face directory of one of the [`families`](super::families) with the model of a plan, and reads
//! its tensors.

use std::collections::{BTreeSet, HashSet};

use millrace_emulator::graph::{Graph, TensorId};

use super::directory::HfDirectory;
use super::families::{self, HfFamily, HfModel};
use super::json_file::read_json;
use super::mapping::MappedTensor;
use super::settings::differing_key;
use super::structure::Structure;
use crate::error::{Error, ModelDifference, Result};

/// A model of a family, and where its tensors are in a directory.
pub(super) struct FamilySource {
    tensors: Vec<FoundTensor>,
    missing: BTreeSet<TensorId>,
    unused: Vec<String>,
}

/// A tensor of the family, and its name in the directory if it is there.
struct FoundTensor {
    mapped: MappedTensor,
    stored: Option<String>,
}

impl FamilySource {
    /// Compares the model in the directory, of the family `name`, with `graph`.
    ///
    /// # Errors
    /// There is no such family, or the first difference.
    pub fn open(source: &HfDirectory, name: &str, graph: &Graph) -> Result<Self> {
        let Some(family) = families::find(name) else {
            let reason = format!("its config.json has model_type {name:?}");
            let names: Vec<&str> = families::names().collect();
            let hint = format!("gpt2, {} can be imported", names.join(", "));
            return Err(Error::not_importable(&source.dir, reason, &hint));
        };
        let model = describe(source, family, graph)?;
        let config = read_json(&source.dir.join("config.json"), "download the directory again")?;
        if let Some((key, found, expected)) = differing_key(&model.config, &config, family) {
            let (found, expected) = (found.to_string(), expected.to_string());
            return Err(mismatch(source, ModelDifference::Setting { key, found, expected }));
        }
        Self::find(source, family, model.tensors)
    }

    /// Finds the tensors in the directory, and checks their shapes.
    fn find(source: &HfDirectory, family: &HfFamily, tensors: Vec<MappedTensor>) -> Result<Self> {
        let names = StoredNames::new(source, family);
        let (mut used, mut missing) = (HashSet::new(), BTreeSet::new());
        let mut found_tensors = Vec::with_capacity(tensors.len());
        for mapped in tensors {
            let stored = names.find(&mapped.name);
            match (&stored, mapped.tensor) {
                (Some(stored), _) => {
                    check_tensor(source, family, &mapped, stored)?;
                    used.insert(stored.clone());
                }
                (None, Some(tensor)) if family.is_of_output(&mapped.name) => drop(missing.insert(tensor)),
                (None, Some(_)) => {
                    return Err(mismatch(source, ModelDifference::Missing { name: mapped.name.clone() }));
                }
                (None, None) => {}
            }
            found_tensors.push(FoundTensor { mapped, stored });
        }
        // Of a bias that the family has twice, one is enough.
        let stored_tensor = |found: &FoundTensor| found.stored.as_ref().and(found.mapped.tensor);
        missing.retain(|tensor| !found_tensors.iter().any(|found| stored_tensor(found) == Some(*tensor)));
        let is_tied = !found_tensors.iter().any(|tensor| is_output_weight(&tensor.mapped.name));
        let mut unused = Vec::new();
        for name in source.names().filter(|name| !used.contains(*name)) {
            // With tied embeddings a saved output layer equals the embedding.
            if family.is_unused(name) || is_tied && is_output_weight(name) {
                continue;
            }
            let full = names.full(name);
            if !family.is_of_output(&full) {
                return Err(mismatch(source, ModelDifference::Unknown { name: full }));
            }
            unused.push(full);
        }
        Ok(Self { tensors: found_tensors, missing, unused })
    }

    /// Returns the graph's tensors of output layers that the directory does not have.
    pub fn missing(&self) -> &BTreeSet<TensorId> {
        &self.missing
    }

    /// Returns the directory's tensors of output layers that the model does not have.
    pub fn unused(&self) -> &[String] {
        &self.unused
    }

    /// Reads a tensor of the graph, which is not missing.
    pub fn read(&self, source: &HfDirectory, tensor: TensorId, elements: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; elements];
        for found in self.tensors.iter().filter(|found| found.mapped.tensor == Some(tensor)) {
            if let Some(name) = &found.stored {
                found.mapped.import(&source.read(name)?, &mut values);
            }
        }
        Ok(values)
    }
}

/// Describes `graph` by the family of the directory.
fn describe(source: &HfDirectory, family: &HfFamily, graph: &Graph) -> Result<HfModel> {
    let reason = match Structure::from_graph(graph) {
        Ok(structure) => match family.describe(graph, &structure) {
            Ok(model) => return Ok(model),
            Err(reason) => format!("{} {reason}", family.name),
        },
        Err(Error::NotExportable { reason, .. }) => reason,
        Err(error) => return Err(error),
    };
    let (key, found, expected) = ("model_type".into(), family.name.into(), format!("another model ({reason})"));
    Err(mismatch(source, ModelDifference::Setting { key, found, expected }))
}

fn mismatch(source: &HfDirectory, difference: ModelDifference) -> Error {
    Error::ModelMismatch { path: source.dir.clone(), difference }
}

/// Checks shape and, of a tensor that the graph does not have, values.
fn check_tensor(source: &HfDirectory, family: &HfFamily, mapped: &MappedTensor, stored: &str) -> Result<()> {
    let (name, expected) = (mapped.name.clone(), mapped.shape.clone());
    if mapped.tensor.is_none() && family.is_unused(&name) {
        return Ok(());
    }
    let found = source.shape(stored).unwrap_or_default();
    // Tables of which the model uses no row, as the segments of a BERT without segments, may have any number.
    if found != expected && (mapped.tensor.is_some() || found.get(1..) != expected.get(1..)) {
        return Err(mismatch(source, ModelDifference::Shape { name, found: found.to_vec(), expected }));
    }
    // Zeros, such as a bias of zeros, have no effect.
    if mapped.tensor.is_none() && source.read(stored)?.iter().any(|&value| value != 0.0) {
        return Err(mismatch(source, ModelDifference::Unknown { name }));
    }
    Ok(())
}

/// Returns whether a tensor is the weight of an output layer over the vocabulary, which may be tied.
fn is_output_weight(name: &str) -> bool {
    ["lm_head.weight", "embed_out.weight", "decoder.weight"].iter().any(|end| name.ends_with(end))
}

impl HfFamily {
    /// Returns whether a tensor is part of an output layer, which models for other tasks do not have. Decoders have
    /// only one task.
    fn is_of_output(&self, name: &str) -> bool {
        self.base.is_some_and(|base| match name.strip_prefix(base) {
            Some(name) => name.starts_with("pooler."),
            None => true,
        })
    }

    /// Returns whether a tensor of the directory has no effect on the output.
    fn is_unused(&self, name: &str) -> bool {
        self.unused_tensors.iter().any(|part| name.contains(part))
    }
}

/// Names of the tensors in a directory.
struct StoredNames<'a> {
    source: &'a HfDirectory,
    /// The prefix that the directory lacks, because its model has no output layers.
    lacks: Option<&'static str>,
}

impl<'a> StoredNames<'a> {
    fn new(source: &'a HfDirectory, family: &HfFamily) -> Self {
        let lacks = family.base.filter(|base| !source.names().any(|name| name.starts_with(base)));
        Self { source, lacks }
    }

    /// Returns the stored name of a tensor, if the directory has it.
    fn find(&self, name: &str) -> Option<String> {
        let name = name.strip_prefix("transformer.").unwrap_or(name);
        let name = self.lacks.and_then(|base| name.strip_prefix(base)).unwrap_or(name);
        let mut names = vec![name.to_owned()];
        match name {
            // The output layer of GPT-NeoX has a second name in newer versions.
            "embed_out.weight" => names.push("lm_head.weight".into()),
            // Norms of the first BERTs.
            _ => names.extend(
                [("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")]
                    .iter()
                    .filter_map(|(new, old)| name.strip_suffix(new).map(|start| format!("{start}{old}"))),
            ),
        }
        names.into_iter().find(|name| self.source.shape(name).is_some())
    }

    /// Returns the name of a stored tensor in a model with output layers.
    fn full(&self, stored: &str) -> String {
        format!("{}{stored}", self.lacks.unwrap_or_default())
    }
}
