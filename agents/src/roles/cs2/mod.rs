//! A system: the thread of the runtime handles links and control stream, a second thread computes.
//!
//! All events go to the compute thread as one ordered stream of [`ComputeInput`]s. It takes actions from the engine's
//! state machine, drives the [`Device`](millrace_emulator::device::Device), and sends frames and reports itself.

mod compute;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millrace_emulator::placement::Placement;
use millrace_emulator::plan::StreamPlan;
use millrace_engine::frame::Frame;
use millrace_engine::message::{AgentCommand, AgentReport, EpochConfig, FailureCause};
use millrace_engine::types::{AgentId, Epoch, Iteration, Role};
use millrace_protocol::proto::{self, samples_client::SamplesClient};
use millrace_protocol::samples::Checked;
use millrace_protocol::{error_chain, packet};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use super::RoleContext;
use super::link_senders::LinkSenders;
use super::thread_policy::use_normal_policy;
use super::watchdog::Watchdog;
use super::work_queue::{WorkReceiver, WorkSender, work_queue};
use crate::control::client::{ComputeUsage, ControlSession, SessionEvent};
use crate::error::AgentError;
use crate::links::{GrantedSlots, LinkEvent, LinkEventKind, LinkEventQueue, LinkJob, LinkSender, LinkSettings, dial};

/// Inputs of the compute thread.
pub(super) enum ComputeInput {
    /// A new epoch, all links of which are established.
    Epoch(Box<EpochStart>),
    /// The coordinator opened an iteration.
    Open(Epoch, Iteration),
    /// The factors of the losses that have a weight, in the iteration of this number, which is opened next.
    ScaleLosses(Epoch, u64, Vec<f64>),
    Weights(Frame),
    /// The parent granted gradient slots: the epoch and the running total.
    Grant(Epoch, u64),
    Samples(Box<proto::SamplesReply>),
    /// The epoch has ended; the next one is configured later.
    Abandon,
}

/// The values of an epoch that the compute thread needs.
pub(super) struct EpochStart {
    pub epoch: Epoch,
    /// The assignment of work to agents.
    pub placement: Arc<Placement>,
    /// Index of this system in the placement.
    pub system_index: usize,
    /// The link end for gradients.
    pub frames: LinkSender,
    /// The link end for grants.
    pub grants: LinkSender,
    /// Sends requests for samples.
    pub samples: mpsc::Sender<proto::SamplesRequest>,
}

/// Runs the system until the job ends.
pub async fn run(context: RoleContext, terminate: Signal) -> Result<(), AgentError> {
    let (mailbox, events) = LinkEventQueue::new();
    let settings = context.link_settings(events);
    let session = context.join(String::new(), None, terminate).await?;
    settings.job.send_replace(Some(LinkJob::of(&session.job)));
    // The channel is unbounded; frames and grants in it are bounded by the window, samples by the requested rounds,
    // iterations by the coordinator.
    let (inputs, receiver) = work_queue();
    let queued = receiver.queued();
    // Receives one message: the result of the compute thread.
    let (ended, mut end) = mpsc::unbounded_channel();
    let worker = compute::ComputeWorker::new(
        session.job.clone(),
        context.args.threads.unwrap_or_else(|| session.job.threads()),
        session.outbox.clone(),
        context.metrics.clone(),
        receiver,
        context.memory.clone(),
    );
    let watchdog = Watchdog::watch("compute", context.metrics.stall().clone(), queued);
    std::thread::Builder::new()
        .name("compute".to_owned())
        .spawn(move || {
            use_normal_policy();
            let result = worker.run();
            drop(watchdog);
            let _ = ended.send(result);
        })
        .map_err(|error| AgentError::local(error).context("can't start a thread"))?;
    let mut driver =
        SystemDriver { context, session, settings, mailbox, inputs: Some(inputs), fetching: None, epoch: None };
    let mut finished = false;
    let mut reported = false;
    loop {
        tokio::select! {
            heard = driver.session.next(), if !finished => match heard? {
                SessionEvent::Command(AgentCommand::Finish) | SessionEvent::Leave if reported => {
                    driver.session.leave(&driver.context.metrics, ComputeUsage::default()).await;
                    return Ok(());
                }
                SessionEvent::Command(AgentCommand::Finish) | SessionEvent::Leave => {
                    finished = true;
                    driver.stop_compute();
                }
                SessionEvent::Command(command) => driver.on_command(command),
                SessionEvent::Lost => driver.rejoin().await?,
            },
            Some(event) = driver.mailbox.next(), if !finished => driver.link(event),
            Some(work) = end.recv() => match work {
                Ok(work) => {
                    driver.session.leave(&driver.context.metrics, work).await;
                    return Ok(());
                }
                // Another attempt would fail in the same way: the coordinator ends the run.
                Err(failure) if failure.failure_cause() != FailureCause::Other => {
                    tracing::error!("{failure}");
                    driver.session.outbox.send_report(&failure.report());
                    reported = true;
                }
                Err(failure) => return Err(failure),
            },
        }
    }
}

