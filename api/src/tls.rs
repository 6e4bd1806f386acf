//! HTTPS: with a certificate that is given, or one that the server makes for itself and keeps.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Between two looks whether the files hold another certificate: whoever renews it tells nobody.
const RENEWING: Duration = Duration::from_secs(60);

/// A certificate and its key, PEM.
#[derive(Clone, Debug)]
pub struct Files {
    /// The certificate, with those between it and an authority behind it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Files {
    /// A certificate of the server's own in `dir`, for these names; made, where there is none yet, or one for others.
    ///
    /// # Errors
    /// It can't be made or kept.
    pub fn own(dir: &Path, names: &[String]) -> anyhow::Result<Self> {
        let files = Self { certificate: dir.join("certificate.pem"), key: dir.join("key.pem") };
        let (names_file, asked) = (dir.join("names"), names.join("\n"));
        let known = std::fs::read_to_string(&names_file).is_ok_and(|known| known == asked);
        if known && files.certificate.exists() && files.key.exists() {
            return Ok(files);
        }
        std::fs::create_dir_all(dir).with_context(|| format!("can't make the directory {}", dir.display()))?;
        let made = rcgen::generate_simple_self_signed(names.to_vec()).context("can't make a certificate")?;
        write(&files.key, &made.signing_key.serialize_pem(), 0o600)?;
        write(&files.certificate, &made.cert.pem(), 0o644)?;
        // Last: what is not whole is made again.
        write(&names_file, &asked, 0o644)?;
        Ok(files)
    }

    /// What a server shows.
    ///
    /// # Errors
    /// The files can't be read, or do not belong together.
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

fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let open = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path);
    let written = open.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("can't write {}", path.display()))
}

/// What clients are shown; from now on, whatever the files hold. What can't be used is told of, once, and the old one stays.
///
/// # Errors
/// As [`Files::config`].
pub fn shown(files: Files) -> anyhow::Result<RustlsConfig> {
    let shown = RustlsConfig::from_config(Arc::new(files.config()?));
    let renewed = shown.clone();
    tokio::spawn(async move {
        let content = || [&files.certificate, &files.key].map(|path| std::fs::read(path).ok());
        let mut known = content();
        loop {
            tokio::time::sleep(RENEWING).await;
            let now = content();
            if now == known {
                continue;
            }
            match files.config() {
                Ok(config) => {
                    log::info!("clients are shown the new certificate in {}", files.certificate.display());
                    renewed.reload_from_config(Arc::new(config));
                }
                Err(error) => log::error!("the certificate was changed and the old one stays: {error:#}"),
            }
            known = now;
        }
    });
    Ok(shown)
}
