//! Admits agents. The first agents wait until all required agents have joined; later ones are admitted at once. A
//! coordinator that continues the run of another one waits only for a while for agents that it can do without.
//!
//! * The control port has checked that the certificate names the agent.
//! * A process does not replace another live process of the same agent: it is rejected until the stream of the other
//!   one has ended.
//! * Shards may hold parameters of an earlier coordinator of this job. The run then continues from these parameters,
//!   with the instruction set to which the shards are pinned.
//! * Training that continues from a checkpoint keeps the instruction set of the checkpoint, if any agent has it. Agents
//!   whose machines lack the chosen set are rejected; the run continues with the others if they suffice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use millrace_checkpoint::{ResumeHistory, begin_lineage, continue_lineage};
use millrace_emulator::numerics::{Isa, IsaSet};
use millrace_emulator::placement::{ShardId, shard_of_agent};
use millrace_engine::coordinator::{Coordinator, CoordinatorEvent, RequiredAgents, ResumeState, StepProgress};
use millrace_engine::message::ShardState;
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::launch::AgentCounts;
use millrace_protocol::proto;

use super::super::checkpoint_writer::CheckpointWriter;
use super::super::resume::{check_profile, has_evaluation};
use super::super::run_end::RunEnd;
use super::super::run_policy::policy;
use super::{AgentConnection, CoordinatorDriver};
use crate::checkpoints::checkpoint_failure;
use crate::control::server::{JoinedAgent, StreamNumber};
use crate::error::AgentError;

impl CoordinatorDriver {
    /// Handles a joining agent. Agents wait until all have joined, so that the job is pinned to an instruction set that
    /// all of them have.
    pub(super) fn on_hello(&mut self, number: StreamNumber, hello: Box<JoinedAgent>) -> Result<(), AgentError> {
        if !hello.uid.is_empty() && hello.uid != self.uid() {
            hello.handle.reject("it belongs to another job");
            return Ok(());
        }
        if let Some((stream, instance)) = self.process_holding_name(hello.agent) {
            if instance != hello.instance {
                self.reject_duplicate_agent(&hello);
                return Ok(());
            }
            // The process is the same: its old stream broke, and only the agent has noticed so far.
            self.on_disconnected(hello.agent, stream)?;
        }
        if self.machine.is_some() {
            return self.admit(number, &hello);
        }
        self.pending_agents.insert(hello.agent, (number, hello));
        if self.stop_by.is_some() {
            return self.stop_early();
        }
        self.shorten_join_timeout();
        self.admit_if_complete()
    }

    /// Admits the waiting agents once the last one has joined.
    pub(super) fn admit_if_complete(&mut self) -> Result<(), AgentError> {
        let is_complete = Role::ALL
            .into_iter()
            .filter(|&role| role != Role::Coordinator)
            .all(|role| self.waiting_agents(role) >= self.launch.agent_counts.of(role));
        if is_complete { self.admit_all() } else { Ok(()) }
    }

    /// Returns the number of agents of `role` that wait until the others have joined.
    fn waiting_agents(&self, role: Role) -> usize {
        self.pending_agents.keys().filter(|agent| agent.role == role).count()
    }

    /// Returns stream and instance of the process that is connected as `agent`.
    fn process_holding_name(&self, agent: AgentId) -> Option<(StreamNumber, u64)> {
        let joined = self.joined.get(&agent).map(|connected| (connected.stream, connected.instance));
        joined.or_else(|| self.pending_agents.get(&agent).map(|(stream, hello)| (*stream, hello.instance)))
    }

    fn reject_duplicate_agent(&mut self, hello: &JoinedAgent) {
        let reason = format!("another process is already {} in this job", hello.agent);
        if self.rejections.record(Instant::now()).is_some() {
            tracing::warn!(peer = %hello.agent, "rejected a second {}: {reason}", hello.agent);
        }
        hello.handle.reject_duplicate(&reason);
    }

