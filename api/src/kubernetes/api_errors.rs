//! Converts errors of the API server to errors of the API.

use kube::core::Status;

use crate::admission::rule_error;
use crate::error::{ApiError, ErrorReason, FieldError};

/// Returns a function that converts the error of the request `what`, made for a user.
pub fn api_error(operation: &'static str) -> impl Fn(kube::Error) -> ApiError {
    move |error| match error {
        kube::Error::Api(status) => rejection(operation, &status),
        other if is_unreachable(&other) => {
            ApiError::new(ErrorReason::Unavailable, "the cluster's API server can't be reached: try again in a moment")
                .with_source(FailedRequest { operation, source: other })
        }
        other => ApiError::internal(operation, other),
    }
}

/// A request to the API server without an answer.
#[derive(Debug, thiserror::Error)]
#[error("could not {operation}")]
struct FailedRequest {
    operation: &'static str,
    source: kube::Error,
}

fn is_unreachable(error: &kube::Error) -> bool {
    matches!(error, kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_))
}

fn rejection(operation: &'static str, status: &Status) -> ApiError {
    match status.code {
        422 => invalid(status),
        // The API server can't decode the object, for example because of an unknown field.
        400 => ApiError::new(ErrorReason::Invalid, status.message.clone()),
        404 => ApiError::new(ErrorReason::NotFound, status.message.clone()),
        409 if status.reason == "AlreadyExists" => ApiError::new(ErrorReason::AlreadyExists, status.message.clone()),
        409 => ApiError::new(ErrorReason::Conflict, status.message.clone()),
        // A quota of the namespace, an admission policy, or a permission that this server lacks.
        403 => ApiError::new(ErrorReason::Forbidden, status.message.clone()),
        429 | 500..=599 => {
            let detail = format!("the cluster can't serve the request now: {}", status.message);
            ApiError::new(ErrorReason::Unavailable, detail).with_source(format!("could not {operation}"))
        }
        _ => ApiError::internal(operation, status.message.clone()),
    }
}

fn invalid(status: &Status) -> ApiError {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let faults: Vec<FieldError> = causes.map(|cause| rule_error(&cause.field, &cause.message)).collect();
    if faults.is_empty() {
        ApiError::new(ErrorReason::Invalid, status.message.clone())
    } else {
        ApiError::invalid(faults)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_errors_match_the_process_backend() {
        let error_from = |answer: serde_json::Value| {
            api_error("create a job")(kube::Error::Api(serde_json::from_value::<Status>(answer).unwrap().boxed()))
        };
        let error = error_from(json!({
            "code": 422, "reason": "Invalid", "message": "TrainJob.millrace.dev \"j\" is invalid: spec.numCsx: ...",
            "details": {"causes": [{"reason": "FieldValueInvalid", "message": "at least 1", "field": "spec.numCsx"}]},
        }));
        assert_eq!((error.reason, error.detail.as_str()), (ErrorReason::Invalid, "spec.numCsx: at least 1"));
        let none = error_from(json!({"code": 404, "message": "namespaces \"team\" not found"}));
        assert_eq!(none.reason, ErrorReason::NotFound);
        let later = error_from(json!({"code": 429, "message": "too many"}));
        assert_eq!((later.reason, later.reason.status()), (ErrorReason::Unavailable, 503));
    }
}
