//! The error type of the API, from the backend to the client. A reason has the same name as in the conditions of jobs.
//!
//! * A client receives `detail`, never the source of an error.
//! * An error with a source is logged once, by [`ApiError::log`], where the response is made. Loops that retry log it
//!   with [`error_chain`].

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use millrace_protocol::error_chain;
use schemars::JsonSchema;
use serde::Serialize;

/// The reason for programs, the same as that of a condition if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorReason {
    /// The request can't be parsed.
    BadRequest,
    /// The token is missing, unknown, expired or revoked.
    Unauthorized,
    /// The token does not give this permission.
    Forbidden,
    /// No object has this name.
    NotFound,
    /// The path does not support this method.
    MethodNotAllowed,
    /// The body was not received in time.
    RequestTimeout,
    /// A live job has this name.
    AlreadyExists,
    /// The object was changed concurrently.
    Conflict,
    /// The job has finished and can't be changed.
    Finished,
    /// The object or its files were deleted.
    Gone,
    /// The request exceeds a limit in size or number.
    PayloadTooLarge,
    /// The range lies beyond the end of the file.
    RangeNotSatisfiable,
    /// The media type of the body is not supported here.
    UnsupportedMediaType,
    /// The object violates its schema or a validation rule.
    Invalid,
    /// The params are invalid, or the job can never run.
    BadParams,
    /// The idempotency key was used with another body.
    IdempotencyKeyReused,
    /// A rate limit or budget is exceeded.
    TooManyRequests,
    /// An internal error of the server.
    Internal,
    /// A service that this server needs is unavailable.
    Unavailable,
}

impl ErrorReason {
    pub const ALL: [Self; 19] = [
        Self::BadRequest,
        Self::Unauthorized,
        Self::Forbidden,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::AlreadyExists,
        Self::Conflict,
        Self::Finished,
        Self::Gone,
        Self::PayloadTooLarge,
        Self::RangeNotSatisfiable,
        Self::UnsupportedMediaType,
        Self::Invalid,
        Self::BadParams,
        Self::IdempotencyKeyReused,
        Self::TooManyRequests,
        Self::Internal,
        Self::Unavailable,
    ];

