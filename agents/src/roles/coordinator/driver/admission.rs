//! Admits agents. The first agents wait until all required agents have joined; later ones are admitted at once.
//!
//! * The control port has checked that the certificate names the agent.
//! * A process does not replace another live process of the same agent: it is rejected until the stream of the other
//!   one has ended.
//! * Shards may hold parameters of an earlier coordinator of this job. The run then continues from these parameters,
//!   with the instruction set to which the shards are pinned.

use std::sync::Arc;
use std::time::Instant;

use millrace_checkpoint::{ResumeHistory, begin_lineage, continue_lineage};
use millrace_emulator::numerics::Isa;
use millrace_engine::coordinator::{Coordinator, CoordinatorEvent, RequiredAgents, ResumeState, StepProgress};
use millrace_engine::message::ShardState;
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::proto;

use super::super::ending::Ending;
use super::super::policy::policy;
use super::super::resume::{check_profile, evaluated};
use super::super::saver::Saver;
use super::{Connected, Driver};
use crate::checkpoints::checkpoint_failure;
use crate::control::server::{Hello, StreamNumber};
use crate::failure::Failure;

impl Driver {
    /// Handles a joining agent. Agents wait until all have joined, so that the job is pinned to an instruction set that
    /// all of them have.
    pub(super) fn hello(&mut self, number: StreamNumber, hello: Box<Hello>) -> Result<(), Failure> {
        if !hello.uid.is_empty() && hello.uid != self.uid() {
            hello.post.refuse("it belongs to another job");
            return Ok(());
        }
        if let Some((stream, instance)) = self.holder(hello.agent) {
            if instance != hello.instance {
                self.refuse_duplicate(&hello);
                return Ok(());
            }
            // The process is the same: its old stream broke, and only the agent has noticed so far.
            self.gone(hello.agent, stream)?;
        }
        if self.machine.is_some() {
            return self.admit(number, &hello);
        }
        self.waiting.insert(hello.agent, (number, hello));
        if self.stop_by.is_some() {
            return self.stop_early();
        }
        let wanted = &self.launch.wanted;
        let of = |role| self.waiting.keys().filter(|agent| agent.role == role).count();
        let complete = of(Role::MemoryX) >= wanted.shards
            && of(Role::SwarmX) >= wanted.swarmx
            && of(Role::Activation) >= wanted.activation_servers
            && of(Role::Cs2) >= wanted.systems;
        if complete { self.admit_all() } else { Ok(()) }
    }

    /// Returns stream and instance of the process that is connected as `agent`.
    fn holder(&self, agent: AgentId) -> Option<(StreamNumber, u64)> {
        let joined = self.joined.get(&agent).map(|connected| (connected.stream, connected.instance));
        joined.or_else(|| self.waiting.get(&agent).map(|(stream, hello)| (*stream, hello.instance)))
    }

    fn refuse_duplicate(&mut self, hello: &Hello) {
        let reason = format!("another process is {} in this job", hello.agent);
        if self.rejections.note(Instant::now()).is_some() {
            tracing::warn!(peer = %hello.agent, "rejected a second {}: {reason}", hello.agent);
        }
        hello.post.refuse_duplicate(&reason);
    }

    /// Handles a stop before all agents have joined. If shards may hold steps of an earlier coordinator, waits for them
    /// so that these steps are saved.
    pub(super) fn stop_early(&mut self) -> Result<(), Failure> {
        let shards = self.waiting.keys().filter(|agent| agent.role == Role::MemoryX).count();
        let any = self.waiting.values().any(|(_, hello)| hello.shard.is_some_and(|state| state.record.is_some()));
        if self.lock.previous().is_none() || (shards >= self.launch.wanted.shards && !any) {
            self.ending = Some(Ending::stopped(self.leaver));
        } else if shards >= self.launch.wanted.shards {
            self.stop_by = None;
            self.admit_all()?;
            self.event(CoordinatorEvent::StopRequested)?;
        }
        Ok(())
    }

    fn admit_all(&mut self) -> Result<(), Failure> {
        self.pin()?;
        for (number, hello) in std::mem::take(&mut self.waiting).into_values() {
            self.admit(number, &hello)?;
        }
        Ok(())
    }