    /// Handles a stop before all agents have joined. If shards may hold steps of an earlier coordinator, waits for them
    /// so that these steps are saved.
    pub(super) fn stop_early(&mut self) -> Result<(), AgentError> {
        let has_all = self.waiting_agents(Role::MemoryX) >= self.launch.agent_counts.of(Role::MemoryX);
        let has_record =
            self.pending_agents.values().any(|(_, hello)| hello.shard.is_some_and(|state| state.record.is_some()));
        if self.lock.previous().is_none() || (has_all && !has_record) {
            self.end = Some(RunEnd::stopped(self.stop_reason.as_deref()));
        } else if has_all {
            self.stop_by = None;
            self.admit_all()?;
            self.handle_event(CoordinatorEvent::StopRequested)?;
        }
        Ok(())
    }

    /// Returns whether the waiting agents can continue the run of an earlier coordinator: a replica of every shard
    /// holds parameters, and the others suffice.
    pub(super) fn can_continue_without_others(&self) -> bool {
        let counts = &self.launch.agent_counts;
        let suffices = |role| self.waiting_agents(role) >= counts.of(role).min(1);
        let shard = |(agent, ..): (AgentId, IsaSet, ShardState)| shard_of_agent(agent.index, counts.shards as u32);
        let held: BTreeSet<ShardId> = self.shards_with_parameters().map(shard).collect();
        held.len() == counts.shards
            && self.waiting_agents(Role::Cs2) >= counts.least_systems.max(1)
            && [Role::SwarmX, Role::Activation].into_iter().all(suffices)
    }

    pub(super) fn admit_all(&mut self) -> Result<(), AgentError> {
        self.pin_profile()?;
        // Shards last: the first epoch begins with the last shard, and includes every agent.
        for (number, hello) in std::mem::take(&mut self.pending_agents).into_values().rev() {
            self.admit(number, &hello)?;
        }
        Ok(())
    }

    /// Returns the waiting MemoryX agents that hold parameters of this job from an earlier coordinator, with
    /// instruction set and state.
    fn shards_with_parameters(&self) -> impl Iterator<Item = (AgentId, IsaSet, ShardState)> {
        let shards =
            self.pending_agents.values().filter_map(|(_, hello)| Some((hello.agent, hello.isas, hello.shard?)));
        shards.filter(|(.., state)| state.loaded)
    }

    /// Returns the instruction set of the run: the one to which shards with parameters are pinned; the one of the
    /// checkpoint that training continues from, if an agent has it; or the one that most agents have.
    fn choose_isa(&self) -> Isa {
        let Self { launch, start_point, .. } = self;
        if let Some(held) = self.shards_with_parameters().find_map(|(_, isas, _)| isas.preferred()) {
            return held;
        }
        let machines = self.pending_agents.values().map(|(_, hello)| hello.isas);
        let allowed = machines.map(|isas| launch.isa.map_or(isas, |isa| isas.up_to(isa)));
        let common = IsaSet::most_common(allowed.clone()).unwrap_or(self.compiled.profile.isa);
        let is_free = launch.isa.is_some() || launch.resume.accept_other_profile || !launch.mode.trains();
        let has = |isa: &Isa| allowed.clone().any(|isas| isas.contains(*isa));
        match start_point.isa().filter(|isa| !is_free && has(isa)) {
            Some(kept) if kept != common => {
                self.reporter.line(format!(
                    "Kept as in the checkpoint: the instruction set {kept}. The machines have {common}, which gives \
                     different bits; --allow_profile_change uses it."
                ));
                kept
            }
            _ => common,
        }
    }

