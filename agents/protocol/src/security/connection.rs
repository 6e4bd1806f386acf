//! One authenticated connection: the handshake of either side, and the stream that results from it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tonic::transport::server::Connected;

use super::admission::{AdmissionPolicy, Rejection};
use super::identity::{Identity, name_of};
use super::name::MemberName;
use super::tls_records::TlsRecordStream;

/// Bounds a handshake on the accepting side: TLS and the record that follows it.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Bounds connecting on the dialling side: name resolution, TCP and the handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// ALPN protocol: the connection is encrypted.
const ALPN_ENCRYPTED: &[u8] = b"millrace/encrypted";
/// ALPN protocol: after the handshake both ends continue without encryption.
const ALPN_AUTHENTICATED: &[u8] = b"millrace/authenticated";
/// ALPN protocol of coordinators of 0.1.0: the connection is encrypted, and the accepting side sends no record after
/// the handshake.
const ALPN_HTTP2: &[u8] = b"h2";

/// First byte of the record after the handshake if the connection is accepted.
const STATUS_ACCEPTED: u8 = 0;
/// First byte if the connection is rejected. The length of the reason in two bytes (big-endian) and its text follow.
const STATUS_REJECTED: u8 = 1;
/// Maximum bytes of a reason.
const MAX_REASON_BYTES: usize = 512;

/// Protection of a connection after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Everything is encrypted.
    Encrypted,
    /// Nothing is encrypted: the handshake has authenticated both ends, and the data follows in plain text.
    Authenticated,
}

/// The text is neither `on` nor `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose on or off")]
pub struct UnknownProtection;

impl FromStr for Protection {
    type Err = UnknownProtection;

    /// Reads whether data are encrypted, `on` or `off`.
    fn from_str(text: &str) -> Result<Self, UnknownProtection> {
        [Self::Encrypted, Self::Authenticated].into_iter().find(|it| it.as_switch() == text).ok_or(UnknownProtection)
    }
}

impl Protection {
    /// Returns whether data are encrypted, `on` or `off`, as flag and environment variable of a role process.
    pub const fn as_switch(self) -> &'static str {
        match self {
            Protection::Encrypted => "on",
            Protection::Authenticated => "off",
        }
    }

    const fn protocol(self) -> &'static [u8] {
        match self {
            Protection::Encrypted => ALPN_ENCRYPTED,
            Protection::Authenticated => ALPN_AUTHENTICATED,
        }
    }
}

/// The name that the peer of a dialled connection must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedPeer {
    name: MemberName,
    /// Host name in the certificate of a coordinator of 0.1.0, which has no name.
    host: Option<String>,
}

impl ExpectedPeer {
    /// Expects exactly `name`.
    pub const fn new(name: MemberName) -> Self {
        Self { name, host: None }
    }

    /// Expects `name`, or a peer whose certificate has no name but is valid for `host`, like those of 0.1.0. Such a
    /// peer may also select HTTP/2 as the protocol.
    pub const fn with_host_fallback(name: MemberName, host: String) -> Self {
        Self { name, host: Some(host) }
    }

    /// Checks that `certificate` belongs to the expected peer.
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), ConnectError> {
        let unexpected = |found: String| ConnectError::Unexpected { expected: self.name.to_string(), found };
        match (name_of(certificate), &self.host) {
            (Ok(Some(name)), _) if name == self.name => Ok(()),
            (Ok(Some(name)), _) => Err(unexpected(name.to_string())),
            (Ok(None), Some(host)) if is_valid_for_host(certificate, host) => Ok(()),
            (Ok(None), _) => Err(unexpected("a certificate without a name".to_owned())),
            (Err(error), _) => Err(unexpected(error.to_string())),
        }
    }
}

fn is_valid_for_host(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok();
    let host = ServerName::try_from(host).ok();
    certificate.zip(host).is_some_and(|(certificate, host)| certificate.verify_is_valid_for_subject_name(&host).is_ok())
}

/// The peer of an accepted connection; in the extensions of every request that is received over it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Name in the peer's certificate.
    pub name: Arc<MemberName>,
    /// Socket address of the peer; `None` if the system does not return it.
    pub address: Option<SocketAddr>,
}

/// A connection to a peer failed.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The TCP connection failed.
    #[error("{0}")]
    Unreachable(#[source] io::Error),
    /// The handshake failed: one end does not trust the other's certificate, or the peer uses another protocol.
    #[error("the TLS handshake failed: {0}")]
    Handshake(#[source] io::Error),
    /// The peer's certificate is trusted, but has another name.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        expected: String,
        /// Name of the peer, or what is wrong with its certificate.
        found: String,
    },
    /// The peer did not answer in time.
    #[error("no answer within {} s", CONNECT_TIMEOUT.as_secs())]
    TimedOut,
    /// The peer rejected the connection, for the given reason.
    #[error("the peer rejected the connection: {0}")]
    Rejected(String),
}

/// A connection was not accepted.
#[derive(Debug)]
pub(super) enum AcceptError {
    /// The peer closed the connection without sending anything.
    ClosedEarly,
    /// The connection was rejected.
    Rejected(Rejection),
}

