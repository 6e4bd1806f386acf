//! The certificate by which an attempt's coordinator is known. The operator may write such secrets and never read them:
//! the key exists in the pod and nowhere else.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
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

impl Identity {
    /// The secret that holds it.
    pub fn secret(&self, metadata: ObjectMeta) -> Secret {
        let entry = |name: &str, text: &str| (name.to_owned(), ByteString(text.as_bytes().to_vec()));
        let parts = [("tls.crt", &self.certificate), ("tls.key", &self.key), ("ca.crt", &self.authority)];
        Secret {
            metadata,
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(parts.map(|(name, text)| entry(name, text)).into()),
            ..Secret::default()
        }
    }
}

/// The secret that holds `identity` for the attempt.
pub fn secret(attempt: &Attempt<'_>, identity: &Identity) -> Secret {
    let metadata = meta(attempt, Names::of(attempt.job).identity(attempt.number));
    Secret { immutable: Some(true), ..identity.secret(metadata) }
}
