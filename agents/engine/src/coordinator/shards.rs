//! The MemoryX shards: the step that all of them continue from, and how each replica reaches it.
//!
//! A shard has one or more replicas, see [`shard_of_agent`]. All replicas in a placement gather the same gradients and
//! record the same commits, so that each of them can continue alone.
//!
//! ```text
//!                        committed   prepared
//!  shard 0   memoryx-0          57              is at step 57
//!            memoryx-2          56         57   receives the commit of step 57 again
//!  shard 1   memoryx-1          57              is at step 57
//!            memoryx-3           -              copies the parameters of memoryx-1
//! ```
//!
//! * A commit is complete once one replica of every shard has recorded it. Replicas that miss it copy another one.
//! * If no replica of a shard is at the newest step or can commit it, all of its replicas are waited for; then all
//!   shards are restored from a checkpoint.

use std::collections::BTreeSet;

use millrace_emulator::placement::{ShardId, shard_of_agent};

use crate::message::{AgentCommand, ParameterSource, ShardState};
use crate::types::{AgentId, CommitRecord, Role};

use super::{Coordinator, CoordinatorCommand, Phase, RunOutcome};

/// A joined replica of a shard, with its state.
type Replica = (AgentId, ShardState);

impl Coordinator {
    /// Returns the shard of a MemoryX agent.
    pub(super) const fn shard_of(&self, agent: AgentId) -> ShardId {
        shard_of_agent(agent.index, self.required.shards)
    }

    /// Returns the MemoryX agents that have joined, ascending.
    pub(super) fn joined_replicas(&self) -> impl Iterator<Item = Replica> {
        let is_replica = |agent: AgentId| agent.role == Role::MemoryX && self.required.contains(agent);
        let joined = self.members.iter().filter(move |(agent, _)| is_replica(**agent));
        joined.map(|(&agent, member)| (agent, member.state))
    }

    /// Returns the replicas of `shard` that have joined, ascending.
    fn replicas(&self, shard: ShardId) -> impl Iterator<Item = Replica> {
        self.joined_replicas().filter(move |(agent, _)| self.shard_of(*agent) == shard)
    }

    /// Returns whether a replica is missing of a shard that has these.
    const fn is_incomplete(&self, replicas: &[Replica]) -> bool {
        replicas.len() < self.required.replicas as usize
    }

    /// Returns whether all replicas of a shard have joined, and none of them holds parameters.
    pub(super) fn lacks_parameters(&self) -> bool {
        let lacks = |shard| {
            let replicas: Vec<Replica> = self.replicas(shard).collect();
            !replicas.is_empty() && !self.is_incomplete(&replicas) && replicas.iter().all(|(_, state)| !state.loaded)
        };
        (0..self.required.shards).any(lacks)
    }

    /// Returns the replica of each shard that writes a snapshot of the current step: the first that holds it. Without
    /// such a replica, the first of all, which may join later.
    pub(super) fn snapshot_writers(&self) -> BTreeSet<AgentId> {
        let writer = |shard| {
            let current = self.replicas(shard).find(|(_, state)| state.is_at(self.step));
            current.map_or(AgentId::new(Role::MemoryX, shard), |(agent, _)| agent)
        };
        (0..self.required.shards).map(writer).collect()
    }

    /// Returns the shards of which a joined replica holds exactly `step`.
    pub(super) fn shards_at(&self, step: u64) -> BTreeSet<ShardId> {
        (0..self.required.shards).filter(|&shard| self.replicas(shard).any(|(_, state)| state.is_at(step))).collect()
    }

    /// Returns whether another replica than `agent` holds the parameters of its shard at the current step.
    pub fn has_other_replica(&self, agent: AgentId) -> bool {
        self.replicas(self.shard_of(agent)).any(|(other, state)| other != agent && state.is_at(self.step))
    }

    /// Sends the commands that a replica may have missed, in the order of their steps: the newest commit, to be
    /// acknowledged or because the replica can still record it, and the snapshot that it has to write.
    pub(super) fn send_missed_commands(
        &mut self,
        agent: AgentId,
        state: ShardState,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let is_awaited = |record: &CommitRecord| self.pending_commit.is_some() && state.is_at(record.step);
        let commit = self.record.filter(|record| state.can_commit(record) || is_awaited(record));
        let snapshot = self.missed_snapshot(agent);
        let send = |snapshot| CoordinatorCommand::Send(agent, AgentCommand::Snapshot(snapshot));
        let (earlier, later) = match snapshot {
            Some(snapshot) if snapshot.step <= state.committed => (Some(snapshot), None),
            snapshot => (None, snapshot),
        };
        out.extend(earlier.map(send));
        if let Some(record) = commit {
            self.send_commit(agent, record, out);
        }
        out.extend(later.filter(|snapshot| commit.is_some_and(|record| record.step == snapshot.step)).map(send));
    }