/// Connects to `address` (`host:port`) and authenticates both ends.
///
/// # Errors
/// [`ConnectError`]; [`ConnectError::TimedOut`] after [`CONNECT_TIMEOUT`].
pub async fn connect(
    address: &str,
    identity: &Identity,
    expected: &ExpectedPeer,
    protection: Protection,
) -> Result<Stream, ConnectError> {
    let connecting = connect_unbounded(address, identity, expected, protection);
    tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or(Err(ConnectError::TimedOut))
}

async fn connect_unbounded(
    address: &str,
    identity: &Identity,
    expected: &ExpectedPeer,
    protection: Protection,
) -> Result<Stream, ConnectError> {
    let tcp = TcpStream::connect(address).await.map_err(ConnectError::Unreachable)?;
    tcp.set_nodelay(true).map_err(ConnectError::Unreachable)?;
    let mut config = ClientConfig::clone(&identity.client);
    config.alpn_protocols = vec![protection.protocol().to_vec()];
    if expected.host.is_some() {
        config.alpn_protocols.push(ALPN_HTTP2.to_vec());
    }
    // This host name is not checked: `expected.check` compares the name in the certificate.
    let host =
        ServerName::try_from("millrace.invalid").map_err(|error| ConnectError::Handshake(io::Error::other(error)))?;
    let connected = TlsConnector::from(Arc::new(config)).connect(host, TlsRecordStream::new(tcp)).await;
    let mut tls = TlsStream::from(connected.map_err(ConnectError::Handshake)?);
    let certificate = tls.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = certificate.ok_or_else(|| ConnectError::Handshake(io::ErrorKind::InvalidData.into()))?;
    expected.check(certificate)?;
    let protocol = tls.get_ref().1.alpn_protocol();
    if protocol == Some(ALPN_HTTP2) {
        return Ok(Stream::new(tls, Protection::Encrypted, expected.name.clone()));
    }
    if protocol != Some(protection.protocol()) {
        return Err(ConnectError::Handshake(io::Error::other("the peer speaks another protocol")));
    }
    read_accept_status(&mut tls).await?;
    Ok(Stream::new(tls, protection, expected.name.clone()))
}

/// Reads whether the peer accepts the connection.
async fn read_accept_status(tls: &mut TlsStream<TlsRecordStream>) -> Result<(), ConnectError> {
    let read = async {
        if tls.read_u8().await? == STATUS_ACCEPTED {
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

/// Performs the accepting side's handshake.
pub(super) async fn accept(
    tcp: TcpStream,
    identity: &Identity,
    admit: AdmissionPolicy,
    protection: Protection,
) -> Result<Stream, AcceptError> {
    let because = |error: io::Error| AcceptError::Rejected(error.into());
    tcp.set_nodelay(true).map_err(because)?;
    let mut config = ServerConfig::clone(&identity.server);
    config.alpn_protocols = vec![protection.protocol().to_vec()];
    let accepted = TlsAcceptor::from(Arc::new(config)).accept(TlsRecordStream::new(tcp)).into_fallible().await;
    let mut tls = TlsStream::from(accepted.map_err(|(error, records)| match records.is_empty() {
        true => AcceptError::ClosedEarly,
        false => because(error),
    })?);
    match verify_peer(&tls, identity, admit, protection) {
        Ok(name) => {
            tls.write_all(&[STATUS_ACCEPTED]).await.map_err(because)?;
            tls.flush().await.map_err(because)?;
            Ok(Stream::new(tls, protection, name))
        }
        Err(reason) => {
            let text = reason.to_string();
            let text = &text.as_bytes()[..text.floor_char_boundary(MAX_REASON_BYTES)];
            let mut record = vec![STATUS_REJECTED];
            record.extend((text.len() as u16).to_be_bytes());
            record.extend(text);
            // The peer may have closed the connection already.
            let _ = tls.write_all(&record).await;
            let _ = tls.shutdown().await;
            Err(AcceptError::Rejected(reason))
        }
    }
}

/// Returns the peer's name if the peer is admitted, or the reason for the rejection.
fn verify_peer(
    tls: &TlsStream<TlsRecordStream>,
    identity: &Identity,
    admit: AdmissionPolicy,
    protection: Protection,
) -> Result<MemberName, Rejection> {
    let (_, session) = tls.get_ref();
    if session.alpn_protocol() != Some(protection.protocol()) {
        return Err(Rejection::Protocol);
    }
    let certificate = session.peer_certificates().and_then(|chain| chain.first()).ok_or(Rejection::NoCertificate)?;
    let name = name_of(certificate)?.ok_or(Rejection::NoName)?;
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
    Encrypted(Box<TlsStream<TlsRecordStream>>),
    Clear(TcpStream),
}

impl Stream {
    fn new(mut tls: TlsStream<TlsRecordStream>, protection: Protection, peer: MemberName) -> Self {
        let transport = match protection {
            Protection::Encrypted => {
                let (records, _) = tls.get_mut();
                records.read_past_records();
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

    /// Returns the peer.
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
