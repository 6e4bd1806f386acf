//! What a job has written: checkpoints and everything else in its model_dir, read-only.
//!
//! [`LocalFiles`] are on a disk of this machine; [`RemoteFiles`] are those of a [`reader`](crate::reader), and the answers are the
//! same, refusals with them.

mod exports;
mod local;
mod remote;
mod shape;
pub mod wire;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use k8s_openapi::jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

pub use exports::{DEFAULT_EXPORT_BYTES, Exports};
pub use local::LocalFiles;
pub use remote::RemoteFiles;

use crate::refusal::Result;

/// A file of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FileInfo {
    /// Relative to what it is listed under, with `/`.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// When it was written last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
}

/// A checkpoint of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CheckpointFiles {
    /// The step it holds.
    pub step: u64,
    /// blake3 of its parameters.
    pub digest: String,
    /// All of its files.
    pub bytes: u64,
    /// When it was finished.
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    /// Its files.
    pub files: Vec<FileInfo>,
}

/// A file, opened: its length and its content belong together, whatever becomes of the path meanwhile.
pub struct Opened {
    /// Its length.
    pub bytes: u64,
    /// Changes whenever the content does.
    pub tag: String,
    /// What is in it.
    pub content: Box<dyn Content>,
}

/// What is in an opened file.
#[async_trait]
pub trait Content: Send {
    /// `length` bytes from byte `first` on; fewer, where the file ends before. Nothing is read ahead of who takes the pieces
    /// but a few of them.
    async fn part(self: Box<Self>, first: u64, length: u64) -> Result<Pieces>;
}

/// Parts of a file one after the other, of [`PIECE`] bytes at most.
pub type Pieces = BoxStream<'static, Result<Bytes>>;

/// Bytes read at a time.
pub const PIECE: usize = 256 << 10;

/// Where a file is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shelf {
    /// A checkpoint, by its step.
    Checkpoint(u64),
    /// What a checkpoint is as a directory of Hugging Face, by its step.
    HuggingFace(u64),
    /// What a job writes into its model_dir besides checkpoints: metrics, logs, the journal, TensorBoard's events.
    Artifacts,
}

/// The files of one job.
#[async_trait]
pub trait Files: Send + Sync {
    /// Whole checkpoints, the newest first.
    async fn checkpoints(&self) -> Result<Vec<CheckpointFiles>>;

    /// The files of a shelf; one that has to be made is made.
    async fn list(&self, shelf: &Shelf) -> Result<Vec<FileInfo>>;

    /// Opens a file.
    async fn open(&self, shelf: &Shelf, path: &str) -> Result<Opened>;
}
