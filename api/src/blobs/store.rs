//! The blobs of all namespaces: announcements, limits, and what is removed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use millrace_params::{BlobDigest, LabelName};

use super::directory::DirectoryStorage;
use super::storage::{BlobAddress, BlobStorage, BlobUpload, ByteStream, ReceivedBytes};
use super::{BlobList, BlobNamespace, BlobStatus, MAX_BLOBS, OpenBlob, UNUSED_BLOB_TTL};
use crate::error::{ApiError, ErrorReason, FieldError, Result};

/// Bytes that are read of a blob at a time.
const READ_BLOCK_BYTES: usize = 1 << 20;

type BlobKey = (BlobNamespace, BlobDigest);

/// The blobs of all namespaces. Clones share the uploads.
#[derive(Clone)]
pub struct BlobStore {
    storage: Arc<dyn BlobStorage>,
    /// Limit on the bytes of a namespace.
    max_bytes: u64,
    uploads: Arc<Mutex<HashMap<BlobKey, Arc<UploadSlot>>>>,
    /// Held while an announcement is compared with the limits, so that two can't exceed them together.
    announcing: Arc<tokio::sync::Mutex<()>>,
}

/// A part of a blob that a client sends.
pub struct BlobPart {
    /// Position of its first byte.
    pub offset: u64,
    /// Its length, if the client states it.
    pub bytes: Option<u64>,
    pub content: ByteStream,
}

impl BlobPart {
    /// Creates a part that has arrived completely.
    #[cfg(test)]
    pub fn of_bytes(offset: u64, content: Bytes) -> Self {
        let bytes = Some(content.len() as u64);
        Self { offset, bytes, content: futures::stream::iter([Ok(content)]).boxed() }
    }
}

/// An announced blob.
struct UploadSlot {
    /// Length of the blob.
    bytes: u64,
    received: ReceivedBytes,
    /// `None` until it was begun. Locked while a part is appended.
    upload: tokio::sync::Mutex<Option<Box<dyn BlobUpload>>>,
}

impl UploadSlot {
    fn status(&self, digest: &BlobDigest) -> BlobStatus {
        BlobStatus { digest: digest.clone(), bytes: self.bytes, received: self.received.get() }
    }
}

impl BlobStore {
    /// Creates the store in the directory `dir`, which only the server uses, with at most `max_bytes` for a namespace.
    pub fn new(dir: PathBuf, max_bytes: u64) -> Self {
        Self::with_storage(Arc::new(DirectoryStorage::new(dir)), max_bytes)
    }

    /// Creates the store in `storage`, with at most `max_bytes` for a namespace.
    pub fn with_storage(storage: Arc<dyn BlobStorage>, max_bytes: u64) -> Self {
        Self { storage, max_bytes, uploads: Arc::default(), announcing: Arc::default() }
    }

    /// Announces the upload of a blob of `bytes` bytes, or finds what the server has of it.
    ///
    /// # Errors
    /// [`ErrorReason::Invalid`]: the blob would be empty, or has another length. [`ErrorReason::PayloadTooLarge`]: a
    /// limit of the namespace is exceeded. An error of the storage.
    pub async fn announce(&self, namespace: BlobNamespace, digest: BlobDigest, bytes: u64) -> Result<BlobStatus> {
        let invalid = |message: String| ApiError::invalid(vec![FieldError { field: "bytes".to_owned(), message }]);
        if bytes == 0 {
            return Err(invalid("a blob has at least one byte".to_owned()));
        }
        let address = (namespace.dir.clone(), digest.clone());
        match self.storage.touch(&address).await? {
            Some(stored) if stored == bytes => return Ok(BlobStatus { digest, bytes, received: bytes }),
            Some(stored) => return Err(invalid(format!("the blob with this digest has {stored} bytes"))),
            None => {}
        }
        let key = (namespace, digest);
        let slot = self.slot(&key, bytes).await?;
        if slot.bytes != bytes {
            return Err(invalid(format!("the upload of this blob was announced with {} bytes", slot.bytes)));
        }
        // While another client appends a part, its number of bytes so far is as good an answer.
        if let Ok(mut upload) = slot.upload.try_lock()
            && upload.is_none()
        {
            *upload = Some(self.storage.begin_upload(&address, bytes, slot.received.clone()).await?);
        }
        let status = slot.status(&key.1);
        if status.received == bytes {
            self.uploads().remove(&key);
        }
        Ok(status)
    }

