//! Membership: who is there, what the shards hold, and the epoch made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millrace_emulator::placement::{Placement, PlacementError, PlacementMembers};

use crate::message::{Cause, Configure, Order, ShardState};
use crate::types::{AgentId, Role};

use super::{Command, Coordinator, Member, Outcome, Phase};

impl Coordinator {
    pub(super) fn joined(
        &mut self,
        agent: AgentId,
        address: String,
        state: Option<ShardState>,
        out: &mut Vec<Command>,
    ) {
        self.members.insert(agent, Member { address, state: state.unwrap_or_default() });
        if agent.role == Role::MemoryX {
            // In this order: a snapshot missed is older than a commit missed.
            let commit = self.deciding.as_ref().map(|deciding| Order::Commit { record: deciding.record });
            let missed = self.missed_snapshot(agent).into_iter().chain(commit);
            out.extend(missed.map(|order| Command::Send(agent, order)));
        }
        self.no_longer_loading(agent);
        self.failures.forget(agent);
        if self.serves(agent) {
            self.regather();
        } else {
            // The turn in flight is worth more than a better placement for it.
            self.joined_late = true;
        }
    }

    pub(super) fn lost(&mut self, agent: AgentId) {
        self.members.remove(&agent);
        self.no_longer_loading(agent);
        self.failures.forget(agent);
        if self.serves(agent) {
            self.regather();
        }
    }

    fn serves(&self, agent: AgentId) -> bool {
        self.placement.as_ref().is_some_and(|placement| serves(placement, agent))
    }

    /// Whether more systems could work now than do.
    pub(super) fn helps(&self) -> bool {
        let systems = self.placement.as_ref().map_or(0, |placement| placement.systems.len());
        matches!(self.phase, Phase::Linking(_) | Phase::Running)
            && systems < self.wanted.systems as usize
            && matches!(self.place(), Ok(Some(better)) if better.systems.len() > systems)
    }

    /// Membership changed: whatever isn't decided is abandoned. Shards that are loading go on with it.
    pub(super) fn regather(&mut self) {
        self.current = None;
        self.evaluating = None;
        if !matches!(self.phase, Phase::Loading(_)) {
            self.phase = Phase::Gathering;
        }
    }

    pub(super) fn loaded(&mut self, agent: AgentId, state: ShardState) {
        if let Some(member) = self.members.get_mut(&agent) {
            member.state = state;
        }
        self.no_longer_loading(agent);
    }

    fn no_longer_loading(&mut self, agent: AgentId) {
        if let Phase::Loading(waiting) = &mut self.phase {
            waiting.remove(&agent);
            if waiting.is_empty() {
                self.phase = Phase::Gathering;
            }
        }
    }

    /// The shards the job has, whether they are there or not.
    pub(super) fn shards(&self) -> impl Iterator<Item = AgentId> + use<> {
        (0..self.wanted.shards).map(|index| AgentId::new(Role::MemoryX, index))
    }

    /// Whether a shard that is there has no parameters: before the first epoch, none has anything worth saving then.
    pub(super) fn misses_parameters(&self) -> bool {
        self.members.iter().any(|(agent, member)| agent.role == Role::MemoryX && !member.state.loaded)
    }

    fn of(&self, role: Role) -> Vec<u32> {
        self.members.keys().filter(|agent| agent.role == role).map(|agent| agent.index).collect()
    }

    /// A placement of as many systems as are wanted and can be served by those who are there; `None` while that is
    /// too few.
    fn place(&self) -> Result<Option<Placement>, PlacementError> {
        let server = |index| self.members.contains_key(&AgentId::new(Role::Activation, index));
        if !(0..self.wanted.activation_servers.max(1)).all(server) {
            return Ok(None);
        }
        let mut members = PlacementMembers {
            systems: self.of(Role::Cs2).into_iter().take(self.wanted.systems as usize).collect(),
            shards: self.wanted.shards,
            swarmx: self.of(Role::SwarmX),
            fan_out: self.wanted.fan_out,
            activation_servers: self.wanted.activation_servers,
        };
        while members.systems.len() >= self.wanted.least_systems.max(1) as usize {
            match Placement::new(&self.plan, &members) {
                // More SwarmX agents may still join.
                Err(PlacementError::TooFewSwarmNodes { .. }) => members.systems.pop(),
                made => return made.map(Some),
            };
        }
        Ok(None)
    }