struct SystemEpoch {
    epoch: Epoch,
    parent: AgentId,
    ends: LinkSenders,
    start: Option<Box<EpochStart>>,
}

/// The task that fetches samples; dropping it aborts the task.
struct FetchTask(AbortHandle);

impl Drop for FetchTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct SystemDriver {
    context: RoleContext,
    session: ControlSession,
    settings: LinkSettings,
    mailbox: LinkEventQueue,
    inputs: Option<WorkSender<ComputeInput>>,
    fetching: Option<FetchTask>,
    epoch: Option<SystemEpoch>,
}

impl SystemDriver {
    fn send_input(&self, input: ComputeInput) {
        if let Some(inputs) = &self.inputs {
            let _ = inputs.send(input);
        }
    }

    /// Abandons the epoch and closes the input channel. The compute thread then ends.
    fn stop_compute(&mut self) {
        self.send_input(ComputeInput::Abandon);
        self.epoch = None;
        (self.inputs, self.fetching) = (None, None);
    }

    /// Abandons the epoch of a lost coordinator, and joins the next coordinator.
    async fn rejoin(&mut self) -> Result<(), AgentError> {
        self.context.ready.set(false);
        self.epoch = None;
        self.send_input(ComputeInput::Abandon);
        self.session.rejoin(None).await
    }

    fn on_command(&mut self, command: AgentCommand) {
        match command {
            AgentCommand::Configure(configure) => self.configure(&configure),
            AgentCommand::Open { epoch, iteration } => self.send_input(ComputeInput::Open(epoch, iteration)),
            AgentCommand::ScaleLosses { epoch, iteration, factors } => {
                self.send_input(ComputeInput::ScaleLosses(epoch, iteration, factors));
            }
            AgentCommand::Load(_)
            | AgentCommand::Commit { .. }
            | AgentCommand::Snapshot(_)
            | AgentCommand::Finish
            | AgentCommand::WeighLosses { .. } => {}
        }
    }

    fn configure(&mut self, configure: &EpochConfig) {
        self.send_input(ComputeInput::Abandon);
        self.epoch = None;
        self.context.ready.set(false);
        let (me, epoch) = (self.context.me(), configure.epoch);
        self.context.metrics.set_epoch(epoch.attempt.into(), epoch.number.into());
        tracing::info!(%epoch, "epoch begins");
        let placement = Arc::new(configure.placement.clone());
        let Some(system_index) = placement.systems.iter().position(|system| system.id == me.index) else { return };
        self.context.begin_memory_epoch(&self.session.job);
        let system = placement.systems[system_index];
        let address = |agent| configure.addresses.get(&agent).cloned().unwrap_or_default();
        let parent = AgentId::new(Role::SwarmX, placement.swarm[system.parent].id);
        dial(me, parent, address(parent), epoch, self.settings.clone());
        let server = AgentId::new(Role::Activation, system.activation);
        let (samples, requests) = mpsc::channel(compute::PREFETCH_ROUNDS);
        if let Some(inputs) = self.inputs.clone() {
            let outbox = self.session.outbox.clone();
            let (address, max_bytes) = (address(server), most_sample_bytes(&self.session.job.plan));
            let member = self.context.args.member.clone();
            let fetching = tokio::spawn(async move {
                let channel = member.dial_data(&address, server).await;
                let fetched = async { fetch(channel?, max_bytes, requests, &inputs).await };
                if let Err(error) = fetched.await {
                    tracing::info!(peer = %server, %epoch, "link failed: {error}");
                    outbox.send_report(&AgentReport::LinkLost { epoch, peer: Some(server) });
                }
            });
            self.fetching = Some(FetchTask(fetching.abort_handle()));
        }
        let nowhere = LinkSender::Grants(packet::packet_channel().0, GrantedSlots::default());
        let start = EpochStart { epoch, placement, system_index, frames: nowhere.clone(), grants: nowhere, samples };
        self.epoch =
            Some(SystemEpoch { epoch, parent, ends: LinkSenders::new([parent]), start: Some(Box::new(start)) });
        self.mailbox.set_epoch(epoch);
    }

