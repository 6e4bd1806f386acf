//! One blob that is being uploaded.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use millrace_params::BlobDigest;

use crate::error::{ApiError, ErrorReason, FieldError, Result};

/// Bytes that are read at a time when an upload continues after a restart of the server.
const READ_BLOCK_BYTES: usize = 1 << 20;

/// A blob that is being uploaded. Calls block.
pub struct Upload {
    digest: BlobDigest,
    /// Length of the blob.
    bytes: u64,
    received: u64,
    hasher: blake3::Hasher,
    part: PathBuf,
    complete: PathBuf,
}

impl Upload {
    /// Opens the upload of a blob of `bytes` bytes, which will be the file `complete`. Continues with the bytes that an
    /// earlier server has received.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn open(complete: PathBuf, part: PathBuf, digest: BlobDigest, bytes: u64) -> io::Result<Self> {
        let mut file = millrace_roots::OpenOptions::new().read(true).append(true).create(true).open(&part)?;
        let mut hasher = blake3::Hasher::new();
        let mut received = 0;
        let mut block = vec![0; READ_BLOCK_BYTES];
        loop {
            let length = file.read(&mut block)?;
            if length == 0 {
                break;
            }
            hasher.update(&block[..length]);
            received += length as u64;
        }
        if received >= bytes {
            // A complete blob would have its final name, so these are the bytes of something else.
            file.set_len(0)?;
            (hasher, received) = (blake3::Hasher::new(), 0);
        }
        Ok(Self { digest, bytes, received, hasher, part, complete })
    }

    /// Returns the number of bytes that have been received.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Appends a part that begins at `offset`; one that was received before is accepted without effect. With the last
    /// part the blob is complete.
    ///
    /// # Errors
    /// [`ErrorReason::Conflict`]: the part begins elsewhere. [`ErrorReason::Invalid`]: the blob is longer than
    /// announced, or has another digest; it is then removed. The disk is full, or an error of the file system.
    pub fn append(&mut self, offset: u64, content: &[u8]) -> Result<()> {
        let end = offset.saturating_add(content.len() as u64);
        if end <= self.received && !content.is_empty() {
            return Ok(());
        }
        if offset != self.received {
            let detail = format!("the part begins at byte {offset}, but the next byte is {}", self.received);
            return Err(ApiError::new(ErrorReason::Conflict, format!("{detail}: continue there")));
        }
        if end > self.bytes {
            let message = format!("the part ends at byte {end}, but the blob was announced with {} bytes", self.bytes);
            return Err(ApiError::invalid(vec![FieldError { field: "offset".to_owned(), message }]));
        }
        // The file is not kept open: clients may announce many blobs.
        let mut file = millrace_roots::OpenOptions::new().append(true).open(&self.part).map_err(storage_error)?;
        if let Err(error) = file.write_all(content) {
            // What was written of the part would be followed by the repeated part.
            file.set_len(self.received).map_err(storage_error)?;
            return Err(storage_error(error));
        }
        self.hasher.update(content);
        self.received = end;
        if self.received == self.bytes { self.finish(&file) } else { Ok(()) }
    }

    fn finish(&mut self, file: &File) -> Result<()> {
        let found = format!("blake3:{}", self.hasher.finalize().to_hex());
        if found != self.digest.as_str() {
            file.set_len(0).map_err(storage_error)?;
            (self.hasher, self.received) = (blake3::Hasher::new(), 0);
            let message = format!("the content has the digest {found}: send it again from the beginning");
            return Err(ApiError::invalid(vec![FieldError { field: "digest".to_owned(), message }]));
        }
        let published = file.sync_all().and_then(|()| millrace_roots::rename(&self.part, &self.complete));
        published.and_then(|()| sync_dir_of(&self.complete)).map_err(storage_error)
    }
}

fn sync_dir_of(path: &Path) -> io::Result<()> {
    millrace_roots::open_dir(path.parent().unwrap_or(path))?.sync_all()
}

/// Returns the error for a failure to store a blob.
pub fn storage_error(error: io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ApiError::new(
            ErrorReason::Unavailable,
            "the server's disk is full: an administrator must free space, then the upload can continue",
        )
        .with_source(error),
        _ => ApiError::internal("store a blob", error),
    }
}
