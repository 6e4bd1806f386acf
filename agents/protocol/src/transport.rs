//! HTTP/2 settings. The receiver advertises the frame size, so both ends need them.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Server};

use crate::packet::PAYLOAD_BYTES;

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

/// Dials `address` (`host:port`).
///
/// # Errors
/// The address is none, or nobody listens.
pub async fn dial(address: &str) -> Result<Channel, tonic::transport::Error> {
    endpoint(&format!("http://{address}"))?.connect().await
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

/// How `uri` is dialled.
pub(crate) fn endpoint(uri: &str) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(uri.to_owned())?
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(Some(WINDOW_BYTES))
        .initial_connection_window_size(Some(WINDOW_BYTES))
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .connect_timeout(Duration::from_secs(10))
        .tcp_nodelay(true);
    Ok(endpoint)
}
