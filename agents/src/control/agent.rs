//! An agent's side: join the coordinator, take orders, report, and join again when the coordinator is lost.
//!
//! A coordinator may end and another one take its place at the same address; the job goes on from what the MemoryX
//! shards hold. So an agent whose coordinator is lost keeps what it has, lets go of its epoch, and knocks at the same
//! door, whose name is looked up anew each time, until [`JOIN_PATIENCE`] is over.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_emulator::numerics::Isa;
use millrace_engine::message::{AgentCommand, AgentReport, ShardState};
use millrace_engine::types::AgentId;
use millrace_protocol::proto::{self, control_client::ControlClient, from_agent, to_agent};
use millrace_protocol::{codec, transport};
use millrace_telemetry::logs::{Logger, Record};
use millrace_telemetry::memory::ProcessMemory;
use millrace_telemetry::metric_definitions::{Direction as Way, RoleMetrics};
use millrace_telemetry::stall::StallReason;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use super::job::{CompiledJob, JobDocument};
use crate::failure::Failure;
use crate::member::Member;

/// How long an agent looks for a coordinator before it gives up: long enough for one that is only being brought here.
const JOIN_PATIENCE: Duration = Duration::from_secs(600);
/// Pause after the first attempt to reach it; each one is twice as long as the one before, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// See [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long another process of the agent's name may be in its place: one that died where its end was not seen counts as
/// gone after half of it.
const NAME_PATIENCE: Duration = Duration::from_secs(60);

/// What an agent says of itself.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// Who it is.
    pub me: AgentId,
    /// Where others dial its data port; empty for systems.
    pub address: String,
    /// Best instruction set it may use; once in a job, the one the job is pinned to.
    pub isa: Isa,
    /// What a shard holds.
    pub shard: Option<ShardState>,
    /// The job it is in already; empty before.
    pub uid: String,
}

/// Words that may wait for the coordinator to take them. A run has a few at a time; the lines of a log, of which there
/// may be any number, get half of the room, and are dropped beyond it.
const WORDS: usize = 8192;

/// Where an agent's words go. Clones share the stream, and follow it to the next coordinator; words into a broken one
/// are dropped, the break is seen by [`Session::next`].
#[derive(Clone, Debug)]
pub struct Outbox(Arc<Mutex<mpsc::Sender<proto::FromAgent>>>);

impl Outbox {
    /// An outbox, and the stream its words come out of.
    fn new() -> (Self, mpsc::Receiver<proto::FromAgent>) {
        let (sender, words) = mpsc::channel(WORDS);
        (Self(Arc::new(Mutex::new(sender))), words)
    }

    /// From now on words go into another stream, which is returned.
    fn turn(&self) -> mpsc::Receiver<proto::FromAgent> {
        let (sender, words) = mpsc::channel(WORDS);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sender;
        words
    }

    fn send(&self, message: from_agent::Message) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(message, from_agent::Message::Log(_)) && sender.capacity() <= WORDS / 2 {
            return;
        }
        let _ = sender.try_send(proto::FromAgent { message: Some(message) });
    }

    /// Reports to the coordinator.
    pub fn report(&self, report: &AgentReport) {
        self.send(from_agent::Message::Report(codec::encode(report)));
    }

    /// Forwards a log record.
    pub fn log(&self, record: &Record) {
        let log = proto::Log {
            time_ms: record.unix_ms,
            level: record.level.as_str().to_owned(),
            message: record.message.clone(),
            fields: record.fields.clone().into_iter().collect(),
        };
        self.send(from_agent::Message::Log(log));
    }

    /// Tells that this shard was asked to leave.
    pub fn leaving(&self) {
        self.send(from_agent::Message::Leaving(proto::Leaving {}));
    }

    /// Tells what the process has used so far.
    fn usage(&self, metrics: &RoleMetrics, work: Work) {
        let mut stalls = metrics.stall().totals();
        stalls[StallReason::Commit] -= work.idle_at_end;
        let memory = ProcessMemory::now();
        self.send(from_agent::Message::Usage(proto::Usage {
            stall_seconds: stalls.iter().map(|(reason, seconds)| (reason.as_str().to_owned(), seconds)).collect(),
            bytes_in: metrics.moved(Way::In),
            bytes_out: metrics.moved(Way::Out),
            rss_bytes: memory.map_or(0, |memory| memory.resident),
            peak_rss_bytes: memory.map_or(0, |memory| memory.peak),
            busy_seconds: work.seconds,
            flops: work.flops,
        }));
    }
}

/// Computing done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Seconds.
    pub seconds: f64,
    /// Floating-point operations.
    pub flops: u64,
    /// Seconds after the last turn, which nothing came of: no stall, though it was waited for another turn.
    pub idle_at_end: f64,
}

