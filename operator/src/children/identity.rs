//! The certificate by which an attempt's coordinator is known. The operator may write such secrets and never read them:
//! the key exists in the pod and nowhere else.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use millrace_control::Attempt;

use super::{Names, meta};

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

/// The secret that holds `identity` for the attempt.
pub fn secret(attempt: &Attempt<'_>, identity: &Identity) -> Secret {
    let Identity { certificate, key, authority } = identity;
    let entry = |name: &str, text: &str| (name.to_owned(), ByteString(text.as_bytes().to_vec()));
    Secret {
        metadata: meta(attempt, Names::of(attempt.job).identity(attempt.number)),
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some([entry("tls.crt", certificate), entry("tls.key", key), entry("ca.crt", authority)].into()),
        immutable: Some(true),
        ..Secret::default()
    }
}
