//! Blobs as objects in an S3-compatible bucket.
//!
//! ```text
//! <prefix>/<namespace>/<digest>/announced/<bytes>           its length, as announced; empty
//! <prefix>/<namespace>/<digest>/windows/<number>-<hash>     8 MiB of its content, the last one less
//! <prefix>/<namespace>/<digest>/tail/<number>-<length>      the beginning of the next window, until that is complete
//! <prefix>/<namespace>/<digest>/complete/<bytes>            hashes of all windows; written last, and again when used
//! ```
//!
//! * The hash of a window is its node in the BLAKE3 tree of the whole blob (`window_hashes`). So an upload continues
//!   after a restart without reading what is stored, the digest follows from the hashes of the windows, and a reader
//!   verifies each window before it returns a byte of it: an object that was truncated or replaced is noticed.
//! * An object with a name has one possible content. Two servers that receive the same blob write the same objects.
//! * A window takes 8 MiB of memory. The number of windows in memory is bounded for the whole server.
//!

mod error;
mod inventory;
mod names;
mod reader;
mod upload;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use millrace_bucket::{Bucket, BucketAddress, BucketError};
use millrace_params::LabelName;
use millrace_protocol::error_chain;
use object_store::ObjectMeta;
use object_store::path::Path;
use tokio::sync::Semaphore;

use super::storage::{BlobAddress, BlobReader, BlobStorage, BlobUpload, ReceivedBytes, StoredBlob};
use super::window_hashes::WindowHashes;
use crate::error::Result;
use error::{changed, unavailable};
use inventory::{Inventory, StoredObjects};
use names::BlobNames;
use reader::WindowReader;
use upload::BucketUpload;

/// Uploads that are received at the same time; others wait. Each has up to three windows in memory.
const MAX_ACTIVE_UPLOADS: usize = 8;
/// Windows that are read at the same time.
const MAX_ACTIVE_READS: usize = 16;
/// A blob that was marked as used within this time is not marked again.
const TOUCH_INTERVAL: Duration = Duration::from_secs(3600);

/// Blobs in a bucket. Clones share the connections.
#[derive(Clone)]
pub struct BucketStorage {
    bucket: Bucket,
    inventory: Arc<Inventory>,
    uploads: Arc<Semaphore>,
    reads: Arc<Semaphore>,
}

/// A complete blob.
struct CompleteBlob {
    bytes: u64,
    hashes: WindowHashes,
    last_use: SystemTime,
}

/// Connects to the bucket of `--blob-store`. One that does not respond at present is no error.
///
/// # Errors
/// The settings can't be used, the bucket does not exist, or it rejects the credentials.
pub async fn connect(address: &BucketAddress) -> Result<BucketStorage, BucketError> {
    Ok(BucketStorage::new(connect_logged(address, "--blob-store", "uploads").await?))
}

/// Connects to the bucket of `option`, which stores `content`. Logs if it does not respond, or is not encrypted.
///
/// # Errors
/// See [`Bucket::connect`].
pub async fn connect_logged(address: &BucketAddress, option: &str, content: &str) -> Result<Bucket, BucketError> {
    let label = format!("the bucket {} of {option}", address.bucket());
    let (bucket, no_response) = Bucket::connect(address, &label).await?;
    if !bucket.is_encrypted() {
        tracing::warn!("{content} are sent to {label} in the clear, because its endpoint begins with http://");
    }
    if let Some(error) = no_response {
        tracing::warn!("{}", error_chain(&error));
    }
    Ok(bucket)
}

impl BucketStorage {
    /// Stores blobs below the prefix of `bucket`.
    pub fn new(bucket: Bucket) -> Self {
        Self {
            bucket,
            inventory: Arc::default(),
            uploads: Arc::new(Semaphore::new(MAX_ACTIVE_UPLOADS)),
            reads: Arc::new(Semaphore::new(MAX_ACTIVE_READS)),
        }
    }

    fn names(&self, (namespace, digest): &BlobAddress) -> BlobNames {
        BlobNames::new(self.bucket.prefix(), namespace, digest)
    }

    /// Lists the objects below `prefix`.
    async fn objects_below(&self, prefix: &Path) -> Result<Vec<ObjectMeta>> {
        self.bucket.list(prefix).await.map_err(unavailable)
    }

    /// Lists the objects of a blob.
    async fn stored(&self, blob: &BlobAddress) -> Result<StoredObjects> {
        let names = self.names(blob);
        let mut stored = StoredObjects::default();
        for object in self.objects_below(names.root()).await? {
            stored.add(&names, &object);
        }
        Ok(stored)
    }

    async fn put(&self, path: &Path, content: Bytes) -> Result<()> {
        self.bucket.put(path, content).await.map_err(unavailable)
    }

    /// Reads an object of `bytes` bytes; `None` if there is none, or if it has another length.
    async fn get(&self, path: &Path, bytes: u64) -> Result<Option<Bytes>> {
        let found = self.bucket.get(path, bytes).await.map_err(unavailable)?;
        Ok(found.map(|(content, _)| content).filter(|content| content.len() as u64 == bytes))
    }