    fn link(&mut self, LinkEvent { key, kind }: LinkEvent) {
        let Some(current) = self.epoch.as_mut().filter(|current| current.epoch == key.epoch) else { return };
        match kind {
            LinkEventKind::Open(end) => {
                current.ends.open(key, end);
                let ends = (current.ends.frames(current.parent), current.ends.grants(current.parent));
                if let ((Some(frames), Some(grants)), Some(mut start)) =
                    (ends, current.start.take_if(|_| current.ends.is_complete()))
                {
                    (start.frames, start.grants) = (frames, grants);
                    self.send_input(ComputeInput::Epoch(start));
                    self.context.ready.set(true);
                    self.session.outbox.send_report(&AgentReport::Linked { epoch: key.epoch });
                }
            }
            LinkEventKind::Frame(frame) => self.send_input(ComputeInput::Weights(frame)),
            LinkEventKind::Grant(total) => self.send_input(ComputeInput::Grant(key.epoch, total)),
            LinkEventKind::Broken(reason) => {
                tracing::info!(peer = %key.peer, epoch = %key.epoch, "link failed: {reason}");
                self.session.outbox.send_report(&AgentReport::LinkLost { epoch: key.epoch, peer: Some(key.peer) });
                self.epoch = None;
                self.send_input(ComputeInput::Abandon);
            }
        }
    }
}

/// Returns the maximum bytes of a reply with samples: those of a whole batch, plus 64 KiB for the encoding.
fn most_sample_bytes(plan: &StreamPlan) -> usize {
    let samples = plan.leaves.batch().max(plan.eval_leaves.batch());
    let bytes = samples.saturating_mul(plan.graph.input_bytes()).saturating_add(64 << 10);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The stream of samples from an activation server failed.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{}", error_chain(.0))]
    Connect(#[from] tonic::transport::Error),
    #[error("{}", .0.message())]
    Status(#[from] tonic::Status),
    #[error("received samples that were not requested")]
    Unrequested,
    #[error("samples arrived damaged")]
    Damaged,
    #[error("the activation server closed the stream")]
    Closed,
}

/// Sends requests to the activation server, and its replies, one per request, to the compute thread. Returns without
/// error when the compute thread has ended or left the epoch.
async fn fetch(
    channel: Channel,
    max_bytes: usize,
    requests: mpsc::Receiver<proto::SamplesRequest>,
    inputs: &WorkSender<ComputeInput>,
) -> Result<(), FetchError> {
    let mut client = SamplesClient::new(channel).max_decoding_message_size(max_bytes);
    let requested = Arc::new(AtomicU64::new(0));
    let has_ended = Arc::new(AtomicBool::new(false));
    let (count, ended) = (requested.clone(), has_ended.clone());
    let requests = ReceiverStream::new(requests).map(move |request| {
        count.fetch_add(1, Ordering::Relaxed);
        request
    });
    let requests = requests.chain(tokio_stream::iter(std::iter::from_fn(move || {
        ended.store(true, Ordering::Relaxed);
        None
    })));
    let mut replies = client.fetch(requests).await?.into_inner();
    let mut received = 0;
    while let Some(reply) = replies.message().await? {
        received += 1;
        if received > requested.load(Ordering::Relaxed) {
            return Err(FetchError::Unrequested);
        }
        if !reply.is_intact() {
            return Err(FetchError::Damaged);
        }
        if inputs.send(ComputeInput::Samples(Box::new(reply))).is_err() {
            return Ok(());
        }
    }
    if has_ended.load(Ordering::Relaxed) { Ok(()) } else { Err(FetchError::Closed) }
}
