//! The agent's side of the control stream: joins the coordinator, receives commands, sends reports, and joins again
//! when the coordinator is lost.
//!
//! A coordinator may end, and another one may start at the same address; the job then continues from the parameters in
//! the MemoryX shards. An agent that has lost its coordinator keeps its data, abandons its epoch, and tries to join
//! again at the same address. The name in the address is resolved for each try. The agent gives up after
//! [`JOIN_TIMEOUT`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_emulator::numerics::{Isa, IsaSet};
use millrace_engine::message::{AgentCommand, AgentReport, ShardState};
use millrace_engine::types::{AgentId, ComputeWork};
use millrace_protocol::proto::{self, control_client::ControlClient, from_agent, to_agent};
use millrace_protocol::{codec, error_chain};
use millrace_telemetry::logs::{LogRecord, Logger};
use millrace_telemetry::memory::ProcessMemory;
use millrace_telemetry::metric_definitions::{ByteDirection as Way, RoleMetrics};
use millrace_telemetry::stall::{StallClock, StallReason};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::job::{CompiledJob, JobDocument};
use super::spans::AgentSpans;
use crate::error::AgentError;
use crate::member::Member;

/// How long an agent tries to reach a coordinator: long enough for one whose image is still being pulled.
const JOIN_TIMEOUT: Duration = Duration::from_secs(600);
/// Delay after the first failed try; doubled for each further one, up to [`MAX_JOIN_BACKOFF`].
const INITIAL_JOIN_BACKOFF: Duration = Duration::from_millis(100);
/// Maximum delay between two tries.
const MAX_JOIN_BACKOFF: Duration = Duration::from_secs(2);

/// How long an agent retries while another process has its name. The stream of a process that died unnoticed ends after
/// half of this time.
const NAME_CONFLICT_TIMEOUT: Duration = Duration::from_secs(60);

/// The properties that an agent sends when it joins.
#[derive(Clone, Debug)]
pub struct AgentInfo {
    /// The name of the agent.
    pub me: AgentId,
    /// Address at which other agents dial its data port; empty for systems.
    pub address: String,
    /// Instruction sets that the agent may use. After the first join, the one to which the job is pinned.
    pub isas: IsaSet,
    /// State of a shard; `None` for other roles.
    pub shard: Option<ShardState>,
    /// The job that the agent belongs to; empty before the first join.
    pub uid: String,
}

/// Maximum messages that wait for the coordinator. A run has only a few at a time. Log records, whose number is not
/// bounded, may use half of the capacity and are dropped beyond it.
const MAX_QUEUED_MESSAGES: usize = 8192;

/// Sends messages to the coordinator. Clones share the stream, and switch together to the stream of the next
/// coordinator. Messages to a broken stream are dropped; [`ControlSession::next`] reports the break. A message is also
/// dropped if [`MAX_QUEUED_MESSAGES`] wait.
#[derive(Clone, Debug)]
pub struct MessageSender {
    messages: Arc<Mutex<mpsc::Sender<proto::FromAgent>>>,
    spans: AgentSpans,
}

impl MessageSender {
    /// Creates a sender, and the receiver of its messages.
    fn new() -> (Self, mpsc::Receiver<proto::FromAgent>) {
        let (sender, messages) = mpsc::channel(MAX_QUEUED_MESSAGES);
        (Self { messages: Arc::new(Mutex::new(sender)), spans: AgentSpans::default() }, messages)
    }

    /// Switches to a new stream and returns its receiver.
    fn replace_stream(&self) -> mpsc::Receiver<proto::FromAgent> {
        let (sender, messages) = mpsc::channel(MAX_QUEUED_MESSAGES);
        *self.messages.lock().unwrap_or_else(PoisonError::into_inner) = sender;
        messages
    }

    fn send(&self, message: from_agent::Message) {
        let sender = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(message, from_agent::Message::Log(_)) && sender.capacity() <= MAX_QUEUED_MESSAGES / 2 {
            return;
        }
        let sent = sender.try_send(proto::FromAgent { message: Some(message) });
        // The logger forwards to this sender.
        drop(sender);
        if let Err(TrySendError::Full(_)) = sent {
            tracing::error!("the queue of messages to the coordinator is full: a message was dropped");
        }
    }

    pub fn send_report(&self, report: &AgentReport) {
        self.spans.on_report(report);
        self.send(from_agent::Message::Report(codec::encode(report)));
    }

    /// Sends a log record, or drops it if half of the capacity is used.
    pub fn send_log(&self, record: &LogRecord) {
        let log = proto::Log {
            time_ms: record.unix_ms,
            level: record.level.as_str().to_owned(),
            message: record.message.clone(),
            fields: record.fields.clone().into_iter().collect(),
        };
        self.send(from_agent::Message::Log(log));
    }

