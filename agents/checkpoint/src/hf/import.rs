//! Imports a Hugging Face directory as a checkpoint at step 0.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_emulator::graph::TensorId;
use millrace_emulator::numerics::init::tensor_key;
use millrace_emulator::plan::StreamPlan;

use super::directory::HfDirectory;
use super::family_import::FamilySource;
use super::gpt2_import::Gpt2Source;
use crate::error::Result;
use crate::layout::Moments;
use crate::lock::ModelDirLock;
use crate::manifest::{CheckpointMetadata, WriterEpoch};
use crate::section::Section;
use crate::write::{RangeWriter, Staging};

/// What an import wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportSummary {
    /// The new checkpoint.
    pub path: PathBuf,
    /// Our tensors of an output layer that the directory does not have. They have their initial values.
    pub initialized: Vec<String>,
    /// Tensors of the directory's output layers that the model does not have.
    pub unused: Vec<String>,
}

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
    mut facts: CheckpointMetadata,
) -> Result<ImportSummary> {
    let source = HfDirectory::open(hf_dir)?;
    let tensors = TensorSource::open(&source, plan)?;
    let (initialized, unused) = tensors.differences(plan);
    // Nothing has been trained yet, whatever run the metadata come from.
    (facts.next_sample, facts.loss, facts.grad_norm) = (0, None, None);
    facts.notes.push(format!("imported from {}", hf_dir.display()));
    if !initialized.is_empty() {
        facts.notes.push(format!("with initial values of {}", initialized.join(", ")));
    }
    let epoch = WriterEpoch { attempt: lock.attempt(), number: 0 };
    let mut staging = Staging::create(lock, plan, 0, epoch, &Moments::none())?;
    let mut writer = RangeWriter::open(staging.path(), plan, &Moments::none())?;
    let (mut held, mut values) = (None, Vec::new());
    for chunk in 0..plan.chunks.len() {
        let mut out = vec![0.0; plan.chunks[chunk].elements];
        for (tensor, start, range) in plan.chunk_pieces(chunk) {
            if held != Some(tensor) {
                values = tensors.read(&source, plan, tensor, facts.seed)?;
                held = Some(tensor);
            }
            let length = range.len();
            out[range].copy_from_slice(&values[start..start + length]);
        }
        staging.record_digest(Section::Parameters, chunk, writer.write_chunk(chunk, Section::Parameters, &out)?)?;
    }
    writer.finish()?;
    Ok(ImportSummary { path: staging.publish(facts)?, initialized, unused })
}

/// Where the values of our tensors are in a directory.
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

    /// Returns the names of our tensors that the directory lacks, and of its tensors that are not read.
    fn differences(&self, plan: &StreamPlan) -> (Vec<String>, Vec<String>) {
        match self {
            Self::Gpt2(_) => (Vec::new(), Vec::new()),
            Self::Family(family) => {
                let name = |&tensor: &TensorId| plan.graph.tensors[tensor].name.clone();
                (family.missing().iter().map(name).collect(), family.unused().to_vec())
            }
        }
    }

    /// Reads one of our tensors, or computes its initial values.
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
