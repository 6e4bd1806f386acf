//! A TCP proxy that stands between two agents and fails on request.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Maximum bytes that the proxy forwards at a time.
const MAX_FORWARDED_BYTES: usize = 64 << 10;

/// A direction of the proxy's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToTarget,
    FromTarget,
}

/// What the proxy does with its connections.
#[derive(Clone, Copy, Debug, Default)]
struct Behavior {
    /// Connections that were open when this number rose are closed.
    cuts: u64,
    /// Whether nothing is forwarded, by direction. Connections stay open.
    is_blocked: [bool; 2],
    /// Delay of each forwarded part.
    delay: Duration,
    /// Raised by each request to corrupt a part, or to send one twice. Each direction of a connection does so once.
    corruptions: u64,
    repetitions: u64,
}

/// A proxy, which forwards connections until it is dropped.
pub struct Proxy {
    /// The address at which it accepts connections.
    pub address: String,
    behavior: watch::Sender<Behavior>,
}

impl Proxy {
    /// Creates a proxy in front of `target`, which need not listen yet.
    pub async fn start(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (behavior, received) = watch::channel(Behavior::default());
        tokio::spawn(accept(listener, target, received));
        Self { address, behavior }
    }

    /// Closes all connections.
    pub fn cut(&self) {
        self.behavior.send_modify(|behavior| behavior.cuts += 1);
    }

    /// Forwards nothing in these directions, until [`Proxy::heal`].
    pub fn block(&self, directions: &[Direction]) {
        self.behavior.send_modify(|behavior| {
            directions.iter().for_each(|direction| behavior.is_blocked[*direction as usize] = true);
        });
    }

    /// Delays every part of the data, until [`Proxy::heal`].
    pub fn delay(&self, delay: Duration) {
        self.behavior.send_modify(|behavior| behavior.delay = delay);
    }

    /// Changes a byte of the next part of each connection and direction.
    pub fn corrupt(&self) {
        self.behavior.send_modify(|behavior| behavior.corruptions += 1);
    }

    /// Sends the next part of each connection and direction twice.
    pub fn repeat(&self) {
        self.behavior.send_modify(|behavior| behavior.repetitions += 1);
    }

    /// Forwards everything at once again.
    pub fn heal(&self) {
        self.behavior.send_modify(|behavior| (behavior.is_blocked, behavior.delay) = Default::default());
    }
}

async fn accept(listener: TcpListener, target: String, behavior: watch::Receiver<Behavior>) {
    let mut dropped = behavior.clone();
    loop {
        tokio::select! {
            Ok((client, _)) = listener.accept() => {
                tokio::spawn(forward(client, target.clone(), behavior.clone()));
            }
            // The proxy was dropped.
            () = async { while dropped.changed().await.is_ok() {} } => return,
        }
    }
}

/// Forwards a connection until one end closes it, or the proxy does.
async fn forward(client: TcpStream, target: String, behavior: watch::Receiver<Behavior>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let cuts = behavior.borrow().cuts;
    let mut cut = behavior.clone();
    let ((client_reader, client_writer), (server_reader, server_writer)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = pump(client_reader, server_writer, Direction::ToTarget, behavior.clone()) => {}
        () = pump(server_reader, client_writer, Direction::FromTarget, behavior) => {}
        _ = cut.wait_for(|behavior| behavior.cuts != cuts) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut behavior: watch::Receiver<Behavior>,
) {
    let Behavior { mut corruptions, mut repetitions, .. } = *behavior.borrow();
    let mut part = vec![0; MAX_FORWARDED_BYTES];
    while let Ok(length @ 1..) = from.read(&mut part).await {
        let waited = behavior.wait_for(|behavior| !behavior.is_blocked[direction as usize]).await;
        let Ok(now) = waited.map(|behavior| *behavior) else { return };
        tokio::time::sleep(now.delay).await;
        if std::mem::replace(&mut corruptions, now.corruptions) != now.corruptions {
            part[length / 2] ^= 1;
        }
        let times = if std::mem::replace(&mut repetitions, now.repetitions) != now.repetitions { 2 } else { 1 };
        for _ in 0..times {
            if to.write_all(&part[..length]).await.is_err() {
                return;
            }
        }
    }
}
