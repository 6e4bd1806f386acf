//! Accepts authenticated connections.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_stream::Stream as AsyncStream;

use super::admission::{AdmissionPolicy, Rejection};
use super::connection::{AcceptError, HANDSHAKE_TIMEOUT, Protection, Stream, accept};
use super::identity::Identity;
use super::rejections::RejectionLog;

/// Maximum number of handshakes in progress. One more aborts the oldest, so that slow peers do not block others.
pub const MAX_HANDSHAKES: usize = 256;
/// Maximum number of authenticated connections that wait for the server to take them.
const MAX_PENDING_CONNECTIONS: usize = 16;
/// Delay after an error of the listener itself, such as too many open files.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Accepts connections to a port, and returns those that are admitted as a stream. Dropping it closes the port.
#[derive(Debug)]
pub struct AuthenticatedIncoming {
    connections: mpsc::Receiver<io::Result<Stream>>,
    accepting: JoinHandle<()>,
}

impl Drop for AuthenticatedIncoming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl AsyncStream for AuthenticatedIncoming {
    type Item = io::Result<Stream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.poll_recv(cx)
    }
}

/// Accepts connections to `listener` as `identity`. `port` is the port's name in the log. Must be called within a Tokio
/// runtime.
pub fn listen(
    listener: TcpListener,
    port: &'static str,
    identity: Identity,
    admit: AdmissionPolicy,
    protection: Protection,
) -> AuthenticatedIncoming {
    // A receiver keeps the last value when its sender is dropped.
    listen_renewed(listener, port, watch::channel(identity).1, admit, protection)
}

/// Accepts connections like [`listen`], each as the newest `identity`: one that expires is renewed while the port is
/// open.
pub fn listen_renewed(
    listener: TcpListener,
    port: &'static str,
    identity: watch::Receiver<Identity>,
    admit: AdmissionPolicy,
    protection: Protection,
) -> AuthenticatedIncoming {
    let (sender, connections) = mpsc::channel(MAX_PENDING_CONNECTIONS);
    let rejections = Arc::default();
    let gate = Acceptor { port, identity, admit, protection, sender, rejections };
    AuthenticatedIncoming { connections, accepting: tokio::spawn(gate.run(listener)) }
}

/// The state that all handshakes of a port share.
#[derive(Clone)]
struct Acceptor {
    port: &'static str,
    identity: watch::Receiver<Identity>,
    admit: AdmissionPolicy,
    protection: Protection,
    sender: mpsc::Sender<io::Result<Stream>>,
    rejections: Arc<Mutex<RejectionLog>>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener) {
        let mut handshakes = JoinSet::new();
        let mut oldest_first: VecDeque<(SocketAddr, AbortHandle)> = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(_) = handshakes.join_next() => {
                    oldest_first.retain(|(_, handshake)| !handshake.is_finished());
                    continue;
                }
            };
            match accepted {
                Ok((tcp, from)) => {
                    if oldest_first.len() >= MAX_HANDSHAKES
                        && let Some((slow, handshake)) = oldest_first.pop_front()
                    {
                        handshake.abort();
                        self.reject(slow, &Rejection::TooManyHandshakes);
                    }
                    oldest_first.push_back((from, handshakes.spawn(self.clone().handshake(tcp, from))));
                }
                Err(error) => {
                    self.log_limited(|untold| {
                        format!("the {} port can't accept a connection: {error}{untold}", self.port)
                    });
                    tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Performs one handshake and passes the stream to the server.
    async fn handshake(self, tcp: TcpStream, from: SocketAddr) {
        let identity = self.identity.borrow().clone();
        let handshake = accept(tcp, &identity, self.admit, self.protection);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            // The server may have ended already.
            Ok(Ok(stream)) => drop(self.sender.send(Ok(stream)).await),
            Ok(Err(AcceptError::ClosedEarly)) => {
                tracing::debug!(
                    port = self.port,
                    "{from} closed its connection to the {} port during the handshake",
                    self.port
                )
            }
            Ok(Err(AcceptError::Rejected(reason))) => self.reject(from, &reason),
            Err(_) => self.reject(from, &Rejection::TooSlow),
        }
    }

    fn reject(&self, from: SocketAddr, reason: &Rejection) {
        self.log_limited(|untold| {
            format!("rejected a connection from {from} to the {} port: {reason}{untold}", self.port)
        });
    }

    /// Logs a warning, unless the limit of the rejection log is reached.
    fn log_limited(&self, text: impl FnOnce(&str) -> String) {
        match self.rejections.lock().unwrap_or_else(PoisonError::into_inner).record(Instant::now()) {
            None => {}
            Some(0) => tracing::warn!(port = self.port, "{}", text("")),
            Some(untold) => tracing::warn!(port = self.port, "{}", text(&format!(" ({untold} more were not logged)"))),
        }
    }
}