    /// Starts a new epoch once everyone is there.
    pub(super) fn gather(&mut self, out: &mut Vec<Command>) {
        match self.place() {
            Ok(None) => {}
            Ok(Some(placement)) => {
                if self.agree(out) {
                    self.configure(Arc::new(placement), out);
                }
            }
            Err(error) => {
                self.end(Outcome::Failed { reason: error.to_string(), agent: None, cause: Cause::BadInput }, out);
            }
        }
    }

    /// Brings all shards to one committed step: loads those without the source's parameters before the first commit,
    /// completes a commit that only some have recorded. True once all are there and agree.
    pub(super) fn agree(&mut self, out: &mut Vec<Command>) -> bool {
        let states: Option<Vec<(AgentId, ShardState)>> =
            self.shards().map(|shard| Some((shard, self.members.get(&shard)?.state))).collect();
        let Some(states) = states else { return false };
        let newest = states.iter().map(|(_, state)| state.committed).max().unwrap_or(0);
        let fresh = newest < self.step || states.iter().all(|(_, state)| state.record.is_none());
        if fresh && (self.epoch.number == 0 || !self.policy.train) && self.deciding.is_none() {
            let loaded = |state: &ShardState| state.loaded && state.committed == self.source.step();
            let stale = states.iter().filter(|(_, state)| !loaded(state)).map(|&(shard, _)| shard);
            return self.load(stale.collect(), out);
        }
        if let Some(&(shard, _)) = states.iter().find(|(_, state)| !state.loaded) {
            let reason =
                "a MemoryX shard came back without its parameters; resume from the newest checkpoint".to_owned();
            self.end(Outcome::Failed { reason, agent: Some(shard), cause: Cause::ShardLost }, out);
            return false;
        }
        if self.deciding.is_some() {
            return false;
        }
        if newest > self.step {
            (self.step, self.done) = (newest, self.known.at(newest));
        }
        let Some(record) = states.iter().find_map(|(_, state)| state.record.filter(|record| record.step == newest))
        else {
            return true;
        };
        self.record = Some(record);
        self.tell(record, out);
        let agree = states.iter().all(|(_, state)| state.committed == newest);
        if !agree {
            self.resolve(record, out);
        }
        agree
    }

    /// Fills these shards' parameters. True when there are none.
    fn load(&mut self, shards: BTreeSet<AgentId>, out: &mut Vec<Command>) -> bool {
        if shards.is_empty() {
            return true;
        }
        if self.stopping {
            self.end(Outcome::Stopped, out);
            return false;
        }
        out.extend(shards.iter().map(|&shard| Command::Send(shard, Order::Load(self.source.clone()))));
        self.phase = Phase::Loading(shards);
        false
    }

    fn configure(&mut self, placement: Arc<Placement>, out: &mut Vec<Command>) {
        self.epoch.number += 1;
        self.serial = 0;
        let addresses: BTreeMap<AgentId, String> =
            self.members.iter().map(|(&agent, member)| (agent, member.address.clone())).collect();
        let agents: BTreeSet<AgentId> = self.members.keys().copied().filter(|&a| serves(&placement, a)).collect();
        out.push(Command::Epoch { epoch: self.epoch, placement: placement.clone() });
        for &agent in &agents {
            let configure =
                Configure { epoch: self.epoch, placement: (*placement).clone(), addresses: addresses.clone() };
            out.push(Command::Send(agent, Order::Configure(Box::new(configure))));
        }
        self.placement = Some(placement);
        self.phase = Phase::Linking(agents);
    }
}

/// Whether `agent` has a part in `placement`.
pub(super) fn serves(placement: &Placement, agent: AgentId) -> bool {
    match agent.role {
        Role::Coordinator => false,
        Role::MemoryX => agent.index < placement.shards,
        Role::SwarmX => placement.swarm.iter().any(|node| node.id == agent.index),
        Role::Cs2 => placement.systems.iter().any(|system| system.id == agent.index),
        Role::Activation => placement.systems.iter().any(|system| system.activation == agent.index),
    }
}
