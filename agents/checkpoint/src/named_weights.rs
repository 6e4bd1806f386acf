//! Imports and exports one safetensors file whose tensors have the names and shapes of the model's own, such as the
//! `state_dict` of a PyTorch module whose graph was traced.

use std::path::Path;
use std::sync::Arc;

use millrace_emulator::plan::StreamPlan;

use crate::error::{Error, ModelDifference, Result};
use crate::files::{parent, rename_synced};
use crate::initial_checkpoint::{ImportSummary, write_imported};
use crate::lock::ModelDirLock;
use crate::manifest::CheckpointMetadata;
use crate::read::Checkpoint;
use crate::section::Section;
use crate::weight_files::{ExportSummary, WeightFiles, write_tensors};

/// Imports the tensors of `file` as `checkpoint_0` of the lock's model_dir, without moments. 16-bit weights are widened
/// without loss.
///
/// # Errors
/// [`Error::NotImportable`] if `file` can't be read, [`Error::ModelMismatch`] unless it has exactly the tensors of the
/// plan's model, or an error of the file system.
pub fn import_weights(
    file: &Path,
    lock: &Arc<ModelDirLock>,
    plan: &StreamPlan,
    facts: CheckpointMetadata,
) -> Result<ImportSummary> {
    let mut weights = WeightFiles::new(file);
    weights.add(file, |name| Some(name.to_owned()))?;
    let tensors = &plan.graph.tensors;
    for tensor in tensors {
        let name = tensor.name.clone();
        match weights.shape(&name) {
            None => return Err(weights.mismatch(ModelDifference::Missing { name })),
            Some(found) if found != tensor.shape => {
                let (found, expected) = (found.to_vec(), tensor.shape.clone());
                return Err(weights.mismatch(ModelDifference::Shape { name, found, expected }));
            }
            Some(_) => {}
        }
    }
    let known: std::collections::HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    if let Some(name) = weights.names().find(|name| !known.contains(name)) {
        return Err(weights.mismatch(ModelDifference::Unknown { name: name.into() }));
    }
    let path = write_imported(lock, plan, facts, file, &[], |tensor| weights.read(&tensors[tensor].name))?;
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
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let draft = parent(file).join(format!("{name}.partial-{}", std::process::id()));
    let written = write_tensors(&draft, &tensors, |tensor| checkpoint.read_tensor(tensor, Section::Parameters))
        .and_then(|written| rename_synced(&draft, file).map(|()| written));
    if written.is_err() {
        // The error is that of writing; a file that can't be removed either is only incomplete.
        let _ = millrace_roots::remove_file(&draft);
    }
    Ok(ExportSummary { path: file.to_owned(), ..written? })
}
