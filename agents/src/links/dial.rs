//! Dials a parent: opens both directions of the link, each as its own stream.

use std::future::poll_fn;
use std::time::Duration;

use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use millrace_engine::types::{AgentId, Epoch};
use millrace_protocol::error_chain;
use millrace_protocol::packet::{self, AGENT_HEADER, EPOCH_HEADER, PacketReader};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Channel;

use super::{Direction, LinkEventKind, LinkKey, LinkSettings, peer_machine, receive_frames, receive_grants, send};

/// One direction of a link could not be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
    #[error("{status} {reason}")]
    Rejected { status: StatusCode, reason: String },
    #[error("no answer within {} s", OPEN_TIMEOUT.as_secs())]
    TimedOut,
}

/// Bounds the wait for the answer to a request for one direction of a link. A parent answers at once.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Opens the link from `me` to `peer` at `address` for `epoch`, in the background. The results are sent as events.
pub fn dial(me: AgentId, peer: AgentId, address: String, epoch: Epoch, settings: LinkSettings) {
    tokio::spawn(async move {
        let key = |direction| LinkKey { epoch, peer, direction };
        let broken = |reason: String| send(&settings.events, key(Direction::Down), LinkEventKind::Broken(reason));
        let channel = match settings.member.dial_data(&address, peer).await {
            Ok(channel) => channel,
            Err(error) => {
                let reason = error_chain(&error);
                return broken(format!("{peer} at {address} can't be reached: {reason}")).await;
            }
        };
        let down = open_down(me, key(Direction::Down), channel.clone(), settings.clone());
        let up = open_up(me, key(Direction::Up), channel, settings.clone());
        if let Err(error) = tokio::try_join!(down, up) {
            broken(format!("{peer} at {address} rejected the link: {error}")).await;
        }
    });
}

async fn open_down(me: AgentId, key: LinkKey, channel: Channel, settings: LinkSettings) -> Result<(), OpenError> {
    let (sender, body) = packet::packet_channel();
    let (_, frames) = open(packet::LINK_DOWN_PATH, me, key, body, channel, &settings).await?;
    tokio::spawn(receive_frames(key, sender, frames, settings));
    Ok(())
}

async fn open_up(me: AgentId, key: LinkKey, channel: Channel, settings: LinkSettings) -> Result<(), OpenError> {
    let (sender, body) = packet::packet_channel();
    let (headers, grants) = open(packet::LINK_UP_PATH, me, key, body, channel, &settings).await?;
    tokio::spawn(receive_grants(key, sender, grants, peer_machine(&headers), settings));
    Ok(())
}

/// Sends `body` to `path`; returns headers and body of the response.
async fn open(
    path: &str,
    me: AgentId,
    key: LinkKey,
    body: Body,
    channel: Channel,
    settings: &LinkSettings,
) -> Result<(HeaderMap, PacketReader), OpenError> {
    let mut request = Request::post(path)
        .header(EPOCH_HEADER, key.epoch.to_string())
        .header(AGENT_HEADER, me.to_string())
        .body(body)?;
    settings.add_machine(request.headers_mut());
    tokio::time::timeout(OPEN_TIMEOUT, call(request, channel)).await.unwrap_or(Err(OpenError::TimedOut))
}

async fn call(request: Request<Body>, mut channel: Channel) -> Result<(HeaderMap, PacketReader), OpenError> {
    poll_fn(|cx| channel.poll_ready(cx)).await?;
    let (parts, body) = channel.call(request).await?.into_parts();
    if parts.status == StatusCode::OK {
        return Ok((parts.headers, PacketReader::new(body)));
    }
    let reason = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    Err(OpenError::Rejected { status: parts.status, reason: String::from_utf8_lossy(&reason).into_owned() })
}
