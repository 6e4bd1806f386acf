//! The certificate that the REST server presents to clients, in a Secret that its pods mount; see
//! [`ServerCertificate`].
//!
//! * The leader creates it if it is missing, and renews it in time.
//! * The REST server has no permission to read or write Secrets: its pods mount `tls.crt` and `tls.key`, and
//!   administrators give `ca.crt` to clients.
//! * The Secret is kept when the chart is uninstalled, because clients trust its contents.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use millrace_protocol::security::ServerCertificate;

use crate::authority::{AuthorityError, write_secret};

/// Interval of checks whether the certificate must be renewed; after a failure, the retry is earlier.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";

/// Maintains the certificate of the REST server.
pub struct ServingCertificate {
    secrets: Api<Secret>,
    name: String,
    /// Host names and addresses by which clients reach the server.
    hosts: Vec<String>,
}

impl ServingCertificate {
    /// Selects the certificate for `hosts` in the Secret `name` of `namespace`.
    pub fn new(client: &Client, namespace: &str, name: &str, hosts: &[String]) -> Self {
        Self { secrets: Api::namespaced(client.clone(), namespace), name: name.to_owned(), hosts: hosts.to_vec() }
    }

    /// Creates the certificate and renews it when it is due. Never returns.
    pub async fn run_renewal(self) {
        loop {
            let wait = match self.renew(SystemTime::now()).await {
                Ok(()) => CHECK_INTERVAL,
                Err(error) => {
                    tracing::warn!("can't issue the REST server's certificate: {error}");
                    RETRY_INTERVAL
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Creates or renews the certificate if that is due at `now`.
    ///
    /// # Errors
    /// The Secret can't be read or written, or a host can't be named in a certificate.
    pub async fn renew(&self, now: SystemTime) -> Result<(), AuthorityError> {
        loop {
            let existing = self.secrets.get_opt(&self.name).await;
            let existing = existing.map_err(|cause| AuthorityError::Secret { name: self.name.clone(), cause })?;
            let certificate = match &existing {
                Some(secret) => read(secret).renew_if_due(&self.hosts, now)?,
                None => Some(ServerCertificate::new(&self.hosts, now)?),
            };
            let Some(certificate) = certificate else { return Ok(()) };
            let type_ = Some("kubernetes.io/tls".to_owned());
            if write_secret(&self.secrets, &self.name, existing.as_ref(), type_, data(certificate)).await? {
                tracing::info!("wrote a new certificate of the REST server to the secret {}", self.name);
                return Ok(());
            }
            // Write conflict: another operator was faster.
        }
    }
}

/// Reads a certificate from a Secret. A missing key becomes an empty text, which counts as a certificate that is due.
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

fn data(certificate: ServerCertificate) -> BTreeMap<String, ByteString> {
    let entries = [
        (CERTIFICATE, Some(certificate.certificate)),
        (KEY, Some(certificate.key)),
        (AUTHORITY, Some(certificate.authority)),
        (AUTHORITY_KEY, certificate.authority_key),
    ];
    let bytes = |text: String| ByteString(text.into_bytes());
    entries.into_iter().filter_map(|(key, text)| Some((key.to_owned(), bytes(text?)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_round_trips_and_one_without_key_is_kept() {
        let (hosts, now) = (["millrace-api".to_owned()], SystemTime::now());
        let certificate = ServerCertificate::new(&hosts, now).unwrap();
        let mut secret = Secret { data: Some(data(certificate.clone())), ..Secret::default() };
        assert!(read(&secret) == certificate);
        secret.data.as_mut().unwrap().remove(AUTHORITY_KEY);
        assert!(read(&secret).renew_if_due(&hosts, now).unwrap().is_none(), "as charts of 0.1.0 made it");
        assert!(read(&Secret::default()).renew_if_due(&hosts, now).unwrap().is_some());
    }
}
