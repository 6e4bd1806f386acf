//! The data tree's links: one long-lived stream per link and direction.
//!
//! Whoever dials or accepts, an agent sees the same thing: [`LinkEvent`]s on one channel, and for each open link an
//! [`End`] to send into. Events carry the epoch of their link; [`Mailbox`] hands out those of the current epoch, keeps
//! those of a coming one and drops the rest.
//!
//! No peer can make an agent grow: a frame without credit, or a grant of more than a window, ends the link it came on
//! ([`FrameCheck`], [`GrantCheck`]). While [`EVENTS`] events wait for the agent, nothing more is read from the network.

mod dial;
mod mailbox;
mod serve;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_emulator::plan::PlanHash;
use millrace_engine::credit::{FrameCheck, GrantCheck};
use millrace_engine::frame::Frame;
use millrace_engine::slots::Direction;
use millrace_engine::types::{AgentId, Epoch};
use millrace_protocol::codec;
use millrace_protocol::packet::{Incoming, Packet, PacketSender, SendProgress};
use millrace_telemetry::metric_definitions::{Direction as Way, RoleMetrics};
use millrace_telemetry::prometheus::Counter;
use tokio::sync::{mpsc, watch};

use crate::control::job::CompiledJob;

use crate::member::Member;

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
    Frames(PacketSender, Counter),
    /// This agent receives frames and sends grants.
    Grants(PacketSender, Granted),
}

/// Slots granted on a link, as its reader sees them.
pub type Granted = Arc<AtomicU64>;

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

/// Events that may wait for an agent; frames among them are bounded by credits, too.
pub const EVENTS: usize = 1024;

/// Where links put their events.
pub type Events = mpsc::Sender<LinkEvent>;

/// What links know of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkJob {
    /// The plan every frame must be of.
    pub plan: PlanHash,
    /// Slots a receiver lets be in flight to it.
    pub window: u64,
}

impl LinkJob {
    /// Of a compiled job.
    pub fn of(job: &CompiledJob) -> Self {
        Self { plan: job.hash, window: job.window() }
    }
}

/// [`LinkJob`], known once the coordinator has told the job. Links opened before are not read until then.
pub type JobCell = Arc<watch::Sender<Option<LinkJob>>>;

/// What every link of a process shares.
#[derive(Clone)]
pub struct Settings {
    /// Where events go.
    pub events: Events,
    /// The job.
    pub job: JobCell,
    /// Counts bytes.
    pub metrics: RoleMetrics,
    /// Who dials and accepts.
    pub member: Member,
}

impl End {
    /// Sends a frame; one into a closed link is dropped, its `Broken` event is on the way.
    pub fn frame(&self, frame: Packet) {
        if let End::Frames(sender, bytes) = self {
            bytes.add(frame.len() as u64);
            sender.send(frame);
        }
    }

    /// Sends a grant; as for frames.
    pub fn grant(&self, total: u64) {
        if let End::Grants(sender, granted) = self {
            granted.fetch_max(total, Ordering::Relaxed);
            sender.grant(total);
        }
    }
}

/// Takes a direction of a link on which frames come, until it ends.
async fn receive_frames(key: LinkKey, sender: PacketSender, incoming: Incoming, settings: Settings) {
    let granted = Granted::default();
    send(&settings.events, key, Happening::Open(End::Grants(sender, granted.clone()))).await;
    let reason = read_frames(key, incoming, &granted, &settings).await;
    send(&settings.events, key, Happening::Broken(reason)).await;
}

/// Reads frames into events; why it ended.
async fn read_frames(key: LinkKey, mut incoming: Incoming, granted: &Granted, settings: &Settings) -> String {
    let bytes = settings.metrics.bytes(Way::In, &key.peer.to_string());
    let Some(job) = settings.job().await else { return "the agent ends".to_owned() };
    let mut check = FrameCheck::default();
    loop {
        let packet = match incoming.frame().await {
            Ok(Some(packet)) => packet,
            Ok(None) => return "the peer closed the link".to_owned(),
            Err(error) => return error.to_string(),
        };
        bytes.add(packet.len() as u64);
        let frame = match codec::unpack(packet, job.plan) {
            Ok((frame, _)) => frame,
            Err(error) => return error.to_string(),
        };
        if frame.key.epoch != key.epoch {
            return format!("a frame of epoch {} came on a link of epoch {}", frame.key.epoch, key.epoch);
        }
        if let Err(error) = check.frame(&frame.key, granted.load(Ordering::Relaxed)) {
            return error.to_string();
        }
        send(&settings.events, key, Happening::Frame(frame)).await;
    }
}

/// Takes a direction of a link on which grants come, until it ends.
async fn receive_grants(key: LinkKey, sender: PacketSender, incoming: Incoming, settings: Settings) {
    // The link closes when the agent drops its end: nothing here keeps it open.
    let progress = sender.progress();
    let end = End::Frames(sender, settings.metrics.bytes(Way::Out, &key.peer.to_string()));
    send(&settings.events, key, Happening::Open(end)).await;
    let reason = read_grants(key, incoming, &progress, &settings).await;
    send(&settings.events, key, Happening::Broken(reason)).await;
}

/// Reads grants into events; why it ended.
async fn read_grants(key: LinkKey, mut incoming: Incoming, progress: &SendProgress, settings: &Settings) -> String {
    let Some(job) = settings.job().await else { return "the agent ends".to_owned() };
    let mut check = GrantCheck::new(job.window);
    loop {
        let total = match incoming.grant().await {
            Ok(Some(total)) => total,
            Ok(None) => return "the peer closed the link".to_owned(),
            Err(error) => return error.to_string(),
        };
        if let Err(error) = check.grant(total, progress.slots_taken()) {
            return error.to_string();
        }
        send(&settings.events, key, Happening::Grant(total)).await;
    }
}

async fn send(events: &Events, key: LinkKey, what: Happening) {
    let _ = events.send(LinkEvent { key, what }).await;
}

/// `attempt.number` back into an epoch.
fn parse_epoch(text: &str) -> Option<Epoch> {
    let (attempt, number) = text.split_once('.')?;
    Some(Epoch { attempt: attempt.parse().ok()?, number: number.parse().ok()? })
}

impl Settings {
    /// The job, once it is known; `None` when the agent ends before.
    async fn job(&self) -> Option<LinkJob> {
        let mut job = self.job.subscribe();
        job.wait_for(Option::is_some).await.ok().and_then(|job| *job)
    }
}

#[cfg(test)]
mod tests;
