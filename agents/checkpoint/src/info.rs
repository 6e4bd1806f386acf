//! Information about a checkpoint, for users and scripts.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::digest::Digest;
use crate::layout::Moments;
use crate::manifest::{Manifest, WriterEpoch};

/// The output of `checkpoint info`; the keys of its JSON are stable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointInfo {
    /// Its directory.
    pub path: PathBuf,
    /// The step after which it was taken.
    pub step: u64,
    /// blake3 of the blake3 digests of every chunk's f32 bytes, in the order of the plan that wrote it.
    pub parameters_blake3: Digest,
    /// The same for the moments: for every chunk, each moment in order.
    pub optimizer_blake3: Digest,
    /// Number of trained scalars.
    pub parameters: u64,
    /// Length of all its files except the manifest.
    pub bytes: u64,
    /// Hash of the plan that wrote it.
    pub plan: String,
    /// The epoch of its writers.
    pub epoch: WriterEpoch,
    /// The run's seed.
    pub seed: u64,
    /// Number of the first sample that no step up to this one has used.
    pub next_sample: u64,
    /// Number of batches that the run skipped because their loss jumped.
    pub skipped_batches: u64,
    /// Number format of the arithmetic.
    pub precision: String,
    /// Kind of optimizer.
    pub optimizer: String,
    /// The optimizer's moments.
    pub moments: Moments,
    /// Loss of the step.
    pub loss: Option<f32>,
    /// Global gradient norm of the step.
    pub grad_norm: Option<f32>,
    /// Notes for later readers.
    pub notes: Vec<String>,
    /// Whether it is a recovery checkpoint, which is deleted when a newer checkpoint exists.
    pub recovery: bool,
    /// The numerics profile: as JSON if it is valid JSON, otherwise as text.
    pub numerics_profile: serde_json::Value,
    /// Program and version that wrote it.
    pub written_by: String,
    /// Time of writing, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Version of the format.
    pub format: u32,
}

impl CheckpointInfo {
    pub(crate) fn new(dir: &Path, manifest: &Manifest) -> Self {
        let copied = manifest.clone();
        let profile = serde_json::from_str(&copied.numerics_profile)
            .unwrap_or(serde_json::Value::String(copied.numerics_profile));
        Self {
            path: dir.to_owned(),
            step: copied.step,
            parameters_blake3: copied.parameters_blake3,
            optimizer_blake3: copied.optimizer_blake3,
            parameters: copied.parameters,
            bytes: manifest.sizes().map(|(_, bytes)| bytes).sum(),
            plan: copied.plan,
            epoch: copied.epoch,
            seed: copied.seed,
            next_sample: copied.next_sample,
            skipped_batches: copied.history.skipped_batches,
            precision: copied.precision,
            optimizer: copied.optimizer,
            moments: copied.moments,
            loss: copied.loss,
            grad_norm: copied.grad_norm,
            notes: copied.notes,
            recovery: copied.recovery,
            numerics_profile: profile,
            written_by: copied.written_by,
            created_unix_seconds: copied.created_unix_seconds,
            format: copied.format,
        }
    }
}

impl fmt::Display for CheckpointInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        let moments = if self.moments.is_empty() {
            "none".to_owned()
        } else {
            self.moments.names().collect::<Vec<_>>().join(", ")
        };
        writeln!(f, "{}", self.path.display())?;
        writeln!(f, "  step               {}", self.step)?;
        writeln!(f, "  loss, grad norm    {}, {}", number(self.loss), number(self.grad_norm))?;
        writeln!(f, "  parameters         {} ({})", self.parameters, self.precision)?;
        writeln!(f, "  optimizer          {} (moments: {moments})", self.optimizer)?;
        writeln!(f, "  size               {} bytes", self.bytes)?;
        let skipped = match self.skipped_batches {
            0 => String::new(),
            skipped => format!(" (batches skipped: {skipped})"),
        };
        writeln!(f, "  seed, next sample  {}, {}{skipped}", self.seed, self.next_sample)?;
        writeln!(f, "  plan               {}", self.plan)?;
        writeln!(f, "  numerics profile   {}", self.numerics_profile)?;
        writeln!(f, "  written by         {} (epoch {})", self.written_by, self.epoch)?;
        writeln!(f, "  parameters_blake3  {}", self.parameters_blake3)?;
        write!(f, "  optimizer_blake3   {}", self.optimizer_blake3)?;
        if self.recovery {
            write!(f, "\n  kept until         a newer checkpoint exists (checkpoint_seconds)")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  note               {note}"))
    }
}
