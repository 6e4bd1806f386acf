//! Agents that leave the run, and the coordinator itself.
//!
//! * An agent that does not rejoin within [`REJOIN_TIMEOUT`] ([`SHARD_RESPONSE_TIMEOUT`] for the last replica of a
//!   shard) is reported to the launcher and in the journal. The launcher, or the operator, ends its process and starts
//!   another one.
//! * A MemoryX agent that receives SIGTERM leaves once a checkpoint, or another replica, has its parameters.
//! * A coordinator in a pod that receives SIGTERM saves the last committed step and leaves: the agents keep everything
//!   and wait for the next coordinator of the attempt.
//! * A coordinator that continues a run begins without the agents that it can do without, if they do not join within
//!   [`REJOIN_TIMEOUT`] after the others. They may join later, and are reported after [`JOIN_TIMEOUT`].

use std::time::{Duration, Instant};

use millrace_engine::coordinator::{Coordinator, CoordinatorEvent};
use millrace_engine::message::AgentCommand;
use millrace_engine::types::{AgentId, Role};
use millrace_telemetry::unix_ms;

use super::super::run_end::RunEnd;
use super::CoordinatorDriver;
use crate::control::server::StreamNumber;
use crate::error::AgentError;
use crate::launch::announce_unresponsive;

/// How long an agent may be disconnected before it counts as unresponsive: a process that only lost its stream joins
/// again sooner.
const REJOIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for the last replica of a shard: another process of it has no parameters, so a machine that stalls for
/// seconds is waited for.
const SHARD_RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long agents may take to join a new coordinator before they count as unresponsive.
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// An agent that is disconnected.
pub struct LostAgent {
    since: Instant,
    /// How long it may be disconnected.
    timeout: Duration,
    unix_ms: u64,
    pub(super) is_announced: bool,
}

impl LostAgent {
    /// Describes an agent that is lost now, and may be disconnected for `timeout`.
    fn now(timeout: Duration) -> Self {
        Self { since: Instant::now(), timeout, unix_ms: unix_ms(), is_announced: false }
    }

    /// Returns when the loss is to be announced; `None` if it was.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.is_announced).then(|| self.since + self.timeout)
    }
}

impl CoordinatorDriver {
    /// Waits not much longer for the agents that have not joined, if the others hold the parameters of an earlier
    /// coordinator and suffice.
    pub(super) fn shorten_join_timeout(&mut self) {
        if self.can_continue_without_others() {
            self.join_deadline = self.join_deadline.min(Instant::now() + REJOIN_TIMEOUT);
        }
    }

    /// Begins without the agents for which this coordinator still waits, if the others hold the parameters of an
    /// earlier coordinator and suffice. Otherwise announces them.
    pub(super) fn on_join_timeout(&mut self) -> Result<(), AgentError> {
        self.join_deadline = Instant::now() + JOIN_TIMEOUT;
        let agents = self.launch.agent_counts.agents().filter(|agent| agent.role != Role::Coordinator);
        let missing: Vec<AgentId> = agents.filter(|agent| !self.pending_agents.contains_key(agent)).collect();
        if !self.can_continue_without_others() {
            if self.by_launcher {
                missing.iter().copied().for_each(announce_unresponsive);
            }
            return Ok(());
        }
        for &agent in &missing {
            tracing::warn!(peer = %agent, "{agent} has not joined; the run continues without it");
            self.lost_agents.insert(agent, LostAgent::now(JOIN_TIMEOUT - REJOIN_TIMEOUT));
        }
        self.admit_all()
    }

    /// Announces agents that have not joined again.
    pub(super) fn announce_lost_agents(&mut self) {
        let now = Instant::now();
        let due = |(_, lost): &(&AgentId, &mut LostAgent)| lost.deadline().is_some_and(|time| time <= now);
        let mut is_news = false;
        for (agent, lost) in self.lost_agents.iter_mut().filter(due) {
            if self.by_launcher {
                announce_unresponsive(*agent);
            }
            lost.is_announced = true;
            is_news = true;
        }
        if is_news {
            self.report_lost_agents();
        }
    }

