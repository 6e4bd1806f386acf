//! What is stored in the bucket, as lists of objects show it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use millrace_params::{BlobDigest, LabelName};
use object_store::ObjectMeta;

use super::names::{BlobNames, ObjectKind};
use crate::blobs::storage::{BlobAddress, StoredBlob};
use crate::blobs::window_hashes::{WindowHashes, window_bytes, window_count};

/// Time for which a list of a namespace is used again. A client announces many small files one after the other, and a
/// list takes a request for each thousand objects.
const INVENTORY_TTL: Duration = Duration::from_secs(10);

/// The objects of one blob.
#[derive(Debug, Default)]
pub struct StoredObjects {
    announced_bytes: Option<u64>,
    complete_bytes: Option<u64>,
    /// Hash and length of each window. One that was received with different contents has several.
    windows: BTreeMap<u64, Vec<(blake3::Hash, u64)>>,
    /// Number and length of the beginnings of windows.
    tails: Vec<(u64, u64)>,
    last_use: Option<SystemTime>,
}

impl StoredObjects {
    /// Adds an object. One whose name or length no server writes is skipped.
    pub fn add(&mut self, names: &BlobNames, object: &ObjectMeta) {
        let Some(kind) = names.kind(&object.location) else { return };
        match kind {
            ObjectKind::Announced { bytes } => self.announced_bytes = Some(bytes),
            ObjectKind::Complete { bytes } => self.complete_bytes = Some(bytes),
            ObjectKind::Window { number, hash } => self.windows.entry(number).or_default().push((hash, object.size)),
            ObjectKind::Tail { number, bytes } if bytes == object.size => self.tails.push((number, bytes)),
            ObjectKind::Tail { .. } => return,
        }
        let modified: SystemTime = object.last_modified.into();
        // Of a complete blob, only one object is written again when it is used.
        match (kind, self.complete_bytes) {
            (ObjectKind::Complete { .. }, _) => self.last_use = Some(modified),
            (_, None) => self.last_use = self.last_use.max(Some(modified)),
            (_, Some(_)) => {}
        }
    }

    /// Returns the hashes of the first windows of a blob of `bytes` bytes, and the length of the beginning of the next
    /// one that is stored, with which an upload continues.
    pub fn beginning(&self, bytes: u64) -> (WindowHashes, u64) {
        let mut hashes = WindowHashes::default();
        while hashes.count() < window_count(bytes)
            && let Some([(hash, length)]) = self.windows.get(&hashes.count()).map(Vec::as_slice)
            && *length == window_bytes(bytes, hashes.count())
        {
            hashes.push(*hash);
        }
        let next = hashes.count();
        let tails = self.tails.iter().filter(|(number, length)| *number == next && *length < window_bytes(bytes, next));
        let tail = tails.map(|(_, length)| *length).max().unwrap_or(0);
        (hashes, tail)
    }

    /// Returns the blob; `None` if nothing is stored of it.
    pub fn blob(&self, digest: BlobDigest) -> Option<StoredBlob> {
        let stored_bytes = self.complete_bytes.unwrap_or_else(|| {
            let (hashes, tail) = self.beginning(self.announced_bytes.unwrap_or(0));
            let windows = 0..hashes.count();
            windows.map(|number| window_bytes(self.announced_bytes.unwrap_or(0), number)).sum::<u64>() + tail
        });
        Some(StoredBlob {
            digest,
            is_complete: self.complete_bytes.is_some(),
            stored_bytes,
            announced_bytes: self.complete_bytes.or(self.announced_bytes),
            last_use: self.last_use?,
        })
    }
}

/// The blobs of each namespace, as they were listed last.
#[derive(Debug, Default)]
pub struct Inventory(Mutex<HashMap<LabelName, (Instant, Vec<StoredBlob>)>>);

impl Inventory {
    fn lock(&self) -> MutexGuard<'_, HashMap<LabelName, (Instant, Vec<StoredBlob>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the blobs of a namespace, if they were listed a moment ago.
    pub fn fresh(&self, namespace: &LabelName) -> Option<Vec<StoredBlob>> {
        let mut all = self.lock();
        all.retain(|_, (listed, _)| listed.elapsed() < INVENTORY_TTL);
        all.get(namespace).map(|(_, blobs)| blobs.clone())
    }

    /// Keeps and returns the blobs of a namespace, which were listed now.
    pub fn update(&self, namespace: &LabelName, blobs: Vec<StoredBlob>) -> Vec<StoredBlob> {
        self.lock().insert(namespace.clone(), (Instant::now(), blobs.clone()));
        blobs
    }

    /// Adds a blob that is announced with `bytes` bytes, of which `stored_bytes` are stored.
    pub fn add(&self, (namespace, digest): &BlobAddress, bytes: u64, stored_bytes: u64) {
        if let Some((_, blobs)) = self.lock().get_mut(namespace) {
            blobs.retain(|blob| blob.digest != *digest);
            blobs.push(StoredBlob {
                digest: digest.clone(),
                is_complete: stored_bytes == bytes,
                stored_bytes,
                announced_bytes: Some(bytes),
                last_use: SystemTime::now(),
            });
            blobs.sort_by(|a, b| a.digest.as_str().cmp(b.digest.as_str()));
        }
    }

    /// Forgets the list of the namespace of a removed blob.
    pub fn removed(&self, (namespace, _): &BlobAddress) {
        self.lock().remove(namespace);
    }
}
