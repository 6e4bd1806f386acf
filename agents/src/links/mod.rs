//! The links of the data tree: one long-lived stream per link and direction.
//!
//! An agent handles links that it dials and links that it accepts in the same way: it receives [`LinkEvent`]s on one
//! channel, and for each open link an [`LinkSender`] to send into. Events have the epoch of their link.
//! [`LinkEventQueue`] delivers those of the current epoch, stores those of later epochs and drops the others.
//!
//! * A peer can't make an agent use unbounded memory: a frame without credit, or a grant of more than a window, closes
//!   its link ([`FrameCheck`], [`GrantCheck`]).
//! * While [`MAX_QUEUED_LINK_EVENTS`] events wait for the agent, nothing more is read from the network.
//! * Between agents of one machine, a frame has the location of its payload in shared memory instead of the payload, if
//!   the receiver accepts that ([`SHARED_MEMORY_HEADER`](millrace_protocol::packet::SHARED_MEMORY_HEADER)) and the
//!   payload is there.

mod dial;
mod mailbox;
mod serve;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue};
use millrace_emulator::plan::PlanHash;
use millrace_engine::credit::{FrameCheck, GrantCheck};
use millrace_engine::frame::Frame;
use millrace_engine::slots::Direction;
use millrace_engine::types::{AgentId, Epoch};
use millrace_protocol::codec::{self, CodecError, HEADER_BYTES, LinkContext};
use millrace_protocol::packet::{Packet, PacketReader, PacketSender, SHARED_MEMORY_HEADER, SendProgress};
use millrace_shared_memory::{MachineId, ReceiveError, SharedMemory};
use millrace_telemetry::metric_definitions::{ByteDirection as Way, RoleMetrics};
use millrace_telemetry::prometheus::Counter;
use tokio::sync::{mpsc, watch};

use crate::control::job::CompiledJob;

use crate::member::Member;

pub use dial::dial;
pub use mailbox::LinkEventQueue;
pub use serve::LinkService;

/// One direction of the link to one peer in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey {
    /// The epoch for which the link was opened.
    pub epoch: Epoch,
    /// The agent at the other end.
    pub peer: AgentId,
    /// Weights or gradients.
    pub direction: Direction,
}

/// The end of a link that this agent sends into.
#[derive(Clone)]
pub enum LinkSender {
    /// The agent sends frames and receives grants.
    Frames(FrameSender),
    /// The agent receives frames and sends grants.
    Grants(PacketSender, GrantedSlots),
}

/// Sends frames on one link.
#[derive(Clone)]
pub struct FrameSender {
    packets: PacketSender,
    bytes: Counter,
    /// Shared memory from which the peer reads payloads; `None` if it does not.
    memory: Option<SharedMemory>,
}

/// The running total of slots granted on a link, shared with the task that reads the link.
pub type GrantedSlots = Arc<AtomicU64>;

#[derive(Clone)]
pub enum LinkEventKind {
    Open(LinkSender),
    /// A checked frame arrived.
    Frame(Frame),
    /// The peer granted slots; the value is the running total.
    Grant(u64),
    /// The link has ended, for this reason.
    Broken(String),
}

#[derive(Clone)]
pub struct LinkEvent {
    pub key: LinkKey,
    pub kind: LinkEventKind,
}

/// Maximum events that wait for an agent. Frames among them are also bounded by credits.
pub const MAX_QUEUED_LINK_EVENTS: usize = 1024;

/// Sends events of links to the agent.
pub type LinkEventSender = mpsc::Sender<LinkEvent>;

/// The values of the job that links need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkJob {
    /// Hash of the plan that every frame must have.
    pub plan: PlanHash,
    /// Slots that a receiver allows in flight to it.
    pub window: u64,
}

impl LinkJob {
    /// Returns the values of a compiled job.
    pub fn of(job: &CompiledJob) -> Self {
        Self { plan: job.hash, window: job.window() }
    }
}

/// [`LinkJob`], set when the coordinator has sent the job. Links that are opened earlier are not read until then.
pub type LinkJobWatch = Arc<watch::Sender<Option<LinkJob>>>;

/// State that all links of a process share.
#[derive(Clone)]
pub struct LinkSettings {
    /// Receives the events of all links.
    pub events: LinkEventSender,
    /// The job, once it is known.
    pub job: LinkJobWatch,
    /// Counts bytes.
    pub metrics: RoleMetrics,
    /// Dials and accepts connections.
    pub member: Member,
    /// Memory for payloads that other agents of this machine read.
    pub memory: SharedMemory,
}

/// A frame can't be used. The link over which it arrived ends.
#[derive(Debug, thiserror::Error)]
enum FrameError {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Memory(#[from] ReceiveError),
}

impl LinkSender {
    /// Sends a frame. A frame for a closed link is dropped; the `Broken` event of the link follows.
    pub fn frame(&self, frame: Frame, context: LinkContext) {
        if let LinkSender::Frames(FrameSender { packets, bytes, memory }) = self {
            bytes.add((HEADER_BYTES + frame.payload.bytes().len()) as u64);
            let location = memory.as_ref().and_then(|memory| memory.share(frame.payload.bytes()));
            packets.send(match location {
                Some(location) => codec::pack_location(&frame, context, location),
                None => codec::pack(frame, context),
            });
        }
    }

