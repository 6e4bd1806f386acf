//! Tests of uploads on a real directory.

use std::fs::File;
use std::time::SystemTime;

use bytes::Bytes;
use millrace_params::{BlobDigest, LabelName};

use super::{BlobNamespace, BlobStatus, BlobStore, OpenBlob, UNUSED_BLOB_TTL};
use crate::error::{ApiError, ErrorReason};

/// A store in a directory of its own, with the namespace `team`.
struct Case {
    dir: tempfile::TempDir,
    store: BlobStore,
}

const MAX_BYTES: u64 = 1000;

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = BlobStore::new(dir.path().to_owned(), MAX_BYTES);
        Self { dir, store }
    }

    /// The store of a server that was started again.
    fn restarted(self) -> Self {
        Self { store: BlobStore::new(self.dir.path().to_owned(), MAX_BYTES), ..self }
    }

    async fn announce(&self, content: &[u8]) -> Result<u64, ApiError> {
        let status = self.store.announce(team(), digest_of(content), content.len() as u64).await?;
        assert_eq!((status.digest, status.bytes), (digest_of(content), content.len() as u64));
        Ok(status.received)
    }

    async fn append(&self, of: &[u8], offset: u64, part: &[u8]) -> Result<u64, ApiError> {
        let status = self.store.append(team(), digest_of(of), offset, Bytes::copy_from_slice(part)).await?;
        Ok(status.received)
    }

    async fn upload(&self, content: &[u8]) {
        assert_eq!(self.announce(content).await.unwrap(), 0);
        assert_eq!(self.append(content, 0, content).await.unwrap(), content.len() as u64);
    }

    fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.dir.path().join("team")) else { return Vec::new() };
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn team() -> BlobNamespace {
    LabelName::new("team").unwrap().into()
}

fn digest_of(content: &[u8]) -> BlobDigest {
    BlobDigest::new(format!("blake3:{}", blake3::hash(content).to_hex())).unwrap()
}

#[tokio::test]
async fn upload_continues_after_interruptions_and_restarts() {
    let (mut case, content) = (Case::new(), b"the weights of a model".as_slice());
    assert_eq!(case.announce(content).await.unwrap(), 0);
    assert_eq!(case.append(content, 0, &content[..5]).await.unwrap(), 5);
    assert_eq!(case.append(content, 0, &content[..5]).await.unwrap(), 5, "its response was lost");
    let error = case.append(content, 7, &content[7..9]).await.unwrap_err();
    assert_eq!(error.reason, ErrorReason::Conflict, "{error}");
    case = case.restarted();
    assert_eq!(case.append(content, 5, &content[5..]).await.unwrap_err().reason, ErrorReason::NotFound);
    assert_eq!(case.announce(content).await.unwrap(), 5);
    assert_eq!(case.files(), [format!("{}.part", digest_of(content))]);
    let all = content.len() as u64;
    for _ in 0..2 {
        assert_eq!(case.append(content, 5, &content[5..]).await.unwrap(), all);
    }
    assert_eq!(case.files(), [digest_of(content).as_str()]);
    assert_eq!(std::fs::read(case.dir.path().join("team").join(digest_of(content))).unwrap(), content);
    assert_eq!(case.restarted().announce(content).await.unwrap(), all, "it is not sent again");
}

#[tokio::test]
async fn content_with_another_digest_is_never_stored() {
    let (case, content) = (Case::new(), b"right".as_slice());
    case.announce(content).await.unwrap();
    let error = case.append(content, 0, b"wrong").await.unwrap_err();
    assert_eq!((error.reason, &*error.errors[0].field), (ErrorReason::Invalid, "digest"), "{error}");
    let error = case.append(content, 0, b"too long").await.unwrap_err();
    assert_eq!((error.reason, &*error.errors[0].field), (ErrorReason::Invalid, "offset"), "{error}");
    assert_eq!(case.announce(content).await.unwrap(), 0);
    assert_eq!(case.append(content, 0, content).await.unwrap(), 5);
    // Another server has left the bytes of something longer.
    let (other, part) = (b"other".as_slice(), format!("{}.part", digest_of(b"other")));
    std::fs::write(case.dir.path().join("team").join(part), "something longer").unwrap();
    assert_eq!(case.announce(other).await.unwrap(), 0);
    assert_eq!(case.append(other, 0, other).await.unwrap(), 5);
    let error = case.store.announce(team(), digest_of(other), 6).await.unwrap_err();
    assert_eq!((error.reason, &*error.errors[0].field), (ErrorReason::Invalid, "bytes"), "{error}");
    assert!(case.store.announce(team(), digest_of(b""), 0).await.is_err());
}

