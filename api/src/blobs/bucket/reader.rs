//! Reads a blob window by window, and verifies each before its first byte is returned.

use bytes::Bytes;
use futures::StreamExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::BucketStorage;
use super::error::changed;
use super::names::BlobNames;
use crate::blobs::storage::{BlobReader, ByteStream};
use crate::blobs::window_hashes::{WINDOW_BYTES, WindowHashes, window_bytes, window_hash};
use crate::error::{ApiError, Result};

/// A complete blob of the bucket.
#[derive(Clone)]
pub struct WindowReader {
    pub storage: BucketStorage,
    pub names: BlobNames,
    /// Length of the blob.
    pub bytes: u64,
    pub hashes: WindowHashes,
}

/// The rest of a window. It has a place in memory until it is read.
struct OpenWindow {
    rest: Bytes,
    _place: OwnedSemaphorePermit,
}

impl BlobReader for WindowReader {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(self: Box<Self>, offset: u64, max_block_bytes: usize) -> ByteStream {
        let state = (*self, offset, None::<OpenWindow>);
        let blocks = futures::stream::try_unfold(state, move |(reader, position, window)| async move {
            if position >= reader.bytes {
                return Ok(None);
            }
            let mut window = match window {
                Some(window) => window,
                None => reader.window_from(position).await?,
            };
            let block = window.rest.split_to(max_block_bytes.clamp(1, window.rest.len()));
            let next = position + block.len() as u64;
            let window = Some(window).filter(|window| !window.rest.is_empty());
            Ok(Some((block, (reader, next, window))))
        });
        blocks.boxed()
    }
}

impl WindowReader {
    /// Reads the window that contains byte `position`, from there on.
    async fn window_from(&self, position: u64) -> Result<OpenWindow> {
        let number = position / WINDOW_BYTES;
        let place = self.storage.reads.clone().acquire_owned().await;
        let place = place.map_err(|error| ApiError::internal("read an upload", error))?;
        let path = self.names.root();
        let hash = self.hashes.get(number).ok_or_else(|| changed(self.storage.bucket.label(), path))?;
        let path = self.names.window(number, &hash);
        let content = self.storage.get(&path, window_bytes(self.bytes, number)).await?;
        let content = content.ok_or_else(|| changed(self.storage.bucket.label(), &path))?;
        let (bytes, hashed) = (self.bytes, content.clone());
        let found = tokio::task::spawn_blocking(move || window_hash(bytes, number, &hashed)).await;
        if found.map_err(|error| ApiError::internal("verify an upload", error))? != hash {
            return Err(changed(self.storage.bucket.label(), &path));
        }
        let inside = usize::try_from(position % WINDOW_BYTES).unwrap_or(usize::MAX).min(content.len());
        Ok(OpenWindow { rest: content.slice(inside..), _place: place })
    }
}
