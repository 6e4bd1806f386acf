//! Converts errors of the API server to errors of the API.

use kube::core::Status;

use crate::definition::by_rule;
use crate::refusal::{Fault, Reason, Refusal};

/// Returns a function that converts the error of the request `what`, made for a user.
pub fn refused(what: &'static str) -> impl Fn(kube::Error) -> Refusal {
    move |error| match error {
        kube::Error::Api(status) => told(what, &status),
        other if is_away(&other) => {
            tracing::warn!("{what}: the API server can't be reached: {other}");
            Refusal::new(
                Reason::Unavailable,
                "the cluster's API server can't be reached at present: try again in a moment",
            )
        }
        other => Refusal::internal(what, &other),
    }
}

fn is_away(error: &kube::Error) -> bool {
    matches!(error, kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_))
}

fn told(what: &'static str, status: &Status) -> Refusal {
    match status.code {
        422 => invalid(status),
        // The API server can't decode the object, for example because of an unknown field.
        400 => Refusal::new(Reason::Invalid, status.message.clone()),
        404 => Refusal::new(Reason::NotFound, status.message.clone()),
        409 if status.reason == "AlreadyExists" => Refusal::new(Reason::AlreadyExists, status.message.clone()),
        409 => Refusal::new(Reason::Conflict, status.message.clone()),
        // A quota of the namespace, an admission policy, or a permission that this server lacks.
        403 => Refusal::new(Reason::Forbidden, status.message.clone()),
        429 | 500..=599 => {
            tracing::warn!("{what}: {}", status.message);
            Refusal::new(Reason::Unavailable, format!("the cluster can't do it at present: {}", status.message))
        }
        _ => Refusal::internal(what, &status.message),
    }
}

fn invalid(status: &Status) -> Refusal {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let faults: Vec<Fault> = causes.map(|cause| by_rule(&cause.field, &cause.message)).collect();
    if faults.is_empty() { Refusal::new(Reason::Invalid, status.message.clone()) } else { Refusal::invalid(faults) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_to_blame_is_named_as_by_the_other_backend() {
        let refusal = |answer: serde_json::Value| {
            refused("create a job")(kube::Error::Api(serde_json::from_value::<Status>(answer).unwrap().boxed()))
        };
        let refused = refusal(json!({
            "code": 422, "reason": "Invalid", "message": "TrainJob.millrace.dev \"j\" is invalid: spec.numCsx: ...",
            "details": {"causes": [{"reason": "FieldValueInvalid", "message": "at least 1", "field": "spec.numCsx"}]},
        }));
        assert_eq!((refused.reason, refused.detail.as_str()), (Reason::Invalid, "spec.numCsx: at least 1"));
        let none = refusal(json!({"code": 404, "message": "namespaces \"team\" not found"}));
        assert_eq!(none.reason, Reason::NotFound);
        let later = refusal(json!({"code": 429, "message": "too many"}));
        assert_eq!((later.reason, later.reason.status()), (Reason::Unavailable, 503));
    }
}
