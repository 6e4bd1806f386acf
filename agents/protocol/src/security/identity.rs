//! The certificate, key and trusted authorities of one end of a connection.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};
use serde::{Deserialize, Serialize};

use super::name::{MemberName, NameError};

/// Maximum bytes that are read of a file of credentials.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A certificate, its key, and the authorities that must have issued the peer's certificate, as PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The certificates of all trusted authorities.
    pub authority: String,
}

/// Credentials can't be used.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file can't be read.
    #[error("can't read {}: {cause}", path.display())]
    File {
        path: PathBuf,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// The text is not PEM, or of another type.
    #[error("the {0} is not valid PEM")]
    Pem(&'static str),
    /// The text is not the document written by [`Credentials::to_json_line`].
    #[error("the credentials are not JSON with a certificate, its key and its authority")]
    JsonLine,
    /// The certificate has no URI or several.
    #[error("the certificate names no member of a job")]
    NoName,
    /// The URI in the certificate is not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Certificate, key and authorities do not match, or one has an unsupported type.
    #[error("the certificate, its key and its authority can't be used: {0}")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Credentials {
    /// Name of the certificate's file in a directory of credentials.
    pub const CERTIFICATE_FILE: &str = "tls.crt";
    /// Name of the key's file in a directory of credentials.
    pub const KEY_FILE: &str = "tls.key";
    /// Name of the authorities' file in a directory of credentials.
    pub const AUTHORITY_FILE: &str = "ca.crt";

    /// Reads `tls.crt`, `tls.key` and `ca.crt` in `dir`, at most 1 MiB of each.
    ///
    /// # Errors
    /// [`IdentityError::File`] if a file can't be read or is not UTF-8.
    pub fn read(dir: &Path) -> Result<Self, IdentityError> {
        let read = |name: &str| read_bounded(&dir.join(name));
        Ok(Self {
            certificate: read(Self::CERTIFICATE_FILE)?,
            key: read(Self::KEY_FILE)?,
            authority: read(Self::AUTHORITY_FILE)?,
        })
    }

    /// Returns the credentials as one line of JSON, for passing them to a process through a pipe.
    pub fn to_json_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Parses the line written by [`Credentials::to_json_line`].
    ///
    /// # Errors
    /// [`IdentityError::JsonLine`] if the line is anything else.
    pub fn from_json_line(line: &str) -> Result<Self, IdentityError> {
        serde_json::from_str(line).map_err(|_| IdentityError::JsonLine)
    }
}

fn read_bounded(path: &Path) -> Result<String, IdentityError> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|cause| IdentityError::File { path: path.to_owned(), cause })?;
    Ok(text)
}

/// Prints no field, because the key is a secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// The parsed credentials of one end of a connection. Clones share the parsed data.
#[derive(Clone)]
pub struct Identity {
    name: MemberName,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl Identity {
    /// Parses credentials.
    ///
    /// # Errors
    /// [`IdentityError`] for credentials that are not PEM, have no name, or do not match.
    pub fn new(credentials: &Credentials) -> Result<Self, IdentityError> {
        Self::with_clock(credentials, Arc::new(DefaultTimeProvider))
    }

    /// Parses credentials; the validity of certificates is checked at the time that `clock` returns.
    ///
    /// # Errors
    /// [`IdentityError`] as for [`Identity::new`].
    pub fn with_clock(credentials: &Credentials, clock: Arc<dyn TimeProvider>) -> Result<Self, IdentityError> {
        let chain = certificates(&credentials.certificate, "certificate")?;
        let name = name_of(chain.first().ok_or(IdentityError::Pem("certificate"))?)?.ok_or(IdentityError::NoName)?;
        let key = || {
            let key = PrivateKeyDer::from_pem_slice(credentials.key.as_bytes());
            key.map_err(|_| IdentityError::Pem("key"))
        };
        let mut roots = RootCertStore::empty();
        for authority in certificates(&credentials.authority, "authority")? {
            roots.add(authority).map_err(unusable)?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        let mut server = ServerConfig::builder_with_details(provider.clone(), clock.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier.build().map_err(unusable)?)
            .with_single_cert(chain.clone(), key()?)
            .map_err(unusable)?;
        // Every connection authenticates anew, so sessions are not resumed. Without tickets the server also sends no
        // TLS records after the handshake, which an unencrypted connection requires.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_details(provider.clone(), clock)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ChainVerifier { roots, provider }))
            .with_client_auth_cert(chain, key()?)
            .map_err(unusable)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Self { name, client: Arc::new(client), server: Arc::new(server) })
    }

    /// Reads and parses the credentials in `dir`, see [`Credentials::read`].
    ///
    /// # Errors
    /// [`IdentityError`] if a file can't be read or the credentials can't be used.
    pub fn read(dir: &Path) -> Result<Self, IdentityError> {
        Self::new(&Credentials::read(dir)?)
    }

    /// Returns the name in the certificate.
    pub const fn name(&self) -> &MemberName {
        &self.name
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("name", &self.name).finish_non_exhaustive()
    }
}

fn unusable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> IdentityError {
    IdentityError::Unusable(error.into())
}

fn certificates(pem: &str, name: &'static str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or(IdentityError::Pem(name))
}

/// Returns the name in a certificate; `None` if it has no URI.
///
/// # Errors
/// The certificate has several URIs, or one that is not a name.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> Result<Option<MemberName>, IdentityError> {
    let certificate = webpki::EndEntityCert::try_from(certificate).map_err(unusable)?;
    let mut uris = certificate.valid_uri_names();
    match (uris.next(), uris.next()) {
        (None, _) => Ok(None),
        (Some(uri), None) => Ok(Some(uri.parse()?)),
        (Some(_), Some(_)) => Err(IdentityError::NoName),
    }
}

/// Verifies that a server's certificate was issued by a trusted authority. The name in it is not a host name; it is
/// compared after the handshake, before data is sent.
#[derive(Debug)]
struct ChainVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ChainVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        rustls::client::verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
