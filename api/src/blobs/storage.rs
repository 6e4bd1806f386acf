//! The interface of the store to the place where blobs are: a directory, or a bucket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use millrace_params::{BlobDigest, LabelName};

use crate::error::Result;

/// Bytes in their order, as they arrive or are read.
pub type ByteStream = BoxStream<'static, Result<Bytes>>;

/// Address of a blob: the directory of its namespace, and its digest.
pub type BlobAddress = (LabelName, BlobDigest);

/// A blob, complete or in part, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlob {
    pub digest: BlobDigest,
    pub is_complete: bool,
    /// Bytes that are stored of it.
    pub stored_bytes: u64,
    /// Length with which it was announced, if the storage keeps that.
    pub announced_bytes: Option<u64>,
    pub last_use: SystemTime,
}

/// Number of bytes that are stored of an upload, which another task appends to.
#[derive(Clone, Debug, Default)]
pub struct ReceivedBytes(Arc<AtomicU64>);

impl ReceivedBytes {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Release);
    }
}

/// The place where blobs are.
///
/// * Calls are idempotent.
/// * A call may be dropped at any `.await`. What is stored is then a state between that before and that after the call.
/// * Errors of the storage, which say nothing about a request, are [`ErrorReason::Unavailable`] or
///   [`ErrorReason::Internal`].
///
/// [`ErrorReason::Unavailable`]: crate::error::ErrorReason::Unavailable
/// [`ErrorReason::Internal`]: crate::error::ErrorReason::Internal
#[async_trait]
pub trait BlobStorage: Send + Sync + 'static {
    /// Returns the directories of all namespaces.
    async fn namespaces(&self) -> Result<Vec<LabelName>>;

    /// Returns the blobs of a namespace, ordered by digest. It may lack what changed in the last seconds.
    async fn list(&self, namespace: &LabelName) -> Result<Vec<StoredBlob>>;

    /// Marks a blob as used now, and returns its length; `None` if it is not complete.
    async fn touch(&self, blob: &BlobAddress) -> Result<Option<u64>>;

    /// Opens a blob for reading; `None` if it is not complete.
    async fn open(&self, blob: &BlobAddress) -> Result<Option<Box<dyn BlobReader>>>;

    /// Returns whether a part of a blob is stored.
    async fn has_part(&self, blob: &BlobAddress) -> Result<bool>;

    /// Begins the upload of a blob of `bytes` bytes, which is not empty, or continues with what is stored of it. The
    /// upload keeps the number of these bytes in `received`. If these are all, the blob is complete.
    async fn begin_upload(
        &self,
        blob: &BlobAddress,
        bytes: u64,
        received: ReceivedBytes,
    ) -> Result<Box<dyn BlobUpload>>;

    /// Removes a blob, complete or in part. Returns false if there is none.
    async fn remove(&self, blob: &BlobAddress) -> Result<bool>;
}

/// A complete blob that is open for reading.
pub trait BlobReader: Send {
    /// Returns the length of the blob.
    fn bytes(&self) -> u64;

    /// Reads the blob from byte `offset` on, in blocks of at most `max_block_bytes` bytes. Memory does not grow with
    /// the length.
    fn read(self: Box<Self>, offset: u64, max_block_bytes: usize) -> ByteStream;
}

/// A blob that is being uploaded.
#[async_trait]
pub trait BlobUpload: Send {
    /// Appends `content`, which is not longer than the missing part. With the last byte, the blob is complete. If
    /// `content` ends with an error, the bytes before it are stored, and the error is returned.
    ///
    /// # Errors
    /// [`ErrorReason::Invalid`]: the complete content has another digest; nothing of it is stored then. Errors of
    /// `content` and of the storage.
    ///
    /// [`ErrorReason::Invalid`]: crate::error::ErrorReason::Invalid
    async fn append(&mut self, content: ByteStream) -> Result<()>;
}
