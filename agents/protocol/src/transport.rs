//! Configures HTTP/2 over authenticated connections. The receiver advertises the frame size, so both ends need the same
//! settings.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint, Server};

use crate::packet::MAX_PAYLOAD_BYTES;
use crate::security::{CONNECT_TIMEOUT, ConnectError, ExpectedPeer, Identity, Protection, Stream, connect};

/// Bytes of an HTTP/2 frame: a chunk that arrives in one frame is received without a copy. With the default of 16 KiB a
/// link transfers less than half as many bytes per CPU second.
const HTTP2_FRAME_BYTES: u32 = MAX_PAYLOAD_BYTES as u32;
/// Bytes in flight per stream and per connection. The effective bound is the credits of the links.
const HTTP2_WINDOW_BYTES: u32 = 16 << 20;
/// Maximum bytes of one gRPC message: a chunk and 64 KiB for the other fields.
pub const MAX_MESSAGE_BYTES: usize = MAX_PAYLOAD_BYTES + (64 << 10);

/// How soon an end of a connection notices that the other one no longer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// Interval of pings.
    pub interval: Duration,
    /// A peer that does not answer a ping within this time is considered lost.
    pub timeout: Duration,
}

impl KeepAlive {
    /// Of the stream between the coordinator and an agent, which decides about membership: a process that is stopped or
    /// stuck, or a host that can't be reached, is lost within 1.5 s.
    pub const CONTROL: Self = Self { interval: Duration::from_millis(500), timeout: Duration::from_secs(1) };
    /// Of all other connections. A link ends with its epoch, so its pings only detect links that nothing else ends.
    pub const DATA: Self = Self { interval: Duration::from_secs(10), timeout: Duration::from_secs(20) };
}

/// Returns a server with the settings of the data plane.
pub fn server() -> Server {
    server_with(KeepAlive::DATA)
}

/// Returns a server like [`server`], with these pings.
pub fn server_with(keep_alive: KeepAlive) -> Server {
    Server::builder()
        .max_frame_size(Some(HTTP2_FRAME_BYTES))
        .initial_stream_window_size(Some(HTTP2_WINDOW_BYTES))
        .initial_connection_window_size(Some(HTTP2_WINDOW_BYTES))
        .http2_keepalive_interval(Some(keep_alive.interval))
        .http2_keepalive_timeout(Some(keep_alive.timeout))
        .tcp_nodelay(true)
}

/// Connects to `expected` at `address` (`host:port`).
///
/// # Errors
/// The address is invalid, nothing listens there, or one end rejects the identity of the other.
pub async fn dial(
    address: &str,
    identity: &Identity,
    expected: ExpectedPeer,
    protection: Protection,
) -> Result<Channel, tonic::transport::Error> {
    dial_with(address, identity, expected, protection, KeepAlive::DATA).await
}

/// Connects like [`dial`], with these pings.
///
/// # Errors
/// Those of [`dial`].
pub async fn dial_with(
    address: &str,
    identity: &Identity,
    expected: ExpectedPeer,
    protection: Protection,
    keep_alive: KeepAlive,
) -> Result<Channel, tonic::transport::Error> {
    endpoint(address)?
        .http2_keep_alive_interval(keep_alive.interval)
        .keep_alive_timeout(keep_alive.timeout)
        .connect_with_connector(AuthenticatedConnector::new(address, identity, expected, protection))
        .await
}

/// Opens the connections of a channel.
#[derive(Clone, Debug)]
pub(crate) struct AuthenticatedConnector {
    address: String,
    identity: Identity,
    expected: ExpectedPeer,
    protection: Protection,
}

impl AuthenticatedConnector {
    /// Connects to `expected` at `address` (`host:port`).
    pub(crate) fn new(address: &str, identity: &Identity, expected: ExpectedPeer, protection: Protection) -> Self {
        Self { address: address.to_owned(), identity: identity.clone(), expected, protection }
    }
}

/// Ignores the URI: it names the same address as the connector.
impl Service<Uri> for AuthenticatedConnector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { address, identity, expected, protection } = self.clone();
        Box::pin(async move { connect(&address, &identity, &expected, protection).await.map(TokioIo::new) })
    }
}

/// Returns the endpoint for `address` with the settings of the data plane.
pub(crate) fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .max_frame_size(HTTP2_FRAME_BYTES)
        .initial_stream_window_size(Some(HTTP2_WINDOW_BYTES))
        .initial_connection_window_size(Some(HTTP2_WINDOW_BYTES))
        .http2_keep_alive_interval(KeepAlive::DATA.interval)
        .keep_alive_timeout(KeepAlive::DATA.timeout)
        .connect_timeout(CONNECT_TIMEOUT);
    Ok(endpoint)
}
