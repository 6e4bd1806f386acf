//! One authenticated connection: the handshake of either side, and the stream that comes of it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tonic::transport::server::Connected;

use super::identity::{Identity, name_of};
use super::listener::Admit;
use super::name::Name;
use super::records::Records;

/// How long a handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// ALPN: everything is encrypted.
const ENCRYPTED: &[u8] = b"millrace/encrypted";
/// ALPN: after the handshake both ends go on in the clear.
const AUTHENTICATED: &[u8] = b"millrace/authenticated";
/// ALPN of coordinators of 0.1.0: encrypted, and the accepting side does not say that it takes the connection.
const HTTP2: &[u8] = b"h2";

/// First byte of the record that follows the handshake.
const TAKEN: u8 = 0;
/// The same of a connection that is not taken; the reason follows: its length in two bytes, and its text.
const REJECTED: u8 = 1;
/// Most bytes of a reason.
const MAX_REASON_BYTES: usize = 512;

/// What protects a connection after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Everything is encrypted.
    Encrypted,
    /// Nothing: the handshake has shown who is at the other end, and what follows is in the clear.
    Authenticated,
}

impl Protection {
    const fn protocol(self) -> &'static [u8] {
        match self {
            Protection::Encrypted => ENCRYPTED,
            Protection::Authenticated => AUTHENTICATED,
        }
    }
}

/// Who must be at the other end of a connection that is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    name: Name,
    /// Host name that the certificate of a coordinator of 0.1.0 has instead of a name.
    host: Option<String>,
}

impl Expected {
    /// Exactly `name`.
    pub const fn new(name: Name) -> Self {
        Self { name, host: None }
    }

    /// `name`, or, with a certificate that has no name, as those of 0.1.0, a server of `host` that speaks HTTP/2.
    pub const fn or_host(name: Name, host: String) -> Self {
        Self { name, host: Some(host) }
    }

    /// Whether `certificate` is of whom is expected.
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), ConnectError> {
        let unexpected = |found: String| ConnectError::Unexpected { expected: self.name.to_string(), found };
        match (name_of(certificate), &self.host) {
            (Ok(Some(name)), _) if name == self.name => Ok(()),
            (Ok(Some(name)), _) => Err(unexpected(name.to_string())),
            (Ok(None), Some(host)) if is_of_host(certificate, host) => Ok(()),
            (Ok(None), _) => Err(unexpected("a certificate without a name".to_owned())),
            (Err(error), _) => Err(unexpected(error.to_string())),
        }
    }
}

fn is_of_host(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok();
    let host = ServerName::try_from(host).ok();
    certificate.zip(host).is_some_and(|(certificate, host)| certificate.verify_is_valid_for_subject_name(&host).is_ok())
}

/// Who is at the other end of a connection that was accepted; in the extensions of every request that comes over it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The name in its certificate.
    pub name: Arc<Name>,
    /// Where it is.
    pub address: Option<SocketAddr>,
}

/// Why a peer could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody listens.
    #[error("{0}")]
    Unreachable(#[source] io::Error),
    /// The handshake failed: one end does not trust the other's certificate, or the peer speaks something else.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// The peer is somebody else.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// Who should be there.
        expected: String,
        /// Who is.
        found: String,
    },
    /// The peer does not take the connection.
    #[error("the peer rejected the connection: {0}")]
    Rejected(String),
}

/// Why a connection was not accepted.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It was closed before anything came over it.
    Silent,
    /// For this reason.
    Because(String),
}

/// Connects to `address` (`host:port`) and proves who both ends are.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect(
    address: &str,
    identity: &Identity,
    expected: &Expected,
    protection: Protection,
) -> Result<Stream, ConnectError> {
    let tcp = TcpStream::connect(address).await.map_err(ConnectError::Unreachable)?;
    tcp.set_nodelay(true).map_err(ConnectError::Unreachable)?;
    let mut config = ClientConfig::clone(&identity.client);
    config.alpn_protocols = vec![protection.protocol().to_vec()];
    if expected.host.is_some() {
        config.alpn_protocols.push(HTTP2.to_vec());
    }
    // Looked at by nobody: the name in the certificate is compared below.
    let host =
        ServerName::try_from("millrace.invalid").map_err(|error| ConnectError::Handshake(io::Error::other(error)))?;
    let connected = TlsConnector::from(Arc::new(config)).connect(host, Records::new(tcp)).await;
    let mut tls = TlsStream::from(connected.map_err(ConnectError::Handshake)?);
    let certificate = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = certificate.ok_or_else(|| ConnectError::Handshake(io::ErrorKind::InvalidData.into()))?;
    expected.check(certificate)?;
    let protocol = tls.get_ref().1.alpn_protocol();
    if protocol == Some(HTTP2) {
        return Ok(Stream::new(tls, Protection::Encrypted, expected.name.clone()));
    }
    if protocol != Some(protection.protocol()) {
        return Err(ConnectError::Handshake(io::Error::other("the peer speaks another protocol")));
    }
    answer(&mut tls).await?;
    Ok(Stream::new(tls, protection, expected.name.clone()))
}

