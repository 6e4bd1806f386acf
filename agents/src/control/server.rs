//! The coordinator's side: accepts agents' streams and turns them into events on one channel.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_emulator::numerics::Isa;
use millrace_engine::message::{Order, Report, ShardState};
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::codec;
use millrace_protocol::proto::{self, from_agent, to_agent};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// Numbers the streams, so that the end of an old one is not taken for the end of its successor.
pub type StreamNumber = u64;

/// What an agent said on joining.
#[derive(Debug)]
pub struct Hello {
    /// Who.
    pub agent: AgentId,
    /// Its data port.
    pub address: String,
    /// Best instruction set it may use; of one that was in the job already, the one the job is pinned to.
    pub isa: Isa,
    /// What a shard holds.
    pub shard: Option<ShardState>,
    /// The job it was in already; empty on joining for the first time.
    pub uid: String,
    /// Where words to it go.
    pub post: Post,
}

/// Words to one agent. Words into a broken stream are dropped; its end comes as [`ControlEvent::Gone`].
#[derive(Clone, Debug)]
pub struct Post(mpsc::UnboundedSender<Result<proto::ToAgent, Status>>);

impl Post {
    /// Tells the job.
    pub fn welcome(&self, welcome: proto::Welcome) {
        let _ = self.0.send(Ok(proto::ToAgent { message: Some(to_agent::Message::Welcome(welcome)) }));
    }

    /// Gives an order.
    pub fn order(&self, order: &Order) {
        let order = codec::encode(order);
        let _ = self.0.send(Ok(proto::ToAgent { message: Some(to_agent::Message::Order(order)) }));
    }

    /// Sends the agent away with a reason.
    pub fn refuse(&self, reason: &str) {
        let _ = self.0.send(Err(Status::failed_precondition(reason)));
    }
}

/// What comes from the agents.
#[derive(Debug)]
pub enum ControlEvent {
    /// An agent said hello.
    Hello(StreamNumber, Box<Hello>),
    /// An agent reports.
    Report(AgentId, StreamNumber, Report),
    /// A line of an agent's log.
    Log(AgentId, proto::Log),
    /// What an agent has used.
    Usage(AgentId, proto::Usage),
    /// A shard was asked to leave, and stays until it is told to finish.
    Leaving(AgentId, StreamNumber),
    /// An agent's stream ended.
    Gone(AgentId, StreamNumber),
}

/// The `Control` service.
#[derive(Clone, Debug)]
pub struct ControlService {
    events: mpsc::UnboundedSender<ControlEvent>,
    streams: Arc<AtomicU64>,
}

impl ControlService {
    /// Puts events into `events`.
    pub fn new(events: mpsc::UnboundedSender<ControlEvent>) -> Self {
        Self { events, streams: Arc::new(AtomicU64::new(0)) }
    }
}

#[tonic::async_trait]
impl proto::control_server::Control for ControlService {
    type JoinStream = Pin<Box<dyn Stream<Item = Result<proto::ToAgent, Status>> + Send>>;

    async fn join(&self, request: Request<Streaming<proto::FromAgent>>) -> Result<Response<Self::JoinStream>, Status> {
        let mut stream = request.into_inner();
        let first = stream.next().await.transpose()?.and_then(|message| message.message);
        let Some(from_agent::Message::Hello(hello)) = first else {
            return Err(Status::invalid_argument("an agent begins with its hello"));
        };
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::unbounded_channel();
        let hello = read_hello(hello, Post(sender))?;
        let agent = hello.agent;
        let _ = self.events.send(ControlEvent::Hello(number, Box::new(hello)));
        tokio::spawn(listen(agent, number, stream, self.events.clone()));
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }
}

fn read_hello(hello: proto::Hello, post: Post) -> Result<Hello, Status> {
    let role = Role::parse(&hello.role).filter(|role| *role != Role::Coordinator);
    let isa = Isa::ALL.into_iter().find(|isa| isa.to_string() == hello.isa);
    let shard = hello.shard.as_deref().map(codec::decode).transpose();
    let (Some(role), Some(isa), Ok(shard)) = (role, isa, shard) else {
        return Err(Status::invalid_argument("the hello can't be read; run the same build on every agent"));
    };
    let agent = AgentId::new(role, hello.index);
    Ok(Hello { agent, address: hello.address, isa, shard, uid: hello.uid, post })
}

async fn listen(
    agent: AgentId,
    number: StreamNumber,
    mut stream: Streaming<proto::FromAgent>,
    events: mpsc::UnboundedSender<ControlEvent>,
) {
    while let Ok(Some(message)) = stream.message().await {
        let event = match message.message {
            Some(from_agent::Message::Report(report)) => match codec::decode(&report) {
                Ok(report) => ControlEvent::Report(agent, number, report),
                Err(error) => {
                    log::warn!("{agent} counts as lost: {error}");
                    break;
                }
            },
            Some(from_agent::Message::Log(log)) => ControlEvent::Log(agent, log),
            Some(from_agent::Message::Usage(usage)) => ControlEvent::Usage(agent, usage),
            Some(from_agent::Message::Leaving(_)) => ControlEvent::Leaving(agent, number),
            Some(from_agent::Message::Goodbye(_) | from_agent::Message::Hello(_)) | None => break,
        };
        if events.send(event).is_err() {
            return;
        }
    }
    let _ = events.send(ControlEvent::Gone(agent, number));
}