    async fn delete(&self, paths: Vec<Path>) -> Result<()> {
        self.bucket.delete(paths).await.map_err(unavailable)
    }

    /// Finds a complete blob; `None` if it is not complete.
    async fn complete(&self, blob: &BlobAddress) -> Result<Option<CompleteBlob>> {
        let names = self.names(blob);
        let Some(object) = self.objects_below(&names.complete_dir()).await?.into_iter().next() else {
            return Ok(None);
        };
        let bytes =
            names.complete_bytes(&object.location).ok_or_else(|| changed(self.bucket.label(), &object.location))?;
        let content = self.get(&object.location, WindowHashes::encoded_bytes(bytes)).await?;
        let hashes = content.and_then(|content| WindowHashes::decode(&content, bytes));
        let hashes = hashes.filter(|hashes| super::is_digest_of(&blob.1, &hashes.root()));
        let hashes = hashes.ok_or_else(|| changed(self.bucket.label(), &object.location))?;
        Ok(Some(CompleteBlob { bytes, hashes, last_use: object.last_modified.into() }))
    }

    /// Finds a complete blob and marks it as used now.
    async fn used(&self, blob: &BlobAddress) -> Result<Option<CompleteBlob>> {
        let Some(complete) = self.complete(blob).await? else { return Ok(None) };
        let age = SystemTime::now().duration_since(complete.last_use).unwrap_or_default();
        if age > TOUCH_INTERVAL {
            self.put(&self.names(blob).complete(complete.bytes), complete.hashes.encode()).await?;
        }
        Ok(Some(complete))
    }

    /// Completes a blob whose windows are all stored, and removes what was needed for its upload only.
    async fn publish(&self, blob: &BlobAddress, bytes: u64, hashes: &WindowHashes) -> Result<()> {
        let names = self.names(blob);
        self.put(&names.complete(bytes), hashes.encode()).await?;
        self.inventory.add(blob, bytes, bytes);
        let kept = |path: &Path| *path == names.complete(bytes) || names.is_window_of(path, hashes);
        let remove = async {
            let objects = self.objects_below(names.root()).await?;
            let others = objects.into_iter().map(|object| object.location).filter(|path| !kept(path));
            self.delete(others.collect()).await
        };
        if let Err(error) = remove.await {
            // They are removed together with the blob.
            tracing::debug!("can't remove the announcement of an upload: {error}");
        }
        Ok(())
    }
}

#[async_trait]
impl BlobStorage for BucketStorage {
    async fn namespaces(&self) -> Result<Vec<LabelName>> {
        let listed = self.bucket.directories().await.map_err(unavailable)?;
        let names = listed.iter().filter_map(|path| path.parts().next_back());
        Ok(names.filter_map(|name| LabelName::new(name.as_ref()).ok()).collect())
    }

    async fn list(&self, namespace: &LabelName) -> Result<Vec<StoredBlob>> {
        if let Some(known) = self.inventory.fresh(namespace) {
            return Ok(known);
        }
        let dir = self.bucket.prefix().clone().join(namespace.as_str());
        let objects = self.objects_below(&dir).await?;
        Ok(self.inventory.update(namespace, names::group(self.bucket.prefix(), namespace, objects)))
    }

    async fn touch(&self, blob: &BlobAddress) -> Result<Option<u64>> {
        Ok(self.used(blob).await?.map(|complete| complete.bytes))
    }

    async fn open(&self, blob: &BlobAddress) -> Result<Option<Box<dyn BlobReader>>> {
        let Some(CompleteBlob { bytes, hashes, .. }) = self.used(blob).await? else { return Ok(None) };
        Ok(Some(Box::new(WindowReader { storage: self.clone(), names: self.names(blob), bytes, hashes })))
    }

    async fn has_part(&self, blob: &BlobAddress) -> Result<bool> {
        Ok(!self.objects_below(self.names(blob).root()).await?.is_empty())
    }

    async fn begin_upload(
        &self,
        blob: &BlobAddress,
        bytes: u64,
        received: ReceivedBytes,
    ) -> Result<Box<dyn BlobUpload>> {
        Ok(Box::new(BucketUpload::begin(self.clone(), blob.clone(), bytes, received).await?))
    }

    async fn remove(&self, blob: &BlobAddress) -> Result<bool> {
        let names = self.names(blob);
        self.inventory.removed(blob);
        let mut paths: Vec<Path> =
            self.objects_below(names.root()).await?.into_iter().map(|object| object.location).collect();
        let exists = !paths.is_empty();
        // Without its hashes it is no blob any more. What is left of it after a failure is found by the next call.
        let complete = paths.iter().position(|path| names.complete_bytes(path).is_some());
        if let Some(at) = complete {
            self.delete(vec![paths.swap_remove(at)]).await?;
        }
        self.delete(paths).await?;
        Ok(exists)
    }
}
