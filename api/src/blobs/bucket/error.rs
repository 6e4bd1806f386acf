//! Errors of the bucket, as sentences for users and administrators.

use millrace_protocol::error_chain;
use object_store::Error;
use object_store::path::Path;

use crate::error::{ApiError, ErrorReason};

/// Returns whether the bucket exists, but not the object.
pub fn is_missing_object(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. }) && !is_missing_bucket(error)
}

/// Returns whether the bucket itself does not exist.
pub fn is_missing_bucket(error: &Error) -> bool {
    // The library has no error of its own for it, and passes on the response of the server.
    error_chain(error).contains("NoSuchBucket")
}

/// Returns whether the bucket rejects the credentials.
pub fn is_rejected(error: &Error) -> bool {
    let is_status = |status: &str| error_chain(error).contains(&format!("status code: {status}"));
    // Errors of lists have no variants.
    matches!(error, Error::PermissionDenied { .. } | Error::Unauthenticated { .. })
        || (matches!(error, Error::Generic { .. }) && (is_status("403") || is_status("401")))
}

/// Returns why the bucket can't be used, with a remedy.
pub fn description(bucket: &str, error: &Error) -> String {
    match error {
        error if is_missing_bucket(error) => {
            format!("the bucket {bucket} of --blob-store does not exist: create it, or name another")
        }
        error if is_rejected(error) => format!(
            "the bucket {bucket} of --blob-store rejects the server's credentials: check AWS_ACCESS_KEY_ID, \
             AWS_SECRET_ACCESS_KEY, and their permissions to list, read, write and delete its objects"
        ),
        _ => format!(
            "the bucket {bucket} of --blob-store does not respond: try again later, or check AWS_ENDPOINT_URL and \
             AWS_REGION"
        ),
    }
}

/// Returns the error of a request that the bucket has not served.
pub fn unavailable(bucket: &str, error: Error) -> ApiError {
    ApiError::new(ErrorReason::Unavailable, description(bucket, &error)).with_source(error)
}

/// Returns the error of an object that is not what the server has written.
pub fn changed(bucket: &str, path: &Path) -> ApiError {
    let detail = format!(
        "the object {path} in the bucket {bucket} is missing or was changed: delete the upload, and \
         upload the file again"
    );
    ApiError::new(ErrorReason::Conflict, detail)
}