    /// Appends a part to an announced blob. Bytes that the server has already are skipped.
    ///
    /// # Errors
    /// [`ErrorReason::NotFound`]: the blob was not announced since the server has started.
    /// [`ErrorReason::Conflict`]: the part begins after the next byte, or another part is being appended.
    /// [`ErrorReason::Invalid`]: the blob is longer than announced, or has another digest. Errors of the part's
    /// content: what arrived before is stored. An error of the storage.
    pub async fn append(&self, namespace: BlobNamespace, digest: BlobDigest, part: BlobPart) -> Result<BlobStatus> {
        let key = (namespace, digest);
        let slot = self.uploads().get(&key).cloned();
        let Some(slot) = slot else {
            let address = (key.0.dir.clone(), key.1.clone());
            return match self.storage.touch(&address).await? {
                // The response to the last part was lost, and the part is sent again.
                Some(bytes) => Ok(BlobStatus { digest: key.1, bytes, received: bytes }),
                None => Err(not_found(&key.0, &key.1)),
            };
        };
        let mut opened = slot.upload.try_lock().map_err(|_| {
            let detail = "another part of this upload is being received: announce it again, and continue when it ends";
            ApiError::new(ErrorReason::Conflict, detail)
        })?;
        let upload = opened.as_mut().ok_or_else(|| not_found(&key.0, &key.1))?;
        if let Some(content) = missing_content(part, slot.received.get(), slot.bytes)? {
            upload.append(content).await?;
        }
        let status = slot.status(&key.1);
        if status.received == status.bytes {
            self.uploads().remove(&key);
        }
        Ok(status)
    }

    /// Lists the blobs of a namespace.
    ///
    /// # Errors
    /// An error of the storage.
    pub async fn list(&self, namespace: BlobNamespace) -> Result<BlobList> {
        let stored = self.storage.list(&namespace.dir).await?;
        let uploads = self.uploads();
        let items = stored.into_iter().map(|blob| {
            let slot = uploads.get(&(namespace.clone(), blob.digest.clone())).filter(|_| !blob.is_complete);
            slot.map(|slot| slot.status(&blob.digest)).unwrap_or_else(|| {
                let announced = blob.announced_bytes.unwrap_or(0);
                let bytes = if blob.is_complete { blob.stored_bytes } else { announced };
                BlobStatus { digest: blob.digest, bytes, received: blob.stored_bytes }
            })
        });
        let items: Vec<BlobStatus> = items.collect();
        let used_bytes = items.iter().map(|blob| blob.bytes.max(blob.received)).sum();
        Ok(BlobList { items, used_bytes, max_bytes: self.max_bytes })
    }

    /// Checks that a blob is complete, and keeps it for another [`UNUSED_BLOB_TTL`]. `field` names it in the error.
    ///
    /// # Errors
    /// [`ErrorReason::Invalid`]: it is not complete. An error of the storage.
    pub async fn use_blob(&self, namespace: BlobNamespace, digest: BlobDigest, field: String) -> Result<()> {
        let address = (namespace.dir.clone(), digest);
        if self.storage.touch(&address).await?.is_some() {
            return Ok(());
        }
        let digest = address.1;
        let message = format!("namespace {namespace} has no upload {digest}: upload it before the job is submitted");
        Err(ApiError::invalid(vec![FieldError { field, message }]))
    }

    /// Removes a blob, complete or in part.
    ///
    /// # Errors
    /// [`ErrorReason::NotFound`]: there is none. An error of the storage.
    pub async fn remove(&self, namespace: BlobNamespace, digest: BlobDigest) -> Result<()> {
        let address = (namespace.dir.clone(), digest.clone());
        let key = (namespace, digest);
        self.uploads().remove(&key);
        match self.storage.remove(&address).await? {
            true => Ok(()),
            false => Err(not_found(&key.0, &key.1)),
        }
    }

    /// Opens a blob for reading, and keeps it for another [`UNUSED_BLOB_TTL`].
    ///
    /// # Errors
    /// An error of the storage.
    pub async fn open(&self, namespace: BlobNamespace, digest: BlobDigest) -> Result<OpenBlob> {
        let address = (namespace.dir.clone(), digest.clone());
        if let Some(reader) = self.storage.open(&address).await? {
            return Ok(OpenBlob::Complete(reader));
        }
        let is_announced = self.uploads().contains_key(&(namespace, digest));
        let has_part = is_announced || self.storage.has_part(&address).await?;
        Ok(if has_part { OpenBlob::Incomplete } else { OpenBlob::Missing })
    }

