//! Dials a parent: opens both directions of the link, each as its own stream.

use std::future::poll_fn;

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use millrace_engine::types::{AgentId, Epoch};
use millrace_protocol::packet::{self, AGENT_HEADER, EPOCH_HEADER, PacketReader};
use millrace_protocol::transport;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Channel;

use super::{Direction, LinkEventKind, LinkKey, LinkSettings, receive_frames, receive_grants, send};

/// Opens the link from `me` to `peer` at `address` for `epoch`, in the background. The results are sent as events.
pub fn dial(me: AgentId, peer: AgentId, address: String, epoch: Epoch, settings: LinkSettings) {
    tokio::spawn(async move {
        let key = |direction| LinkKey { epoch, peer, direction };
        let broken = |reason: String| send(&settings.events, key(Direction::Down), LinkEventKind::Broken(reason));
        let channel = match settings.member.dial_data(&address, peer).await {
            Ok(channel) => channel,
            Err(error) => {
                let why = transport::error_chain(&error);
                return broken(format!("{peer} at {address} can't be reached: {why}")).await;
            }
        };
        let down = open_down(me, key(Direction::Down), channel.clone(), settings.clone());
        let up = open_up(me, key(Direction::Up), channel, settings.clone());
        if let Err(reason) = tokio::try_join!(down, up) {
            broken(format!("{peer} at {address} rejected the link: {reason}")).await;
        }
    });
}

async fn open_down(me: AgentId, key: LinkKey, channel: Channel, settings: LinkSettings) -> Result<(), String> {
    let (sender, body) = packet::packet_channel();
    let frames = open(packet::LINK_DOWN_PATH, me, key, body, channel).await?;
    tokio::spawn(receive_frames(key, sender, frames, settings));
    Ok(())
}

async fn open_up(me: AgentId, key: LinkKey, channel: Channel, settings: LinkSettings) -> Result<(), String> {
    let (sender, body) = packet::packet_channel();
    let grants = open(packet::LINK_UP_PATH, me, key, body, channel).await?;
    tokio::spawn(receive_grants(key, sender, grants, settings));
    Ok(())
}

/// Sends `body` to `path`; returns the body of the response.
async fn open(path: &str, me: AgentId, key: LinkKey, body: Body, mut channel: Channel) -> Result<PacketReader, String> {
    let request = Request::post(path)
        .header(EPOCH_HEADER, key.epoch.to_string())
        .header(AGENT_HEADER, me.to_string())
        .body(body)
        .map_err(|error| error.to_string())?;
    poll_fn(|cx| channel.poll_ready(cx)).await.map_err(|error| error.to_string())?;
    let response = channel.call(request).await.map_err(|error| error.to_string())?;
    let status = response.status();
    if status == StatusCode::OK {
        return Ok(PacketReader::new(response.into_body()));
    }
    let reason = response.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    Err(format!("{status} {}", String::from_utf8_lossy(&reason)))
}
