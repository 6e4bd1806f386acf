//! Imports a Hugging Face directory as a checkpoint at step 0.

use std::path::Path;
use std::sync::Arc;

use millrace_emulator::graph::TensorId;
use millrace_emulator::numerics::init::tensor_key;
use millrace_emulator::plan::StreamPlan;

use super::directory::HfDirectory;
use super::family_import::FamilySource;
use super::gpt2_import::Gpt2Source;
use crate::error::Result;
use crate::initial_checkpoint::{ImportSummary, write_imported};
use crate::lock::ModelDirLock;
use crate::manifest::CheckpointMetadata;

/// Imports the weights in `hf_dir` as `checkpoint_0` of the lock's model_dir, without moments. 16-bit weights are
/// widened without loss. A model for another task than that of the directory takes everything but the output layers,
/// which get the initial values of `facts.seed`.
///
/// # Errors
/// [`Error::NotImportable`](crate::Error::NotImportable) if `hf_dir` can't be read,
/// [`Error::ModelMismatch`](crate::Error::ModelMismatch) with the first difference from the plan's model,
/// [`Error::NotExportable`](crate::Error::NotExportable) if transformers has no such model, or an error of the file
/// system.
pub fn import_hf(
    hf_dir: &Path,
    lock: &Arc<ModelDirLock>,
    plan: &StreamPlan,
    metadata: CheckpointMetadata,
) -> Result<ImportSummary> {
    let source = HfDirectory::open(hf_dir)?;
    let tensors = TensorSource::open(&source, plan)?;
    let (initialized, unused) = tensors.differences(plan);
    let seed = metadata.seed;
    let read = |tensor| tensors.read(&source, plan, tensor, seed);
    let path = write_imported(lock, plan, metadata, hf_dir, &initialized, read)?;
    Ok(ImportSummary { path, initialized, unused })
}

/// Where the values of the graph's tensors are in a directory.
enum TensorSource {
    Gpt2(Gpt2Source),
    Family(FamilySource),
}

impl TensorSource {
    /// Compares the model in the directory with that of the plan.
    fn open(source: &HfDirectory, plan: &StreamPlan) -> Result<Self> {
        match source.config.model_type.as_str() {
            "gpt2" => Gpt2Source::open(source, &plan.graph).map(Self::Gpt2),
            name => FamilySource::open(source, name, &plan.graph).map(Self::Family),
        }
    }

    /// Returns the names of the graph's tensors that the directory lacks, and of its tensors that are not read.
    fn differences(&self, plan: &StreamPlan) -> (Vec<String>, Vec<String>) {
        match self {
            Self::Gpt2(_) => (Vec::new(), Vec::new()),
            Self::Family(family) => {
                let name = |&tensor: &TensorId| plan.graph.tensors[tensor].name.clone();
                (family.missing().iter().map(name).collect(), family.unused().to_vec())
            }
        }
    }

    /// Reads a tensor of the graph, or computes its initial values.
    fn read(&self, source: &HfDirectory, plan: &StreamPlan, tensor: TensorId, seed: u64) -> Result<Vec<f32>> {
        let described = &plan.graph.tensors[tensor];
        match self {
            Self::Gpt2(gpt2) => gpt2.read(source, tensor, described.elements()),
            Self::Family(family) if family.missing().contains(&tensor) => {
                let mut values = vec![0.0; described.elements()];
                described.init.fill(tensor_key(seed, tensor as u64), 0, &mut values);
                Ok(values)
            }
            Self::Family(family) => family.read(source, tensor, described.elements()),
        }
    }
}
