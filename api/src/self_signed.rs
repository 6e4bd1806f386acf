//! The self-signed certificate of a REST server, kept in its data directory, see [`ServerCertificate`].
//!
//! ```text
//!   DIR/certificate.pem     the server's certificate and its authority's: what is sent, and what clients trust
//!   DIR/key.pem             the server's private key
//!   DIR/authority-key.pem   the authority's private key
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use millrace_protocol::security::ServerCertificate;

use crate::tls::CertificateFiles;

/// Interval of checks whether the certificate has to be renewed.
const CHECK_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Separator between the certificates of a file.
const END_OF_CERTIFICATE: &str = "-----END CERTIFICATE-----\n";

/// Creates and renews the certificate in a directory.
#[derive(Clone, Debug)]
pub struct SelfIssuedCertificate {
    dir: PathBuf,
    names: Vec<String>,
}

impl SelfIssuedCertificate {
    /// Manages the certificate for `names` in `dir`; writes nothing yet.
    pub fn new(dir: &Path, names: &[String]) -> Self {
        Self { dir: dir.to_owned(), names: names.to_vec() }
    }

    /// Returns the files that the server reads.
    pub fn files(&self) -> CertificateFiles {
        CertificateFiles { certificate: self.dir.join("certificate.pem"), key: self.dir.join("key.pem") }
    }

    /// Creates or renews the certificate if that is due at `now`.
    ///
    /// # Errors
    /// A name is not valid in a certificate, or a file can't be written.
    pub fn renew_if_due(&self, now: SystemTime) -> anyhow::Result<()> {
        let certificate = match self.read() {
            Some(current) => current.renew_if_due(&self.names, now),
            None => ServerCertificate::new(&self.names, now).map(Some),
        };
        match certificate.context("can't create the server's certificate")? {
            Some(certificate) => self.write(&certificate),
            None => Ok(()),
        }
    }

    /// Renews the certificate whenever that is due; never returns. The server reloads changed files.
    pub async fn run_renewal(self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            if let Err(error) = self.renew_if_due(SystemTime::now()) {
                tracing::error!("the server's certificate could not be renewed; trying again in a day: {error:#}");
            }
        }
    }

    fn authority_key(&self) -> PathBuf {
        self.dir.join("authority-key.pem")
    }

    /// Reads the files; `None` if there is no certificate.
    fn read(&self) -> Option<ServerCertificate> {
        let CertificateFiles { certificate, key } = self.files();
        let chain = std::fs::read_to_string(certificate).ok()?;
        let (certificate, authority) = chain.split_at(chain.find(END_OF_CERTIFICATE)? + END_OF_CERTIFICATE.len());
        Some(ServerCertificate {
            certificate: certificate.to_owned(),
            key: std::fs::read_to_string(key).unwrap_or_default(),
            authority: authority.to_owned(),
            authority_key: std::fs::read_to_string(self.authority_key()).ok(),
        })
    }

    fn write(&self, server: &ServerCertificate) -> anyhow::Result<()> {
        let CertificateFiles { certificate, key } = self.files();
        std::fs::create_dir_all(&self.dir)
            .with_context(|| format!("can't make the directory {}", self.dir.display()))?;
        if let Some(authority_key) = &server.authority_key {
            replace(&self.authority_key(), authority_key, 0o600)?;
        }
        replace(&key, &server.key, 0o600)?;
        replace(&certificate, &server.chain(), 0o644)
    }
}

/// Replaces a file atomically, so that no reader sees half of it.
fn replace(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let half = path.with_extension("new");
    let open = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&half);
    let result = open.and_then(|mut file| file.write_all(text.as_bytes())).and_then(|()| std::fs::rename(&half, path));
    result.with_context(|| format!("can't write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn authority(own: &SelfIssuedCertificate) -> String {
        own.read().unwrap().authority
    }

    #[test]
    fn renewal_keeps_the_authority() {
        let dir = tempfile::tempdir().unwrap();
        let start = SystemTime::now();
        let own = SelfIssuedCertificate::new(dir.path(), &["a.example".to_owned()]);
        own.renew_if_due(start).unwrap();
        own.files().config().unwrap();
        let first = own.read().unwrap();
        assert!(!first.authority.is_empty());

        own.renew_if_due(start + 200 * DAY).unwrap();
        assert!(own.read().unwrap() == first, "there is time");
        own.renew_if_due(start + 300 * DAY).unwrap();
        let second = own.read().unwrap();
        assert_ne!(second.certificate, first.certificate);
        assert_eq!(second.authority, first.authority);
        own.files().config().unwrap();
    }

    #[test]
    fn keys_are_private_and_a_missing_file_is_made_again() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let own = SelfIssuedCertificate::new(dir.path(), &["a.example".to_owned()]);
        own.renew_if_due(SystemTime::now()).unwrap();
        for key in [own.files().key, own.authority_key()] {
            assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", key.display());
        }
        let before = authority(&own);
        std::fs::remove_file(own.files().key).unwrap();
        own.renew_if_due(SystemTime::now()).unwrap();
        own.files().config().unwrap();
        assert_eq!(authority(&own), before, "clients still trust it");
    }
}
