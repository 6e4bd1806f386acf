//! HTTPS with a certificate in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use axum_server::tls_rustls::RustlsConfig;
use millrace_protocol::security::certificate_expiry;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Interval of checks for a changed certificate: renewal sends no notification.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// Paths of a certificate and its key, PEM.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate, followed by its intermediate certificates.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl CertificateFiles {
    /// Builds the configuration of the server.
    ///
    /// # Errors
    /// The files can't be read, or the key does not match the certificate.
    pub fn config(&self) -> anyhow::Result<ServerConfig> {
        let Self { certificate, key } = self;
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .with_context(|| format!("can't read certificates in PEM from {}", certificate.display()))?;
        let secret = PrivateKeyDer::from_pem_file(key)
            .with_context(|| format!("can't read a key in PEM from {}", key.display()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .with_context(|| format!("{} and {} do not belong together", certificate.display(), key.display()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Returns when the first certificate of a file expires; `None` if it can't be read.
pub async fn expiry(file: &Path) -> Option<SystemTime> {
    certificate_expiry(&tokio::fs::read(file).await.ok()?)
}

/// Returns a configuration that follows changes of the files. If a changed certificate is invalid, the error is logged
/// once and the old one stays.
///
/// # Errors
/// Those of [`CertificateFiles::config`].
pub fn reloading_config(files: CertificateFiles) -> anyhow::Result<RustlsConfig> {
    let config = RustlsConfig::from_config(Arc::new(files.config()?));
    let reloaded = config.clone();
    tokio::spawn(async move {
        let content = || [&files.certificate, &files.key].map(|path| std::fs::read(path).ok());
        let mut known = content();
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let now = content();
            if now == known {
                continue;
            }
            match files.config() {
                Ok(changed) => {
                    tracing::info!("loaded the new certificate {}", files.certificate.display());
                    reloaded.reload_from_config(Arc::new(changed));
                }
                Err(error) => tracing::error!("can't load the changed certificate; keeping the old one: {error:#}"),
            }
            known = now;
        }
    });
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::self_signed::SelfIssuedCertificate;

    #[tokio::test]
    async fn certificate_has_expiry() {
        let dir = tempfile::tempdir().unwrap();
        let own = SelfIssuedCertificate::new(dir.path(), &["localhost".to_owned()]);
        let now = SystemTime::now();
        own.renew_if_due(now).unwrap();
        let expires = expiry(&own.files().certificate).await.unwrap();
        let days = expires.duration_since(now).unwrap().as_secs() / 86_400;
        assert!((364..=365).contains(&days), "{days}");
        assert_eq!(expiry(&own.files().key).await, None, "it is no certificate");
        assert_eq!(expiry(&dir.path().join("missing")).await, None);
    }
}