#[tokio::test]
async fn announced_uploads_count_against_the_limit() {
    let (case, large) = (Case::new(), vec![7; 600]);
    case.announce(&large).await.unwrap();
    let error = case.announce(&[8; 401]).await.unwrap_err();
    assert_eq!(error.reason, ErrorReason::PayloadTooLarge);
    assert!(error.detail.contains("exceeds the 400 of 1000 bytes that are free"), "{error}");
    let other = LabelName::new("other").unwrap().into();
    assert!(case.store.announce(other, digest_of(&large), 600).await.is_ok(), "another namespace has its own limit");
    case.upload(&[8; 400]).await;
    let list = case.store.list(team()).await.unwrap();
    assert_eq!((list.used_bytes, list.max_bytes), (1000, 1000));
    let parts: Vec<(u64, u64)> =
        list.items.iter().map(|BlobStatus { bytes, received, .. }| (*bytes, *received)).collect();
    assert!(parts.contains(&(600, 0)) && parts.contains(&(400, 400)), "{parts:?}");
    case.store.remove(team(), digest_of(&large)).await.unwrap();
    assert_eq!(case.store.remove(team(), digest_of(&large)).await.unwrap_err().reason, ErrorReason::NotFound);
    assert_eq!(case.announce(&large).await.unwrap(), 0);
}

#[tokio::test]
async fn only_old_and_unused_uploads_are_removed() {
    let case = Case::new();
    let [new, used, unused] = [b"new", b"use", b"old"].map(|content| content.as_slice());
    for content in [new, used, unused] {
        case.upload(content).await;
    }
    case.announce(b"begun").await.unwrap();
    let age = |name: &str| {
        let file = File::options().write(true).open(case.dir.path().join("team").join(name)).unwrap();
        file.set_modified(SystemTime::now() - 2 * UNUSED_BLOB_TTL).unwrap();
    };
    for content in [used, unused] {
        age(digest_of(content).as_str());
    }
    age(&format!("{}.part", digest_of(b"begun")));
    let kept = digest_of(used);
    let removed =
        case.store.remove_unused(move |namespace, digest| namespace.as_str() == "team" && *digest == kept).await;
    assert_eq!(removed.unwrap(), 2);
    let mut left = [new, used].map(|content| digest_of(content).to_string());
    left.sort();
    assert_eq!(case.files(), left);
    // A job that is being submitted keeps its uploads.
    age(digest_of(new).as_str());
    case.store.use_blob(team(), digest_of(new), "spec.model.graph".to_owned()).await.unwrap();
    assert_eq!(case.store.remove_unused(|_, _| false).await.unwrap(), 1);
    let error = case.store.use_blob(team(), digest_of(used), "spec.model.graph".to_owned()).await.unwrap_err();
    assert_eq!((error.reason, &*error.errors[0].field), (ErrorReason::Invalid, "spec.model.graph"), "{error}");
}

#[tokio::test]
async fn namespace_of_the_same_name_has_other_uploads() {
    let (case, content) = (Case::new(), b"weights".as_slice());
    let version = |uid| BlobNamespace::with_uid(LabelName::new("team").unwrap(), LabelName::new(uid).unwrap());
    let upload = async |namespace: BlobNamespace| {
        case.store.announce(namespace.clone(), digest_of(content), 7).await.unwrap();
        let open = case.store.open(namespace.clone(), digest_of(content)).await.unwrap();
        assert!(matches!(open, OpenBlob::Incomplete));
        case.store.append(namespace, digest_of(content), 0, Bytes::from_static(b"weights")).await.unwrap();
    };
    upload(version("first-uid")).await;
    let open = async |uid| case.store.open(version(uid), digest_of(content)).await.unwrap();
    assert!(matches!(open("first-uid").await, OpenBlob::Complete(_, 7)));
    assert!(matches!(open("second-uid").await, OpenBlob::Missing));
    let error = case.store.use_blob(version("second-uid"), digest_of(content), String::new()).await.unwrap_err();
    assert!(error.to_string().contains("namespace team has no upload") || error.errors[0].message.contains("team"));
    let read = async |max| case.store.read(version("first-uid"), digest_of(content), max).await.unwrap().unwrap();
    assert_eq!((read(100).await, read(3).await), (b"weights".to_vec(), b"wei".to_vec()));
}