    /// Brings all replicas to the same committed step: before the first commit, loads the source's parameters into
    /// those that lack them; completes a commit that only some have recorded; copies parameters between replicas.
    /// Returns true once a replica of every shard has joined and all joined ones are at the same step.
    pub(super) fn align_shards(&mut self, out: &mut Vec<CoordinatorCommand>) -> bool {
        if self.search_checkpoint(out) {
            return false;
        }
        let shards: Vec<Vec<Replica>> = (0..self.required.shards).map(|shard| self.replicas(shard).collect()).collect();
        if shards.iter().any(Vec::is_empty) {
            return false;
        }
        let states: Vec<Replica> = shards.iter().flatten().copied().collect();
        let newest = states.iter().map(|(_, state)| state.committed).max().unwrap_or(0);
        // Not after another step was adopted: the replica that held it may have been lost before the first epoch.
        let fresh = self.step == self.source.step()
            && (newest < self.step || states.iter().all(|(_, state)| state.record.is_none()));
        if fresh && (self.epoch.number == 0 || !self.policy.train) && self.pending_commit.is_none() {
            return self.load_source(&shards, out);
        }
        let target = newest.max(self.step);
        let record = self.record.into_iter().chain(states.iter().filter_map(|(_, state)| state.record));
        let record = record.into_iter().find(|record| record.step == target);
        let can_commit = |state: &ShardState| record.is_some_and(|record| state.can_commit(&record));
        let can_reach = |(_, state): &Replica| state.is_at(target) || can_commit(state);
        let lost = shards.iter().find(|replicas| !replicas.iter().any(can_reach));
        match lost {
            Some(replicas) if self.is_incomplete(replicas) => return false,
            None if self.pending_commit.is_some() => return false,
            _ => {}
        }
        self.adopt_step(target, record, out);
        if let Some(&[(lost, _), ..]) = lost.map(Vec::as_slice) {
            return self.restore(lost, &states, out);
        }
        let late: BTreeSet<AgentId> =
            states.iter().filter(|(_, state)| can_commit(state)).map(|&(agent, _)| agent).collect();
        if let Some(record) = record.filter(|_| !late.is_empty()) {
            self.issue_commit(record, Vec::new(), &late, out);
            if self.pending_commit.is_some() {
                return false;
            }
        }
        self.copy_replicas(out)
    }

    /// Loads the source's parameters into the replicas that do not hold them, before the first commit. Returns true if
    /// there are none.
    fn load_source(&mut self, shards: &[Vec<Replica>], out: &mut Vec<CoordinatorCommand>) -> bool {
        let is_there = |(_, state): &&Replica| state.is_at(self.source.step());
        // A replica that has not joined may hold newer parameters.
        let may_be_newer = |replicas: &Vec<Replica>| {
            self.is_incomplete(replicas) && !replicas.iter().any(|replica| is_there(&replica))
        };
        if self.epoch.number == 0 && shards.iter().any(may_be_newer) {
            return false;
        }
        let stale = shards.iter().flatten().filter(|replica| !is_there(replica)).map(|&(agent, _)| agent);
        let stale = stale.collect();
        self.load_shards(stale, out)
    }

    /// Continues from `step`, the newest one that a shard has committed.
    fn adopt_step(&mut self, step: u64, record: Option<CommitRecord>, out: &mut Vec<CoordinatorCommand>) {
        if step > self.step {
            (self.step, self.done) = (step, self.resume_state.progress_at(step));
            self.evaluated_step = self.evaluated_step.max(self.done.evaluated.then_some(step));
        }
        if let Some(record) = record {
            self.record = Some(record);
            self.report_step(record, Vec::new(), out);
        }
    }

    /// Copies the parameters of the current step into the replicas that do not hold them. Returns true if there are
    /// none. A run that is stopping needs only one replica of every shard.
    fn copy_replicas(&mut self, out: &mut Vec<CoordinatorCommand>) -> bool {
        let copies: Vec<(AgentId, ParameterSource)> =
            (0..self.required.shards).flat_map(|at| self.copies(at)).collect();
        if copies.is_empty() || self.stopping {
            return true;
        }
        self.phase = Phase::Loading(copies.iter().map(|&(agent, _)| agent).collect());
        for (agent, source) in copies {
            self.fail_snapshot_part(agent, out);
            if let Some(member) = self.members.get_mut(&agent) {
                member.state = ShardState::default();
                member.is_copying = true;
            }
            out.push(CoordinatorCommand::Send(agent, AgentCommand::Load(source)));
        }
        false
    }

    /// Continues without a replica that could not copy another one. It copies again after it has joined again, at the
    /// end of the next iteration.
    pub(super) fn on_copy_failed(&mut self, agent: AgentId, reason: String, out: &mut Vec<CoordinatorCommand>) {
        // A failure that was reported late does not concern the present load.
        if self.members.get(&agent).is_some_and(|member| member.is_copying) {
            out.push(CoordinatorCommand::Disconnect { agent, reason });
            self.on_lost(agent, out);
        }
    }

    /// Returns the replicas of `shard` that do not hold the current step, each with the source of its copy.
    fn copies(&self, shard: ShardId) -> Vec<(AgentId, ParameterSource)> {
        let current = self.replicas(shard).find(|(_, state)| state.is_at(self.step));
        let Some((agent, member)) = current.and_then(|(agent, _)| Some((agent, self.members.get(&agent)?))) else {
            return Vec::new();
        };
        let (step, record) = (self.step, self.record.filter(|record| record.step == self.step));
        let source = ParameterSource::Replica { agent, address: member.address.clone(), step, record };
        let stale = self.replicas(shard).filter(|(_, state)| !state.is_at(step));
        stale.map(|(agent, _)| (agent, source.clone())).collect()
    }

    /// Loads the parameters of the source into these agents. Returns true if there are none.
    pub(super) fn load_shards(&mut self, agents: BTreeSet<AgentId>, out: &mut Vec<CoordinatorCommand>) -> bool {
        if agents.is_empty() {
            return true;
        }
        if self.stopping {
            self.end(RunOutcome::Stopped, out);
            return false;
        }
        out.extend(
            agents.iter().map(|&agent| CoordinatorCommand::Send(agent, AgentCommand::Load(self.source.clone()))),
        );
        self.phase = Phase::Loading(agents);
        false
    }
}