    /// Announces that this shard was asked to leave.
    pub fn send_leave_request(&self) {
        self.send(from_agent::Message::LeaveRequest(proto::LeaveRequest {}));
    }

    /// Sends the usage of this process so far.
    fn send_usage(&self, metrics: &RoleMetrics, usage: ComputeUsage) {
        let mut stalls = metrics.stall().totals();
        stalls[StallReason::Commit] -= usage.idle_at_end;
        let memory = ProcessMemory::now();
        self.send(from_agent::Message::Usage(proto::Usage {
            stall_seconds: stalls.iter().map(|(reason, seconds)| (reason.as_str().to_owned(), seconds)).collect(),
            bytes_in: metrics.total_bytes(Way::In),
            bytes_out: metrics.total_bytes(Way::Out),
            rss_bytes: memory.map_or(0, |memory| memory.resident),
            peak_rss_bytes: memory.map_or(0, |memory| memory.peak),
            busy_seconds: usage.computed.seconds,
            flops: usage.computed.flops,
        }));
    }
}

/// The amount of computation done.
#[derive(Clone, Copy, Debug, Default)]
pub struct ComputeUsage {
    pub computed: ComputeWork,
    /// Seconds of waiting after the last iteration; not counted as stall time.
    pub idle_at_end: f64,
}

#[derive(Debug)]
pub enum SessionEvent {
    /// A command of the coordinator.
    Command(AgentCommand),
    /// The coordinator is lost; [`ControlSession::rejoin`] joins the next one.
    Lost,
    /// SIGTERM: the process is asked to end.
    Leave,
}

/// The membership of an agent in a job.
#[derive(Debug)]
pub struct ControlSession {
    /// The job, compiled by this agent.
    pub job: CompiledJob,
    /// Sends messages to the coordinator.
    pub outbox: MessageSender,
    /// The agent's trace spans.
    pub spans: AgentSpans,
    connector: ControlConnector,
    stream: Streaming<proto::ToAgent>,
}

/// An agent that has failed or left does nothing more that a span could describe.
impl Drop for ControlSession {
    fn drop(&mut self) {
        self.spans.end();
    }
}

impl ControlSession {
    /// Joins the coordinator at `address`: waits until it is reachable, and then for the job, which it sends when the
    /// instruction sets of all agents are known. `stall` measures the agent's waits, `terminate` receives SIGTERM.
    ///
    /// # Errors
    /// The coordinator can't be reached in time, rejects this agent, or has another plan; the process received SIGTERM.
    pub async fn join(
        address: &str,
        member: Member,
        introduction: AgentInfo,
        logger: &Logger,
        stall: StallClock,
        terminate: Signal,
    ) -> Result<Self, AgentError> {
        let (mut outbox, messages) = MessageSender::new();
        let mut connector = ControlConnector { address: address.to_owned(), member, introduction, terminate };
        let (welcome, stream) = connector.join(&outbox, messages).await?;
        // Compiling takes seconds for a large model, in which this thread must answer the coordinator's pings.
        let document = welcome.clone();
        let compiled = tokio::task::spawn_blocking(move || compile_job_document(&document));
        let job = compiled.await.map_err(AgentError::local)??;
        let records = outbox.clone();
        logger.forward(move |record| records.send_log(&record));
        let (attempt, plan, profile) = (welcome.attempt, &job.hash, &job.profile);
        tracing::info!(attempt, %plan, "joined attempt {attempt} with plan {plan}, {profile}");
        // From now on, the agent computes this job with this instruction set, also for later coordinators.
        connector.introduction.isas = [job.profile.isa].into_iter().collect();
        connector.introduction.uid = welcome.uid;
        let spans = AgentSpans::begin(connector.introduction.me, attempt, &welcome.traceparent, stall);
        outbox.spans = spans.clone();
        Ok(Self { job, outbox, spans, connector, stream })
    }

    /// Joins the next coordinator of the same job, with the current state of a shard. Messages that are sent in the
    /// meantime wait, and follow the hello.
    ///
    /// # Errors
    /// See [`ControlSession::join`]; also if the coordinator of another job answers.
    pub async fn rejoin(&mut self, shard: Option<ShardState>) -> Result<(), AgentError> {
        let messages = self.outbox.replace_stream();
        self.spans.on_coordinator_lost();
        tracing::warn!(coordinator = %self.connector.address, "lost the coordinator; reconnecting");
        self.connector.introduction.shard = shard;
        let (welcome, stream) = self.connector.join(&self.outbox, messages).await?;
        self.check(&welcome)?;
        self.stream = stream;
        let attempt = welcome.attempt;
        self.spans.on_rejoin(attempt, &welcome.traceparent);
        tracing::info!(attempt, "joined attempt {attempt}");
        Ok(())
    }

