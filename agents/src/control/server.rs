//! The coordinator's side of the control streams: accepts the streams of agents and sends their messages as events to
//! one channel.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use millrace_emulator::numerics::IsaSet;
use millrace_engine::message::{AgentCommand, AgentReport, ShardState};
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::codec;
use millrace_protocol::proto::{self, from_agent, to_agent};
use millrace_protocol::security::{Peer, RejectionLog};
use millrace_telemetry::stall::StallReason;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::client::MAX_CONTROL_MESSAGE_BYTES;

/// Number of a stream. It distinguishes the end of an old stream from the end of its successor.
pub type StreamNumber = u64;

/// The message with which an agent joins.
#[derive(Debug)]
pub struct JoinedAgent {
    /// The agent, as in its certificate.
    pub agent: AgentId,
    /// Address of its data port; empty for systems.
    pub address: String,
    /// Instruction sets that the agent may use. For an agent that was in the job before, the one to which the job is
    /// pinned.
    pub isas: IsaSet,
    /// State of a shard; `None` for other roles.
    pub shard: Option<ShardState>,
    /// The job that the agent was in before; empty on the first join. The certificate has the job that it belongs to.
    pub uid: String,
    /// Distinguishes the process from others with the same name.
    pub instance: u64,
    /// Sends messages to the agent.
    pub handle: AgentHandle,
}

/// Maximum events of all agents that wait for the coordinator. While they do, nothing more is read from the streams.
const MAX_QUEUED_EVENTS: usize = 1024;
/// Maximum size of the waiting messages in KiB: four of the largest.
const MAX_QUEUED_EVENT_KIB: u32 = 4 * (MAX_CONTROL_MESSAGE_BYTES >> 10) as u32;
/// Maximum commands that wait for an agent: more than a run has in progress. An agent that does not receive them is
/// treated as lost.
const MAX_QUEUED_COMMANDS: usize = 1024;
/// Maximum bytes of an agent's log message; the rest is cut off.
const MAX_LOG_LINE_BYTES: usize = 16 << 10;
/// Maximum fields of an agent's log record; the others are dropped.
const MAX_LOG_FIELDS: usize = 16;
/// Maximum bytes of a field's name and value together; longer fields are dropped.
const LOG_FIELD_BYTES: usize = 1 << 10;

/// Sends messages to one agent. Messages to a broken stream are dropped; [`ControlEvent::Disconnected`] follows.
#[derive(Clone, Debug)]
pub struct AgentHandle {
    messages: mpsc::Sender<Result<proto::ToAgent, Status>>,
    /// Notified to end the stream of an agent that does not receive its messages.
    disconnect: Arc<Notify>,
}

impl AgentHandle {
    fn send(&self, message: Result<proto::ToAgent, Status>) {
        if let Err(TrySendError::Full(_)) = self.messages.try_send(message) {
            self.disconnect.notify_one();
        }
    }

    pub fn send_job(&self, welcome: proto::Welcome) {
        self.send(Ok(proto::ToAgent { message: Some(to_agent::Message::Welcome(welcome)) }));
    }

    pub fn send_command(&self, command: &AgentCommand) {
        let command = codec::encode(command);
        self.send(Ok(proto::ToAgent { message: Some(to_agent::Message::Command(command)) }));
    }

    /// Rejects the process because another one with its name is connected; it may try again.
    pub fn reject_duplicate(&self, reason: &str) {
        self.send(Err(Status::already_exists(reason)));
    }

    /// Rejects the agent with a reason; the agent does not try again.
    pub fn reject(&self, reason: &str) {
        self.send(Err(Status::failed_precondition(reason)));
    }
}

/// Messages and states of the agents' streams.
#[derive(Debug)]
pub enum ControlEvent {
    /// An agent requests to join.
    Hello(StreamNumber, Box<JoinedAgent>),
    /// An agent sent a report.
    Report(AgentId, StreamNumber, AgentReport),
    /// A log record of an agent.
    Log(AgentId, proto::Log),
    /// The usage of an agent so far.
    Usage(AgentId, proto::Usage),
    /// A shard was asked to leave. It stays until it receives `Finish`.
    LeaveRequest(AgentId, StreamNumber),
    /// The stream of an agent ended.
    Disconnected(AgentId, StreamNumber),
}

/// An event that waits, with its share of the capacity.
type QueuedEvent = (ControlEvent, OwnedSemaphorePermit);

/// Receives events of all agents.
#[derive(Debug)]
pub struct ControlEvents {
    queue: mpsc::Receiver<QueuedEvent>,
    /// Events that [`ControlEvents::peek`] has returned, in order.
    peeked: VecDeque<QueuedEvent>,
}