/// What an agent hears.
#[derive(Debug)]
pub enum Heard {
    /// An order of the coordinator.
    Order(AgentCommand),
    /// The coordinator is lost; [`Session::rejoin`] finds the next one.
    Lost,
    /// Whoever runs this process wants it to end (SIGTERM).
    Leave,
}

/// A place in the job.
#[derive(Debug)]
pub struct Session {
    /// The job, compiled here.
    pub job: CompiledJob,
    /// Where words go.
    pub outbox: Outbox,
    door: Door,
    stream: Streaming<proto::ToAgent>,
}

impl Session {
    /// Joins the coordinator at `address`: waits for it to come up, and then for the job, which is told once every
    /// agent's instruction set is known. `terminate` is SIGTERM.
    ///
    /// # Errors
    /// The coordinator can't be reached in time, refuses this agent, or runs another plan; the process was asked to
    /// leave.
    pub async fn join(
        address: &str,
        member: Member,
        introduction: Introduction,
        logger: &Logger,
        terminate: Signal,
    ) -> Result<Self, Failure> {
        let (outbox, words) = Outbox::new();
        let mut door = Door { address: address.to_owned(), member, introduction, terminate };
        let (welcome, stream) = door.knock(&outbox, words).await?;
        let job = compile(&welcome)?;
        let records = outbox.clone();
        logger.forward(move |record| records.log(&record));
        let (attempt, plan, profile) = (welcome.attempt, &job.hash, &job.profile);
        tracing::info!(attempt, %plan, "joined attempt {attempt} with plan {plan}, {profile}");
        // Whatever comes later, the numbers of this job are made with this instruction set.
        (door.introduction.isa, door.introduction.uid) = (job.profile.isa, welcome.uid);
        Ok(Self { job, outbox, door, stream })
    }

    /// Joins the next coordinator of the same job, with what a shard holds by now. What is said meanwhile waits, and
    /// comes after the hello.
    ///
    /// # Errors
    /// As for [`Session::join`], and when another job's coordinator answers.
    pub async fn rejoin(&mut self, shard: Option<ShardState>) -> Result<(), Failure> {
        let words = self.outbox.turn();
        tracing::warn!(coordinator = %self.door.address, "the coordinator is lost; looking for the next one");
        self.door.introduction.shard = shard;
        let (welcome, stream) = self.door.knock(&self.outbox, words).await?;
        self.check(&welcome)?;
        self.stream = stream;
        let attempt = welcome.attempt;
        tracing::info!(attempt, "joined attempt {attempt}");
        Ok(())
    }

    /// Whether the coordinator that said `welcome` directs the job this agent belongs to.
    fn check(&self, welcome: &proto::Welcome) -> Result<(), Failure> {
        let same = welcome.uid == self.door.introduction.uid
            && welcome.plan == self.job.hash.0
            && welcome.isa == self.job.profile.isa.to_string()
            && document(welcome)?.makes_the_numbers_of(&self.job);
        if same {
            return Ok(());
        }
        let Door { address, introduction, .. } = &self.door;
        Err(Failure::peer(format!(
            "the coordinator at {address} now directs another job than the one {} belongs to",
            introduction.me
        )))
    }

    /// What comes next. Safe to cancel.
    ///
    /// # Errors
    /// An order that can't be read.
    pub async fn next(&mut self) -> Result<Heard, Failure> {
        let message = tokio::select! {
            message = self.stream.message() => message,
            Some(()) = self.door.terminate.recv() => return Ok(Heard::Leave),
        };
        match message {
            Ok(Some(proto::ToAgent { message: Some(to_agent::Message::Order(order)) })) => {
                codec::decode(&order).map(Heard::Order).map_err(Failure::own)
            }
            Ok(Some(_)) => Err(Failure::own(codec::CodecError::Message)),
            Ok(None) | Err(_) => Ok(Heard::Lost),
        }
    }

    /// Leaves the job: tells what the process has used, and stays until the coordinator has heard it.
    pub async fn leave(mut self, metrics: &RoleMetrics, work: Work) {
        self.outbox.usage(metrics, work);
        self.outbox.send(from_agent::Message::Goodbye(proto::Goodbye {}));
        while let Ok(Some(_)) = self.stream.message().await {}
    }
}

/// Where an agent joins, and what it says there.
#[derive(Debug)]
struct Door {
    address: String,
    member: Member,
    introduction: Introduction,
    terminate: Signal,
}

impl Door {
    /// Says hello until a coordinator has told the job; `words` are what follows the hello.
    async fn knock(
        &mut self,
        outbox: &Outbox,
        words: mpsc::Receiver<proto::FromAgent>,
    ) -> Result<(proto::Welcome, Streaming<proto::ToAgent>), Failure> {
        let Self { address, member, introduction, terminate } = self;
        tokio::select! {
            joined = knock(address, member, introduction, outbox, words) => joined,
            Some(()) = terminate.recv() => Err(Failure::asked(format!("{} was asked to leave", introduction.me))),
        }
    }
}

