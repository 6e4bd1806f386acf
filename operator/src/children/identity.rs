//! The certificate by which an attempt's coordinator is known. The operator may write such secrets and never read them:
//! the key exists in the pod and nowhere else.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::Plan;

/// A certificate with its key, and the authority both ends trust; PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The authority's certificate.
    pub authority: String,
}

/// The secret that holds `identity` for the plan's attempt.
pub fn secret(plan: &Plan<'_>, identity: &Identity) -> Secret {
    let Identity { certificate, key, authority } = identity;
    let entry = |name: &str, text: &str| (name.to_owned(), ByteString(text.as_bytes().to_vec()));
    Secret {
        metadata: plan.meta(plan.names().identity(plan.attempt)),
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some([entry("tls.crt", certificate), entry("tls.key", key), entry("ca.crt", authority)].into()),
        immutable: Some(true),
        ..Secret::default()
    }
}
