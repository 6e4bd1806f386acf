//! The data tree's links: one long-lived stream per link and direction.
//!
//! Whoever dials or accepts, an agent sees the same thing: [`LinkEvent`]s on one channel, and for each open link an
//! [`End`] to send into. Events carry the epoch of their link; [`Mailbox`] hands out those of the current epoch, keeps
//! those of a coming one and drops the rest. Queues are bounded by the credits the machines grant, not here.

mod dial;
mod mailbox;
mod serve;

use std::sync::{Arc, OnceLock};

use millrace_emulator::plan::PlanHash;
use millrace_engine::course::Direction;
use millrace_engine::frame::Frame;
use millrace_engine::types::{AgentId, Epoch};
use millrace_protocol::codec;
use millrace_protocol::packet::{Incoming, Packet};
use millrace_telemetry::metric_definitions::{Direction as Way, RoleMetrics};
use millrace_telemetry::prometheus::Counter;
use tokio::sync::mpsc;

pub use dial::dial;
pub use mailbox::Mailbox;
pub use serve::LinkService;

/// One direction of the link to one peer in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey {
    /// The epoch it was opened for.
    pub epoch: Epoch,
    /// Who is at the other end.
    pub peer: AgentId,
    /// Weights or gradients.
    pub direction: DirectionKey,
}

/// [`Direction`] with an order, for maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DirectionKey {
    /// Weights.
    Down,
    /// Gradients.
    Up,
}

impl From<Direction> for DirectionKey {
    fn from(direction: Direction) -> Self {
        match direction {
            Direction::Down => Self::Down,
            Direction::Up => Self::Up,
        }
    }
}

/// The end of a link that this agent sends into.
#[derive(Clone)]
pub enum End {
    /// This agent sends frames and receives grants.
    Frames(mpsc::UnboundedSender<Packet>, Counter),
    /// This agent receives frames and sends grants.
    Grants(mpsc::UnboundedSender<Packet>),
}

/// What happens on a link.
#[derive(Clone)]
pub enum Happening {
    /// It is up.
    Open(End),
    /// A frame came, checked.
    Frame(Frame),
    /// A running total of slots was granted.
    Grant(u64),
    /// It is gone.
    Broken(String),
}

/// Something happened on a link.
#[derive(Clone)]
pub struct LinkEvent {
    /// Which link.
    pub key: LinkKey,
    /// What.
    pub what: Happening,
}

/// Where links put their events.
pub type Events = mpsc::UnboundedSender<LinkEvent>;

/// The plan every frame must be of; known once the coordinator has told the job.
pub type PlanCell = Arc<OnceLock<PlanHash>>;

/// What every link of a process shares.
#[derive(Clone)]
pub struct Settings {
    /// Where events go.
    pub events: Events,
    /// The job's plan.
    pub plan: PlanCell,
    /// Counts bytes.
    pub metrics: RoleMetrics,
}

impl End {
    /// Sends a frame; one into a closed link is dropped, its `Broken` event is on the way.
    pub fn frame(&self, frame: Packet) {
        if let End::Frames(sender, bytes) = self {
            bytes.add(frame.len() as u64);
            let _ = sender.send(frame);
        }
    }

    /// Sends a grant; as for frames.
    pub fn grant(&self, total: u64) {
        if let End::Grants(sender) = self {
            let _ = sender.send(Packet::grant(total));
        }
    }
}

/// Reads incoming frames into events until the stream ends.
async fn read_frames(key: LinkKey, mut incoming: Incoming, settings: Settings) {
    let Settings { events, plan, metrics } = settings;
    let bytes = metrics.bytes(Way::In, &key.peer.to_string());
    let reason = loop {
        let packet = match incoming.frame().await {
            Ok(Some(packet)) => packet,
            Ok(None) => break "the peer closed the link".to_owned(),
            Err(error) => break error.to_string(),
        };
        bytes.add(packet.len() as u64);
        // A link is opened for an epoch, an epoch comes after the job: the plan is known by then.
        let Some(&plan) = plan.get() else { break "a frame came before the job".to_owned() };
        match codec::unpack(packet, plan) {
            Ok((frame, _)) => send(&events, key, Happening::Frame(frame)),
            Err(error) => break error.to_string(),
        }
    };
    send(&events, key, Happening::Broken(reason));
}

/// Reads incoming grants into events until the stream ends.
async fn read_grants(key: LinkKey, mut incoming: Incoming, events: Events) {
    let reason = loop {
        match incoming.grant().await {
            Ok(Some(total)) => send(&events, key, Happening::Grant(total)),
            Ok(None) => break "the peer closed the link".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    send(&events, key, Happening::Broken(reason));
}

fn send(events: &Events, key: LinkKey, what: Happening) {
    let _ = events.send(LinkEvent { key, what });
}

/// `attempt.number` back into an epoch.
fn parse_epoch(text: &str) -> Option<Epoch> {
    let (attempt, number) = text.split_once('.')?;
    Some(Epoch { attempt: attempt.parse().ok()?, number: number.parse().ok()? })
}

/// `role-index` back into an agent.
fn parse_agent(text: &str) -> Option<AgentId> {
    let (role, index) = text.rsplit_once('-')?;
    Some(AgentId::new(millrace_engine::types::Role::parse(role)?, index.parse().ok()?))
}

impl Settings {
    fn frames(&self, key: LinkKey, sender: mpsc::UnboundedSender<Packet>) -> End {
        End::Frames(sender, self.metrics.bytes(Way::Out, &key.peer.to_string()))
    }
}
