//! Why a visit ended early, in words.

/// What ends a visit early. The object is visited again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused, or can't be reached.
    #[error("{what}: {}", said(cause))]
    Api {
        /// What was tried.
        what: &'static str,
        /// What it said.
        cause: Box<kube::Error>,
    },
    /// A child can't be made.
    #[error("{0}")]
    Child(String),
}

impl Error {
    /// `what` was tried.
    pub fn api(what: &'static str) -> impl Fn(kube::Error) -> Self {
        move |cause| Self::Api { what, cause: Box::new(cause) }
    }
}

/// A refusal in the API server's own sentence; kube would add the answer as a whole.
pub fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Whether the same request may succeed later: the API server could not be reached, or has no time for it.
pub fn is_temporary(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 || status.code == 429,
        _ => true,
    }
}
