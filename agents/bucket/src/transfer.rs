//! Copies files to objects and objects to files, with bounded memory.

use std::io;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use object_store::path::Path as ObjectPath;
use object_store::{MultipartUpload, ObjectMeta};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use crate::bucket::Bucket;
use crate::error::BucketError;

/// Bytes of a part, and of a read; a longer file than this is written in parts.
const PART_BYTES: u64 = 8 << 20;
/// Parts of a file that are sent, or received, at the same time. They are in memory.
const CONCURRENT_PARTS: usize = 2;
/// Files that are sent, or received, at the same time.
pub(crate) const CONCURRENT_FILES: usize = 4;
/// Maximum number of parts of an object in S3.
const MAX_PARTS: u64 = 10_000;

/// Why a file was not copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error("can't {action} {}: {source}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
}

impl TransferError {
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source }
    }
}

/// Writes the object to the file `to`, which is synced to disk and gets the object's time of modification.
pub(crate) async fn download(bucket: &Bucket, object: &ObjectMeta, to: &Path) -> Result<(), TransferError> {
    let file = millrace_roots::create(to).map_err(TransferError::file("create", to))?;
    let mut file = tokio::fs::File::from_std(file);
    let starts = (0..object.size).step_by(PART_BYTES as usize);
    let read = |start| bucket.get_range(&object.location, start..(start + PART_BYTES).min(object.size)).boxed();
    let mut parts = futures::stream::iter(starts.map(read)).buffered(CONCURRENT_PARTS);
    while let Some(part) = parts.try_next().await? {
        file.write_all(&part).await.map_err(TransferError::file("write", to))?;
    }
    file.sync_all().await.map_err(TransferError::file("write", to))?;
    let file = file.into_std().await;
    file.set_modified(object.last_modified.into()).map_err(TransferError::file("write", to))
}

/// Writes the file `from` to the object `to`, as long as the file is when this begins; returns its length.
pub(crate) async fn upload(bucket: &Bucket, from: &Path, to: &ObjectPath) -> Result<u64, TransferError> {
    let file = millrace_roots::open(from).map_err(TransferError::file("open", from))?;
    let length = file.metadata().map_err(TransferError::file("read", from))?.len();
    let mut file = tokio::fs::File::from_std(file);
    if length <= PART_BYTES {
        let content = read_part(&mut file, from, length).await?;
        bucket.put(to, content).await?;
        return Ok(length);
    }
    let mut parts = bucket.begin_parts(to).await?;
    match send_parts(bucket, &mut file, from, length, &mut *parts).await {
        Ok(()) => Ok(length),
        Err(error) => {
            // Parts that can't be removed are invisible; rules of the bucket remove them.
            let _ = parts.abort().await;
            Err(error)
        }
    }
}

async fn send_parts(
    bucket: &Bucket,
    file: &mut tokio::fs::File,
    from: &Path,
    length: u64,
    upload: &mut dyn MultipartUpload,
) -> Result<(), TransferError> {
    let part_bytes = part_bytes(length);
    let mut sending = JoinSet::new();
    let mut start = 0;
    while start < length || !sending.is_empty() {
        if start < length && sending.len() < CONCURRENT_PARTS {
            let part = read_part(file, from, part_bytes.min(length - start)).await?;
            start += part.len() as u64;
            sending.spawn(upload.put_part(part.into()));
        } else if let Some(sent) = sending.join_next().await {
            // A part is sent on a task that neither panics nor is cancelled before this function ends.
            sent.map_err(|error| TransferError::file("send", from)(io::Error::other(error)))?
                .map_err(|error| bucket.failed(error))?;
        }
    }
    upload.complete().await.map_err(|error| bucket.failed(error))?;
    Ok(())
}

/// Returns the bytes of a part of an object of `length` bytes: whole megabytes.
fn part_bytes(length: u64) -> u64 {
    length.div_ceil(MAX_PARTS).next_multiple_of(1 << 20).max(PART_BYTES)
}

async fn read_part(file: &mut tokio::fs::File, from: &Path, bytes: u64) -> Result<Bytes, TransferError> {
    let mut part = BytesMut::zeroed(usize::try_from(bytes).unwrap_or(usize::MAX));
    file.read_exact(&mut part).await.map_err(TransferError::file("read", from))?;
    Ok(part.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_object_are_at_most_ten_thousand() {
        assert_eq!(part_bytes(PART_BYTES + 1), PART_BYTES);
        for length in [80_000_u64 << 20, (80_000 << 20) + 1, 5 << 40] {
            assert!(length.div_ceil(part_bytes(length)) <= MAX_PARTS, "{length}");
        }
    }
}
