//! `manifest.json`: the metadata of a checkpoint, and the digest of every byte of it.
//!
//! It is written last; a directory without it is not a checkpoint. Its first key, `checksum`, is the blake3 of the
//! manifest's own text with the 64 digits of the checksum replaced by zeros, so that damage to the manifest is detected
//! as well.

use std::path::Path;

use millrace_emulator::plan::PlanHash;
use serde::{Deserialize, Serialize};

use crate::digest::{CheckpointDigests, Digest, optimizer_digest};
use crate::error::{Damage, Error, Result};
use crate::files::{read_limited, stays_inside};
use crate::layout::{Layout, Moments, MomentsError};
use crate::section::Section;

/// Highest version of the format that this program reads and writes.
pub const FORMAT_VERSION: u32 = 2;
/// Version of a checkpoint whose moments have the shape of the weights, and whose run has skipped no batch. Releases
/// before 0.2.0 read no other.
const FIRST_FORMAT_VERSION: u32 = 1;

/// File name of the manifest.
pub const MANIFEST_FILE: &str = "manifest.json";
pub(crate) const LAYOUT_FILE: &str = "layout.json";
pub(crate) const JOB_FILE: &str = "job.json";
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Exceeds the length of a manifest for a trillion parameters.
const MAX_MANIFEST_BYTES: u64 = 4 << 30;

const CHECKSUM_KEY: &str = "{\n  \"checksum\": \"";
const NO_CHECKSUM: [u8; 64] = [b'0'; 64];

/// The epoch of a checkpoint's writers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WriterEpoch {
    /// The job's attempt.
    pub attempt: u32,
    /// Number of changes of membership within the attempt.
    pub number: u32,
}

impl std::fmt::Display for WriterEpoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.attempt, self.number)
    }
}

/// The run's metadata of a checkpoint; everything except the data.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointMetadata {
    /// Hash of the run's stream plan.
    pub plan: PlanHash,
    /// The run's seed.
    pub seed: u64,
    /// The data cursor: number of the first sample that no step up to this one has used.
    pub next_sample: u64,
    /// The numerics profile, as JSON; compared byte by byte on resume.
    pub numerics_profile: String,
    /// Number format of the arithmetic, such as `f32` or `mixed_bf16`.
    pub precision: String,
    /// Kind of optimizer, such as `adamw`.
    pub optimizer: String,
    /// Loss of the step; `None` before the first.
    pub loss: Option<f32>,
    /// Global gradient norm of the step; `None` before the first.
    pub grad_norm: Option<f32>,
    /// Skipped batches and means up to the step.
    pub history: StepHistory,
    /// Notes for later readers, such as "numerics profile changed by flag at step 40".
    pub notes: Vec<String>,
    /// The resolved job as JSON, stored as `job.json`.
    pub job: String,
    /// Whether it is a recovery checkpoint, to be deleted when a newer one exists.
    pub recovery: bool,
}

/// Number of skipped batches, and means of loss and gradient norm, over the steps up to a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepHistory {
    /// Number of batches that were skipped: the next step reads so many batches later.
    pub skipped_batches: u64,
    /// Number of steps that the means are over; 0 for a run without a bound on jumps.
    pub steps: u32,
    /// Mean of the losses.
    pub mean_loss: f32,
    /// Mean of the gradient norms.
    pub mean_grad_norm: f32,
}

impl StepHistory {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A file and the digest of all its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DocumentDigest {
    pub path: String,
    pub bytes: u64,
    pub blake3: Digest,
}

impl DocumentDigest {
    pub fn of(path: &str, bytes: &[u8]) -> Self {
        Self { path: path.to_owned(), bytes: bytes.len() as u64, blake3: Digest::of(bytes) }
    }
}

/// A safetensors file: the digests of its header and of every chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DataFile {
    pub path: String,
    pub bytes: u64,
    pub header_bytes: u64,
    pub header_blake3: Digest,
    pub chunks: Vec<Digest>,
}

/// The manifest; see the module documentation. The order of the fields is the order in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub format: u32,
    pub step: u64,
    pub epoch: WriterEpoch,
    pub written_by: String,
    pub created_unix_seconds: u64,
    pub plan: String,
    pub seed: u64,
    pub next_sample: u64,
    pub numerics_profile: String,
    pub precision: String,
    pub optimizer: String,
    pub moments: Moments,
    pub loss: Option<f32>,
    pub grad_norm: Option<f32>,
    /// Since 0.2.0; earlier runs skipped nothing and had no bound on jumps.
    #[serde(default, skip_serializing_if = "StepHistory::is_empty")]
    pub history: StepHistory,
    pub notes: Vec<String>,
    /// Since 0.2.0; earlier checkpoints are not recovery checkpoints.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovery: bool,
    pub parameters: u64,
    pub parameters_blake3: Digest,
    pub optimizer_blake3: Digest,
    pub documents: Vec<DocumentDigest>,
    pub files: Vec<DataFile>,
}

