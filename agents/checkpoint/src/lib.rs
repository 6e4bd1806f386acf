//! Checkpoints on disk: writing, verifying, exporting, importing, and the lock on model_dir.
//!
//! A checkpoint is a directory, `model_dir/checkpoint_<step>/`:
//! ```text
//! parameters/00003-h.3.safetensors     one file a group of the stream plan; f32, its tensors without gaps
//! optimizer/00003-h.3.m.safetensors    the optimizer's moments, laid out alike
//! model.safetensors.index.json         which tensor is in which file of parameters/, as the Hugging Face tools read it
//! layout.json                          graph, groups and chunks: what places every element ([`Layout`])
//! job.json                             the resolved job of the run
//! manifest.json                        step, seed, data cursor, numerics profile …, digest of every byte; written last
//! ```
//! Groups have no gaps, so a chunk of the plan is a byte range of a file: each MemoryX shard writes its own ranges
//! ([`RangeWriter`]) between the coordinator's [`Staging::create`] and [`Staging::publish`].
//!
//! * A directory named `checkpoint_<step>` was complete and synced to disk before it got that name.
//! * Nothing is used without verification: every byte of a checkpoint is covered by a digest in the manifest, and the
//!   manifest by its own.
//! * Only the holder of the [`ModelDirLock`] publishes, deletes or cleans up in a model_dir.
//! * No content on disk can make this crate panic.
//!
//! Digests for comparison by scripts: `parameters_blake3` is the blake3 of the 32-byte blake3 digests of every chunk's
//! parameters (f32, little-endian) in plan order; `optimizer_blake3` that of the moments, for each chunk in plan order
//! each moment in order.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod digest;
mod dtype;
mod error;
mod files;
pub mod hf;
mod safetensors_header;

mod info;
mod initial_checkpoint;
mod layout;
mod lineage;
mod list;
pub mod lock;
mod manifest;
mod named_weights;
mod plan_reader;
mod read;
mod retention;
mod section;
mod weight_files;
mod write;

pub use digest::{CheckpointDigests, Digest};
pub use error::{Damage, Error, ModelDifference, Result};
pub use info::CheckpointInfo;
pub use initial_checkpoint::ImportSummary;
pub use layout::{Layout, Moments};
pub use lineage::{LineagePoint, ResumeHistory, begin_lineage, continue_lineage};
pub use list::{
    CheckpointListing, SkippedCheckpoint, VerificationLevel, checkpoint_name, clean_up, contains_checkpoints, list,
    newest_complete, step_of_checkpoint,
};
pub use lock::{LockError, LockRequest, ModelDirLock};
pub use manifest::{CheckpointMetadata, FORMAT_VERSION, MANIFEST_FILE, StepHistory, WriterEpoch};
pub use named_weights::{check_weights, export_weights, import_weights};
pub use plan_reader::{LoadStrictness, PlanReader};
pub use read::{Checkpoint, FileEntry, verify};
pub use retention::{CheckpointOrigin, retain, superseded};
pub use section::Section;
pub use weight_files::ExportSummary;
pub use write::{RangeWriter, Staging};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
