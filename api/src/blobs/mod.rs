//! Uploads of users, such as graph documents and weights, as blobs: contents addressed by their BLAKE3 digest.
//!
//! ```text
//!                            ┌── directory   files of this server
//!  BlobStore ── BlobStorage ─┤
//!   limits, announcements    └── bucket      objects in an S3-compatible bucket
//! ```
//!
//! * A blob is uploaded in parts. After an interruption, also of the server, the upload continues where it was.
//! * A blob is complete only if it has the content that its digest says: the digest is computed from the bytes as they
//!   arrive.
//! * Memory does not grow with the length of a blob.
//! * The directory of a namespace has its name, or on a cluster its UID: a namespace that is created again has none of
//!   the uploads of its predecessor.
//! * A blob that is uploaded again is not sent again. Namespaces share nothing: a client can't find out by a digest
//!   whether another namespace has a blob.
//! * All blobs of a namespace together, including announced parts, have at most the limit's bytes.
//! * A blob that no job names is removed [`UNUSED_BLOB_TTL`] after its last use.

pub mod bucket;
mod directory;
mod fetcher;
mod storage;
mod store;
#[cfg(test)]
mod tests;
mod window_hashes;

use std::fmt;
use std::time::Duration;

use millrace_params::{BlobDigest, LabelName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{ApiError, FieldError};
pub use fetcher::BlobFetcher;
pub use storage::{BlobReader, BlobStorage, ByteStream};
pub use store::{BlobPart, BlobStore};

/// Default limit on the blobs of a namespace: the weights of a model of 8 billion parameters in f32, twice.
pub const DEFAULT_MAX_BLOB_BYTES: u64 = 64 << 30;
/// Time after which a blob that no job names is removed.
pub const UNUSED_BLOB_TTL: Duration = Duration::from_secs(24 * 3600);
/// Limit on the number of blobs of a namespace, parts included.
const MAX_BLOBS: usize = 10_000;

/// A namespace whose blobs are stored together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlobNamespace {
    /// Its name, for messages.
    name: LabelName,
    /// Name of its directory.
    dir: LabelName,
}

impl BlobNamespace {
    /// Names a namespace of a cluster. One that is deleted and created again has another `uid`.
    pub const fn with_uid(name: LabelName, uid: LabelName) -> Self {
        Self { name, dir: uid }
    }

    /// Returns the name of its directory.
    pub const fn dir(&self) -> &LabelName {
        &self.dir
    }
}

/// A namespace that is only a name.
impl From<LabelName> for BlobNamespace {
    fn from(name: LabelName) -> Self {
        Self { dir: name.clone(), name }
    }
}

impl fmt::Display for BlobNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.name, f)
    }
}

/// A blob that is to be read.
pub enum OpenBlob {
    /// Reads it.
    Complete(Box<dyn BlobReader>),
    /// A part of it was uploaded, or it was announced.
    Incomplete,
    /// There is no such blob.
    Missing,
}

/// Returns whether `hash` is that of `digest`.
fn is_digest_of(digest: &BlobDigest, hash: &blake3::Hash) -> bool {
    digest.as_str() == format!("blake3:{}", hash.to_hex())
}

/// Returns the error for an upload whose complete content has this hash instead of the announced one.
fn wrong_digest(found: &blake3::Hash) -> ApiError {
    let message = format!("the content has the digest blake3:{found}: send it again from the beginning");
    ApiError::invalid(vec![FieldError { field: "digest".to_owned(), message }])
}

/// How much of a blob the server has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BlobStatus {
    /// Address of the blob: `blake3:` and its digest.
    pub digest: BlobDigest,
    /// Length of the blob in bytes; 0 if it is not complete and the client has to announce it again.
    pub bytes: u64,
    /// Bytes that the server has, from the beginning of the blob. The blob is complete if these are all.
    pub received: u64,
}

/// The blobs of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BlobList {
    /// The blobs, by digest.
    pub items: Vec<BlobStatus>,
    /// Bytes that they take, including those that are announced.
    pub used_bytes: u64,
    /// Limit on the bytes.
    pub max_bytes: u64,
}
