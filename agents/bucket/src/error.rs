//! Errors of buckets, as sentences for users and administrators.

use std::error::Error as _;

use object_store::Error;

/// Why a bucket can't be used. `bucket` names it, such as `the bucket runs`.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe variants and fields")]
pub enum BucketError {
    #[error("{0:?} is not the address of a bucket: write s3://BUCKET or s3://BUCKET/PREFIX")]
    Address(String),
    #[error("the settings of the bucket in the environment (AWS_*) can't be used")]
    Settings(#[source] Error),
    #[error("{bucket} does not exist: create it, or name another")]
    Missing { bucket: String },
    #[error(
        "{bucket} rejects the credentials: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and their permissions to \
         list, read, write and delete its objects"
    )]
    Rejected { bucket: String, source: Error },
    #[error("{bucket} does not respond: try again later, or check AWS_ENDPOINT_URL and AWS_REGION")]
    Unavailable { bucket: String, source: Error },
}

impl BucketError {
    pub(crate) fn from_request(bucket: &str, source: Error) -> Self {
        let bucket = bucket.to_owned();
        if is_missing_bucket(&source) {
            Self::Missing { bucket }
        } else if is_rejected(&source) {
            Self::Rejected { bucket, source }
        } else {
            Self::Unavailable { bucket, source }
        }
    }

    /// Returns whether the same request may succeed later, without a change of settings.
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// Returns the messages of an error and its sources.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Returns whether the bucket exists, but not the object.
pub(crate) fn is_missing_object(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. }) && !is_missing_bucket(error)
}

fn is_missing_bucket(error: &Error) -> bool {
    // The library has no error of its own for it, and passes on the response of the server.
    chain(error).contains("NoSuchBucket")
}

/// Returns whether the bucket rejects the credentials.
fn is_rejected(error: &Error) -> bool {
    let is_status = |status: &str| chain(error).contains(&format!("status code: {status}"));
    // Errors of lists have no variants.
    matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
        || (matches!(error, Error::Generic { .. }) && (is_status("403") || is_status("401")))
}
