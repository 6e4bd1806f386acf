//! The coordinator's journal port: serving it, and dialling it from whoever runs jobs.
//!
//! In the clear on one machine; in a cluster with mutual TLS, where each end shows a certificate of an authority that the
//! other one trusts. TLS is behind the feature `tls`; without it, asking for it is an error, never a connection in the
//! clear.

use std::path::PathBuf;

use tonic::transport::{Channel, Server};

use crate::proto::journal_client::JournalClient;
use crate::transport;

/// One end's identity and whom it trusts; PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// This end's certificate, and those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that the other end's certificate must be of.
    pub ca: PathBuf,
}

/// Why the journal can't be served or reached.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file of [`TlsFiles`].
    #[error("can't read {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// TLS is asked for.
    #[error("this build has no TLS: it was made without the feature `tls`")]
    NoTls,
    /// The certificates are no good, or nobody listens, or it is not who it should be.
    #[error("{}", causes(.0))]
    Transport(#[from] tonic::transport::Error),
}

/// The error with all that it was caused by: its own words only say in which layer it happened.
fn causes(error: &tonic::transport::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

/// Dials the journal at `address` (`host:port`). With `tls`, the coordinator must show a certificate for that host.
///
/// # Errors
/// See [`JournalError`].
pub async fn connect(address: &str, tls: Option<&TlsFiles>) -> Result<JournalClient<Channel>, JournalError> {
    let channel = match tls {
        None => transport::dial(address).await?,
        Some(files) => secure::dial(address, files).await?,
    };
    Ok(JournalClient::new(channel))
}

/// A server for the journal's port. With `tls`, it talks only to those who show a certificate of its authority.
///
/// # Errors
/// See [`JournalError`].
pub fn server(tls: Option<&TlsFiles>) -> Result<Server, JournalError> {
    match tls {
        None => Ok(transport::server()),
        Some(files) => secure::server(files),
    }
}

#[cfg(feature = "tls")]
mod secure {
    use std::path::Path;

    use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity, Server, ServerTlsConfig};

    use super::{JournalError, TlsFiles};
    use crate::transport;

    pub async fn dial(address: &str, files: &TlsFiles) -> Result<Channel, JournalError> {
        let tls = ClientTlsConfig::new().identity(files.identity()?).ca_certificate(files.authority()?);
        Ok(transport::endpoint(&format!("https://{address}"))?.tls_config(tls)?.connect().await?)
    }

    pub fn server(files: &TlsFiles) -> Result<Server, JournalError> {
        let tls = ServerTlsConfig::new().identity(files.identity()?).client_ca_root(files.authority()?);
        Ok(transport::server().tls_config(tls)?)
    }

    impl TlsFiles {
        fn identity(&self) -> Result<Identity, JournalError> {
            Ok(Identity::from_pem(read(&self.cert)?, read(&self.key)?))
        }

        fn authority(&self) -> Result<Certificate, JournalError> {
            Ok(Certificate::from_pem(read(&self.ca)?))
        }
    }

    fn read(path: &Path) -> Result<Vec<u8>, JournalError> {
        std::fs::read(path).map_err(|cause| JournalError::File { path: path.to_owned(), cause })
    }
}

#[cfg(not(feature = "tls"))]
mod secure {
    use tonic::transport::{Channel, Server};

    use super::{JournalError, TlsFiles};

    pub async fn dial(_: &str, _: &TlsFiles) -> Result<Channel, JournalError> {
        Err(JournalError::NoTls)
    }

    pub fn server(_: &TlsFiles) -> Result<Server, JournalError> {
        Err(JournalError::NoTls)
    }
}

#[cfg(all(test, not(feature = "tls")))]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_tls_refuses_to_do_without() {
        let files = TlsFiles { cert: "c".into(), key: "k".into(), ca: "a".into() };
        assert!(matches!(server(Some(&files)), Err(JournalError::NoTls)));
    }
}