    /// Reports how fast the agents work, if an interval has ended.
    pub(super) fn measure_speeds(&mut self) {
        let Some(relative) = self.speeds.measure(Instant::now()) else { return };
        self.reporter.set_relative_speeds(&relative);
        self.reporter.set_slow_agents(self.speeds.slow());
    }

    /// Records the announced agents in the journal.
    pub(super) fn report_lost_agents(&mut self) {
        let announced = self.lost_agents.iter().filter(|(_, lost)| lost.is_announced);
        self.reporter.set_lost_agents(announced.map(|(agent, lost)| (agent.to_string(), lost.unix_ms)).collect());
    }

    /// Handles the end of a stream. The agent loses its membership if the stream was its current one.
    pub(super) fn on_disconnected(&mut self, agent: AgentId, number: StreamNumber) -> Result<(), AgentError> {
        if !self.is_current(agent, number) {
            self.pending_agents.retain(|_, (waiting, _)| *waiting != number);
            return Ok(());
        }
        if self.is_needed(agent) {
            tracing::warn!(peer = %agent, "lost {agent}");
        } else {
            tracing::info!(peer = %agent, "{agent}, which the job no longer needs, has left");
        }
        self.end_membership(agent)
    }

    /// Ends the membership of a joined agent, which may join again.
    fn end_membership(&mut self, agent: AgentId) -> Result<(), AgentError> {
        if self.joined.remove(&agent).is_none() {
            return Ok(());
        }
        self.speeds.forget(agent);
        self.stalled_shards.remove(&agent);
        self.reporter.set_slow_agents(self.speeds.slow());
        if self.is_needed(agent) {
            let is_waited_for = agent.role == Role::MemoryX && !self.has_other_replica(agent);
            let timeout = if is_waited_for { SHARD_RESPONSE_TIMEOUT } else { REJOIN_TIMEOUT };
            self.lost_agents.insert(agent, LostAgent::now(timeout));
        }
        self.handle_event(CoordinatorEvent::Lost { agent })
    }

    /// Handles SIGTERM. A launcher ends the run by it; in a pod, only this coordinator leaves.
    pub(super) fn on_terminate(&mut self) -> Result<(), AgentError> {
        self.is_leaving = !self.by_launcher && self.stop_reason.is_none();
        if self.is_leaving {
            tracing::info!(
                "received a termination signal: the last committed step is saved, then this coordinator leaves"
            );
            if self.machine.is_none() {
                self.end = Some(RunEnd::stopped(self.stop_reason.as_deref()));
                return Ok(());
            }
        }
        self.stop()
    }

    /// Returns whether another replica holds the parameters of this MemoryX agent.
    fn has_other_replica(&self, agent: AgentId) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.has_other_replica(agent))
    }

    /// Handles a MemoryX agent that received a termination signal: saves its parameters, unless another replica holds
    /// them, and lets it leave.
    pub(super) fn on_leave_request(&mut self, agent: AgentId, number: StreamNumber) -> Result<(), AgentError> {
        if !self.is_current(agent, number) {
            return Ok(());
        }
        let has_other_replica = self.has_other_replica(agent);
        let follows = if has_other_replica { "another replica has its parameters" } else { "its parameters are saved" };
        tracing::warn!(peer = %agent, "{agent} received a termination signal; {follows}");
        self.leaving_shards.insert(agent);
        let is_saved = self.current_checkpoint().1.is_some();
        if is_saved || has_other_replica || !self.launch.mode.trains() {
            return self.dismiss_leaving_shards();
        }
        self.handle_event(CoordinatorEvent::CheckpointRequested)
    }

    /// Lets shards leave whose parameters are in a checkpoint. A run that is stopping keeps them until its end.
    pub(super) fn dismiss_leaving_shards(&mut self) -> Result<(), AgentError> {
        if self.machine.as_ref().is_some_and(Coordinator::is_stopping) {
            return Ok(());
        }
        std::mem::take(&mut self.leaving_shards).into_iter().try_for_each(|shard| {
            self.send(shard, &AgentCommand::Finish);
            self.end_membership(shard)
        })
    }
}
