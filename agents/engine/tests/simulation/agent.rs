//! An agent: its control stream, its links, and the state machine of its role.

use std::collections::BTreeMap;
use std::sync::Arc;

use millrace_emulator::placement::{Placement, SwarmChild};
use millrace_emulator::plan::StreamPlan;
use millrace_engine::message::{AgentCommand, AgentReport, EpochConfig};
use millrace_engine::types::{AgentId, Epoch, IterationKind, Role};

use crate::model::{samples, weight};
use crate::network::{LinkKey, Network, Packet};
use crate::shard::ShardBody;
use crate::swarm::SwarmBody;
use crate::system::SystemBody;

/// Parameters that all agents of a job share.
pub struct JobParameters {
    pub plan: Arc<StreamPlan>,
    pub shards: u32,
    /// Chunks that a store copies at a time for a snapshot.
    pub copies: usize,
    /// Receive window in slots, by role.
    pub windows: BTreeMap<Role, u64>,
}

/// The part of an agent that depends on its role.
pub enum RoleState {
    Shard(Box<ShardBody>),
    Swarm(Box<SwarmBody>),
    System(Box<SystemBody>),
    Activation(Arc<StreamPlan>),
}

/// A neighbour in the data tree.
#[derive(Clone, Copy, Debug)]
struct Peer {
    upper: bool,
    up: bool,
}

/// State of an agent in its epoch, and its access to the network.
pub struct AgentContext<'a> {
    pub me: AgentId,
    pub epoch: Epoch,
    pub stream: Option<u64>,
    pub network: &'a mut Network,
    peers: &'a BTreeMap<AgentId, Peer>,
}

impl AgentContext<'_> {
    fn key(&self, peer: AgentId) -> LinkKey {
        let upper = self.peers.get(&peer).is_some_and(|peer| peer.upper);
        let (upper, lower) = if upper { (peer, self.me) } else { (self.me, peer) };
        LinkKey { epoch: self.epoch, upper, lower }
    }

    pub fn send(&mut self, peer: AgentId, packet: Packet) {
        self.network.send(self.key(peer), self.me, packet);
    }

    pub fn grant(&mut self, peer: AgentId, total: u64) {
        self.network.grant(self.key(peer), self.me, total);
    }

    pub fn report(&mut self, report: AgentReport) {
        self.network.report(self.stream, report);
    }
}

/// A running instance of a role.
pub struct Agent {
    pub me: AgentId,
    pub stream: Option<u64>,
    pub epoch: Epoch,
    pub finished: bool,
    peers: BTreeMap<AgentId, Peer>,
    linked: bool,
    pub body: RoleState,
}

impl Agent {
    pub fn new(me: AgentId, job: &JobParameters) -> Self {
        let body = match me.role {
            Role::MemoryX => RoleState::Shard(Box::new(ShardBody::new(me.index, job))),
            Role::SwarmX => RoleState::Swarm(Box::default()),
            Role::Cs2 => RoleState::System(Box::default()),
            Role::Activation | Role::Coordinator => RoleState::Activation(job.plan.clone()),
        };
        let (epoch, peers) = (Epoch::default(), BTreeMap::new());
        Self { me, stream: None, epoch, finished: false, peers, linked: false, body }
    }

    /// Joins the coordinator, also repeatedly.
    pub fn connect(&mut self, network: &mut Network) {
        let state = match &mut self.body {
            RoleState::Shard(shard) => Some(shard.rejoin(network)),
            _ => None,
        };
        self.stream = Some(network.connect(self.me, state));
    }

