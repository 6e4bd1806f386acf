//! Imports and exports one safetensors file whose tensors have the names and shapes of the model's own, such as the
//! `state_dict` of a PyTorch module whose graph was traced.

use std::path::Path;
use std::sync::Arc;

use millrace_emulator::graph::TensorId;
use millrace_emulator::plan::StreamPlan;

use crate::error::{Error, Result};
use crate::files::{draft_path, rename_synced};
use crate::initial_checkpoint::{ImportSummary, write_imported};
use crate::lock::ModelDirLock;
use crate::manifest::CheckpointMetadata;
use crate::plan_reader::first_difference;
use crate::read::Checkpoint;
use crate::section::Section;
use crate::weight_files::{ExportSummary, WeightFiles, write_tensors};

/// Checks that `file` has exactly the tensors of the plan's model. Reads only its header.
///
/// # Errors
/// [`Error::NotImportable`] if `file` can't be read, or [`Error::ModelMismatch`].
pub fn check_weights(file: &Path, plan: &StreamPlan) -> Result<()> {
    open_weights(file, plan).map(drop)
}

/// Opens the tensors of `file`, which are those of the plan's model.
fn open_weights(file: &Path, plan: &StreamPlan) -> Result<WeightFiles> {
    let mut weights = WeightFiles::new(file);
    weights.add(file, |name| Some(name.to_owned()))?;
    match first_difference(&plan.graph, weights.shapes()) {
        Some(difference) => Err(weights.mismatch(difference)),
        None => Ok(weights),
    }
}

/// Imports the tensors of `file` as `checkpoint_0` of the lock's model_dir, without moments. 16-bit weights are widened
/// without loss.
///
/// # Errors
/// Those of [`check_weights`], or an error of the file system.
pub fn import_weights(
    file: &Path,
    lock: &Arc<ModelDirLock>,
    plan: &StreamPlan,
    metadata: CheckpointMetadata,
) -> Result<ImportSummary> {
    let weights = open_weights(file, plan)?;
    let read = |tensor: TensorId| weights.read(&plan.graph.tensors[tensor].name);
    let path = write_imported(lock, plan, metadata, file, &[], read)?;
    Ok(ImportSummary { path, initialized: Vec::new(), unused: Vec::new() })
}

/// Writes the parameters of `checkpoint` as one file, which must not exist; it appears when it is complete.
///
/// # Errors
/// [`Error::Exists`], [`Error::Damaged`], or an error of the file system.
pub fn export_weights(checkpoint: &Checkpoint, file: &Path) -> Result<ExportSummary> {
    if millrace_roots::is_file(file) || millrace_roots::read_dir(file).is_ok() {
        return Err(Error::Exists { path: file.to_owned() });
    }
    let graph = checkpoint.layout().graph();
    let tensors: Vec<_> = graph.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
    let draft = draft_path(file);
    let written = write_tensors(&draft, &tensors, |tensor| checkpoint.read_tensor(tensor, Section::Parameters))
        .and_then(|written| rename_synced(&draft, file).map(|()| written));
    if written.is_err() {
        // The error is that of writing; a file that can't be removed either is only incomplete.
        let _ = millrace_roots::remove_file(&draft);
    }
    Ok(ExportSummary { path: file.to_owned(), ..written? })
}
