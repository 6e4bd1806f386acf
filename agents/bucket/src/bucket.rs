//! The connection to a bucket.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{ClientOptions, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt as _, RetryConfig};
use object_store::{PutMode, PutResult};

use crate::address::BucketAddress;
use crate::error::{BucketError, is_missing_object};

/// Time for a request, which has at most a few megabytes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Retries of a request within [`RETRY_TIMEOUT`]: less than the time until a response of a REST server begins.
const MAX_RETRIES: usize = 4;
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// Objects below a prefix of a bucket. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Bucket {
    objects: Arc<dyn ObjectStore>,
    /// Names the bucket in messages.
    label: Arc<str>,
    prefix: Path,
    is_encrypted: bool,
}

impl Bucket {
    /// Returns the part of a store of objects below `prefix`. `label` names it in messages, such as `the bucket runs`.
    pub fn new(objects: Arc<dyn ObjectStore>, label: &str, prefix: Path) -> Self {
        Self { objects, label: label.into(), prefix, is_encrypted: true }
    }

    /// Connects to a bucket with the credentials, the region and the endpoint of the environment (`AWS_*`), and lists
    /// its first objects as a test. One that does not respond at present is returned, with the error of the test.
    ///
    /// # Errors
    /// The settings can't be used, the bucket does not exist, or it rejects the credentials.
    pub async fn connect(address: &BucketAddress, label: &str) -> Result<(Self, Option<BucketError>), BucketError> {
        // An error: another part of this process has installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(address.bucket());
        let keys = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint];
        let endpoint = keys.iter().find_map(|key| builder.get_config_value(key));
        let is_encrypted = !endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let mut options = ClientOptions::new().with_timeout(REQUEST_TIMEOUT).with_connect_timeout(CONNECT_TIMEOUT);
        if !is_encrypted {
            // An image without certificate authorities is no error then.
            options = options.with_allow_http(true).with_no_system_certificates(true);
        }
        let retry = RetryConfig { max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        builder = builder.with_client_options(options).with_retry(retry);
        let objects = Arc::new(builder.build().map_err(BucketError::Settings)?);
        let bucket = Self { is_encrypted, ..Self::new(objects, label, address.prefix().clone()) };
        match bucket.objects.list(Some(&bucket.prefix)).next().await {
            Some(Err(error)) => match bucket.failed(error) {
                error if error.is_temporary() => Ok((bucket, Some(error))),
                error => Err(error),
            },
            Some(Ok(_)) | None => Ok((bucket, None)),
        }
    }

    /// Returns the part of the same bucket that is at `address`, with the same connections.
    #[must_use]
    pub fn at(&self, address: &BucketAddress) -> Self {
        Self { prefix: address.prefix().clone(), ..self.clone() }
    }

    /// Returns the name of the bucket in messages.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns the prefix of all names.
    pub const fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// Returns whether requests are encrypted: the endpoint does not begin with `http://`.
    pub const fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Lists all objects below `prefix`, which begins with the bucket's own.
    ///
    /// # Errors
    /// The request failed; as for all requests.
    pub async fn list(&self, prefix: &Path) -> Result<Vec<ObjectMeta>, BucketError> {
        self.objects.list(Some(prefix)).try_collect().await.map_err(|error| self.failed(error))
    }

    /// Returns the names of the directories in that of the bucket's prefix.
    ///
    /// # Errors
    /// The request failed.
    pub async fn directories(&self) -> Result<Vec<Path>, BucketError> {
        let listed = self.objects.list_with_delimiter(Some(&self.prefix)).await;
        Ok(listed.map_err(|error| self.failed(error))?.common_prefixes)
    }

    /// Writes an object.
    ///
    /// # Errors
    /// The request failed.
    pub async fn put(&self, path: &Path, content: Bytes) -> Result<(), BucketError> {
        let put = self.objects.put(path, content.into()).await;
        put.map(drop).map_err(|error| self.failed(error))
    }

    /// Writes an object if its present version is the one of `mode`. Returns `None` if it is not.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) async fn put_if(
        &self,
        path: &Path,
        content: Bytes,
        mode: PutMode,
    ) -> Result<Option<PutResult>, BucketError> {
        match self.objects.put_opts(path, content.into(), mode.into()).await {
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(None),
            Err(error) if is_missing_object(&error) => Ok(None),
            put => put.map(Some).map_err(|error| self.failed(error)),
        }
    }

    pub(crate) async fn begin_parts(&self, path: &Path) -> Result<Box<dyn MultipartUpload>, BucketError> {
        self.objects.put_multipart(path).await.map_err(|error| self.failed(error))
    }

    /// Reads a whole object of at most `max_bytes` bytes; `None` if there is none, or if it is longer.
    ///
    /// # Errors
    /// The request failed.
    pub async fn get(&self, path: &Path, max_bytes: u64) -> Result<Option<(Bytes, ObjectMeta)>, BucketError> {
        let found = match self.objects.get(path).await {
            Err(error) if is_missing_object(&error) => return Ok(None),
            found => found.map_err(|error| self.failed(error))?,
        };
        let meta = found.meta.clone();
        if meta.size > max_bytes {
            return Ok(None);
        }
        let content = found.bytes().await.map_err(|error| self.failed(error))?;
        Ok(Some((content, meta)).filter(|(content, _)| content.len() as u64 <= max_bytes))
    }

    /// Reads a part of an object.
    ///
    /// # Errors
    /// The request failed, or the object has no such part.
    pub async fn get_range(&self, path: &Path, range: Range<u64>) -> Result<Bytes, BucketError> {
        self.objects.get_range(path, range).await.map_err(|error| self.failed(error))
    }

    /// Deletes objects. One that does not exist is no error.
    ///
    /// # Errors
    /// The request failed.
    pub async fn delete(&self, paths: Vec<Path>) -> Result<(), BucketError> {
        let paths = futures::stream::iter(paths.into_iter().map(Ok)).boxed();
        let mut deleted = self.objects.delete_stream(paths);
        while let Some(deleted) = deleted.next().await {
            match deleted {
                Err(error) if !is_missing_object(&error) => return Err(self.failed(error)),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn failed(&self, error: object_store::Error) -> BucketError {
        BucketError::from_request(&self.label, error)
    }
}
