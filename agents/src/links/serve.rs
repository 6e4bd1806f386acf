//! Accepting links.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use millrace_protocol::packet::{self, AGENT_KEY, EPOCH_KEY, Incoming};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use super::{DirectionKey, LinkKey, Settings, parse_agent, parse_epoch, receive_frames, receive_grants};

/// The service that shards and SwarmX nodes offer their children.
#[derive(Clone)]
pub struct LinkService {
    settings: Settings,
}

impl LinkService {
    /// See [`Settings`].
    pub const fn new(settings: Settings) -> Self {
        Self { settings }
    }

    /// Opens one direction of a link: what is sent back to the child. `None` for a request that is none for a link.
    fn open(&self, request: Request<Body>) -> Option<Body> {
        let text = |key| request.headers().get(key).and_then(|value| value.to_str().ok());
        let (epoch, peer) = (parse_epoch(text(EPOCH_KEY)?)?, parse_agent(text(AGENT_KEY)?)?);
        let key = |direction| LinkKey { epoch, peer, direction };
        let (sender, body) = packet::outgoing();
        let (path, settings) = (request.uri().path().to_owned(), self.settings.clone());
        let incoming = Incoming::new(request.into_body());
        match path.as_str() {
            packet::DOWN => drop(tokio::spawn(receive_grants(key(DirectionKey::Down), sender, incoming, settings))),
            packet::UP => drop(tokio::spawn(receive_frames(key(DirectionKey::Up), sender, incoming, settings))),
            _ => return None,
        }
        Some(body)
    }
}

impl NamedService for LinkService {
    const NAME: &'static str = packet::SERVICE;
}

impl Service<Request<Body>> for LinkService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let response = self.open(request).map(Response::new).unwrap_or_else(|| {
            let mut refusal = Response::new(Body::new("a link must name its epoch and agent".to_owned()));
            *refusal.status_mut() = StatusCode::BAD_REQUEST;
            refusal
        });
        ready(Ok(response))
    }
}
