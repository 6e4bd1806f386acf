//! Blobs as files in a directory that only this server uses.
//!
//! ```text
//! <dir>/<namespace>/blake3:<digest>         a complete blob, its modification time that of its last use
//! <dir>/<namespace>/blake3:<digest>.part    the bytes that have been received of one
//! ```
//!
//! * A file with its final name has the content that its name says.

mod upload;

use std::fs::{File, FileTimes};
use std::io::{self, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _};
use millrace_params::{BlobDigest, LabelName};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::ReaderStream;

use super::storage::{BlobAddress, BlobReader, BlobStorage, BlobUpload, ByteStream, ReceivedBytes, StoredBlob};
use crate::error::{ApiError, ErrorReason, Result};
use upload::FileUpload;

/// Suffix of the file with the received part of a blob.
const PART_SUFFIX: &str = ".part";

/// Blobs as files.
#[derive(Clone, Debug)]
pub struct DirectoryStorage {
    dir: PathBuf,
}

impl DirectoryStorage {
    pub const fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn complete(&self, (namespace, digest): &BlobAddress) -> PathBuf {
        self.dir.join(namespace).join(digest)
    }

    fn part(&self, (namespace, digest): &BlobAddress) -> PathBuf {
        self.dir.join(namespace).join(format!("{digest}{PART_SUFFIX}"))
    }

    /// Reads the directory of a namespace.
    fn stored(&self, namespace: &LabelName) -> io::Result<Vec<StoredBlob>> {
        let mut stored = Vec::new();
        for entry in read_dir(&self.dir.join(namespace))? {
            let name = entry.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let part = name.strip_suffix(PART_SUFFIX);
            let Ok(digest) = BlobDigest::new(part.unwrap_or(name)) else { continue };
            // A file that was renamed or removed meanwhile is skipped.
            let Ok(about) = millrace_roots::metadata(&entry.path) else { continue };
            let (stored_bytes, last_use) = (about.len(), about.modified()?);
            let is_complete = part.is_none();
            stored.push(StoredBlob { digest, is_complete, stored_bytes, announced_bytes: None, last_use });
        }
        stored.sort_by(|a, b| a.digest.as_str().cmp(b.digest.as_str()));
        Ok(stored)
    }

    fn namespaces_now(&self) -> io::Result<Vec<LabelName>> {
        let names = read_dir(&self.dir)?.into_iter();
        let names = names.filter_map(|entry| LabelName::new(entry.path.file_name()?.to_str()?).ok());
        Ok(names.collect())
    }

    fn remove_now(&self, blob: &BlobAddress) -> io::Result<bool> {
        match [self.complete(blob), self.part(blob)].map(millrace_roots::remove_file) {
            [Ok(()), _] | [_, Ok(())] => Ok(true),
            [Err(error), _] if error.kind() == io::ErrorKind::NotFound => Ok(false),
            [Err(error), _] => Err(error),
        }
    }

    /// Runs file operations on another thread than those that serve requests.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let storage = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&storage)).await;
        done.map_err(|error| ApiError::internal("store a blob", error))?.map_err(storage_error)
    }
}

#[async_trait]
impl BlobStorage for DirectoryStorage {
    async fn namespaces(&self) -> Result<Vec<LabelName>> {
        self.blocking(Self::namespaces_now).await
    }

    async fn list(&self, namespace: &LabelName) -> Result<Vec<StoredBlob>> {
        let namespace = namespace.clone();
        self.blocking(move |storage| storage.stored(&namespace)).await
    }

    async fn touch(&self, blob: &BlobAddress) -> Result<Option<u64>> {
        let path = self.complete(blob);
        self.blocking(move |_| touch(&path)?.map(|file| Ok(file.metadata()?.len())).transpose()).await
    }

    async fn open(&self, blob: &BlobAddress) -> Result<Option<Box<dyn BlobReader>>> {
        let path = self.complete(blob);
        let opened = self.blocking(move |_| {
            let Some(file) = touch(&path)? else { return Ok(None) };
            let bytes = file.metadata()?.len();
            Ok(Some(FileReader { file, bytes }))
        });
        Ok(opened.await?.map(|reader| Box::new(reader) as _))
    }

    async fn has_part(&self, blob: &BlobAddress) -> Result<bool> {
        let part = self.part(blob);
        self.blocking(move |_| Ok(millrace_roots::is_file(part))).await
    }

    async fn begin_upload(
        &self,
        blob: &BlobAddress,
        bytes: u64,
        received: ReceivedBytes,
    ) -> Result<Box<dyn BlobUpload>> {
        let blob = blob.clone();
        let opened = self.blocking(move |storage| {
            millrace_roots::create_dir_all(storage.dir.join(&blob.0))?;
            FileUpload::open(storage.complete(&blob), storage.part(&blob), (blob.1, bytes), received)
        });
        Ok(Box::new(opened.await?))
    }

    async fn remove(&self, blob: &BlobAddress) -> Result<bool> {
        let blob = blob.clone();
        self.blocking(move |storage| storage.remove_now(&blob)).await
    }
}

/// The file of a complete blob.
struct FileReader {
    file: File,
    bytes: u64,
}

impl BlobReader for FileReader {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(self: Box<Self>, offset: u64, max_block_bytes: usize) -> ByteStream {
        let Self { file, bytes } = *self;
        let opened = async move {
            let mut file = tokio::fs::File::from_std(file);
            file.seek(SeekFrom::Start(offset)).await?;
            let rest = file.take(bytes.saturating_sub(offset));
            Ok::<_, io::Error>(ReaderStream::with_capacity(rest, max_block_bytes))
        };
        futures::stream::once(opened).try_flatten().map_err(storage_error).boxed()
    }
}

/// Opens a file and marks it as used now; `None` if it does not exist.
fn touch(path: &Path) -> io::Result<Option<File>> {
    match millrace_roots::open(path) {
        Ok(file) => {
            file.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
            Ok(Some(file))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a directory; one that does not exist is empty.
fn read_dir(path: &Path) -> io::Result<Vec<millrace_roots::Entry>> {
    match millrace_roots::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries,
    }
}

/// Returns the error for a failure to store or read a blob.
pub fn storage_error(error: io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ApiError::new(
            ErrorReason::Unavailable,
            "the server's disk is full: an administrator must free space, then the upload can continue",
        )
        .with_source(error),
        _ => ApiError::internal("store or read a blob", error),
    }
}
