//! Detects what breaks an attempt, and decides the consequence.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{FailureStatus, JobState};
use millrace_outcome::{Exit, OutcomeProperties, OutcomeReason, Remedy};

use super::{Decider, IDLE_GRACE_SECONDS, REQUEUE_SECONDS, StateAndMessage, seconds};
use crate::agent::{EXIT_BAD_INPUT, OUT_OF_MEMORY, failure, is_optional_for_saving, root_cause_agent};
use crate::retry::{MIN_PROGRESS_SECONDS, after, is_progress, restart_backoff};
use crate::{AgentState, JobCommand, ObservedAgent, ProcessEnd, ReportedOutcome};

/// Seconds after which an agent that ended successfully counts as missing, unless its coordinator has ended too: at the
/// end of a job all agents end, the coordinator last.
const UNEXPECTED_EXIT_GRACE_SECONDS: i64 = 15;
/// Exit code of a coordinator that was requested to end, directly or through a shard.
const EXIT_INTERRUPTED: u8 = Exit::Interrupted.code();
/// The coordinator's name among the agents.
const COORDINATOR_NAME: &str = "coordinator-0";

/// Returns the final state for a failure that every further attempt would repeat; `None` if a retry may help.
pub(super) fn final_state(exit_code: i32, reason: &str) -> Option<JobState> {
    let reason = OutcomeReason::from_name(reason).map(OutcomeReason::properties);
    match reason {
        Some(OutcomeProperties { remedy: Remedy::User, name, .. }) => JobState::from_name(name),
        // Of a coordinator that reported another reason with this code.
        Some(OutcomeProperties { exit: Exit::BadInput, .. }) => None,
        // Of an agent that ended without a report.
        _ if exit_code == EXIT_BAD_INPUT => Some(JobState::BadParams),
        _ => None,
    }
}

/// Describes an attempt that makes progress, with the verbs in their tense.
fn progress(trained: &str, saved: &str) -> String {
    format!("{trained} for {} min and {saved} a later checkpoint than it began from", MIN_PROGRESS_SECONDS / 60)
}

