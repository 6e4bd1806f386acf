//! One blob that is being uploaded into the bucket.

use std::collections::VecDeque;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use tokio::task::JoinHandle;

use super::BucketStorage;
use super::names::BlobNames;
use crate::blobs::storage::{BlobAddress, BlobUpload, ByteStream, ReceivedBytes};
use crate::blobs::window_hashes::{WINDOW_BYTES, WindowHashes, window_bytes, window_count, window_hash};
use crate::blobs::{is_digest_of, wrong_digest};
use crate::error::{ApiError, ErrorReason, Result};

/// Windows of an upload that are being stored while the next one is received.
const MAX_WINDOWS_IN_FLIGHT: usize = 2;

/// A blob that is being uploaded into the bucket.
pub struct BucketUpload {
    storage: BucketStorage,
    blob: BlobAddress,
    names: BlobNames,
    /// Length of the blob.
    bytes: u64,
    received: ReceivedBytes,
    /// Hashes of the windows that are stored.
    hashes: WindowHashes,
    /// Length of the stored beginning of the next window.
    tail_bytes: u64,
}

/// A window that is being stored, and its hash then.
type StoringWindow = JoinHandle<Result<blake3::Hash>>;

impl BucketUpload {
    /// Announces the upload of a blob of `bytes` bytes, and continues with what is stored of it.
    ///
    /// # Errors
    /// The bucket fails.
    pub async fn begin(storage: BucketStorage, blob: BlobAddress, bytes: u64, received: ReceivedBytes) -> Result<Self> {
        let names = storage.names(&blob);
        let (hashes, tail_bytes) = storage.stored(&blob).await?.beginning(bytes);
        storage.put(&names.announced(bytes), Bytes::new()).await?;
        let mut upload = Self { storage, blob, names, bytes, received, hashes, tail_bytes };
        if !upload.has_all_windows() {
            upload.received.set(upload.stored_bytes());
            upload.storage.inventory.add(&upload.blob, bytes, upload.stored_bytes());
        } else if let Err(error) = upload.complete().await
            && error.reason != ErrorReason::Invalid
        {
            return Err(error);
        }
        Ok(upload)
    }

    fn stored_bytes(&self) -> u64 {
        self.hashes.count() * WINDOW_BYTES + self.tail_bytes
    }

    fn has_all_windows(&self) -> bool {
        self.hashes.count() == window_count(self.bytes)
    }

    /// Completes the blob, whose windows are all stored. If it has another digest, all of it is removed, and the error
    /// is [`ErrorReason::Invalid`].
    async fn complete(&mut self) -> Result<()> {
        let root = self.hashes.root();
        if !is_digest_of(&self.blob.1, &root) {
            self.reset().await?;
            return Err(wrong_digest(&root));
        }
        self.storage.publish(&self.blob, self.bytes, &self.hashes).await?;
        self.received.set(self.bytes);
        Ok(())
    }

    /// Removes what is stored, which has another digest.
    async fn reset(&mut self) -> Result<()> {
        (self.hashes, self.tail_bytes) = (WindowHashes::default(), 0);
        self.received.set(0);
        let objects = self.storage.objects_below(self.names.root()).await?;
        let announced = self.names.announced(self.bytes);
        let paths = objects.into_iter().map(|object| object.location).filter(|path| *path != announced);
        self.storage.delete(paths.collect()).await
    }

    /// Returns the next window with the stored beginning of it.
    async fn next_window(&mut self) -> Result<BytesMut> {
        let number = self.hashes.count();
        let mut window = BytesMut::new();
        if self.tail_bytes > 0 {
            // Without its beginning, the window is received again.
            let tail = self.storage.get(&self.names.tail(number, self.tail_bytes), self.tail_bytes).await?;
            let Some(tail) = tail else {
                self.tail_bytes = 0;
                self.received.set(self.stored_bytes());
                let detail = "the beginning of the next part is gone: announce the upload again, and continue there";
                return Err(ApiError::new(ErrorReason::Conflict, detail));
            };
            window.extend_from_slice(&tail);
        }
        Ok(window)
    }

