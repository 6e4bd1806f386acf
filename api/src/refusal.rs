//! Why a request was refused: one type from the backend to the client, in the words of conditions.

use schemars::JsonSchema;
use serde::Serialize;

/// One word for it, the same as the reason of a condition where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The request can't be read.
    BadRequest,
    /// Nobody, or nobody any more, is behind this token.
    Unauthorized,
    /// Not with this token.
    Forbidden,
    /// There is nothing of this name.
    NotFound,
    /// The path knows other methods.
    MethodNotAllowed,
    /// The body came too slowly.
    RequestTimeout,
    /// A job of this name lives.
    AlreadyExists,
    /// Somebody else wrote meanwhile.
    Conflict,
    /// The job is over: nothing changes it any more.
    Finished,
    /// It was there, and its files are not any more.
    Gone,
    /// More bytes than a request may have.
    PayloadTooLarge,
    /// No such part of the file.
    RangeNotSatisfiable,
    /// A body of another kind than is read here.
    UnsupportedMediaType,
    /// The object breaks its definition.
    Invalid,
    /// The params can't be understood, or can never run.
    BadParams,
    /// The key came before with another body.
    IdempotencyKeyReused,
    /// Too often.
    TooManyRequests,
    /// A fault of this server.
    Internal,
    /// Something this server needs is away.
    Unavailable,
}

impl Reason {
    /// The word.
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

    /// The status of HTTP.
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

/// A field that is to blame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Fault {
    /// Its path, as `spec.numCsx`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    /// One word.
    pub reason: Reason,
    /// One sentence with what to do.
    pub detail: String,
    /// The fields to blame, where it is them.
    pub errors: Vec<Fault>,
}

/// What most of this crate gives.
pub type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    /// Of no field.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), errors: Vec::new() }
    }

    /// An object that breaks its definition in these fields.
    pub fn invalid(errors: Vec<Fault>) -> Self {
        let said = errors.iter().map(|Fault { field, message }| match field.as_str() {
            "" => message.clone(),
            field => format!("{field}: {message}"),
        });
        let said: Vec<String> = said.collect();
        Self { reason: Reason::Invalid, detail: said.join("; "), errors }
    }

    /// There is no such job.
    pub fn no_job(namespace: &str, name: &str) -> Self {
        Self::new(Reason::NotFound, format!("there is no job {name} in namespace {namespace}, and there was none"))
    }

    /// The key came before with another body.
    pub fn key_reused() -> Self {
        let detail =
            "this Idempotency-Key came before, with another body or from somebody else: use a new key for another job";
        Self::new(Reason::IdempotencyKeyReused, detail)
    }

    /// A job of this name lives.
    pub fn name_taken(namespace: &str, name: &str) -> Self {
        let detail =
            format!("there is a job {name} in namespace {namespace}: choose another name, or cancel that job first");
        Self::new(Reason::AlreadyExists, detail)
    }

    /// A job has written nothing yet.
    pub fn no_files() -> Self {
        Self::new(Reason::NotFound, "the job has no files yet: it has not been admitted")
    }

    /// A fault of this server: logged with its cause, of which the client learns nothing.
    pub fn internal(what: &str, cause: &dyn std::fmt::Display) -> Self {
        match crate::request::id() {
            Some(id) => tracing::error!(request = %id, "{what}: {cause} (request {id})"),
            None => tracing::error!("{what}: {cause}"),
        }
        Self::new(Reason::Internal, format!("the server could not {what}: its log says why"))
    }
}

impl From<millrace_store::Error> for Refusal {
    fn from(error: millrace_store::Error) -> Self {
        use millrace_store::Error;
        match error {
            Error::BadCursor | Error::BadUid(_) | Error::TooLarge(..) => {
                Self::new(Reason::BadRequest, error.to_string())
            }
            Error::NoSuchJob(_) => Self::new(Reason::NotFound, error.to_string()),
            Error::NoSpace(_) => {
                Self::new(Reason::Unavailable, "the database's disk is full: an administrator must make room")
            }
            error if error.is_temporary() => {
                Self::new(Reason::Unavailable, "the database does not answer at present: try again in a moment")
            }
            other => Self::internal("use its database", &other),
        }
    }
}
