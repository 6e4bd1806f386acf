//! The blobs of all namespaces, in a directory.

use std::collections::HashMap;
use std::fs::FileTimes;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use millrace_params::{BlobDigest, LabelName};

use super::upload::{Upload, storage_error};
use super::{BlobList, BlobNamespace, BlobStatus, MAX_BLOBS, OpenBlob, UNUSED_BLOB_TTL};
use crate::error::{ApiError, ErrorReason, FieldError, Result};

/// Suffix of the file with the received part of a blob.
const PART_SUFFIX: &str = ".part";

type BlobKey = (BlobNamespace, BlobDigest);

/// The blobs of all namespaces. Clones share the uploads.
#[derive(Clone)]
pub struct BlobStore {
    dir: PathBuf,
    /// Limit on the bytes of a namespace.
    max_bytes: u64,
    uploads: Arc<Mutex<HashMap<BlobKey, Arc<UploadSlot>>>>,
}

/// An announced blob.
struct UploadSlot {
    /// Length of the blob.
    bytes: u64,
    /// `None` until the file was opened.
    upload: Mutex<Option<Upload>>,
}

impl UploadSlot {
    fn lock(&self) -> MutexGuard<'_, Option<Upload>> {
        self.upload.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A blob, complete or in part, as a file.
struct StoredBlob {
    digest: BlobDigest,
    is_complete: bool,
    bytes: u64,
    last_use: SystemTime,
    path: PathBuf,
}

impl BlobStore {
    /// Creates the store in the directory `dir`, which only the server uses, with at most `max_bytes` for a namespace.
    pub fn new(dir: PathBuf, max_bytes: u64) -> Self {
        Self { dir, max_bytes, uploads: Arc::default() }
    }

    /// Announces the upload of a blob of `bytes` bytes, or finds what the server has of it.
    ///
    /// # Errors
    /// [`ErrorReason::Invalid`]: the blob would be empty, or has another length. [`ErrorReason::PayloadTooLarge`]: a
    /// limit of the namespace is exceeded. An error of the file system.
    pub async fn announce(&self, namespace: BlobNamespace, digest: BlobDigest, bytes: u64) -> Result<BlobStatus> {
        self.blocking(move |store| store.announce_now(&(namespace, digest), bytes)).await
    }

    /// Appends `content` to an announced blob, from `offset` on.
    ///
    /// # Errors
    /// [`ErrorReason::NotFound`]: the blob was not announced since the server has started.
    /// [`ErrorReason::Conflict`]: the part begins elsewhere. [`ErrorReason::Invalid`]: the blob is longer than
    /// announced, or has another digest. An error of the file system.
    pub async fn append(
        &self,
        namespace: BlobNamespace,
        digest: BlobDigest,
        offset: u64,
        content: Bytes,
    ) -> Result<BlobStatus> {
        self.blocking(move |store| store.append_now((namespace, digest), offset, &content)).await
    }

    /// Lists the blobs of a namespace.
    ///
    /// # Errors
    /// An error of the file system.
    pub async fn list(&self, namespace: BlobNamespace) -> Result<BlobList> {
        self.blocking(move |store| {
            let items = store.statuses(&namespace)?;
            let used_bytes = items.iter().map(|blob| blob.bytes.max(blob.received)).sum();
            Ok(BlobList { items, used_bytes, max_bytes: store.max_bytes })
        })
        .await
    }

