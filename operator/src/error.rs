//! Errors that end a reconcile, and their messages.

use millrace_cluster::client::api_message;
use millrace_control::record::ResolvedJobError;
use millrace_params::InvalidName;
use millrace_protocol::security::{IssueError, NameError};

use crate::children::MAX_SECRET_BYTES;

/// Ends a reconcile early. The object is requeued.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server rejected a request, or is unreachable.
    #[error("{what}: {}", api_message(cause))]
    Api { what: &'static str, cause: Box<kube::Error> },
    /// A child can't be built.
    #[error(transparent)]
    Child(#[from] ChildError),
}

/// Why a child of a job can't be built or created, in any number of attempts to create it.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The job's record can't be used.
    #[error(transparent)]
    Record(#[from] ResolvedJobError),
    /// The name of a certificate is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A certificate can't be issued.
    #[error(transparent)]
    Certificate(#[from] IssueError),
    /// An attempt has more agents than one Secret has room for.
    #[error("the certificates of all agents take {bytes} bytes, but a secret has at most {MAX_SECRET_BYTES}")]
    SecretTooLarge {
        /// Bytes of all certificates and keys.
        bytes: usize,
    },
    /// The digest of an upload is not valid.
    #[error("an upload of the job")]
    Digest(#[from] InvalidName),
    /// The job was admitted when the REST server stored uploads.
    #[error(
        "the job names uploads, and the REST server of this installation stores none: install the chart with a claim \
         for the REST server (api.storage, no api.database.secretName)"
    )]
    NoUploadServer,
    /// A pod of this name belongs to something else.
    #[error("a pod {0} exists that does not belong to the job: delete it, or rename the job")]
    PodNameTaken(String),
}

/// Why an attempt must be abandoned: a retry would fail, too.
#[derive(Debug, thiserror::Error)]
pub enum Rejection {
    /// A child can't be built.
    #[error(transparent)]
    Child(ChildError),
    /// The API server rejected a child, with this message.
    #[error("the API server rejected an object of the attempt: {}", api_message(.0))]
    Api(Box<kube::Error>),
}

impl Error {
    /// Returns a function that adds the failed action `what` to an error of the client.
    pub fn api(operation: &'static str) -> impl Fn(kube::Error) -> Self {
        move |cause| Self::Api { what: operation, cause: Box::new(cause) }
    }
}

impl Error {
    /// Returns why the attempt must be abandoned.
    ///
    /// # Errors
    /// The error itself, if a retry may succeed.
    pub fn into_rejection(self) -> Result<Rejection, Self> {
        match self {
            Self::Child(error) => Ok(Rejection::Child(error)),
            Self::Api { cause, .. } if is_rejection(&cause) => Ok(Rejection::Api(cause)),
            error => Err(error),
        }
    }
}

/// Returns whether the API server rejected the request itself, which no retry changes: quota, a LimitRange, Pod
/// Security, a missing PriorityClass, an admission policy or webhook, a permission, a terminating namespace.
fn is_rejection(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => (400..500).contains(&status.code) && ![401, 408, 409, 429].contains(&status.code),
        _ => false,
    }
}

/// Returns whether the same request may succeed later: the API server was unreachable, failed or limits the rate.
pub fn is_temporary(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 || status.code == 429,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rejection_quotes_the_api_server() {
        let error_from = |code: u16, message: &str| {
            let status = json!({"status": "Failure", "code": code, "reason": "R", "message": message});
            let status = serde_json::from_value(status).unwrap();
            let error = Error::api("create a child of the job")(kube::Error::Api(status));
            error.into_rejection().ok().map(|rejection| rejection.to_string())
        };
        let quota =
            "pods \"a-cs2-0\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2";
        let message = error_from(403, quota).unwrap();
        assert!(message.ends_with(quota), "{message}");
        for code in [400, 404, 422] {
            assert!(error_from(code, "no").is_some(), "{code}");
        }
        for code in [401, 408, 409, 429, 500, 503] {
            assert_eq!(error_from(code, "later"), None, "{code}");
        }
    }
}
