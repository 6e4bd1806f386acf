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

impl Error {
    /// What an attempt is to be given up for, in the words of whoever refused; `None` where the same may succeed in a
    /// moment.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::Child(why) => Some(why.clone()),
            Self::Api { cause, .. } => {
                is_refusal(cause).then(|| format!("the API server refused what the attempt needs: {}", said(cause)))
            }
        }
    }
}

/// Whether the API server has refused what was asked for, rather than when it was: quota, a LimitRange, Pod Security, a
/// missing PriorityClass, an admission policy or webhook, a right, a namespace that ends.
fn is_refusal(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => (400..500).contains(&status.code) && ![401, 408, 409, 429].contains(&status.code),
        _ => false,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_told_in_its_own_words_and_a_conflict_is_none() {
        let refusal = |code: u16, message: &str| {
            let status = json!({"status": "Failure", "code": code, "reason": "R", "message": message});
            let status = serde_json::from_value(status).unwrap();
            Error::api("create a child of the job")(kube::Error::Api(status)).refusal()
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