    /// Returns instruction set and state of the waiting shards that hold parameters of this job from an earlier
    /// coordinator.
    fn held(&self) -> impl Iterator<Item = (Isa, ShardState)> {
        let shards = self.waiting.values().filter_map(|(_, hello)| Some((hello.isa, hello.shard?)));
        shards.filter(|(_, state)| state.loaded)
    }

    /// Pins the numerics profile and creates the state machine.
    fn pin(&mut self) -> Result<(), Failure> {
        let pinned = self.held().map(|(isa, _)| isa).min();
        let committed = self.held().filter_map(|(_, state)| state.record).map(|record| record.step).max();
        let Self { launch, compiled, beginning, further, eval_batches, lock, .. } = self;
        // Shards that hold parameters determine the instruction set, whatever the other agents have. Without such
        // shards, it is the best one that all agents have.
        let best = || self.waiting.values().map(|(_, hello)| hello.isa).min().unwrap_or(Isa::Portable);
        compiled.profile.isa = pinned.unwrap_or_else(|| best().min(compiled.profile.isa));
        let note = check_profile(launch, compiled, beginning.profile.as_deref())?;
        self.saver = Some(Arc::new(Saver::new(lock.clone(), compiled.clone(), note.into_iter().collect())));
        let wanted = RequiredAgents {
            systems: launch.wanted.systems as u32,
            min_systems: launch.wanted.least_systems as u32,
            shards: launch.wanted.shards as u32,
            fan_out: launch.wanted.fan_out,
            activation_servers: launch.wanted.activation_servers as u32,
        };
        let held = committed.filter(|&step| step >= beginning.step);
        let step = held.unwrap_or(beginning.step);
        let before = match held {
            _ if !launch.mode.trains() => ResumeHistory::default(),
            Some(step) => continue_lineage(lock, step).map_err(|error| checkpoint_failure(&error))?,
            None => begin_lineage(lock, beginning.from).map_err(|error| checkpoint_failure(&error))?,
        };
        self.teller.gathered(launch.wanted.systems, step, &before, held.is_some())?;
        let saved = beginning.saved.is_some() && step == beginning.step;
        let done = StepProgress { evaluated: evaluated(&launch.model_dir, step), saved };
        let known = ResumeState { step, done: if launch.mode.trains() { done } else { StepProgress::default() } };
        let (plan, source) = (compiled.plan.clone(), beginning.source.clone());
        let policy = policy(compiled, launch.mode, *eval_batches);
        let sources = further.iter().map(|beginning| beginning.source.clone());
        let machine = Coordinator::new(plan, policy, wanted, source, lock.attempt(), known);
        self.machine = Some(machine.with_further_evaluations(sources));
        Ok(())
    }

    fn admit(&mut self, number: StreamNumber, hello: &Hello) -> Result<(), Failure> {
        let compiled = &self.compiled;
        if hello.isa < compiled.profile.isa {
            hello.post.refuse(&format!(
                "the job is pinned to {}, which {}'s machine has not got; mixed fleets are refused",
                compiled.profile.isa, hello.agent
            ));
            return Ok(());
        }
        hello.post.welcome(proto::Welcome {
            job: serde_json::to_string(&compiled.document()).map_err(Failure::own)?,
            plan: compiled.hash.0,
            attempt: self.lock.attempt(),
            isa: compiled.profile.isa.to_string(),
            uid: self.uid(),
        });
        match hello.address.as_str() {
            "" => tracing::info!(peer = %hello.agent, "{} has joined", hello.agent),
            address => tracing::info!(peer = %hello.agent, "{} has joined; others dial it at {address}", hello.agent),
        }
        let connected = Connected { stream: number, instance: hello.instance, post: hello.post.clone() };
        self.joined.insert(hello.agent, connected);
        self.lost_shards.remove(&hello.agent);
        self.event(CoordinatorEvent::Joined { agent: hello.agent, address: hello.address.clone(), shard: hello.shard })
    }

    /// Returns the id of this job: the UID of the launch document, or else the path of model_dir. It is the same for
    /// every coordinator of the job, and serves to reject agents that were in another job.
    fn uid(&self) -> String {
        let dir = self.lock.model_dir();
        let path = || dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).to_string_lossy().into_owned();
        self.launch.job_uid.clone().unwrap_or_else(path)
    }
}
