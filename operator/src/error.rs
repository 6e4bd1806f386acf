//! Errors that end a reconcile, and their messages.

use millrace_cluster::client::api_message;

/// Ends a reconcile early. The object is requeued.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server rejected a request, or is unreachable.
    #[error("{what}: {}", api_message(cause))]
    Api {
        /// The action that failed.
        what: &'static str,
        /// The client's error.
        cause: Box<kube::Error>,
    },
    /// A child can't be built.
    #[error("{0}")]
    Child(String),
}

impl Error {
    /// Returns a function that adds the failed action `what` to an error of the client.
    pub fn api(what: &'static str) -> impl Fn(kube::Error) -> Self {
        move |cause| Self::Api { what, cause: Box::new(cause) }
    }
}

impl Error {
    /// Returns why the attempt must be abandoned, with the message of the rejecting server; `None` if a retry may
    /// succeed.
    pub fn rejection(&self) -> Option<String> {
        match self {
            Self::Child(why) => Some(why.clone()),
            Self::Api { cause, .. } => is_rejection(cause)
                .then(|| format!("the API server rejected an object of the attempt: {}", api_message(cause))),
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
        let refusal = |code: u16, message: &str| {
            let status = json!({"status": "Failure", "code": code, "reason": "R", "message": message});
            let status = serde_json::from_value(status).unwrap();
            Error::api("create a child of the job")(kube::Error::Api(status)).rejection()
        };
        let quota =
            "pods \"a-cs2-0\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2";
        let told = refusal(403, quota).unwrap();
        assert!(told.ends_with(quota), "{told}");
        for code in [400, 404, 422] {
            assert!(refusal(code, "no").is_some(), "{code}");
        }
        for code in [401, 408, 409, 429, 500, 503] {
            assert_eq!(refusal(code, "later"), None, "{code}");
        }
    }
}
