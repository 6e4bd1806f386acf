//! The files that a job has written: checkpoints and all others in its model_dir. Read-only. Models of checkpoints can
//! [generate](crate::generation) texts where the files are.
//!
//! [`LocalFiles`] are on a disk of this machine, [`RemoteFiles`] are served by a [`reader`](crate::reader). Both return
//! the same results and errors.

mod checkpoint;
mod errors;
mod exports;
mod generator;
mod job_paths;
mod local;
mod remote;
pub mod wire;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

pub use exports::{DEFAULT_MAX_EXPORT_BYTES, ExportCache};
pub use generator::{DEFAULT_MAX_GENERATION_BYTES, Generator};
pub use local::LocalFiles;
pub use remote::RemoteFiles;

use crate::error::Result;
use crate::generation::{GenerationRequest, GenerationStream};

/// A file of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileInfo {
    /// Path relative to the listed directory, with `/` as separator.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Time of the last modification.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
}

/// A checkpoint of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CheckpointFiles {
    /// Step of the checkpoint.
    pub step: u64,
    /// BLAKE3 digest of its parameters.
    pub digest: String,
    /// Total bytes of its files.
    pub bytes: u64,
    /// Time at which it was complete.
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    /// Number of its files.
    pub files: Vec<FileInfo>,
}

/// An open file. Length and content belong together even if the path is replaced meanwhile.
pub struct OpenFile {
    pub bytes: u64,
    /// Entity tag; changes whenever the content does.
    pub tag: String,
    pub content: Box<dyn FileContent>,
}

/// The content of an open file.
#[async_trait]
pub trait FileContent: Send {
    /// Reads `length` bytes from byte `first` on, fewer if the file ends earlier. Only a few chunks are read ahead of
    /// the consumer.
    async fn read_range(self: Box<Self>, first: u64, length: u64) -> Result<ByteChunks>;
}

/// Consecutive chunks of a file, of at most [`READ_CHUNK_BYTES`] bytes.
pub type ByteChunks = BoxStream<'static, Result<Bytes>>;

/// Bytes that are read at a time.
pub const READ_CHUNK_BYTES: usize = 256 << 10;

/// A set of files of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSet {
    /// A checkpoint, by its step.
    Checkpoint(u64),
    /// A checkpoint exported in the format of Hugging Face, by its step.
    HuggingFace(u64),
    /// What a job writes into its model_dir besides checkpoints: metrics, logs, the journal, event files of
    /// TensorBoard.
    Artifacts,
}

/// The files of one job.
#[async_trait]
pub trait Files: Send + Sync {
    /// Lists the complete checkpoints, the newest first.
    async fn checkpoints(&self) -> Result<Vec<CheckpointFiles>>;

    /// Lists the files of a file set; exports it first if needed.
    async fn list(&self, file_set: &FileSet) -> Result<Vec<FileInfo>>;

    async fn open(&self, file_set: &FileSet, path: &str) -> Result<OpenFile>;

    /// Continues a text with the model of a checkpoint. Returns when the model has read the prompt.
    async fn generate(&self, request: GenerationRequest) -> Result<GenerationStream>;
}