    /// Splits into the role's state and the context.
    pub fn split<'a>(&'a mut self, network: &'a mut Network) -> (&'a mut RoleState, AgentContext<'a>) {
        let Self { me, stream, epoch, peers, body, .. } = self;
        (body, AgentContext { me: *me, epoch: *epoch, stream: *stream, network, peers })
    }

    pub fn handle_command(
        &mut self,
        command: AgentCommand,
        job: &JobParameters,
        network: &mut Network,
    ) -> Result<(), String> {
        match command {
            AgentCommand::Finish => self.finished = true,
            AgentCommand::Configure(configure) => self.configure(&configure, job, network)?,
            AgentCommand::Open { epoch, iteration } => {
                let current = epoch == self.epoch;
                let (body, mut context) = self.split(network);
                match body {
                    // A shard checks the epoch itself.
                    RoleState::Shard(shard) => shard.open(epoch, iteration, &mut context)?,
                    RoleState::Swarm(swarm) if current => swarm.open(iteration, &mut context)?,
                    RoleState::System(system) if current => system.open(iteration),
                    _ => {}
                }
            }
            AgentCommand::WeighLosses { epoch, batch, leaves } => {
                let (body, mut context) = self.split(network);
                let RoleState::Activation(plan) = body else { return Err(format!("{} weighs losses", context.me)) };
                let (task, first) = (IterationKind::Train { step: 0, batch }, leaves.start);
                let weights = samples(plan, task, leaves).into_iter().map(|sample| vec![weight(sample)]).collect();
                context.report(AgentReport::LossWeights { epoch, batch, first, weights });
            }
            AgentCommand::ScaleLosses { epoch, iteration, factors } => {
                let is_current = epoch == self.epoch;
                let (body, context) = self.split(network);
                let RoleState::System(system) = body else { return Err(format!("{} scales losses", context.me)) };
                if is_current {
                    system.scale_losses(iteration, &factors)?;
                }
            }
            AgentCommand::Load(_) | AgentCommand::Commit { .. } | AgentCommand::Snapshot(_) => {
                let (body, mut context) = self.split(network);
                let RoleState::Shard(shard) = body else { return Err(format!("{command:?} went to {}", context.me)) };
                shard.handle_command(command, job, &mut context)?;
            }
        }
        Ok(())
    }

    fn configure(&mut self, configure: &EpochConfig, job: &JobParameters, network: &mut Network) -> Result<(), String> {
        if configure.epoch <= self.epoch {
            return Err(format!("{} was sent from epoch {} to {}", self.me, self.epoch, configure.epoch));
        }
        self.epoch = configure.epoch;
        self.linked = false;
        network.cut_links(self.me, Some(self.epoch));
        let placement = Arc::new(configure.placement.clone());
        let peer = |(agent, upper)| (agent, Peer { upper, up: false });
        self.peers = peers(&placement, self.me).into_iter().map(peer).collect();
        for (&upper, _) in self.peers.iter().filter(|(_, peer)| peer.upper) {
            network.dials.insert(LinkKey { epoch: self.epoch, upper, lower: self.me });
        }
        let me = self.me;
        let (body, mut context) = self.split(network);
        match body {
            RoleState::Shard(shard) => shard.configure(placement, job, &mut context),
            RoleState::Swarm(swarm) => swarm.configure(placement, job, &context)?,
            RoleState::System(system) => system.configure(placement, job, &context)?,
            RoleState::Activation(_) => {}
        }
        (!self.peers.is_empty()).then_some(()).ok_or_else(|| format!("{me} has no neighbours"))
    }

    /// Handles a packet on a link of the current epoch.
    pub fn packet(&mut self, peer: AgentId, packet: Packet, network: &mut Network) -> Result<(), String> {
        match packet {
            Packet::Up => self.link_up(peer, network),
            Packet::Broken => {
                self.peers.entry(peer).and_modify(|peer| peer.up = false);
                // A loss may be reported more than once.
                for _ in 0..network.random.within(1, 3) {
                    network.report(self.stream, AgentReport::LinkLost { epoch: self.epoch, peer: Some(peer) });
                }
                Ok(())
            }
            Packet::Frame(frame) => {
                let (body, mut context) = self.split(network);
                match body {
                    RoleState::Shard(shard) => shard.gradient(frame, &mut context),
                    RoleState::Swarm(swarm) => swarm.frame(peer, frame, &mut context),
                    RoleState::System(system) => system.weights(frame),
                    RoleState::Activation(_) => Err("an activation server got a frame".to_owned()),
                }
            }
            Packet::Ask(task, leaves) => {
                let (body, mut context) = self.split(network);
                let RoleState::Activation(plan) = body else {
                    return Err(format!("{} was asked for samples", context.me));
                };
                context.send(peer, Packet::Samples(samples(plan, task, leaves)));
                Ok(())
            }
            Packet::Samples(samples) => match &mut self.body {
                RoleState::System(system) => system.samples(samples),
                _ => Err(format!("{} got samples", self.me)),
            },
        }
    }

    fn link_up(&mut self, peer: AgentId, network: &mut Network) -> Result<(), String> {
        self.peers.entry(peer).and_modify(|peer| peer.up = true);
        if self.linked || !self.peers.values().all(|peer| peer.up) {
            return Ok(());
        }
        self.linked = true;
        let (body, mut context) = self.split(network);
        match body {
            RoleState::Shard(shard) => shard.start(&mut context)?,
            RoleState::Swarm(swarm) => swarm.start(&mut context),
            RoleState::System(system) => system.start(&mut context),
            RoleState::Activation(_) => {}
        }
        let epoch = context.epoch;
        context.report(AgentReport::Linked { epoch });
        Ok(())
    }

    /// Handles a grant on a link of the current epoch.
    pub fn grant(&mut self, peer: AgentId, total: u64, network: &mut Network) -> Result<(), String> {
        let (body, mut context) = self.split(network);
        match body {
            RoleState::Shard(shard) => shard.grant(total, &mut context),
            RoleState::Swarm(swarm) => swarm.grant(peer, total, &mut context),
            RoleState::System(system) => {
                system.grant(total);
                Ok(())
            }
            RoleState::Activation(_) => Ok(()),
        }
    }

    /// Describes what the agent waits for.
    pub fn waits_for(&self) -> String {
        let missing: Vec<_> =
            self.peers.iter().filter(|(_, peer)| !peer.up).map(|(agent, _)| agent.to_string()).collect();
        let body = match &self.body {
            RoleState::Shard(shard) => format!("{:?}", shard.machine.state()),
            RoleState::Swarm(swarm) => swarm.waits_for(),
            RoleState::System(system) => system.waits_for(),
            RoleState::Activation(_) => String::new(),
        };
        let Self { me, epoch, linked, .. } = self;
        format!("{me} in epoch {epoch}, linked: {linked}, links missing: {missing:?}; {body}")
    }
}

