//! One blob that is being uploaded into a file.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use millrace_params::BlobDigest;
use tokio::sync::mpsc;

use super::storage_error;
use crate::blobs::storage::{BlobUpload, ByteStream, ReceivedBytes};
use crate::blobs::{is_digest_of, wrong_digest};
use crate::error::{ApiError, Result};

/// Bytes that are read at a time when an upload continues after a restart of the server.
const READ_BLOCK_BYTES: usize = 1 << 20;
/// Blocks that have arrived and wait for the disk. One is what a read of a connection returns, at most half a MiB.
const MAX_WAITING_BLOCKS: usize = 8;

/// A blob that is being uploaded into a file. Bytes are hashed and written on a thread of their own while the next ones
/// arrive.
pub struct FileUpload {
    file: Arc<Mutex<PartFile>>,
}

/// The file with the received part of a blob. Calls block.
struct PartFile {
    digest: BlobDigest,
    /// Length of the blob.
    bytes: u64,
    /// Bytes in the file.
    written: u64,
    /// The same, but the whole length only when the blob is complete.
    received: ReceivedBytes,
    hasher: blake3::Hasher,
    part: PathBuf,
    complete: PathBuf,
}

impl FileUpload {
    /// Opens the upload of a blob of `bytes` bytes, which will be the file `complete`. Continues with the bytes that an
    /// earlier server has received. Blocks.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn open(
        complete: PathBuf,
        part: PathBuf,
        (digest, bytes): (BlobDigest, u64),
        received: ReceivedBytes,
    ) -> io::Result<Self> {
        let mut file = millrace_roots::OpenOptions::new().read(true).append(true).create(true).open(&part)?;
        let mut hasher = blake3::Hasher::new();
        let mut written = 0;
        let mut block = vec![0; READ_BLOCK_BYTES];
        loop {
            let length = file.read(&mut block)?;
            if length == 0 {
                break;
            }
            hasher.update(&block[..length]);
            written += length as u64;
        }
        if written >= bytes {
            // A complete blob would have its final name, so these are the bytes of something else.
            file.set_len(0)?;
            (hasher, written) = (blake3::Hasher::new(), 0);
        }
        received.set(written);
        let file = PartFile { digest, bytes, written, received, hasher, part, complete };
        Ok(Self { file: Arc::new(Mutex::new(file)) })
    }
}

#[async_trait]
impl BlobUpload for FileUpload {
    async fn append(&mut self, mut content: ByteStream) -> Result<()> {
        let (sender, blocks) = mpsc::channel(MAX_WAITING_BLOCKS);
        let file = self.file.clone();
        let writing =
            tokio::task::spawn_blocking(move || file.lock().unwrap_or_else(PoisonError::into_inner).append(blocks));
        let mut interrupted = Ok(());
        while let Some(block) = content.next().await {
            let is_written = match block {
                // The file can't be written, which the thread reports.
                Ok(block) => sender.send(block).await.is_ok(),
                Err(error) => {
                    interrupted = Err(error);
                    false
                }
            };
            if !is_written {
                break;
            }
        }
        drop(sender);
        let written = writing.await.unwrap_or_else(|error| Err(ApiError::internal("store a blob", error)));
        written.and(interrupted)
    }
}

impl PartFile {
    /// Appends blocks until their sender is dropped.
    fn append(&mut self, mut blocks: mpsc::Receiver<Bytes>) -> Result<()> {
        // The file is not kept open: clients may announce many blobs.
        let mut file = millrace_roots::OpenOptions::new().append(true).open(&self.part).map_err(storage_error)?;
        // Everything is written already if the blob could not be completed before.
        while self.written < self.bytes
            && let Some(block) = blocks.blocking_recv()
        {
            if let Err(error) = file.write_all(&block) {
                // What was written of the block would be followed by the repeated block.
                file.set_len(self.written).map_err(storage_error)?;
                return Err(storage_error(error));
            }
            self.hasher.update(&block);
            self.written += block.len() as u64;
            if self.written < self.bytes {
                self.received.set(self.written);
            }
        }
        if self.written == self.bytes { self.finish(&file) } else { Ok(()) }
    }

    fn finish(&mut self, file: &File) -> Result<()> {
        let found = self.hasher.finalize();
        if !is_digest_of(&self.digest, &found) {
            file.set_len(0).map_err(storage_error)?;
            (self.hasher, self.written) = (blake3::Hasher::new(), 0);
            self.received.set(0);
            return Err(wrong_digest(&found));
        }
        let published = file.sync_all().and_then(|()| millrace_roots::rename(&self.part, &self.complete));
        published.and_then(|()| sync_dir_of(&self.complete)).map_err(storage_error)?;
        self.received.set(self.bytes);
        Ok(())
    }
}

fn sync_dir_of(path: &Path) -> io::Result<()> {
    millrace_roots::open_dir(path.parent().unwrap_or(path))?.sync_all()
}
