//! Tests of uploads on a real directory, and in a bucket in memory.

use std::fs::File;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use millrace_bucket::Bucket;
use millrace_params::{BlobDigest, LabelName};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};

use super::bucket::BucketStorage;
use super::window_hashes::WINDOW_BYTES;
use super::{BlobFetcher, BlobNamespace, BlobPart, BlobStatus, BlobStore, ByteStream, OpenBlob, UNUSED_BLOB_TTL};
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
        let part = BlobPart::of_bytes(offset, Bytes::copy_from_slice(part));
        Ok(self.store.append(team(), digest_of(of), part).await?.received)
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
        let part = BlobPart::of_bytes(0, Bytes::from_static(b"weights"));
        case.store.append(namespace, digest_of(content), part).await.unwrap();
    };
    upload(version("first-uid")).await;
    let open = async |uid| case.store.open(version(uid), digest_of(content)).await.unwrap();
    assert!(matches!(open("first-uid").await, OpenBlob::Complete(reader) if reader.bytes() == 7));
    assert!(matches!(open("second-uid").await, OpenBlob::Missing));
    let error = case.store.use_blob(version("second-uid"), digest_of(content), String::new()).await.unwrap_err();
    assert!(error.to_string().contains("namespace team has no upload") || error.errors[0].message.contains("team"));
    let read = async |max| case.store.read(version("first-uid"), digest_of(content), max).await.unwrap().unwrap();
    assert_eq!((read(100).await, read(3).await), (b"weights".to_vec(), b"wei".to_vec()));
}

/// Returns a part without a length whose content is interrupted after `content`.
fn interrupted(offset: u64, content: &[u8]) -> BlobPart {
    let blocks: Vec<_> = content.chunks(1 << 20).map(|block| Ok(Bytes::copy_from_slice(block))).collect();
    let broken = Err(ApiError::new(ErrorReason::BadRequest, "the connection is closed"));
    let content: ByteStream = futures::stream::iter(blocks.into_iter().chain([broken])).boxed();
    BlobPart { offset, bytes: None, content }
}

/// Uploads `content` with interruptions between and within parts, and restarts by `restarted` after each.
async fn upload_with_interruptions(restarted: impl AsyncFn() -> BlobStore, content: &[u8]) {
    let (digest, all) = (digest_of(content), content.len() as u64);
    let mut received = 0;
    for end in [1, 7, 9 << 20, (9 << 20) + 1, 16 << 20, 20 << 20] {
        let store = restarted().await;
        assert_eq!(store.announce(team(), digest.clone(), all).await.unwrap().received, received);
        let part = interrupted(received.saturating_sub(3), &content[received.saturating_sub(3) as usize..end]);
        let error = store.append(team(), digest.clone(), part).await.unwrap_err();
        assert_eq!(error.detail, "the connection is closed");
        received = end as u64;
        let listed = store.list(team()).await.unwrap().items;
        assert_eq!(listed, [BlobStatus { digest: digest.clone(), bytes: all, received }]);
    }
    let store = restarted().await;
    store.announce(team(), digest.clone(), all).await.unwrap();
    let longer = Bytes::copy_from_slice(&[&content[received as usize..], b"x"].concat());
    let without_length = BlobPart { bytes: None, ..BlobPart::of_bytes(received, longer) };
    let error = store.append(team(), digest.clone(), without_length).await.unwrap_err();
    assert_eq!((error.reason, &*error.errors[0].field), (ErrorReason::Invalid, "offset"), "{error}");
    let rest = BlobPart::of_bytes(received, Bytes::copy_from_slice(&content[received as usize..]));
    assert_eq!(store.append(team(), digest.clone(), rest).await.unwrap().received, all);
    for offset in [0, 1, WINDOW_BYTES - 1, WINDOW_BYTES, all - 1, all] {
        let OpenBlob::Complete(reader) = restarted().await.open(team(), digest.clone()).await.unwrap() else {
            panic!("it is complete")
        };
        let blocks: Vec<Bytes> = reader.read(offset, 1 << 18).try_collect().await.unwrap();
        assert!(blocks.iter().all(|block| (1..=1 << 18).contains(&block.len())));
        assert!(blocks.concat() == content[offset as usize..], "from byte {offset}");
    }
}

/// A content of three windows.
fn windows() -> Vec<u8> {
    (0..(20 << 20) + 5).map(|at| (at % 251) as u8).collect()
}

#[tokio::test]
async fn interrupted_part_is_kept_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    upload_with_interruptions(async || BlobStore::new(dir.path().to_owned(), 1 << 30), &windows()).await;
    assert_eq!(std::fs::read_dir(dir.path().join("team")).unwrap().count(), 1);
}

/// A bucket in memory.
struct BucketCase {
    objects: Arc<InMemory>,
}

impl BucketCase {
    fn new() -> Self {
        Self { objects: Arc::new(InMemory::new()) }
    }

    /// Returns the store of a server that was started again.
    fn store(&self, max_bytes: u64) -> BlobStore {
        let storage =
            BucketStorage::new(Bucket::new(self.objects.clone(), "the bucket uploads", Path::from("some/prefix")));
        BlobStore::with_storage(Arc::new(storage), max_bytes)
    }

    async fn names(&self) -> Vec<Path> {
        self.objects.list(None).map_ok(|object| object.location).try_collect().await.unwrap()
    }