    /// Checks that the coordinator that sent `welcome` has the job of this agent.
    fn check(&self, welcome: &proto::Welcome) -> Result<(), AgentError> {
        let is_same_job = welcome.uid == self.connector.introduction.uid
            && welcome.plan == self.job.hash.0
            && welcome.isa == self.job.profile.isa.to_string()
            && decode_job(welcome)?.is_numerically_equal(&self.job);
        if is_same_job {
            return Ok(());
        }
        let ControlConnector { address, introduction, .. } = &self.connector;
        Err(AgentError::peer(format!(
            "the coordinator at {address} now runs a different job than the one {} belongs to",
            introduction.me
        )))
    }

    /// Waits for the next event. Cancel safe.
    ///
    /// # Errors
    /// A command can't be decoded.
    pub async fn next(&mut self) -> Result<SessionEvent, AgentError> {
        let message = tokio::select! {
            message = self.stream.message() => message,
            Some(()) = self.connector.terminate.recv() => return Ok(SessionEvent::Leave),
        };
        match message {
            Ok(Some(proto::ToAgent { message: Some(to_agent::Message::Command(command)) })) => {
                let command = codec::decode(&command).map_err(AgentError::local)?;
                self.spans.on_command(&command);
                Ok(SessionEvent::Command(command))
            }
            Ok(Some(_)) => Err(AgentError::local(codec::CodecError::Message)),
            Ok(None) | Err(_) => Ok(SessionEvent::Lost),
        }
    }

    /// Leaves the job: sends the usage of the process, and waits until the coordinator closes the stream.
    pub async fn leave(mut self, metrics: &RoleMetrics, work: ComputeUsage) {
        self.spans.end();
        self.outbox.send_usage(metrics, work);
        self.outbox.send(from_agent::Message::Disconnect(proto::Disconnect {}));
        while let Ok(Some(_)) = self.stream.message().await {}
    }
}

/// Where an agent joins, and what it sends there.
#[derive(Debug)]
struct ControlConnector {
    address: String,
    member: Member,
    introduction: AgentInfo,
    terminate: Signal,
}

impl ControlConnector {
    /// Joins a coordinator and waits for the job, until SIGTERM; `messages` yields the messages that follow the hello.
    async fn join(
        &mut self,
        outbox: &MessageSender,
        messages: mpsc::Receiver<proto::FromAgent>,
    ) -> Result<(proto::Welcome, Streaming<proto::ToAgent>), AgentError> {
        let Self { address, member, introduction, terminate } = self;
        tokio::select! {
            joined = connect_and_join(address, member, introduction, outbox, messages) => joined,
            Some(()) = terminate.recv() => {
                Err(AgentError::shutdown(format!("{} received a termination signal", introduction.me)))
            }
        }
    }
}

async fn connect_and_join(
    address: &str,
    member: &Member,
    introduction: &AgentInfo,
    outbox: &MessageSender,
    messages: mpsc::Receiver<proto::FromAgent>,
) -> Result<(proto::Welcome, Streaming<proto::ToAgent>), AgentError> {
    let mut deadline = Instant::now() + JOIN_TIMEOUT;
    let mut pause = INITIAL_JOIN_BACKOFF;
    let mut duplicate_since = None;
    let mut messages = Some(messages);
    loop {
        let channel = match member.dial_coordinator(address).await {
            Ok(channel) => channel,
            Err(error) if Instant::now() >= deadline => {
                return Err(AgentError::peer(error).context(format!("the coordinator at {address} can't be reached")));
            }
            Err(error) => {
                if pause == INITIAL_JOIN_BACKOFF {
                    let (reason, minutes) = (error_chain(&error), JOIN_TIMEOUT.as_secs() / 60);
                    tracing::info!(
                        coordinator = %address,
                        "the coordinator at {address} can't be reached yet ({reason}); trying for {minutes} minutes"
                    );
                }
                // There is no notification when a port begins to listen.
                tokio::time::sleep(pause).await;
                pause = MAX_JOIN_BACKOFF.min(2 * pause);
                continue;
            }
        };
        let heard_since = Instant::now();
        let messages = messages.take().unwrap_or_else(|| outbox.replace_stream());
        match send_hello(channel, introduction, member.instance(), messages).await {
            Ok(joined) => return Ok(joined),
            Err(status)
                if status.code() == Code::AlreadyExists
                    && duplicate_since.get_or_insert(heard_since).elapsed() < NAME_CONFLICT_TIMEOUT =>
            {
                tracing::info!("the coordinator does not admit {} yet: {}", introduction.me, status.message());
                // There is no notification when the other process has ended.
                tokio::time::sleep(pause).await;
                pause = MAX_JOIN_BACKOFF.min(2 * pause);
                continue;
            }
            Err(status) if is_rejection(&status) => {
                let me = introduction.me;
                return Err(AgentError::peer(format!("the coordinator rejected {me}: {}", status.message())));
            }
            // The coordinator was lost before it sent the job. The time of the connection does not count against the
            // timeout.
            Err(_) => deadline += heard_since.elapsed(),
        }
        if Instant::now() >= deadline {
            return Err(AgentError::peer(format!("the coordinator at {address} did not send the job")));
        }
        tokio::time::sleep(INITIAL_JOIN_BACKOFF).await;
    }
}

