//! The certificate that the REST server shows to clients, in a Secret that its pods mount; see [`ServerCertificate`].
//!
//! The leader makes it where there is none, and renews it in time. The REST server itself has no right to read or write
//! Secrets: its pods mount `tls.crt` and `tls.key`, and people give `ca.crt` to clients. The Secret stays when the
//! chart is uninstalled, since clients trust what is in it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use millrace_protocol::security::ServerCertificate;

use crate::authority::{AuthorityError, write_secret};

/// Between two checks whether the certificate is to be renewed, and after a failure.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";

/// See the module text.
pub struct ServingCertificate {
    secrets: Api<Secret>,
    /// Of the Secret.
    name: String,
    /// Host names and addresses by which clients reach the server.
    hosts: Vec<String>,
}

impl ServingCertificate {
    /// The certificate for `hosts` in the Secret `name` of `namespace`.
    pub fn new(client: &Client, namespace: &str, name: &str, hosts: &[String]) -> Self {
        Self { secrets: Api::namespaced(client.clone(), namespace), name: name.to_owned(), hosts: hosts.to_vec() }
    }

    /// Makes the certificate and renews it whenever that is due, for ever.
    pub async fn keep(self) {
        loop {
            let wait = match self.renew(SystemTime::now()).await {
                Ok(()) => CHECK_INTERVAL,
                Err(error) => {
                    tracing::warn!("the REST server's certificate can't be made: {error}");
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Makes or renews the certificate where that is due at `now`.
    ///
    /// # Errors
    /// The Secret can't be read or written, or a host can't stand in a certificate.
    pub async fn renew(&self, now: SystemTime) -> Result<(), AuthorityError> {
        loop {
            let there = self.secrets.get_opt(&self.name).await;
            let there = there.map_err(|cause| AuthorityError::Secret { name: self.name.clone(), cause })?;
            let made = match &there {
                Some(secret) => read(secret).renewed(&self.hosts, now)?,
                None => Some(ServerCertificate::new(&self.hosts, now)?),
            };
            let Some(made) = made else { return Ok(()) };
            let type_ = Some("kubernetes.io/tls".to_owned());
            if write_secret(&self.secrets, &self.name, there.as_ref(), type_, data(made)).await? {
                tracing::info!("a new certificate of the REST server is in the secret {}", self.name);
                return Ok(());
            }
            // Another operator was first.
        }
    }
}

/// What a Secret holds; where a key is missing, an empty text, which counts as a certificate that is due.
fn read(secret: &Secret) -> ServerCertificate {
    let bytes = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
    let text = |key: &str| bytes(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    ServerCertificate {
        certificate: text(CERTIFICATE).unwrap_or_default(),
        key: text(KEY).unwrap_or_default(),
        authority: text(AUTHORITY).unwrap_or_default(),
        authority_key: text(AUTHORITY_KEY),
    }
}

fn data(made: ServerCertificate) -> BTreeMap<String, ByteString> {
    let entries = [
        (CERTIFICATE, Some(made.certificate)),
        (KEY, Some(made.key)),
        (AUTHORITY, Some(made.authority)),
        (AUTHORITY_KEY, made.authority_key),
    ];
    let bytes = |text: String| ByteString(text.into_bytes());
    entries.into_iter().filter_map(|(key, text)| Some((key.to_owned(), bytes(text?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_one_without_the_authoritys_key_is_kept() {
        let (hosts, now) = (["millrace-api".to_owned()], SystemTime::now());
        let made = ServerCertificate::new(&hosts, now).unwrap();
        let mut secret = Secret { data: Some(data(made.clone())), ..Secret::default() };
        assert!(read(&secret) == made);
        secret.data.as_mut().unwrap().remove(AUTHORITY_KEY);
        assert!(read(&secret).renewed(&hosts, now).unwrap().is_none(), "as charts of 0.1.0 made it");
        assert!(read(&Secret::default()).renewed(&hosts, now).unwrap().is_some());
    }
}
