//! Names of the objects of a blob.

use std::collections::BTreeMap;

use millrace_params::{BlobDigest, LabelName};
use object_store::ObjectMeta;
use object_store::path::Path;

use super::inventory::StoredObjects;
use crate::blobs::storage::StoredBlob;
use crate::blobs::window_hashes::WindowHashes;

const DIGEST_SCHEME: &str = "blake3:";

/// What an object is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    Announced { bytes: u64 },
    Window { number: u64, hash: blake3::Hash },
    Tail { number: u64, bytes: u64 },
    Complete { bytes: u64 },
}

/// The names of the objects of one blob.
#[derive(Clone, Debug)]
pub struct BlobNames {
    root: Path,
}

impl BlobNames {
    pub fn new(prefix: &Path, namespace: &LabelName, digest: &BlobDigest) -> Self {
        let digest = digest.as_str().trim_start_matches(DIGEST_SCHEME);
        Self { root: prefix.clone().join(namespace.as_str()).join(digest) }
    }

    pub const fn root(&self) -> &Path {
        &self.root
    }

    pub fn announced(&self, bytes: u64) -> Path {
        self.root.clone().join("announced").join(bytes.to_string())
    }

    pub fn window(&self, number: u64, hash: &blake3::Hash) -> Path {
        self.root.clone().join("windows").join(format!("{number:08}-{}", hash.to_hex()))
    }

    pub fn tail(&self, number: u64, bytes: u64) -> Path {
        self.root.clone().join("tail").join(format!("{number:08}-{bytes:08}"))
    }

    pub fn complete_dir(&self) -> Path {
        self.root.clone().join("complete")
    }

    pub fn complete(&self, bytes: u64) -> Path {
        self.complete_dir().join(bytes.to_string())
    }

    /// Returns the length of the blob that an object says is complete.
    pub fn complete_bytes(&self, path: &Path) -> Option<u64> {
        match self.kind(path)? {
            ObjectKind::Complete { bytes } => Some(bytes),
            _ => None,
        }
    }

    /// Returns whether an object is a window with one of these hashes.
    pub fn is_window_of(&self, path: &Path, hashes: &WindowHashes) -> bool {
        match self.kind(path) {
            Some(ObjectKind::Window { number, hash }) => hashes.get(number) == Some(hash),
            _ => false,
        }
    }

    /// Returns what an object is; `None` if the name is none that a server writes.
    pub fn kind(&self, path: &Path) -> Option<ObjectKind> {
        let parts: Vec<_> = path.prefix_match(&self.root)?.collect();
        let [kind, name] = parts.as_slice() else { return None };
        kind_of(kind.as_ref(), name.as_ref())
    }
}

fn kind_of(kind: &str, name: &str) -> Option<ObjectKind> {
    match (kind, name.split_once('-')) {
        ("announced", None) => Some(ObjectKind::Announced { bytes: name.parse().ok()? }),
        ("complete", None) => Some(ObjectKind::Complete { bytes: name.parse().ok()? }),
        ("windows", Some((number, hash))) => {
            Some(ObjectKind::Window { number: number.parse().ok()?, hash: blake3::Hash::from_hex(hash).ok()? })
        }
        ("tail", Some((number, bytes))) => {
            Some(ObjectKind::Tail { number: number.parse().ok()?, bytes: bytes.parse().ok()? })
        }
        _ => None,
    }
}

/// Returns the blobs that the objects of a namespace make up, ordered by digest. Objects with other names are skipped.
pub fn group(prefix: &Path, namespace: &LabelName, objects: Vec<ObjectMeta>) -> Vec<StoredBlob> {
    let dir = prefix.clone().join(namespace.as_str());
    let mut blobs: BTreeMap<String, (BlobDigest, StoredObjects)> = BTreeMap::new();
    for object in objects {
        let Some(name) = object.location.prefix_match(&dir).and_then(|mut parts| parts.next()) else { continue };
        let Ok(digest) = BlobDigest::new(format!("{DIGEST_SCHEME}{}", name.as_ref())) else { continue };
        let names = BlobNames::new(prefix, namespace, &digest);
        let (_, stored) = blobs.entry(name.as_ref().to_owned()).or_insert_with(|| (digest, StoredObjects::default()));
        stored.add(&names, &object);
    }
    blobs.into_values().filter_map(|(digest, stored)| stored.blob(digest)).collect()
}