impl Manifest {
    /// Creates the manifest of a finished checkpoint.
    pub fn new(
        (step, epoch): (u64, WriterEpoch),
        metadata: CheckpointMetadata,
        layout: &Layout,
        moments: &Moments,
        documents: Vec<DocumentDigest>,
        digests: &CheckpointDigests,
    ) -> Self {
        let sections: Vec<Vec<Digest>> = moments.sections().map(|section| digests.section(section)).collect();
        let specs = layout.files(moments).into_iter();
        let groups = sections.iter().flat_map(|chunks| layout.groups().iter().map(move |group| (chunks, group)));
        let files = specs.zip(groups).map(|(spec, (chunks, group))| DataFile {
            path: spec.path,
            bytes: spec.bytes,
            header_bytes: spec.header.len() as u64,
            header_blake3: Digest::of(&spec.header),
            chunks: chunks.get(group.chunks.clone()).unwrap_or_default().to_vec(),
        });
        Self {
            format: if moments.are_full() && metadata.history.skipped_batches == 0 {
                FIRST_FORMAT_VERSION
            } else {
                FORMAT_VERSION
            },
            step,
            epoch,
            written_by: concat!("millrace ", env!("CARGO_PKG_VERSION")).to_owned(),
            created_unix_seconds: crate::files::unix_seconds(),
            plan: metadata.plan.to_string(),
            seed: metadata.seed,
            next_sample: metadata.next_sample,
            numerics_profile: metadata.numerics_profile,
            precision: metadata.precision,
            optimizer: metadata.optimizer,
            moments: moments.clone(),
            loss: metadata.loss,
            grad_norm: metadata.grad_norm,
            history: metadata.history,
            notes: metadata.notes,
            recovery: metadata.recovery,
            parameters: layout.parameters(),
            parameters_blake3: Digest::of_all(digests.section(Section::Parameters)),
            optimizer_blake3: optimizer_digest(&sections[1..]),
            documents,
            files: files.collect(),
        }
    }

    /// Returns the text of the file, including the checksum.
    pub fn encode(&self) -> Vec<u8> {
        // Writing numbers and strings to memory can't fail. Pretty JSON begins with "{\n  ".
        let body = serde_json::to_string_pretty(self).unwrap_or_default();
        let zeros = String::from_utf8_lossy(&NO_CHECKSUM);
        let mut text = format!("{CHECKSUM_KEY}{zeros}\",{}\n", body.get(1..).unwrap_or_default()).into_bytes();
        let digest = Digest::of(&text).to_string();
        text[CHECKSUM_KEY.len()..][..64].copy_from_slice(digest.as_bytes());
        text
    }

    /// Reads `dir/manifest.json` and verifies its checksum.
    ///
    /// # Errors
    /// [`Error::NotACheckpoint`] if there is none or a newer program wrote it, [`Error::Damaged`] if it is damaged.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST_FILE);
        let not_one = |reason: &str| Error::NotACheckpoint { path: dir.to_owned(), reason: reason.to_owned() };
        let text = match read_limited(&path, MAX_MANIFEST_BYTES) {
            Ok(text) => text,
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound
                    || error.kind() == std::io::ErrorKind::NotADirectory =>
            {
                return Err(not_one(if millrace_roots::is_dir(dir) {
                    "it has no manifest.json"
                } else {
                    "the directory does not exist"
                }));
            }
            Err(error) => return Err(Error::io("read", path, error)),
        };
        Self::decode(&text, dir)
    }

    /// Reads the text of a manifest and verifies its checksum. `dir` is the directory of its checkpoint, for messages.
    ///
    /// # Errors
    /// See [`Manifest::read`].
    pub fn decode(text: &[u8], dir: &Path) -> Result<Self> {
        let damaged = |reason: String| Error::Damaged(Damage::file(dir.join(MANIFEST_FILE), reason));
        if !checksum_matches(text) {
            return Err(damaged("does not match its own checksum".into()));
        }
        let format =
            serde_json::from_slice::<FormatHeader>(text).map_err(|e| damaged(format!("is not a manifest: {e}")))?;
        if format.format > FORMAT_VERSION {
            let reason = format!(
                "it has format {}, and this program reads formats up to {FORMAT_VERSION}: use the release that wrote it, or a later one",
                format.format
            );
            return Err(Error::NotACheckpoint { path: dir.to_owned(), reason });
        }
        let manifest: Self = serde_json::from_slice(text).map_err(|e| damaged(format!("is not a manifest: {e}")))?;
        manifest.check().map_err(|error| damaged(error.to_string()))?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), ManifestError> {
        self.moments.check()?;
        let mut paths = self.files.iter().map(|file| &file.path).chain(self.documents.iter().map(|file| &file.path));
        match paths.find(|path| !stays_inside(path)) {
            Some(path) => Err(ManifestError::PathOutside(path.clone())),
            None => Ok(()),
        }
    }

    /// Returns the length of every file of the checkpoint except the manifest.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, u64)> {
        let documents = self.documents.iter().map(|file| (file.path.as_str(), file.bytes));
        documents.chain(self.files.iter().map(|file| (file.path.as_str(), file.bytes)))
    }
}

/// A manifest with invalid names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ManifestError {
    #[error("names {0}")]
    Moments(#[from] MomentsError),
    #[error("names a file outside the checkpoint: {0:?}")]
    PathOutside(String),
}

#[derive(Deserialize)]
struct FormatHeader {
    format: u32,
}

fn checksum_matches(text: &[u8]) -> bool {
    let (key, rest) = text.split_at(CHECKSUM_KEY.len().min(text.len()));
    let (digits, rest) = rest.split_at(64.min(rest.len()));
    if key != CHECKSUM_KEY.as_bytes() {
        return false;
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(key).update(&NO_CHECKSUM).update(rest);
    // Compared as text: upper-case digits are damage, too.
    digits == Digest::finish(&hasher).to_string().as_bytes()
}
