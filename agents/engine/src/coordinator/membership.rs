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
        self.members.insert(agent, MemberState { address, state });
        if agent.role == Role::MemoryX && state.loaded {
            // In this order: a missed snapshot is older than a missed commit.
            let commit = self.pending_commit.as_ref().map(|deciding| AgentCommand::Commit { record: deciding.record });
            let missed = self.missed_snapshot_command(agent).into_iter().chain(commit);
            out.extend(missed.map(|order| CoordinatorCommand::Send(agent, order)));
        }
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

    pub(super) fn on_lost(&mut self, agent: AgentId) {
        self.members.remove(&agent);
        self.cancel_load(agent);
        self.failures.forget_agent(agent);
        if self.is_placed(agent) {
            self.restart_gathering();
        }
    }

    fn is_placed(&self, agent: AgentId) -> bool {
        self.placement.as_ref().is_some_and(|placement| is_placed(placement, agent))
    }

    /// Returns whether another number of systems or activation servers could work than currently do, or more of the
    /// required ones.
    pub(super) fn has_better_placement(&self) -> bool {
        let properties = |placement: &Placement| {
            let servers: BTreeSet<u32> = placement.systems.iter().map(|system| system.activation).collect();
            (placement.systems.len(), servers.len(), self.count_required(placement))
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
        if let Some(member) = self.members.get_mut(&agent) {
            member.state = state;
        }
        self.cancel_load(agent);
    }

    fn cancel_load(&mut self, agent: AgentId) {
        if let Phase::Loading(waiting) = &mut self.phase {
            waiting.remove(&agent);
            if waiting.is_empty() {
                self.phase = Phase::Gathering;
            }
        }
    }

    /// Returns the shards of the job, whether they have joined or not.
    pub(super) fn shards(&self) -> impl Iterator<Item = AgentId> + use<> {
        (0..self.required.shards).map(|index| AgentId::new(Role::MemoryX, index))
    }

    /// Returns whether a joined shard has no parameters. Before the first epoch, there is nothing to save then.
    pub(super) fn lacks_parameters(&self) -> bool {
        self.members.iter().any(|(agent, member)| agent.role == Role::MemoryX && !member.state.loaded)
    }

    fn indices_of_role(&self, role: Role) -> Vec<u32> {
        self.members.keys().filter(|agent| agent.role == role).map(|agent| agent.index).collect()
    }

    /// Returns a placement with as many of the requested systems as the joined agents can serve; `None` if these are
    /// too few.
    fn place_members(&self) -> Result<Option<Placement>, PlacementError> {
        let servers = self.indices_of_role(Role::Activation);
        if servers.is_empty() {
            return Ok(None);
        }
        let mut members = PlacementMembers {
            systems: self.indices_of_role(Role::Cs2).into_iter().take(self.required.systems as usize).collect(),
            shards: self.required.shards,
            swarmx: self.indices_of_role(Role::SwarmX),
            fan_out: self.required.fan_out,
            activation_servers: servers.into_iter().take(self.required.activation_servers.max(1) as usize).collect(),
        };
        while members.systems.len() >= self.required.min_systems.max(1) as usize {
            match Placement::new(&self.plan, &members) {
                // More SwarmX agents may still join.
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

    /// Brings all shards to the same committed step: before the first commit, loads the source's parameters into shards
    /// that lack them; completes a commit that only some shards have recorded. Returns true once all shards have joined
    /// and are at the same step.
    pub(super) fn align_shards(&mut self, out: &mut Vec<CoordinatorCommand>) -> bool {
        let states: Option<Vec<(AgentId, ShardState)>> =
            self.shards().map(|shard| Some((shard, self.members.get(&shard)?.state))).collect();
        let Some(states) = states else { return false };
        let newest = states.iter().map(|(_, state)| state.committed).max().unwrap_or(0);
        let fresh = newest < self.step || states.iter().all(|(_, state)| state.record.is_none());
        if fresh && (self.epoch.number == 0 || !self.policy.train) && self.pending_commit.is_none() {
            let loaded = |state: &ShardState| state.loaded && state.committed == self.source.step();
            let stale = states.iter().filter(|(_, state)| !loaded(state)).map(|&(shard, _)| shard);
            return self.load_shards(stale.collect(), out);
        }
        let lost = states.iter().find(|(_, state)| !state.loaded).map(|&(shard, _)| shard);
        if self.pending_commit.is_some() && lost.is_none() {
            return false;
        }
        if newest > self.step {
            (self.step, self.done) = (newest, self.resume_state.progress_at(newest));
            self.evaluated_step = self.evaluated_step.max(self.done.evaluated.then_some(newest));
        }
        let record = states.iter().find_map(|(_, state)| state.record.filter(|record| record.step == newest));
        if let Some(record) = record {
            self.record = Some(record);
            self.report_step(record, Vec::new(), out);
        }
        if let Some(shard) = lost {
            return self.restore(shard, &states, out);
        }
        let Some(record) = record else { return true };
        let agree = states.iter().all(|(_, state)| state.committed == newest);
        if !agree {
            self.issue_commit(record, Vec::new(), out);
        }
        agree
    }

    /// Loads the parameters of these shards. Returns true if there are none.
    pub(super) fn load_shards(&mut self, shards: BTreeSet<AgentId>, out: &mut Vec<CoordinatorCommand>) -> bool {
        if shards.is_empty() {
            return true;
        }
        if self.stopping {
            self.end(RunOutcome::Stopped, out);
            return false;
        }
        out.extend(
            shards.iter().map(|&shard| CoordinatorCommand::Send(shard, AgentCommand::Load(self.source.clone()))),
        );
        self.phase = Phase::Loading(shards);
        false
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

/// Returns the agents that have a role in `placement`, besides the shards; an activation server as often as it has
/// systems.
fn placed_agents(placement: &Placement) -> impl Iterator<Item = AgentId> {
    let nodes = placement.swarm.iter().map(|node| AgentId::new(Role::SwarmX, node.id));
    let systems = placement.systems.iter().map(|system| AgentId::new(Role::Cs2, system.id));
    let servers = placement.systems.iter().map(|system| AgentId::new(Role::Activation, system.activation));
    nodes.chain(systems).chain(servers)
}

/// Returns whether `agent` has a role in `placement`.
pub(super) fn is_placed(placement: &Placement, agent: AgentId) -> bool {
    match agent.role {
        Role::Coordinator => false,
        Role::MemoryX => agent.index < placement.shards,
        Role::SwarmX => placement.swarm.iter().any(|node| node.id == agent.index),
        Role::Cs2 => placement.systems.iter().any(|system| system.id == agent.index),
        Role::Activation => placement.systems.iter().any(|system| system.activation == agent.index),
    }
}