    /// Checks that a blob is complete, and keeps it for another [`UNUSED_BLOB_TTL`]. `field` names it in the error.
    ///
    /// # Errors
    /// [`ErrorReason::Invalid`]: it is not complete. An error of the file system.
    pub async fn use_blob(&self, namespace: BlobNamespace, digest: BlobDigest, field: String) -> Result<()> {
        self.blocking(move |store| match touch(&store.path(&namespace, &digest)) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let message =
                    format!("namespace {namespace} has no upload {digest}: upload it before the job is submitted");
                Err(ApiError::invalid(vec![FieldError { field, message }]))
            }
            Err(error) => Err(storage_error(error)),
        })
        .await
    }

    /// Removes a blob, complete or in part.
    ///
    /// # Errors
    /// [`ErrorReason::NotFound`]: there is none. An error of the file system.
    pub async fn remove(&self, namespace: BlobNamespace, digest: BlobDigest) -> Result<()> {
        self.blocking(move |store| {
            let (complete, part) = (store.path(&namespace, &digest), store.part(&namespace, &digest));
            store.uploads().remove(&(namespace.clone(), digest.clone()));
            let removed = [complete, part].map(millrace_roots::remove_file);
            match removed {
                [Ok(()), _] | [_, Ok(())] => Ok(()),
                [Err(error), _] if error.kind() == io::ErrorKind::NotFound => Err(not_found(&namespace, &digest)),
                [Err(error), _] => Err(storage_error(error)),
            }
        })
        .await
    }

    /// Opens a blob for reading, and keeps it for another [`UNUSED_BLOB_TTL`].
    ///
    /// # Errors
    /// An error of the file system.
    pub async fn open(&self, namespace: BlobNamespace, digest: BlobDigest) -> Result<OpenBlob> {
        self.blocking(move |store| store.open_now((namespace, digest)).map_err(storage_error)).await
    }

    /// Reads a blob, at most its first `max_bytes` bytes; `None` if it is not complete.
    ///
    /// # Errors
    /// An error of the file system.
    pub async fn read(&self, namespace: BlobNamespace, digest: BlobDigest, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        self.blocking(move |store| {
            let OpenBlob::Complete(file, _) = store.open_now((namespace, digest)).map_err(storage_error)? else {
                return Ok(None);
            };
            let mut content = Vec::new();
            file.take(max_bytes).read_to_end(&mut content).map_err(storage_error)?;
            Ok(Some(content))
        })
        .await
    }

    /// Removes the blobs that were not used for [`UNUSED_BLOB_TTL`] and for which `is_used` is false, by the directory
    /// of their namespace. Returns how many.
    ///
    /// # Errors
    /// An error of the file system.
    pub async fn remove_unused(
        &self,
        is_used: impl Fn(&LabelName, &BlobDigest) -> bool + Send + 'static,
    ) -> Result<usize> {
        self.blocking(move |store| {
            let mut removed = 0;
            for entry in read_dir(&store.dir).map_err(storage_error)? {
                let name = entry.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                let Ok(dir) = LabelName::new(name) else { continue };
                let namespace = BlobNamespace::from(dir);
                for blob in store.stored(&namespace).map_err(storage_error)? {
                    let age = SystemTime::now().duration_since(blob.last_use).unwrap_or_default();
                    if age < UNUSED_BLOB_TTL || is_used(&namespace.dir, &blob.digest) {
                        continue;
                    }
                    store.uploads().retain(|(known, digest), _| (&known.dir, digest) != (&namespace.dir, &blob.digest));
                    millrace_roots::remove_file(&blob.path).map_err(storage_error)?;
                    removed += 1;
                }
            }
            Ok(removed)
        })
        .await
    }

    fn dir_of(&self, namespace: &BlobNamespace) -> PathBuf {
        self.dir.join(&namespace.dir)
    }

    fn path(&self, namespace: &BlobNamespace, digest: &BlobDigest) -> PathBuf {
        self.dir_of(namespace).join(digest)
    }

    fn part(&self, namespace: &BlobNamespace, digest: &BlobDigest) -> PathBuf {
        self.dir_of(namespace).join(format!("{digest}{PART_SUFFIX}"))
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<BlobKey, Arc<UploadSlot>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce_now(&self, key: &BlobKey, bytes: u64) -> Result<BlobStatus> {
        let (namespace, digest) = key;
        let status = |received| BlobStatus { digest: digest.clone(), bytes, received };
        let invalid = |message: String| ApiError::invalid(vec![FieldError { field: "bytes".to_owned(), message }]);
        if bytes == 0 {
            return Err(invalid("a blob has at least one byte".to_owned()));
        }
        match touch(&self.path(namespace, digest)) {
            Ok(stored) if stored == bytes => return Ok(status(bytes)),
            Ok(stored) => return Err(invalid(format!("the blob with this digest has {stored} bytes"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(storage_error(error)),
        }
        let slot = self.slot(key, bytes)?;
        if slot.bytes != bytes {
            return Err(invalid(format!("the upload of this blob was announced with {} bytes", slot.bytes)));
        }
        let mut upload = slot.lock();
        let opened = match upload.take() {
            Some(opened) => opened,
            None => self.open_upload(key, bytes).map_err(storage_error)?,
        };
        Ok(status(upload.insert(opened).received()))
    }

    /// Returns the slot of an upload; a new one for `bytes` bytes if there is none.
    fn slot(&self, key: &BlobKey, bytes: u64) -> Result<Arc<UploadSlot>> {
        // Locked until the slot is listed, so that two announcements can't exceed the limit together.
        let mut uploads = self.uploads();
        if let Some(slot) = uploads.get(key) {
            return Ok(slot.clone());
        }
        self.check_limits(&uploads, key, bytes)?;
        let slot = Arc::new(UploadSlot { bytes, upload: Mutex::default() });
        uploads.insert(key.clone(), slot.clone());
        Ok(slot)
    }

    fn open_upload(&self, (namespace, digest): &BlobKey, bytes: u64) -> io::Result<Upload> {
        millrace_roots::create_dir_all(self.dir_of(namespace))?;
        Upload::open(self.path(namespace, digest), self.part(namespace, digest), digest.clone(), bytes)
    }

    /// Checks that the namespace may store another blob of `bytes` bytes.
    fn check_limits(
        &self,
        uploads: &HashMap<BlobKey, Arc<UploadSlot>>,
        (namespace, digest): &BlobKey,
        bytes: u64,
    ) -> Result<()> {
        let stored = self.stored(namespace).map_err(storage_error)?;
        let mut others: HashMap<_, _> = stored.into_iter().map(|blob| (blob.digest, blob.bytes)).collect();
        // The file of an announced blob may not exist yet.
        let announced = uploads.iter().filter(|((other, _), _)| other == namespace);
        others.extend(announced.map(|((_, digest), slot)| (digest.clone(), slot.bytes)));
        others.remove(digest);
        let (count, used) = (others.len(), others.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes)));
        let detail = if count >= MAX_BLOBS {
            format!("namespace {namespace} has {count} uploads, and may have {MAX_BLOBS}")
        } else if used.saturating_add(bytes) > self.max_bytes {
            let free = self.max_bytes.saturating_sub(used);
            format!("an upload of {bytes} bytes exceeds the {free} of {} bytes that are free", self.max_bytes)
        } else {
            return Ok(());
        };
        let remedy = "delete uploads that no job needs; an administrator can raise --max-blob-bytes";
        Err(ApiError::new(ErrorReason::PayloadTooLarge, format!("{detail}: {remedy}")))
    }

    fn open_now(&self, key: BlobKey) -> io::Result<OpenBlob> {
        match touch(&self.path(&key.0, &key.1)) {
            Ok(bytes) => Ok(OpenBlob::Complete(millrace_roots::open(self.path(&key.0, &key.1))?, bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let has_part = self.uploads().contains_key(&key) || millrace_roots::is_file(self.part(&key.0, &key.1));
                Ok(if has_part { OpenBlob::Incomplete } else { OpenBlob::Missing })
            }
            Err(error) => Err(error),
        }
    }

    fn append_now(&self, key: BlobKey, offset: u64, content: &[u8]) -> Result<BlobStatus> {
        let slot = self.uploads().get(&key).cloned();
        let Some(slot) = slot else {
            return match millrace_roots::metadata(self.path(&key.0, &key.1)) {
                // The response to the last part was lost, and the part is sent again.
                Ok(about) => Ok(BlobStatus { digest: key.1, bytes: about.len(), received: about.len() }),
                Err(_) => Err(not_found(&key.0, &key.1)),
            };
        };
        let mut opened = slot.lock();
        let upload = opened.as_mut().ok_or_else(|| not_found(&key.0, &key.1))?;
        upload.append(offset, content)?;
        let (bytes, received) = (slot.bytes, upload.received());
        // Elsewhere the list is locked first.
        drop(opened);
        if received == bytes {
            self.uploads().remove(&key);
        }
        Ok(BlobStatus { digest: key.1, bytes, received })
    }

    fn statuses(&self, namespace: &BlobNamespace) -> Result<Vec<BlobStatus>> {
        let stored = self.stored(namespace).map_err(storage_error)?;
        let uploads = self.uploads();
        let statuses = stored.into_iter().map(|StoredBlob { digest, is_complete, bytes: received, .. }| {
            let announced = uploads.get(&(namespace.clone(), digest.clone())).map_or(0, |slot| slot.bytes);
            BlobStatus { digest, bytes: if is_complete { received } else { announced }, received }
        });
        Ok(statuses.collect())
    }

    /// Reads the directory of a namespace, ordered by name.
    fn stored(&self, namespace: &BlobNamespace) -> io::Result<Vec<StoredBlob>> {
        let mut stored = Vec::new();
        for entry in read_dir(&self.dir_of(namespace))? {
            let name = entry.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let complete = name.strip_suffix(PART_SUFFIX);
            let Ok(digest) = BlobDigest::new(complete.unwrap_or(name)) else { continue };
            // A file that was renamed or removed meanwhile is skipped.
            let Ok(about) = millrace_roots::metadata(&entry.path) else { continue };
            let (bytes, last_use) = (about.len(), about.modified()?);
            stored.push(StoredBlob { digest, is_complete: complete.is_none(), bytes, last_use, path: entry.path });
        }
        stored.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(stored)
    }

    /// Runs file operations on another thread than those that serve requests.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Self) -> Result<T> + Send + 'static) -> Result<T> {
        let store = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.unwrap_or_else(|error| Err(ApiError::internal("store a blob", error)))
    }
}

/// Marks a blob as used now; returns its length.
fn touch(path: &Path) -> io::Result<u64> {
    let file = millrace_roots::open(path)?;
    file.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
    Ok(file.metadata()?.len())
}

/// Reads a directory; one that does not exist is empty.
fn read_dir(path: &Path) -> io::Result<Vec<millrace_roots::Entry>> {
    match millrace_roots::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries,
    }
}

fn not_found(namespace: &BlobNamespace, digest: &BlobDigest) -> ApiError {
    let detail = format!("namespace {namespace} has no upload {digest}: announce it by POST …/blobs");
    ApiError::new(ErrorReason::NotFound, detail)
}
