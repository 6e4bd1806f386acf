//! Target for the objects of a bucket, which other programs may have written.
//!
//! Each line of an input is an object: its name, a space, its content. The same objects are read as the model_dir of a
//! run, and as uploads.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use millrace_api::blobs::bucket::BucketStorage;
use millrace_api::blobs::{BlobStorage as _, BlobStore};
use millrace_bucket::{Bucket, BucketAddress, ModelDirCopy, WantedCheckpoints, fetch_checkpoints};
use object_store::ObjectStoreExt as _;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;

use crate::disk::with_dir;
use crate::wire::runtime;

/// Objects that are read of an input.
const MAX_OBJECTS: usize = 64;

/// Opens a model_dir, fetches its checkpoints, and lists and reads uploads. Nothing may be written outside of the
/// directory of the copy.
pub fn bucket(bytes: &[u8]) {
    with_dir("bucket", |dir| runtime().block_on(read_all(bytes, dir)));
}

async fn read_all(bytes: &[u8], dir: &Path) {
    let objects = Arc::new(InMemory::new());
    for line in bytes.split(|byte| *byte == b'\n').take(MAX_OBJECTS) {
        let (name, content) = line.split_at(line.iter().position(|byte| *byte == b' ').unwrap_or(line.len()));
        let name = String::from_utf8_lossy(name);
        let name = ObjectPath::parse(&*name).unwrap_or_else(|_| ObjectPath::from(&*name));
        let content = content.get(1..).unwrap_or_default().to_vec();
        objects.put(&name, content.into()).await.expect("an object in memory");
    }
    let address: BucketAddress = "s3://bucket/team".parse().expect("an address");
    let bucket = Bucket::new(objects, "the bucket", address.prefix().clone());
    let (copies, report) = (dir.join("copies"), Arc::new(|event| drop(format!("{event}"))));
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(&copies).expect("a directory");
    for (name, wanted) in [("newest", WantedCheckpoints::Newest), ("all", WantedCheckpoints::All)] {
        let report: millrace_bucket::Reporter = report.clone();
        let _ = fetch_checkpoints(&bucket, &address, &copies.join(name), wanted, &report).await;
    }
    // A lease that another machine holds is waited for.
    let has_lease = bytes.windows(6).any(|text| text == b"-lease");
    if !has_lease {
        let opened = ModelDirCopy::open(bucket.clone(), &address, &copies.join("run"), &[], report).await;
        drop(opened);
    }
    let is_copies = |entry: std::io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() == "copies");
    assert!(fs::read_dir(dir).expect("a directory").all(is_copies), "a file outside of the copies");
    read_uploads(BlobStore::with_storage(Arc::new(BucketStorage::new(bucket.clone())), 1 << 20), bucket).await;
}

async fn read_uploads(store: BlobStore, bucket: Bucket) {
    let storage = BucketStorage::new(bucket);
    for namespace in storage.namespaces().await.expect("a list") {
        let listed = store.list(namespace.clone().into()).await.expect("a list");
        for blob in listed.items {
            let _ = store.open(namespace.clone().into(), blob.digest).await;
        }
    }
}
