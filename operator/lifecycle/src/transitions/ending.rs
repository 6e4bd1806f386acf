//! The end of an attempt and of a job: saving state, removing agents, releasing systems.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use millrace_crds::{CompletedPhases, ConditionType, JobState, ResolvedJob, Role};

use super::{Decider, IDLE_GRACE_SECONDS, REQUEUE_SECONDS, StateAndMessage};
use crate::retry::clear_backoff;
use crate::{AgentState, JobCommand};

impl Decider<'_> {
    /// Requests the attempt to save its state and end.
    pub(super) fn stop(&mut self, state: JobState, message: String) -> StateAndMessage {
        self.status.stop_time.get_or_insert(Time(self.observed.now));
        self.commands.push(JobCommand::StopAttempt { attempt: self.attempt(), reason: message.clone() });
        self.requeue_after(i64::from(self.grace_seconds).min(REQUEUE_SECONDS as i64));
        (state, message)
    }

    /// Handles an attempt that is ending.
    pub(super) fn stopping(&mut self, state: JobState) -> StateAndMessage {
        let completed = self.outcome().filter(|outcome| outcome.exit_code == 0 && !self.is_phase_counted());
        if let Some(message) = completed.map(|outcome| outcome.message.clone()) {
            // It completed before it was stopped.
            return self.complete_phase(message);
        }
        let before = self.state_message();
        self.count_ready();
        if self.observed.agents.is_empty() {
            return self.on_last_agent_gone(state);
        }
        self.requeue_after = Some(REQUEUE_SECONDS);
        if state == JobState::Restarting {
            let grace = self.grace();
            self.commands.push(JobCommand::RemoveAgents { grace });
            return (state, before);
        }
        let waited = self.seconds_since(self.status.stop_time.as_ref());
        let grace = i64::from(self.grace_seconds);
        let report = self.report();
        let saved = report.is_some_and(|report| report.saved || report.outcome.is_some());
        let alive = self.observed.agents.iter().any(|agent| {
            agent.role == Role::Coordinator && !agent.is_terminating && !matches!(agent.state, AgentState::Ended(_))
        });
        if saved || !alive || waited >= grace {
            self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
        } else {
            self.commands.push(JobCommand::StopAttempt { attempt: self.attempt(), reason: before.clone() });
            self.requeue_after((grace - waited).min(REQUEUE_SECONDS as i64));
        }
        (state, before)
    }

    /// Handles an attempt that has completed its phase: the job succeeds, or another attempt begins the next phase on
    /// the same systems.
    pub(super) fn complete_phase(&mut self, message: String) -> StateAndMessage {
        let (completed, attempt) = (self.status.completed_phase_count() + 1, self.attempt());
        let count = self.status.resolved.as_ref().map_or(1, ResolvedJob::phase_count);
        if completed >= count {
            return self.finish(JobState::Succeeded, message);
        }
        self.status.completed_phases = Some(CompletedPhases { count: completed, attempt });
        if let Some(retry) = &mut self.status.retry {
            clear_backoff(retry);
        }
        self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
        self.requeue_after = Some(REQUEUE_SECONDS);
        let message = format!("phase {completed} of {count} is complete, and phase {} begins", completed + 1);
        (JobState::Restarting, message)
    }

    /// Returns whether the phase that the current attempt has completed is counted already.
    pub(super) fn is_phase_counted(&self) -> bool {
        self.status.completed_phases.is_some_and(|completed| completed.attempt == self.attempt())
    }

    /// Returns the message of the state in the status.
    pub(super) fn state_message(&self) -> String {
        self.status.condition(ConditionType::Succeeded).map(|condition| condition.message.clone()).unwrap_or_default()
    }

    /// Handles the end of the last agent. A job that only restarts keeps its systems.
    pub(super) fn on_last_agent_gone(&mut self, state: JobState) -> StateAndMessage {
        let is_same_size = self.spec.num_csx as usize == self.status.systems.len();
        let requeue = self.status.retry.as_ref().is_some_and(|retry| retry.requeue);
        if state == JobState::Restarting && !self.spec.suspend && is_same_size && !requeue && self.obstacle().is_none()
        {
            if self.is_retry_pending() {
                return (state, self.state_message());
            }
            let systems = std::mem::take(&mut self.status.systems);
            self.count_active_seconds();
            return self.begin_attempt(systems);
        }
        self.end_attempt();
        self.requeue_after = Some(REQUEUE_SECONDS);
        if self.spec.suspend || requeue || self.obstacle().is_some() {
            self.wait_for_admission()
        } else {
            (JobState::Queued, "the job is in the queue again".to_owned())
        }
    }

    /// Adds the time of this attempt to that of earlier ones.
    pub(super) fn count_active_seconds(&mut self) {
        let ran = self.seconds_since(self.status.attempt_start_time.as_ref());
        let active = self.status.active_seconds.unwrap_or(0) + u64::try_from(ran).unwrap_or(0);
        self.status.active_seconds = Some(active);
    }

    /// Releases the systems of an attempt that has no agents left.
    pub(super) fn end_attempt(&mut self) {
        self.count_active_seconds();
        self.release();
    }

    pub(super) fn release(&mut self) {
        self.status.systems.clear();
        self.status.num_csx = None;
        self.status.resizes = None;
        self.status.roles.clear();
        self.status.lost_agents.clear();
        self.status.stop_time = None;
        self.status.attempt_start_time = None;
    }

    pub(super) fn finish(&mut self, state: JobState, message: String) -> StateAndMessage {
        self.status.queue = None;
        if let Some(retry) = &mut self.status.retry {
            clear_backoff(retry);
        }
        self.status.finish_time.get_or_insert(Time(self.observed.now));
        if self.observed.agents.is_empty() {
            self.release();
        } else {
            let grace = if state == JobState::Succeeded { IDLE_GRACE_SECONDS } else { self.grace() };
            self.commands.push(JobCommand::RemoveAgents { grace });
        }
        self.requeue_after = Some(REQUEUE_SECONDS);
        (state, message)
    }

    /// Handles a finished job: its agents are removed, then its systems are released, then the job is deleted if it has
    /// a time to live.
    pub(super) fn clean_up_finished(&mut self, state: JobState) -> StateAndMessage {
        let message = self.state_message();
        if state == JobState::BadParams && !self.status.is(ConditionType::Accepted) {
            self.rejection = Some(message.clone());
        }
        if !self.observed.agents.is_empty() {
            self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
            self.requeue_after = Some(REQUEUE_SECONDS);
            return (state, message);
        }
        self.release();
        if let Some(ttl) = self.spec.ttl_seconds_after_finished {
            let remaining = i64::from(ttl) - self.seconds_since(self.status.finish_time.as_ref());
            if remaining <= 0 {
                self.commands.push(JobCommand::DeleteJob);
            } else {
                self.requeue_after(remaining);
            }
        }
        (state, message)
    }
}