/// Reads whether the peer takes the connection.
async fn answer(tls: &mut TlsStream<Records>) -> Result<(), ConnectError> {
    let read = async {
        if tls.read_u8().await? == TAKEN {
            return Ok(None);
        }
        let length = usize::from(tls.read_u16().await?).min(MAX_REASON_BYTES);
        let mut reason = vec![0; length];
        tls.read_exact(&mut reason).await?;
        Ok(Some(String::from_utf8_lossy(&reason).into_owned()))
    };
    match read.await.map_err(ConnectError::Handshake)? {
        None => Ok(()),
        Some(reason) => Err(ConnectError::Rejected(reason)),
    }
}

/// The accepting side's handshake.
pub(super) async fn accept(
    tcp: TcpStream,
    identity: &Identity,
    admit: Admit,
    protection: Protection,
) -> Result<Stream, Refusal> {
    let because = |error: io::Error| Refusal::Because(error.to_string());
    tcp.set_nodelay(true).map_err(because)?;
    let mut config = ServerConfig::clone(&identity.server);
    config.alpn_protocols = vec![protection.protocol().to_vec()];
    let accepted = TlsAcceptor::from(Arc::new(config)).accept(Records::new(tcp)).into_fallible().await;
    let mut tls = TlsStream::from(accepted.map_err(|(error, records)| match records.is_silent() {
        true => Refusal::Silent,
        false => because(error),
    })?);
    match examine(&tls, identity, admit, protection) {
        Ok(name) => {
            tls.write_all(&[TAKEN]).await.map_err(because)?;
            tls.flush().await.map_err(because)?;
            Ok(Stream::new(tls, protection, name))
        }
        Err(reason) => {
            let text = &reason.as_bytes()[..reason.floor_char_boundary(MAX_REASON_BYTES)];
            let mut record = vec![REJECTED];
            record.extend((text.len() as u16).to_be_bytes());
            record.extend(text);
            // A peer that is gone already does not hear it.
            let _ = tls.write_all(&record).await;
            let _ = tls.shutdown().await;
            Err(Refusal::Because(reason))
        }
    }
}

/// The peer's name, if it is admitted.
fn examine(
    tls: &TlsStream<Records>,
    identity: &Identity,
    admit: Admit,
    protection: Protection,
) -> Result<Name, String> {
    let (_, session) = tls.get_ref();
    if session.alpn_protocol() != Some(protection.protocol()) {
        return Err("it speaks another protocol".to_owned());
    }
    let certificate = session.peer_certificates().and_then(|chain| chain.first()).ok_or("it has no certificate")?;
    let name = name_of(certificate).map_err(|error| error.to_string())?.ok_or("its certificate names no member")?;
    admit.check(identity.name(), &name)?;
    Ok(name)
}

/// An authenticated connection.
#[derive(Debug)]
pub struct Stream {
    transport: Transport,
    peer: Peer,
}

#[derive(Debug)]
enum Transport {
    Encrypted(Box<TlsStream<Records>>),
    Clear(TcpStream),
}

impl Stream {
    fn new(mut tls: TlsStream<Records>, protection: Protection, peer: Name) -> Self {
        let transport = match protection {
            Protection::Encrypted => {
                let (records, _) = tls.get_mut();
                records.unbound();
                Transport::Encrypted(Box::new(tls))
            }
            Protection::Authenticated => {
                let records = match tls {
                    TlsStream::Client(tls) => tls.into_inner().0,
                    TlsStream::Server(tls) => tls.into_inner().0,
                };
                Transport::Clear(records.into_inner())
            }
        };
        let mut stream = Self { transport, peer: Peer { name: Arc::new(peer), address: None } };
        stream.peer.address = stream.tcp().peer_addr().ok();
        stream
    }

    /// Who is at the other end.
    pub const fn peer(&self) -> &Peer {
        &self.peer
    }

    fn tcp(&self) -> &TcpStream {
        match &self.transport {
            Transport::Encrypted(tls) => tls.get_ref().0.tcp(),
            Transport::Clear(tcp) => tcp,
        }
    }
}

impl Connected for Stream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Encrypted(tls) => Pin::new(tls).poll_read(cx, buf),
            Transport::Clear(tcp) => Pin::new(tcp).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Encrypted(tls) => Pin::new(tls).poll_write(cx, buf),
            Transport::Clear(tcp) => Pin::new(tcp).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.transport {
            Transport::Encrypted(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
            Transport::Clear(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Encrypted(tls) => tls.is_write_vectored(),
            Transport::Clear(tcp) => tcp.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Encrypted(tls) => Pin::new(tls).poll_flush(cx),
            Transport::Clear(tcp) => Pin::new(tcp).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Encrypted(tls) => Pin::new(tls).poll_shutdown(cx),
            Transport::Clear(tcp) => Pin::new(tcp).poll_shutdown(cx),
        }
    }
}
