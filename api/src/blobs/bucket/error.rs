//! Errors of the bucket as responses.

use millrace_bucket::BucketError;
use object_store::path::Path;

use crate::error::{ApiError, ErrorReason};

/// Returns the error of a request that the bucket has not served.
pub fn unavailable(error: BucketError) -> ApiError {
    ApiError::new(ErrorReason::Unavailable, error.to_string()).with_source(error)
}

/// Returns the error of an object that is not what the server has written. `bucket` names the bucket.
pub fn changed(bucket: &str, path: &Path) -> ApiError {
    let detail = format!(
        "the object {path} in {bucket} is missing or was changed: delete the upload, and upload the file again"
    );
    ApiError::new(ErrorReason::Conflict, detail)
}