impl ControlEvents {
    /// Returns the next event; `None` after all senders were dropped. Cancel safe.
    pub async fn recv(&mut self) -> Option<ControlEvent> {
        let next = match self.peeked.pop_front() {
            Some(peeked) => Some(peeked),
            None => self.queue.recv().await,
        };
        next.map(|(event, _room)| event)
    }

    /// Waits for the next event that was not peeked at yet, and leaves it to [`ControlEvents::recv`]. `None` after all
    /// senders were dropped. Cancel safe. Peeked events still count against the capacity.
    pub async fn peek(&mut self) -> Option<&ControlEvent> {
        let next = self.queue.recv().await?;
        self.peeked.push_back(next);
        self.peeked.back().map(|(event, _room)| event)
    }
}

/// Sends events. The waiting events are bounded in number and bytes, so streams are read only as fast as the
/// coordinator handles their events.
#[derive(Clone, Debug)]
struct EventSender {
    queue: mpsc::Sender<QueuedEvent>,
    permits: Arc<Semaphore>,
}

impl EventSender {
    /// Waits for capacity for an event of `bytes` bytes. Returns false if the coordinator has dropped the receiver.
    async fn send(&self, event: ControlEvent, bytes: usize) -> bool {
        let kib = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1).min(MAX_QUEUED_EVENT_KIB);
        let Ok(permits) = self.permits.clone().acquire_many_owned(kib).await else { return false };
        self.queue.send((event, permits)).await.is_ok()
    }
}

#[derive(Clone, Debug)]
pub struct ControlService {
    events: EventSender,
    streams: Arc<AtomicU64>,
    rejections: Arc<Mutex<RejectionLog>>,
}

impl ControlService {
    /// Creates the service, and the receiver of its events.
    pub fn new() -> (Self, ControlEvents) {
        let (queue, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let events_in = EventSender { queue, permits: Arc::new(Semaphore::new(MAX_QUEUED_EVENT_KIB as usize)) };
        let (streams, rejections) = (Arc::default(), Arc::default());
        (Self { events: events_in, streams, rejections }, ControlEvents { queue: events, peeked: VecDeque::new() })
    }

    /// Checks that the hello is from the agent that the connection's certificate names.
    fn check_name(&self, hello: &JoinedAgent, certified: Option<AgentId>) -> Result<(), Status> {
        if certified == Some(hello.agent) {
            return Ok(());
        }
        let certified = certified.map_or_else(|| "no agent".to_owned(), |agent| agent.to_string());
        let reason = format!("its certificate is for {certified}, but it identifies itself as {}", hello.agent);
        if self.rejections.lock().unwrap_or_else(PoisonError::into_inner).record(Instant::now()).is_some() {
            tracing::warn!(peer = %hello.agent, "rejected an agent: {reason}");
        }
        Err(Status::permission_denied(reason))
    }
}

#[tonic::async_trait]
impl proto::control_server::Control for ControlService {
    type JoinStream = Pin<Box<dyn Stream<Item = Result<proto::ToAgent, Status>> + Send>>;

