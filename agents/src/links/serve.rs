//! Accepts links: each only from the agent in the certificate of its connection, and only once.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response, StatusCode};
use millrace_engine::types::AgentId;
use millrace_protocol::packet::{self, AGENT_HEADER, EPOCH_HEADER, PacketReader};
use millrace_protocol::security::{Peer, RejectionLog};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use super::{Direction, LinkKey, LinkSettings, parse_epoch, peer_machine, receive_frames, receive_grants};

/// The service that shards and SwarmX nodes offer to their children.
#[derive(Clone)]
pub struct LinkService {
    settings: LinkSettings,
    open: Arc<Mutex<BTreeSet<LinkKey>>>,
    rejections: Arc<Mutex<RejectionLog>>,
}

/// Removes a link from the open ones when it is dropped.
struct OpenLinkGuard {
    key: LinkKey,
    open: Arc<Mutex<BTreeSet<LinkKey>>>,
}

impl Drop for OpenLinkGuard {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl LinkService {
    pub fn new(settings: LinkSettings) -> Self {
        Self { settings, open: Arc::default(), rejections: Arc::default() }
    }

    /// Opens one direction of a link; returns the response to the child.
    ///
    /// # Errors
    /// The request is invalid, or the peer may not open this link: status and reason.
    fn open(&self, request: Request<Body>) -> Result<Response<Body>, (StatusCode, String)> {
        let peer = request.extensions().get::<Peer>().and_then(|peer| peer.name.agent());
        let text = |key| request.headers().get(key).and_then(|value| value.to_str().ok());
        let direction = match request.uri().path() {
            packet::LINK_DOWN_PATH => Some(Direction::Down),
            packet::LINK_UP_PATH => Some(Direction::Up),
            _ => None,
        };
        let parsed = (text(EPOCH_HEADER).and_then(parse_epoch), text(AGENT_HEADER).and_then(AgentId::parse), direction);
        let (Some(epoch), Some(agent), Some(direction)) = parsed else {
            return Err((StatusCode::BAD_REQUEST, "a link must name its epoch and agent".to_owned()));
        };
        let key = LinkKey { epoch, peer: agent, direction };
        match peer {
            Some(peer) if peer == agent => {}
            Some(peer) => return Err((StatusCode::FORBIDDEN, format!("{peer} requested a link of {agent}"))),
            None => return Err((StatusCode::FORBIDDEN, "the peer is not an agent".to_owned())),
        }
        if !self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(key) {
            return Err((StatusCode::CONFLICT, format!("{agent} has this link of epoch {epoch} already")));
        }
        let mut response = Response::new(self.take(OpenLinkGuard { key, open: self.open.clone() }, request));
        self.settings.add_machine(response.headers_mut());
        Ok(response)
    }

    /// Serves a link. The link counts as open until it ends.
    fn take(&self, opened: OpenLinkGuard, request: Request<Body>) -> Body {
        let (key, settings) = (opened.key, self.settings.clone());
        let (sender, body) = packet::packet_channel();
        let peer_machine = peer_machine(request.headers());
        let incoming = PacketReader::new(request.into_body());
        tokio::spawn(async move {
            match key.direction {
                Direction::Down => receive_grants(key, sender, incoming, peer_machine, settings).await,
                Direction::Up => receive_frames(key, sender, incoming, settings).await,
            }
            drop(opened);
        });
        body
    }

    /// Logs a rejection, unless too many were logged recently.
    fn log_rejection(&self, reason: &str) {
        let message = self.rejections.lock().unwrap_or_else(PoisonError::into_inner).record(Instant::now());
        if message.is_some() {
            tracing::warn!("rejected a link: {reason}");
        }
    }
}

impl NamedService for LinkService {
    const NAME: &'static str = packet::LINK_SERVICE;
}

impl Service<Request<Body>> for LinkService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = self.open(request).unwrap_or_else(|(status, reason)| {
            self.log_rejection(&reason);
            let mut rejection = Response::new(Body::new(reason));
            *rejection.status_mut() = status;
            rejection
        });
        ready(Ok(response))
    }
}