    async fn upload(&self, store: &BlobStore, content: &[u8]) {
        store.announce(team(), digest_of(content), content.len() as u64).await.unwrap();
        let part = BlobPart::of_bytes(0, Bytes::copy_from_slice(content));
        store.append(team(), digest_of(content), part).await.unwrap();
    }

    async fn window(&self, number: &str) -> Path {
        let names = self.names().await;
        names.into_iter().find(|name| name.as_ref().contains(&format!("/windows/{number}-"))).unwrap()
    }
}

#[tokio::test]
async fn interrupted_part_is_kept_in_a_bucket() {
    let case = BucketCase::new();
    upload_with_interruptions(async || case.store(1 << 30), &windows()).await;
    assert_eq!(case.names().await.len(), 4, "three windows and their hashes");
    let store = case.store(1 << 30);
    assert_eq!(store.list(team()).await.unwrap().used_bytes, windows().len() as u64);
    store.remove(team(), digest_of(&windows())).await.unwrap();
    assert_eq!(case.names().await, []);
    assert_eq!(store.remove(team(), digest_of(&windows())).await.unwrap_err().reason, ErrorReason::NotFound);
}

#[tokio::test]
async fn content_with_another_digest_is_removed_from_the_bucket() {
    let (case, content) = (BucketCase::new(), windows());
    let store = case.store(1 << 30);
    let (digest, all) = (digest_of(&content), content.len() as u64);
    store.announce(team(), digest.clone(), all).await.unwrap();
    let mut wrong = content.clone();
    wrong[9 << 20] ^= 1;
    let error = store.append(team(), digest.clone(), BlobPart::of_bytes(0, wrong.into())).await.unwrap_err();
    assert_eq!((error.reason, &*error.errors[0].field), (ErrorReason::Invalid, "digest"), "{error}");
    assert_eq!(store.announce(team(), digest.clone(), all).await.unwrap().received, 0);
    case.upload(&store, &content).await;
    assert!(matches!(store.open(team(), digest).await.unwrap(), OpenBlob::Complete(_)));
}

#[tokio::test]
async fn upload_without_its_last_object_is_completed() {
    let (case, content) = (BucketCase::new(), windows());
    case.upload(&case.store(1 << 30), &content).await;
    let complete = case.names().await.into_iter().find(|name| name.as_ref().contains("/complete/")).unwrap();
    case.objects.delete(&complete).await.unwrap();
    let store = case.store(1 << 30);
    assert!(matches!(store.open(team(), digest_of(&content)).await.unwrap(), OpenBlob::Incomplete));
    let all = content.len() as u64;
    assert_eq!(store.announce(team(), digest_of(&content), all).await.unwrap().received, all);
    assert!(matches!(store.open(team(), digest_of(&content)).await.unwrap(), OpenBlob::Complete(_)));
}

#[tokio::test]
async fn changed_objects_are_never_read() {
    let (case, content) = (BucketCase::new(), windows());
    let store = case.store(1 << 30);
    case.upload(&store, &content).await;
    let dir = tempfile::tempdir().unwrap();
    let fetcher = BlobFetcher::new(store.clone(), dir.path().to_owned());
    let (namespace, digest) = (LabelName::new("team").unwrap(), digest_of(&content));
    let name = case.window("00000001").await;
    let right = case.objects.get(&name).await.unwrap().bytes().await.unwrap();
    let mut flipped = right.to_vec();
    flipped[5] ^= 1;
    for wrong in [right.slice(1..), flipped.into(), Bytes::new()] {
        case.objects.put(&name, wrong.into()).await.unwrap();
        let error = fetcher.fetch(namespace.clone(), digest.clone()).await.unwrap_err();
        assert!(error.detail.starts_with(&format!("the object {name} in the bucket uploads is missing")), "{error}");
        assert!(!dir.path().join("team").join(&digest).exists());
    }
    case.objects.put(&name, right.into()).await.unwrap();
    assert!(fetcher.fetch(namespace.clone(), digest.clone()).await.unwrap(), "it continues");
    assert!(std::fs::read(dir.path().join("team").join(&digest)).unwrap() == content);
    assert!(!fetcher.fetch(namespace, digest_of(b"other")).await.unwrap());
    let complete = case.names().await.into_iter().find(|name| name.as_ref().contains("/complete/")).unwrap();
    case.objects.put(&complete, Bytes::from_static(&[7; 96]).into()).await.unwrap();
    let error = store.use_blob(team(), digest, "spec.files".to_owned()).await.unwrap_err();
    assert!(error.detail.contains("/complete/") && error.detail.ends_with("upload the file again"), "{error}");
}

#[tokio::test]
async fn blobs_of_a_bucket_count_against_the_limit() {
    let case = BucketCase::new();
    let store = case.store(1000);
    case.upload(&store, &[1; 300]).await;
    store.announce(team(), digest_of(&[2; 600]), 600).await.unwrap();
    for store in [store, case.store(1000)] {
        let error = store.announce(team(), digest_of(&[3; 101]), 101).await.unwrap_err();
        assert!(error.detail.contains("exceeds the 100 of 1000 bytes that are free"), "{error}");
        assert_eq!(store.list(team()).await.unwrap().used_bytes, 900);
        assert_eq!(store.remove_unused(|_, _| false).await.unwrap(), 0, "they are new");
    }
    let other = LabelName::new("other").unwrap().into();
    assert!(case.store(1000).announce(other, digest_of(&[4; 1000]), 1000).await.is_ok());
}
