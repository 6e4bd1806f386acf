//! SwarmX: the driver of one node of the tree.

use std::sync::Arc;

use millrace_emulator::placement::{Placement, SwarmChild};
use millrace_emulator::plan::Encoding;
use millrace_engine::message::{AgentCommand, AgentReport, EpochConfig};
use millrace_engine::swarm::{LinkError, Neighbour, SwarmCommand, SwarmX};
use millrace_engine::types::{AgentId, Epoch, Role};
use millrace_protocol::codec::LinkContext;
use millrace_protocol::proto::replica_server::ReplicaServer;
use millrace_protocol::security::AuthenticatedIncoming;
use millrace_protocol::transport;
use tokio::signal::unix::Signal;

use super::RoleContext;
use super::link_senders::{IterationSteps, LinkSenders};
use super::memoryx::ReplicaService;
use super::work_meter::WorkMeter;
use crate::control::client::{ComputeUsage, ControlSession, SessionEvent};
use crate::control::job::CompiledJob;
use crate::control::spans::{AgentSpans, StepPhase};
use crate::error::AgentError;
use crate::links::{LinkEvent, LinkEventKind, LinkEventQueue, LinkJob, LinkService, LinkSettings, dial};

/// Runs the node until the job ends.
pub async fn run(context: RoleContext, terminate: Signal) -> Result<(), AgentError> {
    let (listener, address) = context.listen().await?;
    let (mailbox, events) = LinkEventQueue::new();
    let settings = context.link_settings(events);
    serve(context.args.member.accept_data(listener), LinkService::new(settings.clone()), None);
    let session = context.join(address, None, terminate).await?;
    settings.job.send_replace(Some(LinkJob::of(&session.job)));
    let meter = WorkMeter::start()?;
    let _work_reports = meter.report_to(session.outbox.clone());
    SwarmDriver { context, session, settings, mailbox, meter, node: None }.run().await
}

/// Serves the data port while the process lives: links, and copies of a MemoryX agent's parameters.
pub fn serve(incoming: AuthenticatedIncoming, links: LinkService, replica: Option<ReplicaServer<ReplicaService>>) {
    tokio::spawn(async move {
        let server = transport::server().add_service(links).add_optional_service(replica);
        if let Err(error) = server.serve_with_incoming(incoming).await {
            tracing::error!("the data port is no longer served: {error}");
        }
    });
}

/// The state of the node in one epoch.
struct SwarmEpoch {
    machine: SwarmX,
    configure: Box<EpochConfig>,
    parents: Vec<AgentId>,
    children: Vec<AgentId>,
    ends: LinkSenders,
    steps: IterationSteps,
    linked: bool,
}

struct SwarmDriver {
    context: RoleContext,
    session: ControlSession,
    settings: LinkSettings,
    mailbox: LinkEventQueue,
    meter: WorkMeter,
    node: Option<SwarmEpoch>,
}

impl SwarmDriver {
    async fn run(mut self) -> Result<(), AgentError> {
        loop {
            tokio::select! {
                received = self.session.next() => match received? {
                    SessionEvent::Command(AgentCommand::Finish) | SessionEvent::Leave => break,
                    SessionEvent::Command(command) => self.on_command(command),
                    SessionEvent::Lost => self.rejoin().await?,
                },
                Some(event) = self.mailbox.next() => {
                    let (elements, meter) = (self.elements(&event), self.meter.clone());
                    meter.measure(elements, || self.link(event));
                }
            }
        }
        self.session.leave(&self.context.metrics, ComputeUsage::default()).await;
        Ok(())
    }

    /// Abandons the epoch of a lost coordinator, and joins the next coordinator.
    async fn rejoin(&mut self) -> Result<(), AgentError> {
        self.context.ready.set(false);
        self.node = None;
        self.session.rejoin(None).await
    }

    fn on_command(&mut self, command: AgentCommand) {
        match command {
            AgentCommand::Configure(configure) => self.configure(configure),
            AgentCommand::Open { epoch, iteration } => {
                let Some(node) = self.node.as_mut().filter(|node| node.configure.epoch == epoch) else { return };
                node.steps.open(iteration);
                let mut out = Vec::new();
                let opened = node.machine.open(iteration, &mut out);
                self.execute(opened, out);
            }
            AgentCommand::Load(_)
            | AgentCommand::Commit { .. }
            | AgentCommand::Snapshot(_)
            | AgentCommand::Finish
            | AgentCommand::WeighLosses { .. }
            | AgentCommand::ScaleLosses { .. } => {}
        }
    }

    /// Executes the commands of the state machine. If a neighbor sent an invalid frame, abandons the epoch.
    fn execute(&mut self, result: Result<(), LinkError>, commands: Vec<SwarmCommand>) {
        let Some(node) = &mut self.node else { return };
        match result {
            Ok(()) => node.carry(commands, &self.session.job, &self.session.spans),
            Err(LinkError { from, source }) => {
                let peer = match from {
                    Neighbour::Parent(link) => node.parents.get(link),
                    Neighbour::Child(child) => node.children.get(child),
                };
                let (epoch, peer) = (node.configure.epoch, peer.copied());
                self.link_lost(epoch, peer, &source);
            }
        }
    }

