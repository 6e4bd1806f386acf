//! Membership: the agents present, the state of the shards, and the epochs formed from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millrace_emulator::placement::{Placement, PlacementError, PlacementMembers};

use crate::message::{AgentCommand, EpochConfig, FailureCause, ShardState};
use crate::types::{AgentId, Role};

use super::{Coordinator, CoordinatorCommand, MemberState, Phase, RequiredAgents, RunOutcome};

impl Coordinator {
    pub(super) fn on_joined(
        &mut self,
        agent: AgentId,
        address: String,
        state: Option<ShardState>,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let state = state.unwrap_or_default();
        self.members.insert(agent, MemberState { address, state, is_copying: false });
        if agent.role == Role::MemoryX && state.loaded {
            self.send_missed_commands(agent, state, out);
        }
        self.fail_lost_snapshot_parts(out);
        self.cancel_load(agent);
        self.failures.forget_agent(agent);
        if self.is_placed(agent) {
            self.restart_gathering();
        } else {
            // The current iteration is worth more than an immediate change of placement.
            self.may_place_better = true;
        }
    }

    pub(super) fn resize(&mut self, required: RequiredAgents) {
        self.required = required;
        self.may_place_better = true;
    }

    /// Returns whether only required agents take part. False after a resize until the next epoch, if the current one
    /// has more agents, and while an agent beyond the required ones stands in for a missing one.
    pub fn is_within_size(&self) -> bool {
        self.placement
            .as_ref()
            .is_none_or(|placement| self.count_required(placement) == placed_agents(placement).count())
    }

    fn count_required(&self, placement: &Placement) -> usize {
        placed_agents(placement).filter(|&agent| self.required.contains(agent)).count()
    }

    pub(super) fn on_lost(&mut self, agent: AgentId, out: &mut Vec<CoordinatorCommand>) {
        self.members.remove(&agent);
        self.fail_lost_snapshot_parts(out);
        self.cancel_load(agent);
        self.failures.forget_agent(agent);
        if self.is_placed(agent) {
            self.restart_gathering();
        }
    }

    fn is_placed(&self, agent: AgentId) -> bool {
        self.placement.as_ref().is_some_and(|placement| is_placed(placement, agent))
    }

    /// Returns whether another number of systems, activation servers or MemoryX agents could work than currently do, or
    /// more of the required ones.
    pub(super) fn has_better_placement(&self) -> bool {
        let properties = |placement: &Placement| {
            let servers: BTreeSet<u32> = placement.systems.iter().map(|system| system.activation).collect();
            (placement.systems.len(), servers.len(), placement.memoryx.len(), self.count_required(placement))
        };
        matches!(self.phase, Phase::Linking(_) | Phase::Running)
            && matches!(self.place_members(), Ok(Some(better))
                if self.placement.as_ref().is_none_or(|current| properties(&better) != properties(current)))
    }

    /// Handles a change of membership: abandons everything that is not decided. Shards continue to load parameters.
    pub(super) fn restart_gathering(&mut self) {
        self.current = None;
        self.evaluating = None;
        if !matches!(self.phase, Phase::Loading(_)) {
            self.phase = Phase::Gathering;
        }
    }

    pub(super) fn on_loaded(&mut self, agent: AgentId, state: ShardState) {
        let loaded_step = self.source.step();
        if let Some(member) = self.members.get_mut(&agent) {
            if !member.is_copying && state.committed != loaded_step {
                // It was sent before another checkpoint was requested. The report about that one follows.
                return;
            }
            member.state = state;
            member.is_copying = false;
        }
        self.cancel_load(agent);
    }

    pub(super) fn cancel_load(&mut self, agent: AgentId) {
        if let Phase::Loading(waiting) = &mut self.phase {
            waiting.remove(&agent);
            if waiting.is_empty() {
                self.phase = Phase::Gathering;
            }
        }
    }

    fn indices_of_role(&self, role: Role) -> Vec<u32> {
        self.members.keys().filter(|agent| agent.role == role).map(|agent| agent.index).collect()
    }