/// Sends the hello, and waits for the job.
async fn send_hello(
    channel: tonic::transport::Channel,
    introduction: &AgentInfo,
    instance: u64,
    messages: mpsc::Receiver<proto::FromAgent>,
) -> Result<(proto::Welcome, Streaming<proto::ToAgent>), Status> {
    let AgentInfo { me, address, isas, shard, uid } = introduction;
    let hello = from_agent::Message::Hello(proto::Hello {
        role: me.role.as_str().to_owned(),
        index: me.index,
        address: address.clone(),
        instruction_sets: isas.iter().map(|isa| isa.to_string()).collect(),
        shard: shard.as_ref().map(codec::encode),
        uid: uid.clone(),
        instance,
    });
    let hello = tokio_stream::once(proto::FromAgent { message: Some(hello) });
    let mut client = ControlClient::new(channel).max_decoding_message_size(MAX_CONTROL_MESSAGE_BYTES);
    let mut stream = client.join(hello.chain(ReceiverStream::new(messages))).await?.into_inner();
    match stream.message().await?.and_then(|message| message.message) {
        Some(to_agent::Message::Welcome(welcome)) => Ok((welcome, stream)),
        Some(to_agent::Message::Command(_)) => Err(Status::invalid_argument("it sent a command before the job")),
        None => Err(Status::unavailable("it disconnected before sending the job")),
    }
}

/// Returns whether a coordinator rejected the agent, as opposed to being lost.
fn is_rejection(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::Unimplemented
            | Code::PermissionDenied
            | Code::AlreadyExists
    )
}

/// Maximum bytes of a control message. A placement of 192 systems with all addresses takes some ten kilobytes, the
/// norms of the chunks of a 20B model about a megabyte.
pub const MAX_CONTROL_MESSAGE_BYTES: usize = 64 << 20;

fn decode_job(welcome: &proto::Welcome) -> Result<JobDocument, AgentError> {
    serde_json::from_str(&welcome.job)
        .map_err(|error| AgentError::local(format!("the coordinator's job can't be read ({error})")))
}

fn compile_job_document(welcome: &proto::Welcome) -> Result<CompiledJob, AgentError> {
    let isa: Isa = welcome.isa.parse().map_err(|_| {
        AgentError::local(format!("the coordinator requires the unknown instruction set {:?}", welcome.isa))
    })?;
    let job = decode_job(welcome)?.compile(isa)?;
    if job.hash.0 != welcome.plan {
        return Err(AgentError::local(
            "this agent's plan differs from the coordinator's; run the same build everywhere",
        ));
    }
    Ok(job)
}

#[cfg(test)]
mod tests {
    use std::sync::PoisonError;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use millrace_telemetry::logs::{AgentName, Level};
    use tracing::span;

    use super::*;
    use crate::control::TEST_SUBSCRIBER;

    /// Forwards log records to a sender, as the logger of an agent does.
    struct ForwardingSubscriber {
        sender: MessageSender,
        records: Arc<AtomicUsize>,
    }

    impl tracing::Subscriber for ForwardingSubscriber {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.records.fetch_add(1, Ordering::Relaxed);
            let agent = AgentName::new("cs2", 0).unwrap();
            self.sender.send_log(&LogRecord::new(Level::Error, agent, "text".to_owned()));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn message_dropped_by_a_full_queue_is_logged() {
        let _only = TEST_SUBSCRIBER.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, receiver) = MessageSender::new();
        let records = Arc::new(AtomicUsize::new(0));
        let subscriber = ForwardingSubscriber { sender: sender.clone(), records: records.clone() };
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..MAX_QUEUED_MESSAGES {
                sender.send_leave_request();
            }
            assert_eq!(records.load(Ordering::Relaxed), 0);
            sender.send_leave_request();
        });
        assert_eq!((records.load(Ordering::Relaxed), receiver.len()), (1, MAX_QUEUED_MESSAGES));
    }
}