async fn knock(
    address: &str,
    member: &Member,
    introduction: &Introduction,
    outbox: &Outbox,
    words: mpsc::Receiver<proto::FromAgent>,
) -> Result<(proto::Welcome, Streaming<proto::ToAgent>), Failure> {
    let mut deadline = Instant::now() + JOIN_PATIENCE;
    let mut pause = FIRST_PAUSE;
    let mut duplicate_since = None;
    let mut words = Some(words);
    loop {
        let channel = match member.dial_coordinator(address).await {
            Ok(channel) => channel,
            Err(error) if Instant::now() >= deadline => {
                let why = transport::causes(&error);
                return Err(Failure::peer(format!("the coordinator at {address} can't be reached: {why}")));
            }
            Err(error) => {
                if pause == FIRST_PAUSE {
                    let (why, minutes) = (transport::causes(&error), JOIN_PATIENCE.as_secs() / 60);
                    tracing::info!(
                        coordinator = %address,
                        "the coordinator at {address} can't be reached yet ({why}); trying for {minutes} minutes"
                    );
                }
                // Nobody tells when a port begins to listen.
                tokio::time::sleep(pause).await;
                pause = LONGEST_PAUSE.min(2 * pause);
                continue;
            }
        };
        let heard_since = Instant::now();
        let words = words.take().unwrap_or_else(|| outbox.turn());
        match introduce(channel, introduction, member.instance(), words).await {
            Ok(joined) => return Ok(joined),
            Err(status)
                if status.code() == Code::AlreadyExists
                    && duplicate_since.get_or_insert(heard_since).elapsed() < NAME_PATIENCE =>
            {
                tracing::info!("the coordinator does not admit {} yet: {}", introduction.me, status.message());
                // Nobody tells when the other process is gone.
                tokio::time::sleep(pause).await;
                pause = LONGEST_PAUSE.min(2 * pause);
                continue;
            }
            Err(status) if is_refusal(&status) => {
                let me = introduction.me;
                return Err(Failure::peer(format!("the coordinator refused {me}: {}", status.message())));
            }
            // It went away before it told the job. The time it was there does not count.
            Err(_) => deadline += heard_since.elapsed(),
        }
        if Instant::now() >= deadline {
            return Err(Failure::peer(format!("the coordinator at {address} does not tell the job")));
        }
        tokio::time::sleep(FIRST_PAUSE).await;
    }
}

/// Says hello, and waits for the job.
async fn introduce(
    channel: tonic::transport::Channel,
    introduction: &Introduction,
    instance: u64,
    words: mpsc::Receiver<proto::FromAgent>,
) -> Result<(proto::Welcome, Streaming<proto::ToAgent>), Status> {
    let Introduction { me, address, isa, shard, uid } = introduction;
    let hello = from_agent::Message::Hello(proto::Hello {
        role: me.role.as_str().to_owned(),
        index: me.index,
        address: address.clone(),
        isa: isa.to_string(),
        shard: shard.as_ref().map(codec::encode),
        uid: uid.clone(),
        instance,
    });
    let hello = tokio_stream::once(proto::FromAgent { message: Some(hello) });
    let mut client = ControlClient::new(channel).max_decoding_message_size(CONTROL_BYTES);
    let mut stream = client.join(hello.chain(ReceiverStream::new(words))).await?.into_inner();
    match stream.message().await?.and_then(|message| message.message) {
        Some(to_agent::Message::Welcome(welcome)) => Ok((welcome, stream)),
        Some(to_agent::Message::Order(_)) => Err(Status::invalid_argument("it gives orders before it tells the job")),
        None => Err(Status::unavailable("it went away before it told the job")),
    }
}

/// Whether a coordinator said no, as opposed to being lost.
fn is_refusal(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::Unimplemented
            | Code::PermissionDenied
            | Code::AlreadyExists
    )
}

/// Most bytes of a control message: a placement of 192 systems and all their addresses takes some ten kilobytes, the
/// norms of a 20B model's chunks about a megabyte.
pub const CONTROL_BYTES: usize = 64 << 20;

fn document(welcome: &proto::Welcome) -> Result<JobDocument, Failure> {
    serde_json::from_str(&welcome.job)
        .map_err(|error| Failure::own(format!("the coordinator's job can't be read ({error})")))
}

fn compile(welcome: &proto::Welcome) -> Result<CompiledJob, Failure> {
    let isa = Isa::ALL.into_iter().find(|isa| isa.to_string() == welcome.isa);
    let isa = isa.ok_or_else(|| Failure::own(format!("the coordinator asks for an unknown {:?}", welcome.isa)))?;
    let job = document(welcome)?.compile(isa)?;
    if job.hash.0 != welcome.plan {
        return Err(Failure::own(
            "this agent compiles another plan than the coordinator; run the same build everywhere",
        ));
    }
    Ok(job)
}