    /// Begins to store a complete window.
    fn store(&self, number: u64, content: Bytes) -> StoringWindow {
        let (storage, names, bytes) = (self.storage.clone(), self.names.clone(), self.bytes);
        tokio::spawn(async move {
            let hashed = content.clone();
            let hash = tokio::task::spawn_blocking(move || window_hash(bytes, number, &hashed)).await;
            let hash = hash.map_err(|error| ApiError::internal("hash an upload", error))?;
            storage.put(&names.window(number, &hash), content).await?;
            Ok(hash)
        })
    }

    /// Waits until the first of these windows is stored.
    async fn await_stored(&mut self, windows: &mut VecDeque<StoringWindow>) -> Result<()> {
        let Some(window) = windows.pop_front() else { return Ok(()) };
        let hash = window.await.map_err(|error| ApiError::internal("store an upload", error))??;
        let tail = (self.tail_bytes > 0).then(|| self.names.tail(self.hashes.count(), self.tail_bytes));
        self.hashes.push(hash);
        self.tail_bytes = 0;
        if !self.has_all_windows() {
            self.received.set(self.stored_bytes());
        }
        self.storage.delete(tail.into_iter().collect()).await
    }

    /// Receives windows and stores them; returns the beginning of the next one.
    async fn store_windows(
        &mut self,
        mut content: ByteStream,
        windows: &mut VecDeque<StoringWindow>,
    ) -> Result<(Bytes, Result<()>)> {
        let mut window = self.next_window().await?;
        while let Some(block) = content.next().await {
            let mut block = match block {
                Ok(block) => block,
                Err(error) => return Ok((window.freeze(), Err(error))),
            };
            while !block.is_empty() {
                let number = self.hashes.count() + windows.len() as u64;
                let length = usize::try_from(window_bytes(self.bytes, number)).unwrap_or(usize::MAX);
                let missing = length.saturating_sub(window.len());
                window.extend_from_slice(&block.split_to(missing.min(block.len())));
                if window.len() < length {
                    continue;
                }
                if missing == 0 {
                    // The store passes on no more than the announced bytes.
                    return Err(ApiError::internal("store an upload", "it is longer than announced"));
                }
                if windows.len() == MAX_WINDOWS_IN_FLIGHT {
                    self.await_stored(windows).await?;
                }
                windows.push_back(self.store(number, std::mem::take(&mut window).freeze()));
            }
        }
        Ok((window.freeze(), Ok(())))
    }

    /// Stores the beginning of the next window.
    async fn store_tail(&mut self, content: Bytes) -> Result<()> {
        let number = self.hashes.count();
        let (before, bytes) = (self.tail_bytes, content.len() as u64);
        if bytes == before {
            return Ok(());
        }
        self.storage.put(&self.names.tail(number, bytes), content).await?;
        self.tail_bytes = bytes;
        self.received.set(self.stored_bytes());
        let replaced = (before > 0).then(|| self.names.tail(number, before));
        self.storage.delete(replaced.into_iter().collect()).await
    }
}

#[async_trait]
impl BlobUpload for BucketUpload {
    async fn append(&mut self, content: ByteStream) -> Result<()> {
        let turns = self.storage.uploads.clone();
        let _turn = turns.acquire().await.map_err(|error| ApiError::internal("receive an upload", error))?;
        if self.has_all_windows() {
            // The bucket failed when the blob was to be completed.
            return self.complete().await;
        }
        let mut windows = VecDeque::new();
        let received = self.store_windows(content, &mut windows).await;
        let mut stored = Ok(());
        while stored.is_ok() && !windows.is_empty() {
            stored = self.await_stored(&mut windows).await;
        }
        windows.iter().for_each(JoinHandle::abort);
        let (rest, interrupted) = stored.and(received)?;
        if self.has_all_windows() {
            return self.complete().await;
        }
        self.store_tail(rest).await?;
        interrupted
    }
}