    /// Pins the numerics profile and creates the state machine.
    fn pin_profile(&mut self) -> Result<(), AgentError> {
        let isa = self.choose_isa();
        let committed =
            self.shards_with_parameters().filter_map(|(.., state)| state.record).map(|record| record.step).max();
        let Self { launch, compiled, start_point, remaining_checkpoints, eval_batches, lock, .. } = self;
        compiled.profile.isa = isa;
        let note = check_profile(launch, compiled, start_point.profile.as_deref())?;
        self.checkpoint_writer =
            Some(Arc::new(CheckpointWriter::new(lock.clone(), compiled.clone(), note.into_iter().collect())));
        let required = required_agents(&launch.agent_counts);
        let committed_step = committed.filter(|&step| step >= start_point.step);
        let step = committed_step.unwrap_or(start_point.step);
        let before = match committed_step {
            _ if !launch.mode.trains() => ResumeHistory::default(),
            Some(step) => continue_lineage(lock, step).map_err(checkpoint_failure)?,
            None => begin_lineage(lock, start_point.from).map_err(checkpoint_failure)?,
        };
        self.reporter.on_agents_ready(launch.agent_counts.systems, step, &before, committed_step.is_some())?;
        let saved = start_point.saved.is_some() && step == start_point.step;
        let done = StepProgress { evaluated: has_evaluation(&launch.model_dir, step), saved };
        let done = if launch.mode.trains() { done } else { StepProgress::default() };
        let known = ResumeState { step, done, history: start_point.history };
        let (plan, source) = (compiled.plan.clone(), start_point.source.clone());
        let policy = policy(compiled, launch.mode, *eval_batches);
        let sources = remaining_checkpoints.iter().map(|start_point| start_point.source.clone());
        let machine = Coordinator::new(plan, policy, required, source, lock.attempt(), known);
        self.machine = Some(machine.with_further_evaluations(sources));
        Ok(())
    }

    fn admit(&mut self, number: StreamNumber, hello: &JoinedAgent) -> Result<(), AgentError> {
        let compiled = &self.compiled;
        if !hello.isas.contains(compiled.profile.isa) {
            let reason = format!(
                "the job computes with {}, which the machine of {} does not support; run it on machines that do",
                compiled.profile.isa, hello.agent
            );
            tracing::warn!(peer = %hello.agent, "rejected {}: {reason}", hello.agent);
            hello.handle.reject(&reason);
            return Ok(());
        }
        hello.handle.send_job(proto::Welcome {
            job: self.job_json.clone(),
            plan: compiled.hash.0,
            attempt: self.lock.attempt(),
            isa: compiled.profile.isa.to_string(),
            uid: self.uid(),
            traceparent: self.spans.traceparent(),
        });
        match hello.address.as_str() {
            "" => tracing::info!(peer = %hello.agent, "{} has joined", hello.agent),
            address => tracing::info!(peer = %hello.agent, "{} has joined; its address is {address}", hello.agent),
        }
        let connected = AgentConnection { stream: number, instance: hello.instance, handle: hello.handle.clone() };
        self.joined.insert(hello.agent, connected);
        if self.lost_agents.remove(&hello.agent).is_some_and(|lost| lost.is_announced) {
            self.report_lost_agents();
        }
        self.handle_event(CoordinatorEvent::Joined {
            agent: hello.agent,
            address: hello.address.clone(),
            shard: hello.shard,
        })
    }

    /// Returns the id of this job: the UID of the launch document, or else the path of model_dir. It is the same for
    /// every coordinator of the job, and serves to reject agents that were in another job.
    fn uid(&self) -> String {
        let dir = self.lock.model_dir();
        let path = || dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).to_string_lossy().into_owned();
        self.launch.job_uid.clone().unwrap_or_else(path)
    }
}

/// Returns these numbers of agents as the state machine requires them.
pub(super) const fn required_agents(counts: &AgentCounts) -> RequiredAgents {
    RequiredAgents {
        systems: counts.systems as u32,
        min_systems: counts.least_systems as u32,
        shards: counts.shards as u32,
        replicas: counts.replicas as u32,
        fan_out: counts.fan_out,
        activation_servers: counts.activation_servers as u32,
    }
}
