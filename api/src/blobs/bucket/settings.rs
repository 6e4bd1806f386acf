//! Address of the bucket, and the connection to it.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore as _, RetryConfig};

use super::BucketStorage;
use super::error::{description, is_missing_bucket, is_rejected};

/// Scheme of an address.
const SCHEME: &str = "s3://";
/// Time for a request to the bucket, which has at most 8 MiB.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Retries of a request within [`RETRY_TIMEOUT`]: less than the time until a response of this server begins.
const MAX_RETRIES: usize = 4;
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// A bucket, and the prefix of the names of all objects of this server in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAddress {
    bucket: String,
    prefix: Path,
}

/// Why a bucket can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    /// The text is not an address.
    #[error("{0:?} is not the address of a bucket: write s3://BUCKET or s3://BUCKET/PREFIX")]
    Address(String),
    /// The environment has no usable settings.
    #[error("the settings of the bucket in the environment (AWS_*) can't be used")]
    Settings(#[source] object_store::Error),
    /// The bucket does not exist, or rejects the credentials.
    #[error("{0}")]
    Rejected(String),
}

impl FromStr for BucketAddress {
    type Err = BucketError;

    fn from_str(text: &str) -> Result<Self, BucketError> {
        let invalid = || BucketError::Address(text.to_owned());
        let rest = text.strip_prefix(SCHEME).ok_or_else(invalid)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || b".-".contains(&letter);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_name) {
            return Err(invalid());
        }
        let prefix = Path::parse(prefix).map_err(|_| invalid())?;
        Ok(Self { bucket: bucket.to_owned(), prefix })
    }
}

/// Connects to a bucket with the credentials, the region and the endpoint of the environment (`AWS_*`). One that does
/// not respond at present is no error.
///
/// # Errors
/// The settings can't be used, the bucket does not exist, or it rejects the credentials.
pub async fn connect(address: &BucketAddress) -> Result<BucketStorage, BucketError> {
    // An error: another part of this process has installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let BucketAddress { bucket, prefix } = address;
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    let keys = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint];
    let endpoint = keys.iter().find_map(|key| builder.get_config_value(key));
    let is_plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
    let mut options = ClientOptions::new().with_timeout(REQUEST_TIMEOUT).with_connect_timeout(CONNECT_TIMEOUT);
    if is_plain {
        tracing::warn!("uploads are sent to the bucket in the clear, because its endpoint begins with http://");
        // An image without certificate authorities is no error then.
        options = options.with_allow_http(true).with_no_system_certificates(true);
    }
    let retry = RetryConfig { max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    builder = builder.with_client_options(options).with_retry(retry);
    let objects = builder.build().map_err(BucketError::Settings)?;
    match objects.list(Some(prefix)).next().await {
        Some(Err(error)) if is_missing_bucket(&error) || is_rejected(&error) => {
            tracing::debug!("the bucket {bucket} can't be listed: {error}");
            return Err(BucketError::Rejected(description(bucket, &error)));
        }
        Some(Err(error)) => tracing::warn!("{}: {error}", description(bucket, &error)),
        Some(Ok(_)) | None => {}
    }
    Ok(BucketStorage::new(Arc::new(objects), bucket, prefix.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_bucket_and_prefix() {
        for (text, bucket, prefix) in [
            ("s3://uploads", "uploads", ""),
            ("s3://a.b-1/", "a.b-1", ""),
            ("s3://uploads/team/x", "uploads", "team/x"),
        ] {
            let address: BucketAddress = text.parse().unwrap();
            assert_eq!((&*address.bucket, address.prefix.as_ref()), (bucket, prefix));
        }
        for text in ["uploads", "s3://", "s3://x", "s3://UPLOADS", "s3://a b", "s3://uploads/a//b", "s3://uploads/../b"]
        {
            let error = text.parse::<BucketAddress>().unwrap_err().to_string();
            assert!(error.ends_with("write s3://BUCKET or s3://BUCKET/PREFIX"), "{error}");
        }
    }
}
