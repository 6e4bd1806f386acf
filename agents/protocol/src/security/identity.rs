//! One end's certificate, key and the authorities it trusts.

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

use super::name::{Name, NameError};

/// Most bytes of a file of credentials.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A certificate, its key and the authorities of the other end's certificates, as PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// The certificates of all authorities that are trusted.
    pub authority: String,
}

/// Why credentials can't be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file that can't be read.
    #[error("can't read {}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Not PEM, or of something else.
    #[error("the {0} is not one in PEM")]
    Pem(&'static str),
    /// Not the document of [`Credentials::to_line`].
    #[error("the credentials are not JSON of a certificate, its key and its authority")]
    Line,
    /// The certificate names no member, or several.
    #[error("the certificate names no member of a job")]
    Unnamed,
    /// The name in the certificate.
    #[error(transparent)]
    Name(#[from] NameError),
    /// They do not belong together, or are of a kind that is not supported.
    #[error("the certificate, its key and its authority can't be used: {0}")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Credentials {
    /// Name of the certificate's file in a directory of credentials.
    pub const CERTIFICATE_FILE: &str = "tls.crt";
    /// Name of the key's file.
    pub const KEY_FILE: &str = "tls.key";
    /// Name of the authorities' file.
    pub const AUTHORITY_FILE: &str = "ca.crt";

    /// Reads `tls.crt`, `tls.key` and `ca.crt` in `dir`.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn read(dir: &Path) -> Result<Self, IdentityError> {
        let read = |name: &str| read_bounded(&dir.join(name));
        Ok(Self {
            certificate: read(Self::CERTIFICATE_FILE)?,
            key: read(Self::KEY_FILE)?,
            authority: read(Self::AUTHORITY_FILE)?,
        })
    }

    /// The credentials as one line of JSON, to be given to a process by a pipe.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads [`Credentials::to_line`].
    ///
    /// # Errors
    /// [`IdentityError::Line`].
    pub fn from_line(line: &str) -> Result<Self, IdentityError> {
        serde_json::from_str(line).map_err(|_| IdentityError::Line)
    }
}

fn read_bounded(path: &Path) -> Result<String, IdentityError> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|cause| IdentityError::File { path: path.to_owned(), cause })?;
    Ok(text)
}

/// Shows nothing: one of the parts is a secret.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Who this end of a connection is, ready to be used. Clones share everything.
#[derive(Clone)]
pub struct Identity {
    name: Name,
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl Identity {
    /// Reads credentials.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn new(credentials: &Credentials) -> Result<Self, IdentityError> {
        Self::with_clock(credentials, Arc::new(DefaultTimeProvider))
    }

    /// Reads credentials; `clock` tells the time at which certificates are looked at.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn with_clock(credentials: &Credentials, clock: Arc<dyn TimeProvider>) -> Result<Self, IdentityError> {
        let chain = certificates(&credentials.certificate, "certificate")?;
        let name = name_of(chain.first().ok_or(IdentityError::Pem("certificate"))?)?.ok_or(IdentityError::Unnamed)?;
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
        // Every connection proves who it is from anew; and nothing may follow the handshake but what is meant to.
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

    /// Reads the credentials in `dir`, see [`Credentials::read`].
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn read(dir: &Path) -> Result<Self, IdentityError> {
        Self::new(&Credentials::read(dir)?)
    }

    /// The name in its certificate.
    pub const fn name(&self) -> &Name {
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

fn certificates(pem: &str, what: &'static str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or(IdentityError::Pem(what))
}

/// The name in a certificate; `None` in one that has no URI.
///
/// # Errors
/// It has several URIs, or one that is no name.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> Result<Option<Name>, IdentityError> {
    let certificate = webpki::EndEntityCert::try_from(certificate).map_err(unusable)?;
    let mut uris = certificate.valid_uri_names();
    match (uris.next(), uris.next()) {
        (None, _) => Ok(None),
        (Some(uri), None) => Ok(Some(uri.parse()?)),
        (Some(_), Some(_)) => Err(IdentityError::Unnamed),
    }
}

/// Verifies that a server's certificate is of a trusted authority. Its name is compared after the handshake, before
/// anything is sent: it is no host name.
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