    async fn join(&self, request: Request<Streaming<proto::FromAgent>>) -> Result<Response<Self::JoinStream>, Status> {
        let certified = request.extensions().get::<Peer>().and_then(|peer| peer.name.agent());
        let mut stream = request.into_inner();
        let first = stream.next().await.transpose()?.and_then(|message| message.message);
        let Some(from_agent::Message::Hello(hello)) = first else {
            return Err(Status::invalid_argument("the first message must be a hello"));
        };
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        let (messages, receiver) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let disconnect = Arc::new(Notify::new());
        let bytes = hello.address.len() + hello.uid.len();
        let hello = read_hello(hello, AgentHandle { messages, disconnect: disconnect.clone() })?;
        self.check_name(&hello, certified)?;
        let agent = hello.agent;
        self.events.send(ControlEvent::Hello(number, Box::new(hello)), bytes).await;
        tokio::spawn(listen(agent, number, stream, self.events.clone(), disconnect));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

fn read_hello(hello: proto::Hello, handle: AgentHandle) -> Result<JoinedAgent, Status> {
    let role = Role::from_name(&hello.role).filter(|role| *role != Role::Coordinator);
    // Sets that this build does not know can't be chosen.
    let isas: IsaSet = hello.instruction_sets.iter().filter_map(|name| name.parse().ok()).collect();
    let shard = hello.shard.as_deref().map(codec::decode).transpose();
    let (Some(role), Some(_), Ok(shard)) = (role, isas.preferred(), shard) else {
        return Err(Status::invalid_argument("the hello can't be read; run the same build on every agent"));
    };
    let agent = AgentId::new(role, hello.index);
    Ok(JoinedAgent { agent, address: hello.address, isas, shard, uid: hello.uid, instance: hello.instance, handle })
}

/// Sends the messages of an agent as events, until its stream ends or the agent does not receive its commands.
async fn listen(
    agent: AgentId,
    number: StreamNumber,
    mut stream: Streaming<proto::FromAgent>,
    events: EventSender,
    disconnect: Arc<Notify>,
) {
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            () = disconnect.notified() => {
                tracing::warn!(
                    peer = %agent,
                    "{agent} counts as lost: it reads no commands; {MAX_QUEUED_COMMANDS} are queued"
                );
                break;
            }
        };
        let Ok(Some(proto::FromAgent { message: Some(message) })) = message else { break };
        let bytes = message.encoded_len();
        let event = match message {
            from_agent::Message::Report(report) => match codec::decode(&report) {
                Ok(report) => ControlEvent::Report(agent, number, report),
                Err(error) => {
                    tracing::warn!(peer = %agent, "{agent} counts as lost: {error}");
                    break;
                }
            },
            from_agent::Message::Log(log) => ControlEvent::Log(agent, truncate_log(log)),
            from_agent::Message::Usage(usage) => ControlEvent::Usage(agent, drop_unknown_stalls(usage)),
            from_agent::Message::LeaveRequest(_) => ControlEvent::LeaveRequest(agent, number),
            from_agent::Message::Disconnect(_) | from_agent::Message::Hello(_) => break,
        };
        if !events.send(event, bytes).await {
            return;
        }
    }
    events.send(ControlEvent::Disconnected(agent, number), 0).await;
}

/// Truncates the message to [`MAX_LOG_LINE_BYTES`] and drops fields that are too long or beyond [`MAX_LOG_FIELDS`].
fn truncate_log(mut log: proto::Log) -> proto::Log {
    let mut count = 0;
    log.fields.retain(|name, value| {
        let keep = count < MAX_LOG_FIELDS && name.len() + value.len() <= LOG_FIELD_BYTES;
        count += usize::from(keep);
        keep
    });
    let end = log.message.floor_char_boundary(MAX_LOG_LINE_BYTES);
    log.message.truncate(end);
    log
}

/// Drops the stall reasons that this build does not know.
fn drop_unknown_stalls(mut usage: proto::Usage) -> proto::Usage {
    usage.stall_seconds.retain(|name, _| StallReason::ALL.iter().any(|reason| reason.as_str() == name));
    usage
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;

    use super::*;

    const AGENT: AgentId = AgentId::new(Role::Cs2, 0);

    /// Returns whether `future` completes without waiting.
    async fn is_ready(future: impl Future) -> bool {
        let mut future = pin!(future);
        tokio::select! {
            biased;
            _ = &mut future => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn streams_are_not_read_while_too_many_events_or_bytes_wait() {
        for (bytes, max_queued) in [(100, MAX_QUEUED_EVENTS), (MAX_CONTROL_MESSAGE_BYTES - 1, 4)] {
            let (service, mut events) = ControlService::new();
            let say = || service.events.send(ControlEvent::Disconnected(AGENT, 0), bytes);
            for _ in 0..max_queued {
                assert!(is_ready(say()).await);
            }
            assert!(!is_ready(say()).await);
            events.recv().await.unwrap();
            assert!(is_ready(say()).await && !is_ready(say()).await);
        }
    }

    #[tokio::test]
    async fn agent_that_reads_no_commands_is_disconnected() {
        let (messages, _waiting) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let handle = AgentHandle { messages, disconnect: Arc::new(Notify::new()) };
        (0..MAX_QUEUED_COMMANDS).for_each(|_| handle.send_command(&AgentCommand::Finish));
        assert!(!is_ready(handle.disconnect.notified()).await);
        handle.send_command(&AgentCommand::Finish);
        assert!(is_ready(handle.disconnect.notified()).await);
    }

    #[test]
    fn lines_of_logs_are_cut_and_unknown_waits_left_out() {
        let log = proto::Log { message: "\u{e9}".repeat(MAX_LOG_LINE_BYTES), ..proto::Log::default() };
        assert_eq!(truncate_log(log).message.len(), MAX_LOG_LINE_BYTES);
        let field = |number: usize, bytes| (format!("field-{number}"), "a".repeat(bytes));
        let fields = (0..=MAX_LOG_FIELDS).map(|number| field(number, 1)).collect();
        assert_eq!(truncate_log(proto::Log { fields, ..proto::Log::default() }).fields.len(), MAX_LOG_FIELDS);
        let fields = [field(0, LOG_FIELD_BYTES), field(1, 1)].into();
        assert_eq!(truncate_log(proto::Log { fields, ..proto::Log::default() }).fields, [field(1, 1)].into());
        let stall_seconds = ["credit", "nonsense"].map(|name| (name.to_owned(), 1.0)).into();
        let usage = drop_unknown_stalls(proto::Usage { stall_seconds, ..proto::Usage::default() });
        assert_eq!(usage.stall_seconds.len(), 1);
    }
}
