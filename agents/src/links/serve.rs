//! Accepting links.

use std::pin::Pin;

use millrace_protocol::proto;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::{
    AGENT_KEY, DirectionKey, EPOCH_KEY, End, Happening, LinkKey, Settings, parse_agent, parse_epoch, read_frames,
    read_grants, send,
};

/// The `Link` service of shards and SwarmX nodes.
#[derive(Clone)]
pub struct LinkService {
    settings: Settings,
}

impl LinkService {
    /// See [`Settings`].
    pub const fn new(settings: Settings) -> Self {
        Self { settings }
    }

    fn key<T>(request: &Request<T>, direction: DirectionKey) -> Result<LinkKey, Status> {
        let text = |key| request.metadata().get(key).and_then(|value| value.to_str().ok());
        let epoch = text(EPOCH_KEY).and_then(parse_epoch);
        let peer = text(AGENT_KEY).and_then(parse_agent);
        let (Some(epoch), Some(peer)) = (epoch, peer) else {
            return Err(Status::invalid_argument("a link must name its epoch and agent"));
        };
        Ok(LinkKey { epoch, peer, direction })
    }
}

type Outgoing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn outgoing<T: Send + 'static>(receiver: mpsc::UnboundedReceiver<T>) -> Response<Outgoing<T>> {
    Response::new(Box::pin(UnboundedReceiverStream::new(receiver).map(Ok)))
}

#[tonic::async_trait]
impl proto::link_server::Link for LinkService {
    type DownStream = Outgoing<proto::Frame>;
    type UpStream = Outgoing<proto::Grant>;

    async fn down(
        &self,
        request: Request<tonic::Streaming<proto::Grant>>,
    ) -> Result<Response<Self::DownStream>, Status> {
        let key = Self::key(&request, DirectionKey::Down)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        send(&self.settings.events, key, Happening::Open(self.settings.frames(key, sender)));
        tokio::spawn(read_grants(key, request.into_inner(), self.settings.events.clone()));
        Ok(outgoing(receiver))
    }

    async fn up(&self, request: Request<tonic::Streaming<proto::Frame>>) -> Result<Response<Self::UpStream>, Status> {
        let key = Self::key(&request, DirectionKey::Up)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        send(&self.settings.events, key, Happening::Open(End::Grants(sender)));
        tokio::spawn(read_frames(key, request.into_inner(), self.settings.clone()));
        Ok(outgoing(receiver))
    }
}