impl Decider<'_> {
    /// Returns what has broken the attempt, if anything, and whether it counts against the retry budget: agents that
    /// were moved on purpose do not.
    pub(super) fn find_failure(&mut self) -> Option<(FailureStatus, bool)> {
        if self.observed.are_agents_replaceable {
            // Without an outcome, the coordinator was lost; the attempt continues with another one.
            return match self.outcome() {
                Some(outcome) => Some(self.outcome_failure(outcome)),
                None => self.replace_lost_agents(),
            };
        }
        self.find_ended_agent()
    }

    /// Returns what has broken an attempt whose agents can't be replaced.
    fn find_ended_agent(&self) -> Option<(FailureStatus, bool)> {
        let agents: Vec<&ObservedAgent> = self.observed.agents.iter().filter(|agent| self.is_wanted(agent)).collect();
        let outcome = self.outcome();
        if let Some(outcome) = outcome.filter(|outcome| outcome.exit_code == EXIT_INTERRUPTED) {
            // Nothing failed: an agent was requested to end, and the coordinator reports which.
            return Some(self.outcome_failure(outcome));
        }
        let missed = |end: &ProcessEnd| {
            end.exit_code != Some(0)
                || seconds(end.at.unwrap_or(self.observed.now), self.observed.now) >= UNEXPECTED_EXIT_GRACE_SECONDS
        };
        let is_missed = |agent: &&ObservedAgent| matches!(&agent.state, AgentState::Ended(end) if missed(end));
        let ended = agents.iter().copied().filter(is_missed);
        if let Some((agent, end)) = root_cause_agent(ended) {
            return Some((failure(agent, end), !agent.is_evicted));
        }
        if let Some(outcome) = outcome {
            // The end of the coordinator's process has not been observed yet.
            return Some(self.outcome_failure(outcome));
        }
        if let Some(agent) = agents.iter().find(|agent| agent.is_terminating) {
            let message = format!("{} is being deleted", agent.name);
            return Some((self.agent_deleted(agent, "Deleted", message), !agent.is_evicted));
        }
        if self.has_begun() {
            for (role, required) in self.wanted() {
                let existing = agents.iter().filter(|agent| agent.role == role).count();
                if existing < required as usize {
                    let cause = FailureStatus {
                        attempt: Some(self.attempt()),
                        role: Some(role.to_string()),
                        reason: Some("Deleted".to_owned()),
                        message: Some(format!("{existing} of {required} {role} agents exist: the others were deleted")),
                        ..FailureStatus::default()
                    };
                    return Some((cause, true));
                }
            }
        }
        None
    }

    fn agent_deleted(&self, agent: &ObservedAgent, reason: &str, message: String) -> FailureStatus {
        let end = ProcessEnd { reason: reason.to_owned(), message, ..ProcessEnd::default() };
        failure(agent, &end)
    }

    /// Handles a missed deadline.
    pub(super) fn check_deadlines(&mut self, ready: bool) -> Option<StateAndMessage> {
        let deadlines = self.deadlines.clone();
        let running = self.seconds_since(self.status.attempt_start_time.as_ref());
        if let Some(max_seconds) = deadlines.active_seconds {
            let active = self.status.active_seconds.unwrap_or(0) as i64 + running;
            if active >= i64::from(max_seconds) {
                let message =
                    format!("the job has used systems for {active} s, but deadlines.activeSeconds is {max_seconds}");
                return Some(self.finish(JobState::DeadlineExceeded, message));
            }
            self.requeue_after(i64::from(max_seconds) - active);
        }
        let report = self.report();
        let advanced = report.and_then(|report| report.advanced);
        if !ready && advanced.is_none() && !self.has_begun() {
            let max_seconds = i64::from(deadlines.startup_seconds);
            if running >= max_seconds {
                if let Some(queued) = self.handle_unschedulable(max_seconds) {
                    return Some(queued);
                }
                let (reason, blocker) = self.start_blocker.clone().unwrap_or_default();
                let message = format!("the agents were not ready within {max_seconds} s: {reason}: {blocker}");
                return Some(self.finish(JobState::DeadlineExceeded, message));
            }
            self.requeue_after(max_seconds - running);
            return None;
        }
        let since = advanced.or(self.status.attempt_start_time.as_ref().map(|time| time.0))?;
        let max_seconds = i64::from(deadlines.progress_seconds);
        let idle = seconds(since, self.observed.now);
        if idle >= max_seconds {
            let cause = FailureStatus {
                attempt: Some(self.attempt()),
                role: Some("coordinator".to_owned()),
                reason: Some(JobState::DeadlineExceeded.as_str().to_owned()),
                message: Some(format!(
                    "no step was committed for {idle} s, but deadlines.progressSeconds is {max_seconds}"
                )),
                ..FailureStatus::default()
            };
            return Some(self.restart(cause, true));
        }
        self.requeue_after(max_seconds - idle);
        None
    }

    /// Ends the attempt after a failure, and begins another one if the budget allows.
    pub(super) fn restart(&mut self, cause: FailureStatus, counted: bool) -> StateAndMessage {
        let cause_message = cause.message.clone().unwrap_or_default();
        let failed_role = cause.role.clone().unwrap_or_default();
        let (reason, exit_code) = (cause.reason.clone().unwrap_or_default(), cause.exit_code);
        self.status.failure = Some(FailureStatus { time: Some(Time(self.observed.now)), ..cause });
        if let Some(state) = exit_code.and_then(|code| final_state(code, &reason)) {
            return self.finish(state, cause_message);
        }
        let max_restarts = self.spec.failure_policy.max_restarts;
        let mut retry = self.status.retry.take().unwrap_or_default();
        retry.restarts = retry.restarts.saturating_add(u32::from(counted));
        if retry.restarts > max_restarts {
            self.status.retry = Some(retry);
            let state = match reason.as_str() {
                OUT_OF_MEMORY => JobState::OutOfMemory,
                reason if reason == JobState::DeadlineExceeded.as_str() => JobState::DeadlineExceeded,
                _ => JobState::RetriesExhausted,
            };
            let spent = format!(
                "failurePolicy.maxRestarts is {max_restarts}, and between the failures no attempt {}",
                progress("trained", "saved")
            );
            return self.finish(state, format!("{failed_role}: {reason}: {cause_message}; {spent}"));
        }
        self.status.restarts = Some(self.status.restarts.unwrap_or(0).saturating_add(u32::from(counted)));
        let next = self.attempt() + 1;
        let mut next_message = self.resume_message();
        let pause = if counted { restart_backoff(retry.restarts) } else { 0 };
        if pause > 0 {
            let time = after(self.observed.now, pause);
            next_message = format!(
                "{next_message}; attempt {next} starts no earlier than {}, as restart {} of {max_restarts}: the count \
                 begins again once an attempt {}",
                time.0,
                retry.restarts,
                progress("trains", "saves")
            );
            retry.next_attempt_time = Some(time);
        }
        (retry.requeue, retry.reason, retry.message) =
            (false, Some(reason.clone()), Some(format!("{failed_role}: {cause_message}")));
        self.status.retry = Some(retry);
        self.count_ready();
        self.status.stop_time.get_or_insert(Time(self.observed.now));
        let grace = self.grace();
        self.commands.push(JobCommand::RemoveAgents { grace });
        self.requeue_after = Some(REQUEUE_SECONDS);
        (
            JobState::Restarting,
            format!("attempt {} failed: {failed_role}: {reason}: {cause_message}; {next_message}", self.attempt()),
        )
    }

    /// Describes where the next attempt begins. It may begin after the newest checkpoint of now: agents that are left
    /// save the last committed step before they stop.
    fn resume_message(&self) -> String {
        match self.status.checkpoint.as_ref().and_then(|saved| saved.step) {
            Some(step) => {
                format!(
                    "the job resumes from step {step}, or from a newer checkpoint that its agents save while they stop"
                )
            }
            None => {
                "the job restarts from the beginning, unless its agents save a checkpoint while they stop".to_owned()
            }
        }
    }

    /// Returns the time of the attempt's last progress, the later one of the coordinator's report and the status.
    fn last_progress_time(&self) -> Option<Timestamp> {
        let report = self.report();
        let progress = self.status.progress.as_ref().filter(|progress| progress.attempt == self.status.attempt);
        let written = progress.and_then(|progress| progress.last_update_time.as_ref()).map(|time| time.0);
        report.and_then(|report| report.advanced).max(written)
    }

    /// Resets the count of failures once the attempt has made progress.
    pub(super) fn reset_retries_on_progress(&mut self) {
        let since = self.status.attempt_start_time.as_ref().map(|time| time.0);
        let trained = since.zip(self.last_progress_time()).map_or(0, |(since, advanced)| seconds(since, advanced));
        let saved = self.status.checkpoint.as_ref().and_then(|saved| saved.step);
        self.status.retry = self.status.retry.take().filter(|retry| !is_progress(retry, trained, saved));
    }

    /// Resets the count of failed starts once an attempt has started.
    pub(super) fn reset_failed_starts(&mut self) {
        if let Some(retry) = &mut self.status.retry {
            retry.failed_starts = 0;
        }
        self.status.retry = self.status.retry.take().filter(|retry| retry.restarts > 0);
    }

    /// Returns the agents' grace period, in seconds: long enough to save the last committed step if all agents that
    /// this requires still run.
    pub(super) fn grace(&self) -> u32 {
        let lost = self.observed.agents.iter().any(|agent| {
            !is_optional_for_saving(agent.role) && (agent.is_terminating || matches!(agent.state, AgentState::Ended(_)))
        });
        if lost || !self.has_begun() { IDLE_GRACE_SECONDS } else { self.grace_seconds.max(IDLE_GRACE_SECONDS) }
    }

    /// Returns the failure in the coordinator's outcome, and whether it counts against the budget.
    fn outcome_failure(&self, outcome: &ReportedOutcome) -> (FailureStatus, bool) {
        let failed_agent = outcome.failed_agent.as_deref().unwrap_or(COORDINATOR_NAME);
        let agent = self.agent_by_name(failed_agent);
        let cause = FailureStatus {
            attempt: Some(self.attempt()),
            role: failed_agent.rsplit_once('-').map(|(role, _)| role.to_owned()),
            pod: agent.map(|agent| agent.name.clone()),
            node: agent.and_then(|agent| agent.node.clone()),
            exit_code: Some(i32::from(outcome.exit_code)),
            reason: Some(outcome.reason.clone()),
            message: Some(outcome.message.clone()),
            ..FailureStatus::default()
        };
        (cause, !agent.is_some_and(|agent| agent.is_evicted))
    }

    pub(super) fn record_failure(&mut self, outcome: &ReportedOutcome) {
        let (cause, _) = self.outcome_failure(outcome);
        self.status.failure = Some(FailureStatus { time: Some(Time(self.observed.now)), ..cause });
    }

    fn agent_by_name(&self, name: &str) -> Option<&ObservedAgent> {
        self.observed.agents.iter().find(|agent| agent.id() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_the_user_end_the_job() {
        for reason in OutcomeReason::ALL {
            let OutcomeProperties { name, remedy, exit, .. } = reason.properties();
            let state = final_state(exit.code().into(), name);
            assert_eq!(state.map(JobState::as_str), (remedy == Remedy::User).then_some(name), "{name}");
        }
        // Agents that ended without a report: "Error" is what Kubernetes calls it.
        assert_eq!(final_state(EXIT_BAD_INPUT, "Error"), Some(JobState::BadParams));
        assert_eq!(final_state(Exit::Failed.code().into(), "Error"), None);
    }
}
