//! HTTP/2 over authenticated connections, and its settings. The receiver advertises the frame size, so both ends need
//! them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint, Server};

use crate::packet::PAYLOAD_BYTES;
use crate::security::{ConnectError, Expected, Identity, Protection, Stream, connect};

/// Bytes of an HTTP/2 frame: a chunk that comes in one is received without a copy. With the 16 KiB default a link moves
/// less than half as much per CPU second.
const FRAME_BYTES: u32 = PAYLOAD_BYTES as u32;
/// Bytes in flight per stream and connection; the links' own credits are what bounds them.
const WINDOW_BYTES: u32 = 16 << 20;
/// Most bytes of one gRPC message: a chunk and some air.
pub const MESSAGE_BYTES: usize = PAYLOAD_BYTES + (64 << 10);
/// A peer that doesn't answer a ping for this long is gone.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
const PING_EVERY: Duration = Duration::from_secs(10);
/// For a connection and its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A server with the data plane's settings.
pub fn server() -> Server {
    Server::builder()
        .max_frame_size(Some(FRAME_BYTES))
        .initial_stream_window_size(Some(WINDOW_BYTES))
        .initial_connection_window_size(Some(WINDOW_BYTES))
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .tcp_nodelay(true)
}

/// Connects to `address` (`host:port`), where `expected` must listen.
///
/// # Errors
/// The address is none, nobody listens, or one end does not take the other for who it should be.
pub async fn dial(
    address: &str,
    identity: &Identity,
    expected: Expected,
    protection: Protection,
) -> Result<Channel, tonic::transport::Error> {
    endpoint(address)?.connect_with_connector(Connector::new(address, identity, expected, protection)).await
}

/// Makes the connections of a channel.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    address: String,
    identity: Identity,
    expected: Expected,
    protection: Protection,
}

impl Connector {
    /// To `expected` at `address` (`host:port`).
    pub(crate) fn new(address: &str, identity: &Identity, expected: Expected, protection: Protection) -> Self {
        Self { address: address.to_owned(), identity: identity.clone(), expected, protection }
    }
}

/// The address is the connector's own; the URI says the same.
impl Service<Uri> for Connector {
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

/// The error with all that it was caused by: its own words only say in which layer it happened.
pub fn causes(error: &tonic::transport::Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

/// How `address` is dialled.
pub(crate) fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(Some(WINDOW_BYTES))
        .initial_connection_window_size(Some(WINDOW_BYTES))
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT);
    Ok(endpoint)
}