    /// Returns the reason as a string of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::RequestTimeout => "RequestTimeout",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Finished => "Finished",
            Self::Gone => "Gone",
            Self::PayloadTooLarge => "PayloadTooLarge",
            Self::RangeNotSatisfiable => "RangeNotSatisfiable",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Invalid => "Invalid",
            Self::BadParams => "BadParams",
            Self::IdempotencyKeyReused => "IdempotencyKeyReused",
            Self::TooManyRequests => "TooManyRequests",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
        }
    }

    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::AlreadyExists | Self::Conflict | Self::Finished => 409,
            Self::Gone => 410,
            Self::PayloadTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::RangeNotSatisfiable => 416,
            Self::Invalid | Self::BadParams | Self::IdempotencyKeyReused => 422,
            Self::TooManyRequests => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }
}

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FieldError {
    /// Path of the field, such as `spec.numCsx`.
    pub field: String,
    /// What is wrong, and which values are valid.
    pub message: String,
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{detail}")]
pub struct ApiError {
    pub reason: ErrorReason,
    /// One sentence with a remedy.
    pub detail: String,
    /// The invalid fields, if any.
    pub errors: Vec<FieldError>,
    /// The cause of an error of this server, for its log only.
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// Result of most functions of this crate.
pub type Result<T, E = ApiError> = std::result::Result<T, E>;

impl ApiError {
    /// Creates an error that concerns no field.
    pub fn new(reason: ErrorReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), errors: Vec::new(), source: None }
    }

    /// Adds the invalid fields.
    pub fn with_fields(self, errors: Vec<FieldError>) -> Self {
        Self { errors, ..self }
    }

    /// Adds the cause of an error of this server. It is logged and never sent to a client.
    pub fn with_source(self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: Some(Arc::from(source.into())), ..self }
    }

    /// Creates the error of an object with these invalid fields. An empty field is the object itself.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let messages = errors.iter().map(|FieldError { field, message }| match field.as_str() {
            "" => message.clone(),
            field => format!("{field}: {message}"),
        });
        let messages: Vec<String> = messages.collect();
        Self::new(ErrorReason::Invalid, messages.join("; ")).with_fields(errors)
    }

    /// The error of a job that does not exist.
    pub fn job_not_found(namespace: &str, name: &str) -> Self {
        Self::new(
            ErrorReason::NotFound,
            format!("job {name} not found in namespace {namespace} (deleted jobs included)"),
        )
    }

    /// The error of an idempotency key that was used with another body.
    pub fn idempotency_key_reused() -> Self {
        let detail = "this Idempotency-Key was already used with a different body or by another account: use a new key";
        Self::new(ErrorReason::IdempotencyKeyReused, detail)
    }

    /// The error of a name that a live job has.
    pub fn name_taken(namespace: &str, name: &str) -> Self {
        let detail = format!(
            "job {name} already exists in namespace {namespace}: choose another name, or cancel that job first \
             (a training job of its name resumes from its checkpoints)"
        );
        Self::new(ErrorReason::AlreadyExists, detail)
    }

    /// The error of a job that has written nothing yet.
    pub fn files_not_found() -> Self {
        Self::new(ErrorReason::NotFound, "the job has no files yet: it has not been admitted")
    }

    /// Creates an internal error: `operation` failed with `cause`, which is logged and not sent to the client.
    pub fn internal(operation: impl fmt::Display, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorReason::Internal, format!("internal error: could not {operation}")).with_source(cause)
    }

    /// Returns the sentence for the client.
    pub fn client_detail(&self) -> String {
        match self.reason {
            ErrorReason::Internal => format!("{}; see the server's log", self.detail),
            _ => self.detail.clone(),
        }
    }

    /// Logs the error with its causes if it is one of this server, not of the request. Called once, where the response
    /// to `method` of `path` is made. `request` is the id of the response.
    pub fn log(&self, method: &str, path: &str, request: Option<&str>) {
        if self.source.is_some() || self.reason == ErrorReason::Internal {
            tracing::error!(method, path, request, "{}", error_chain(self));
        }
    }
}

impl From<millrace_store::Error> for ApiError {
    fn from(error: millrace_store::Error) -> Self {
        use millrace_store::Error;
        match error {
            Error::BadCursor | Error::BadUid(_) | Error::TooLarge(..) => {
                Self::new(ErrorReason::BadRequest, error.to_string())
            }
            Error::JobNotFound(_) => Self::new(ErrorReason::NotFound, error.to_string()),
            Error::NoSpace(_) => {
                Self::new(ErrorReason::Unavailable, "the database's disk is full: an administrator must free space")
                    .with_source(error)
            }
            error if error.is_temporary() => {
                Self::new(ErrorReason::Unavailable, "the database is not responding: try again in a moment")
                    .with_source(error)
            }
            other => Self::internal("use the database", other),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_telemetry::journal::OutcomeReason;

    use super::*;

    #[test]
    fn requests_and_runs_are_rejected_for_the_same_reasons() {
        for outcome in OutcomeReason::ALL {
            let same = ErrorReason::ALL.into_iter().find(|reason| reason.as_str() == outcome.as_str());
            assert_eq!(same.map(ErrorReason::status), outcome.properties().http_status, "{outcome}");
        }
    }

    #[test]
    fn client_never_receives_the_source_of_an_error() {
        let error = ApiError::internal("use the database", std::io::Error::other("password of /secret/path"));
        assert_eq!(error.client_detail(), "internal error: could not use the database; see the server's log");
        assert_eq!(error_chain(&error), "internal error: could not use the database: password of /secret/path");
        let busy = ApiError::from(millrace_store::Error::Busy);
        assert_eq!((busy.reason, busy.client_detail()), (ErrorReason::Unavailable, busy.detail.clone()));
        assert!(error_chain(&busy).contains("the database was busy"), "{}", error_chain(&busy));
    }
}