    /// Returns a placement with as many of the requested systems as the joined agents can serve, and every MemoryX
    /// agent that has joined; `None` if these are too few.
    fn place_members(&self) -> Result<Option<Placement>, PlacementError> {
        let servers = self.indices_of_role(Role::Activation);
        if servers.is_empty() {
            return Ok(None);
        }
        let mut members = PlacementMembers {
            systems: self.indices_of_role(Role::Cs2).into_iter().take(self.required.systems as usize).collect(),
            shards: self.required.shards,
            memoryx: self.joined_replicas().map(|(agent, _)| agent.index).collect(),
            swarmx: self.indices_of_role(Role::SwarmX),
            fan_out: self.required.fan_out,
            activation_servers: servers.into_iter().take(self.required.activation_servers.max(1) as usize).collect(),
        };
        while members.systems.len() >= self.required.min_systems.max(1) as usize {
            match Placement::new(&self.plan, &members) {
                // A replica of this shard may still join, and more SwarmX agents.
                Err(PlacementError::NoReplica { .. }) => return Ok(None),
                Err(PlacementError::TooFewSwarmNodes { .. }) => members.systems.pop(),
                made => return made.map(Some),
            };
        }
        Ok(None)
    }

    /// Begins a new epoch once all required agents have joined.
    pub(super) fn try_begin_epoch(&mut self, out: &mut Vec<CoordinatorCommand>) {
        match self.place_members() {
            Ok(None) => {}
            Ok(Some(placement)) => {
                if self.align_shards(out) {
                    self.configure(Arc::new(placement), out);
                }
            }
            Err(error) => {
                self.end(
                    RunOutcome::Failed { reason: error.to_string(), agent: None, cause: FailureCause::BadInput },
                    out,
                );
            }
        }
    }

    fn configure(&mut self, placement: Arc<Placement>, out: &mut Vec<CoordinatorCommand>) {
        self.epoch.number += 1;
        self.next_iteration = 0;
        let addresses: BTreeMap<AgentId, String> =
            self.members.iter().map(|(&agent, member)| (agent, member.address.clone())).collect();
        let agents: BTreeSet<AgentId> = self.members.keys().copied().filter(|&a| is_placed(&placement, a)).collect();
        out.push(CoordinatorCommand::Epoch { epoch: self.epoch, placement: placement.clone() });
        for &agent in &agents {
            let configure =
                EpochConfig { epoch: self.epoch, placement: (*placement).clone(), addresses: addresses.clone() };
            out.push(CoordinatorCommand::Send(agent, AgentCommand::Configure(Box::new(configure))));
        }
        self.placement = Some(placement);
        self.phase = Phase::Linking(agents);
    }
}

/// Returns the agents that have a role in `placement`, besides those of MemoryX; an activation server as often as it
/// has systems.
fn placed_agents(placement: &Placement) -> impl Iterator<Item = AgentId> {
    let nodes = placement.swarm.iter().map(|node| AgentId::new(Role::SwarmX, node.id));
    let systems = placement.systems.iter().map(|system| AgentId::new(Role::Cs2, system.id));
    let servers = placement.systems.iter().map(|system| AgentId::new(Role::Activation, system.activation));
    nodes.chain(systems).chain(servers)
}

/// Returns the MemoryX agents in `placement`.
pub(super) fn memoryx_agents(placement: &Placement) -> impl Iterator<Item = AgentId> {
    placement.memoryx.iter().map(|&index| AgentId::new(Role::MemoryX, index))
}

/// Returns whether `agent` has a role in `placement`.
pub(super) fn is_placed(placement: &Placement, agent: AgentId) -> bool {
    match agent.role {
        Role::Coordinator => false,
        Role::MemoryX => placement.memoryx.contains(&agent.index),
        Role::SwarmX => placement.swarm.iter().any(|node| node.id == agent.index),
        Role::Cs2 => placement.systems.iter().any(|system| system.id == agent.index),
        Role::Activation => placement.systems.iter().any(|system| system.activation == agent.index),
    }
}
