//! An agent's side: join the coordinator, take orders, report.

use std::time::{Duration, Instant};

use millrace_emulator::numerics::Isa;
use millrace_engine::message::{Order, Report, ShardState};
use millrace_engine::types::AgentId;
use millrace_protocol::proto::{self, control_client::ControlClient, from_agent, to_agent};
use millrace_protocol::{codec, transport};
use millrace_telemetry::logs::{Logger, Record};
use millrace_telemetry::memory::ProcessMemory;
use millrace_telemetry::metric_definitions::{Direction as Way, RoleMetrics};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::job::{CompiledJob, JobDocument};
use crate::failure::Failure;

/// How long an agent looks for its coordinator before it gives up.
const JOIN_DEADLINE: Duration = Duration::from_secs(120);
/// Pause between two attempts to reach it.
const JOIN_PAUSE: Duration = Duration::from_millis(100);

/// What an agent says of itself.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// Who it is.
    pub me: AgentId,
    /// Where others dial its data port; empty for systems.
    pub address: String,
    /// Best instruction set it may use.
    pub isa: Isa,
    /// What a shard holds.
    pub shard: Option<ShardState>,
}

/// Where an agent's words go. Clones share the stream; words into a broken one are dropped, the break is seen by
/// [`Session::next`].
#[derive(Clone, Debug)]
pub struct Outbox(mpsc::UnboundedSender<proto::FromAgent>);

impl Outbox {
    fn send(&self, message: from_agent::Message) {
        let _ = self.0.send(proto::FromAgent { message: Some(message) });
    }

    /// Reports to the coordinator.
    pub fn report(&self, report: &Report) {
        self.send(from_agent::Message::Report(codec::encode(report)));
    }

    /// Forwards a log record.
    pub fn log(&self, record: &Record) {
        let log = proto::Log {
            time_ms: record.unix_ms,
            level: record.level.as_str().to_owned(),
            message: record.message.clone(),
        };
        self.send(from_agent::Message::Log(log));
    }

    /// Tells what the process has used so far.
    fn usage(&self, metrics: &RoleMetrics, work: Work) {
        let stalls = metrics.stall().totals();
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
}

/// A place in the job.
#[derive(Debug)]
pub struct Session {
    /// The job, compiled here.
    pub job: CompiledJob,
    /// Where words go.
    pub outbox: Outbox,
    stream: tonic::Streaming<proto::ToAgent>,
}

impl Session {
    /// Joins the coordinator at `address`: waits for it to come up, and then for the job, which is told once every
    /// agent's instruction set is known.
    ///
    /// # Errors
    /// The coordinator can't be reached in time, refuses this agent, or runs another plan.
    pub async fn join(address: &str, introduction: &Introduction, logger: &Logger) -> Result<Self, Failure> {
        let channel = reach(address).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let outbox = Outbox(sender);
        let Introduction { me, address, isa, shard } = introduction;
        outbox.send(from_agent::Message::Hello(proto::Hello {
            role: me.role.name().to_owned(),
            index: me.index,
            address: address.clone(),
            isa: isa.to_string(),
            shard: shard.as_ref().map(codec::encode),
        }));
        let refused =
            |status: tonic::Status| Failure::peer(format!("the coordinator refused {me}: {}", status.message()));
        let mut client = ControlClient::new(channel).max_decoding_message_size(CONTROL_BYTES);
        let joined = client.join(UnboundedReceiverStream::new(receiver)).await.map_err(refused)?;
        let mut stream = joined.into_inner();
        let welcome = match stream.message().await.map_err(refused)?.and_then(|message| message.message) {
            Some(to_agent::Message::Welcome(welcome)) => welcome,
            _ => return Err(Failure::peer("the coordinator went away before it told the job")),
        };
        let job = compile(&welcome)?;
        let records = outbox.clone();
        logger.forward(move |record| records.log(&record));
        log::info!("joined attempt {} with plan {}, {}", welcome.attempt, job.hash, job.profile);
        Ok(Self { job, outbox, stream })
    }

    /// The next order, or `None` when the coordinator is gone. Safe to cancel.
    ///
    /// # Errors
    /// An order that can't be read.
    pub async fn next(&mut self) -> Result<Option<Order>, Failure> {
        match self.stream.message().await {
            Ok(Some(proto::ToAgent { message: Some(to_agent::Message::Order(order)) })) => {
                codec::decode(&order).map(Some).map_err(Failure::own)
            }
            Ok(Some(_)) => Err(Failure::own(codec::CodecError::Message)),
            Ok(None) | Err(_) => Ok(None),
        }
    }
}

impl Session {
    /// Leaves a job that is over: tells what the process has used, and stays until the coordinator has heard it.
    pub async fn leave(mut self, metrics: &RoleMetrics, work: Work) {
        self.outbox.usage(metrics, work);
        self.outbox.send(from_agent::Message::Goodbye(proto::Goodbye {}));
        while let Ok(Some(_)) = self.stream.message().await {}
    }
}

/// Most bytes of a control message: a placement of 192 systems and all their addresses takes some ten kilobytes, the
/// norms of a 20B model's chunks about a megabyte.
pub const CONTROL_BYTES: usize = 64 << 20;

async fn reach(address: &str) -> Result<tonic::transport::Channel, Failure> {
    let deadline = Instant::now() + JOIN_DEADLINE;
    loop {
        match transport::dial(address).await {
            Ok(channel) => return Ok(channel),
            Err(error) if Instant::now() >= deadline => {
                return Err(Failure::peer(format!("the coordinator at {address} can't be reached: {error}")));
            }
            // Nobody tells when a port begins to listen.
            Err(_) => tokio::time::sleep(JOIN_PAUSE).await,
        }
    }
}

fn compile(welcome: &proto::Welcome) -> Result<CompiledJob, Failure> {
    let document: JobDocument = serde_json::from_str(&welcome.job)
        .map_err(|error| Failure::own(format!("the coordinator's job can't be read ({error})")))?;
    let isa = Isa::ALL.into_iter().find(|isa| isa.to_string() == welcome.isa);
    let isa = isa.ok_or_else(|| Failure::own(format!("the coordinator asks for an unknown {:?}", welcome.isa)))?;
    let job = document.compile(isa)?;
    if job.hash.0 != welcome.plan {
        return Err(Failure::own(
            "this agent compiles another plan than the coordinator; run the same build everywhere",
        ));
    }
    Ok(job)
}
