//! Certificates in Secrets: the operator writes them, pods mount them, and the REST server reads its own.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use millrace_protocol::security::Credentials;

/// Builds the Secret that contains `credentials` under the file names that programs read.
pub fn credentials_secret(credentials: &Credentials, metadata: ObjectMeta) -> Secret {
    let Credentials { certificate, key, authority } = credentials;
    let parts = [
        (Credentials::CERTIFICATE_FILE, certificate),
        (Credentials::KEY_FILE, key),
        (Credentials::AUTHORITY_FILE, authority),
    ];
    Secret {
        metadata,
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(parts.map(|(name, text)| (name.to_owned(), ByteString(text.as_bytes().to_vec()))).into()),
        ..Secret::default()
    }
}

/// Reads what [`credentials_secret`] has written.
///
/// # Errors
/// The name of a key that is missing or no text.
pub fn credentials_of(secret: &Secret) -> Result<Credentials, MissingKey> {
    let part = |key: &'static str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key));
        bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok()).ok_or(MissingKey(key))
    };
    Ok(Credentials {
        certificate: part(Credentials::CERTIFICATE_FILE)?,
        key: part(Credentials::KEY_FILE)?,
        authority: part(Credentials::AUTHORITY_FILE)?,
    })
}

/// A key that a Secret with a certificate lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {0}")]
pub struct MissingKey(&'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_back_from_their_secret() {
        let credentials = Credentials { certificate: "C".into(), key: "K".into(), authority: "A".into() };
        let mut secret = credentials_secret(&credentials, ObjectMeta::default());
        let read = credentials_of(&secret).unwrap();
        assert_eq!((read.certificate, read.key, read.authority), ("C".to_owned(), "K".to_owned(), "A".to_owned()));
        secret.data.as_mut().unwrap().remove(Credentials::KEY_FILE);
        assert_eq!(credentials_of(&secret).err(), Some(MissingKey(Credentials::KEY_FILE)));
    }
}
