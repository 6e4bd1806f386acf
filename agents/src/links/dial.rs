//! Dialling a parent: both directions of the link, each its own stream.

use millrace_engine::types::{AgentId, Epoch};
use millrace_protocol::proto::link_client::LinkClient;
use millrace_protocol::transport;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Request;
use tonic::transport::Channel;

use super::{AGENT_KEY, DirectionKey, EPOCH_KEY, End, Happening, LinkKey, Settings, read_frames, read_grants, send};

/// Opens the link from `me` to `peer` at `address` for `epoch`; what happens to it comes as events.
pub fn dial(me: AgentId, peer: AgentId, address: String, epoch: Epoch, settings: Settings) {
    tokio::spawn(async move {
        let key = |direction| LinkKey { epoch, peer, direction };
        let broken = |reason: String| send(&settings.events, key(DirectionKey::Down), Happening::Broken(reason));
        let channel = match transport::dial(&address).await {
            Ok(channel) => channel,
            Err(error) => return broken(format!("{peer} at {address} can't be reached: {error}")),
        };
        let down = open_down(me, key(DirectionKey::Down), channel.clone(), settings.clone());
        let up = open_up(me, key(DirectionKey::Up), channel, settings.clone());
        if let Err(status) = tokio::try_join!(down, up) {
            broken(format!("{peer} at {address} refused the link: {}", status.message()));
        }
    });
}

fn client(channel: Channel) -> LinkClient<Channel> {
    LinkClient::new(channel)
        .max_decoding_message_size(transport::MESSAGE_BYTES)
        .max_encoding_message_size(transport::MESSAGE_BYTES)
}

fn request<T>(me: AgentId, key: LinkKey, receiver: mpsc::UnboundedReceiver<T>) -> Request<UnboundedReceiverStream<T>> {
    let mut request = Request::new(UnboundedReceiverStream::new(receiver));
    for (name, text) in [(EPOCH_KEY, key.epoch.to_string()), (AGENT_KEY, me.to_string())] {
        // Digits, letters, dots and dashes are all valid in metadata.
        if let Ok(value) = text.parse() {
            request.metadata_mut().insert(name, value);
        }
    }
    request
}

async fn open_down(me: AgentId, key: LinkKey, channel: Channel, settings: Settings) -> Result<(), tonic::Status> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let frames = client(channel).down(request(me, key, receiver)).await?.into_inner();
    send(&settings.events, key, Happening::Open(End::Grants(sender)));
    tokio::spawn(read_frames(key, frames, settings));
    Ok(())
}

async fn open_up(me: AgentId, key: LinkKey, channel: Channel, settings: Settings) -> Result<(), tonic::Status> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let grants = client(channel).up(request(me, key, receiver)).await?.into_inner();
    send(&settings.events, key, Happening::Open(settings.frames(key, sender)));
    tokio::spawn(read_grants(key, grants, settings.events));
    Ok(())
}
