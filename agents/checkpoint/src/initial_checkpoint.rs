//! Writes imported weights as the checkpoint of step 0.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_emulator::graph::TensorId;
use millrace_emulator::plan::StreamPlan;

use crate::error::Result;
use crate::layout::Moments;
use crate::lock::ModelDirLock;
use crate::manifest::{CheckpointMetadata, StepHistory, WriterEpoch};
use crate::section::Section;
use crate::write::{RangeWriter, Staging};

/// What an import wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportSummary {
    /// The new checkpoint.
    pub path: PathBuf,
    /// The model's tensors of an output layer that the source does not have. They have their initial values.
    pub initialized: Vec<String>,
    /// Tensors of the source's output layers that the model does not have.
    pub unused: Vec<String>,
}

/// Writes `checkpoint_0` of the lock's model_dir, without moments, and returns its path. `read` returns the values of
/// one of the plan's tensors; it is called for one tensor after the other. `initialized` are the tensors that `source`
/// does not have.
pub(crate) fn write_imported(
    lock: &Arc<ModelDirLock>,
    plan: &StreamPlan,
    mut metadata: CheckpointMetadata,
    source: &Path,
    initialized: &[String],
    mut read: impl FnMut(TensorId) -> Result<Vec<f32>>,
) -> Result<PathBuf> {
    // Nothing has been trained yet, whatever run the metadata come from.
    (metadata.next_sample, metadata.loss, metadata.grad_norm) = (0, None, None);
    metadata.history = StepHistory::default();
    metadata.notes.push(format!("imported from {}", source.display()));
    if !initialized.is_empty() {
        metadata.notes.push(format!("with initial values of {}", initialized.join(", ")));
    }
    let epoch = WriterEpoch { attempt: lock.attempt(), number: 0 };
    let mut staging = Staging::create(lock, plan, 0, epoch, &Moments::none())?;
    let mut writer = RangeWriter::open(staging.path(), plan, &Moments::none())?;
    let (mut cached, mut values) = (None, Vec::new());
    for chunk in 0..plan.chunks.len() {
        let mut out = vec![0.0; plan.chunks[chunk].elements];
        for (tensor, start, range) in plan.chunk_pieces(chunk) {
            if cached != Some(tensor) {
                values = read(tensor)?;
                cached = Some(tensor);
            }
            let length = range.len();
            out[range].copy_from_slice(&values[start..start + length]);
        }
        staging.record_digest(Section::Parameters, chunk, writer.write_chunk(chunk, Section::Parameters, &out)?)?;
    }
    writer.finish()?;
    staging.publish(metadata)
}