    /// Sends a running total of grants. For closed links as in [`LinkSender::frame`].
    pub fn grant(&self, total: u64) {
        if let LinkSender::Grants(sender, granted) = self {
            granted.fetch_max(total, Ordering::Relaxed);
            sender.grant(total);
        }
    }
}

/// Handles a direction in which frames arrive, until it ends.
async fn receive_frames(key: LinkKey, sender: PacketSender, incoming: PacketReader, settings: LinkSettings) {
    let granted = GrantedSlots::default();
    send(&settings.events, key, LinkEventKind::Open(LinkSender::Grants(sender, granted.clone()))).await;
    let reason = read_frames(key, incoming, &granted, &settings).await;
    send(&settings.events, key, LinkEventKind::Broken(reason)).await;
}

/// Sends arriving frames as events; returns the reason for the end.
async fn read_frames(
    key: LinkKey,
    mut incoming: PacketReader,
    granted: &GrantedSlots,
    settings: &LinkSettings,
) -> String {
    let bytes = settings.metrics.bytes(Way::In, &key.peer.to_string());
    let Some(job) = settings.job().await else { return "the agent is shutting down".to_owned() };
    let mut check = FrameCheck::default();
    loop {
        let packet = match incoming.frame().await {
            Ok(Some(packet)) => packet,
            Ok(None) => return "the peer closed the link".to_owned(),
            Err(error) => return error.to_string(),
        };
        let frame = match settings.unpack(packet, job.plan, &bytes) {
            Ok(frame) => frame,
            Err(error) => return error.to_string(),
        };
        if frame.key.epoch != key.epoch {
            return format!("received a frame of epoch {} on a link of epoch {}", frame.key.epoch, key.epoch);
        }
        if let Err(error) = check.frame(&frame.key, granted.load(Ordering::Relaxed)) {
            return error.to_string();
        }
        send(&settings.events, key, LinkEventKind::Frame(frame)).await;
    }
}

/// Handles a direction in which grants arrive, until it ends.
///
/// `peer_machine` is the machine on which the peer reads payloads from shared memory, if it does.
async fn receive_grants(
    key: LinkKey,
    packets: PacketSender,
    incoming: PacketReader,
    peer_machine: Option<MachineId>,
    settings: LinkSettings,
) {
    // The link closes when the agent drops its end: this task holds only the progress, not the sender.
    let progress = packets.progress();
    let bytes = settings.metrics.bytes(Way::Out, &key.peer.to_string());
    let is_on_this_machine = peer_machine.is_some() && peer_machine == settings.memory.machine();
    let memory = is_on_this_machine.then(|| settings.memory.clone());
    let end = LinkSender::Frames(FrameSender { packets, bytes, memory });
    send(&settings.events, key, LinkEventKind::Open(end)).await;
    let reason = read_grants(key, incoming, &progress, &settings).await;
    send(&settings.events, key, LinkEventKind::Broken(reason)).await;
}

/// Sends arriving grants as events; returns the reason for the end.
async fn read_grants(
    key: LinkKey,
    mut incoming: PacketReader,
    progress: &SendProgress,
    settings: &LinkSettings,
) -> String {
    let Some(job) = settings.job().await else { return "the agent is shutting down".to_owned() };
    let mut check = GrantCheck::new(job.window);
    loop {
        let total = match incoming.grant().await {
            Ok(Some(total)) => total,
            Ok(None) => return "the peer closed the link".to_owned(),
            Err(error) => return error.to_string(),
        };
        if let Err(error) = check.grant(total, progress.slots_sent()) {
            return error.to_string();
        }
        send(&settings.events, key, LinkEventKind::Grant(total)).await;
    }
}

async fn send(events: &LinkEventSender, key: LinkKey, event: LinkEventKind) {
    let _ = events.send(LinkEvent { key, kind: event }).await;
}

/// Parses an epoch written as `attempt.number`.
fn parse_epoch(text: &str) -> Option<Epoch> {
    let (attempt, number) = text.split_once('.')?;
    Some(Epoch { attempt: attempt.parse().ok()?, number: number.parse().ok()? })
}

/// Reads the machine of a peer from the headers of its request or response.
fn peer_machine(headers: &HeaderMap) -> Option<MachineId> {
    MachineId::parse(headers.get(SHARED_MEMORY_HEADER)?.to_str().ok()?)
}

impl LinkSettings {
    /// Adds the header by which this agent accepts locations, if it does.
    fn add_machine(&self, headers: &mut HeaderMap) {
        let machine = self.memory.machine().and_then(|machine| HeaderValue::try_from(machine.to_string()).ok());
        if let Some(machine) = machine {
            headers.insert(SHARED_MEMORY_HEADER, machine);
        }
    }

    /// Checks a packet of a link, with its payload in shared memory if it has only the location, and counts its bytes.
    fn unpack(&self, packet: Packet, plan: PlanHash, bytes: &Counter) -> Result<Frame, FrameError> {
        let (frame, _) = match packet.location()? {
            Some(location) => codec::unpack_located(&packet.head, self.memory.receive(&location)?, plan)?,
            None => codec::unpack(packet, plan)?,
        };
        bytes.add((HEADER_BYTES + frame.payload.bytes().len()) as u64);
        Ok(frame)
    }

    /// Waits for the job; returns `None` if the agent ends before the job is known.
    async fn job(&self) -> Option<LinkJob> {
        let mut job = self.job.subscribe();
        job.wait_for(Option::is_some).await.ok().and_then(|job| *job)
    }
}

#[cfg(test)]
mod tests;