    /// Reads a blob, at most its first `max_bytes` bytes; `None` if it is not complete.
    ///
    /// # Errors
    /// An error of the storage.
    pub async fn read(&self, namespace: BlobNamespace, digest: BlobDigest, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let OpenBlob::Complete(reader) = self.open(namespace, digest).await? else { return Ok(None) };
        let max_bytes = usize::try_from(max_bytes.min(reader.bytes())).unwrap_or(usize::MAX);
        let mut content = Vec::new();
        let mut blocks = reader.read(0, READ_BLOCK_BYTES);
        while content.len() < max_bytes
            && let Some(block) = blocks.try_next().await?
        {
            content.extend_from_slice(&block);
        }
        content.truncate(max_bytes);
        Ok(Some(content))
    }

    /// Removes the blobs that were not used for [`UNUSED_BLOB_TTL`] and for which `is_used` is false, by the directory
    /// of their namespace. Returns how many.
    ///
    /// # Errors
    /// An error of the storage.
    pub async fn remove_unused(&self, is_used: impl Fn(&LabelName, &BlobDigest) -> bool + Send) -> Result<usize> {
        let mut removed = 0;
        for dir in self.storage.namespaces().await? {
            for blob in self.storage.list(&dir).await? {
                let age = SystemTime::now().duration_since(blob.last_use).unwrap_or_default();
                if age < UNUSED_BLOB_TTL || is_used(&dir, &blob.digest) {
                    continue;
                }
                self.uploads().retain(|(known, digest), _| (&known.dir, digest) != (&dir, &blob.digest));
                let address: BlobAddress = (dir.clone(), blob.digest);
                removed += usize::from(self.storage.remove(&address).await?);
            }
        }
        Ok(removed)
    }

    fn uploads(&self) -> MutexGuard<'_, HashMap<BlobKey, Arc<UploadSlot>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slot of an upload; a new one for `bytes` bytes if there is none.
    async fn slot(&self, key: &BlobKey, bytes: u64) -> Result<Arc<UploadSlot>> {
        let _turn = self.announcing.lock().await;
        if let Some(slot) = self.uploads().get(key) {
            return Ok(slot.clone());
        }
        self.check_limits(key, bytes).await?;
        let slot = Arc::new(UploadSlot { bytes, received: ReceivedBytes::default(), upload: Default::default() });
        self.uploads().insert(key.clone(), slot.clone());
        Ok(slot)
    }

    /// Checks that the namespace may store another blob of `bytes` bytes.
    async fn check_limits(&self, (namespace, digest): &BlobKey, bytes: u64) -> Result<()> {
        let stored = self.storage.list(&namespace.dir).await?;
        let stored = stored.into_iter().map(|blob| (blob.digest, blob.announced_bytes.unwrap_or(blob.stored_bytes)));
        let mut others: HashMap<_, _> = stored.collect();
        // Nothing may be stored yet of an announced blob.
        let uploads = self.uploads();
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
}

/// Returns what is missing of a blob of `blob_bytes` bytes in the content of a part, if `received` bytes are there;
/// `None` if nothing is.
///
/// # Errors
/// The part begins after the next byte, or ends after the end of the blob. If the client does not state its length, the
/// content ends with this error.
fn missing_content(part: BlobPart, received: u64, blob_bytes: u64) -> Result<Option<ByteStream>> {
    let BlobPart { offset, bytes, content } = part;
    if offset > received {
        let detail = format!("the part begins at byte {offset}, but the next byte is {received}");
        return Err(ApiError::new(ErrorReason::Conflict, format!("{detail}: continue there")));
    }
    let too_long = move |end: u64| {
        let message = format!("the part ends at byte {end}, but the blob was announced with {blob_bytes} bytes");
        ApiError::invalid(vec![FieldError { field: "offset".to_owned(), message }])
    };
    let end = bytes.map(|bytes| offset.saturating_add(bytes));
    if end.is_some_and(|end| end <= received) {
        return Ok(None);
    }
    if let Some(end) = end.filter(|end| *end > blob_bytes) {
        return Err(too_long(end));
    }
    let mut position = offset;
    let missing = content.try_filter_map(move |mut block: Bytes| {
        let begin = position;
        position = position.saturating_add(block.len() as u64);
        let known = usize::try_from(received.saturating_sub(begin)).unwrap_or(usize::MAX).min(block.len());
        let rest = block.split_off(known);
        std::future::ready(match position > blob_bytes {
            true => Err(too_long(position)),
            false => Ok(Some(rest).filter(|rest| !rest.is_empty())),
        })
    });
    Ok(Some(missing.boxed()))
}

fn not_found(namespace: &BlobNamespace, digest: &BlobDigest) -> ApiError {
    let detail = format!("namespace {namespace} has no upload {digest}: announce it by POST …/blobs");
    ApiError::new(ErrorReason::NotFound, detail)
}