    /// Abandons the epoch, and reports the reason to the coordinator.
    fn link_lost(&mut self, epoch: Epoch, peer: Option<AgentId>, reason: &dyn std::fmt::Display) {
        let known = peer.map(tracing::field::display);
        tracing::warn!(peer = known, %epoch, "link failed: {reason}");
        self.session.outbox.send_report(&AgentReport::LinkLost { epoch, peer });
        self.node = None;
    }

    fn configure(&mut self, configure: Box<EpochConfig>) {
        let me = self.context.me();
        let (epoch, job) = (configure.epoch, &self.session.job);
        self.context.metrics.set_epoch(epoch.attempt.into(), epoch.number.into());
        tracing::info!(%epoch, "epoch begins");
        self.context.ready.set(false);
        self.node = None;
        let placement = Arc::new(configure.placement.clone());
        let Some(node_index) = placement.swarm.iter().position(|node| node.id == me.index) else { return };
        let (parents, children) = neighbours(&placement, node_index);
        for &parent in &parents {
            let address = configure.addresses.get(&parent).cloned().unwrap_or_default();
            dial(me, parent, address, epoch, self.settings.clone());
        }
        self.context.begin_memory_epoch(job);
        let memory = Arc::new(self.context.memory.clone());
        self.node = Some(SwarmEpoch {
            machine: SwarmX::new(job.plan.clone(), placement, node_index, epoch, job.window(), memory),
            ends: LinkSenders::new(parents.iter().chain(&children).copied()),
            parents,
            children,
            configure,
            steps: IterationSteps::default(),
            linked: false,
        });
        self.mailbox.set_epoch(epoch);
    }

    /// Returns the number of elements that arrive with an event.
    fn elements(&self, event: &LinkEvent) -> u64 {
        let LinkEventKind::Frame(frame) = &event.kind else { return 0 };
        self.session.job.plan.chunks.get(frame.key.chunk).map_or(0, |chunk| chunk.elements as u64)
    }

    fn link(&mut self, LinkEvent { key, kind: what }: LinkEvent) {
        let Some(node) = self.node.as_mut().filter(|node| node.configure.epoch == key.epoch) else { return };
        let parent = node.parents.iter().position(|peer| *peer == key.peer);
        let child = node.children.iter().position(|peer| *peer == key.peer);
        let mut out = Vec::new();
        let done = match (what, parent, child) {
            (LinkEventKind::Open(end), ..) => {
                node.ends.open(key, end);
                if node.ends.is_complete() && !std::mem::replace(&mut node.linked, true) {
                    out = node.machine.start();
                    self.context.ready.set(true);
                    self.session.outbox.send_report(&AgentReport::Linked { epoch: key.epoch });
                }
                Ok(())
            }
            (LinkEventKind::Broken(reason), ..) => {
                self.link_lost(key.epoch, Some(key.peer), &reason);
                return;
            }
            (LinkEventKind::Frame(frame), Some(link), _) => node.machine.weights(link, frame, &mut out),
            (LinkEventKind::Grant(total), Some(link), _) => node.machine.parent_grant(link, total, &mut out),
            (LinkEventKind::Frame(frame), _, Some(child)) => node.machine.gradient(child, frame, &mut out),
            (LinkEventKind::Grant(total), _, Some(child)) => node.machine.child_grant(child, total, &mut out),
            (LinkEventKind::Frame(_) | LinkEventKind::Grant(_), None, None) => Ok(()),
        };
        self.execute(done, out);
    }
}

impl SwarmEpoch {
    fn carry(&mut self, commands: Vec<SwarmCommand>, job: &CompiledJob, spans: &AgentSpans) {
        for command in commands {
            match command {
                SwarmCommand::Down(child, frame) => {
                    spans.begin_phase(frame.key.iteration, StepPhase::DistributeWeights);
                    let step = self.steps.of(frame.key.iteration);
                    let context =
                        LinkContext { plan: job.hash, encoding: job.plan.chunk_encoding(frame.key.chunk), step };
                    self.ends.send_frame(self.children[child], frame, context);
                }
                SwarmCommand::Up(link, frame) => {
                    spans.begin_phase(frame.key.iteration, StepPhase::ReduceGradients);
                    let step = self.steps.of(frame.key.iteration);
                    let context = LinkContext { plan: job.hash, encoding: Encoding::F32, step };
                    self.ends.send_frame(self.parents[link], frame, context);
                }
                SwarmCommand::GrantParent(link, total) => self.ends.send_grant(self.parents[link], total),
                SwarmCommand::GrantChild(child, total) => self.ends.send_grant(self.children[child], total),
            }
        }
    }
}

/// Returns the parents and the children of a node, in the order of the state machine.
fn neighbours(placement: &Placement, index: usize) -> (Vec<AgentId>, Vec<AgentId>) {
    let swarm_agent = |index: usize| AgentId::new(Role::SwarmX, placement.swarm[index].id);
    let parents = match placement.swarm[index].parent {
        Some(parent) => vec![swarm_agent(parent)],
        None => placement.memoryx.iter().map(|&id| AgentId::new(Role::MemoryX, id)).collect(),
    };
    let child = |child: &SwarmChild| match *child {
        SwarmChild::System(index) => AgentId::new(Role::Cs2, placement.systems[index].id),
        SwarmChild::Swarm(index) => swarm_agent(index),
    };
    (parents, placement.swarm[index].children.iter().map(child).collect())
}