/// Returns every neighbor of `me`, and whether it is above.
fn peers(placement: &Placement, me: AgentId) -> Vec<(AgentId, bool)> {
    let swarm = |index: usize| AgentId::new(Role::SwarmX, placement.swarm[index].id);
    match me.role {
        Role::Coordinator => Vec::new(),
        Role::MemoryX => vec![(swarm(0), false)],
        Role::SwarmX => placement.swarm.iter().position(|node| node.id == me.index).map_or_else(Vec::new, |index| {
            let (above, below) = neighbours(placement, index);
            above.into_iter().map(|agent| (agent, true)).chain(below.into_iter().map(|agent| (agent, false))).collect()
        }),
        Role::Cs2 => placement.systems.iter().find(|system| system.id == me.index).map_or_else(Vec::new, |system| {
            vec![(swarm(system.parent), true), (AgentId::new(Role::Activation, system.activation), true)]
        }),
        Role::Activation => {
            let served = placement.systems.iter().filter(|system| system.activation == me.index);
            served.map(|system| (AgentId::new(Role::Cs2, system.id), false)).collect()
        }
    }
}

/// Returns the agents above and below a SwarmX node, in the order of its state machine.
pub fn neighbours(placement: &Placement, index: usize) -> (Vec<AgentId>, Vec<AgentId>) {
    let swarm = |index: usize| AgentId::new(Role::SwarmX, placement.swarm[index].id);
    let above = match placement.swarm[index].parent {
        Some(parent) => vec![swarm(parent)],
        None => placement.memoryx.iter().map(|&id| AgentId::new(Role::MemoryX, id)).collect(),
    };
    let child = |child: &SwarmChild| match *child {
        SwarmChild::System(index) => AgentId::new(Role::Cs2, placement.systems[index].id),
        SwarmChild::Swarm(index) => swarm(index),
    };
    (above, placement.swarm[index].children.iter().map(child).collect())
}
