//! An attempt that can't start: rejected by the API server, or without a node that has room for it.

use crate::conditions::UPLOADS_UNAVAILABLE;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use millrace_crds::{FailureStatus, JobState};

use super::{Decider, IDLE_GRACE_SECONDS, REQUEUE_SECONDS, StateAndMessage};
use crate::retry::{StartFailure, after, backoff_place, seconds_until_next_attempt};
use crate::{AgentState, JobCommand, JobEvent};

/// Reasons of a pod without a node: the scheduler found none, or the pod is gated.
const UNSCHEDULED_REASONS: [&str; 2] = ["Unschedulable", "SchedulingGated"];
/// The blocker's reason if agents can't be created at present.
const REASON_CREATION_FAILED: &str = "CreationFailed";

impl Decider<'_> {
    /// Returns whether every agent of the attempt exists, or has existed because the attempt has made steps.
    fn has_all_agents(&self) -> bool {
        let count = |role| self.observed.agents.iter().filter(|agent| agent.role == role).count();
        self.has_begun() || self.wanted().into_iter().all(|(role, required)| count(role) >= required as usize)
    }

    pub(super) fn has_begun(&self) -> bool {
        let has_advanced = self.report().is_some_and(|report| report.advanced.is_some());
        matches!(self.before, Some(JobState::Training | JobState::Evaluating)) || has_advanced
    }

    /// Releases the systems if the API server has rejected an object that the attempt needs to start.
    pub(super) fn handle_rejected_start(&mut self) -> Option<StateAndMessage> {
        let creation_error =
            self.observed.creation_error.as_ref().filter(|creation_error| !creation_error.is_temporary)?;
        if self.has_all_agents() {
            return None;
        }
        let message = creation_error.message.clone();
        Some(self.release_and_requeue(StartFailure::Rejected, message))
    }

    /// Returns reason and message of what prevents agents from being created at present.
    pub(super) fn temporary_creation_error(&self) -> Option<(String, String)> {
        let creation_error = self.observed.creation_error.as_ref()?;
        let reason = if creation_error.is_of_uploads { UPLOADS_UNAVAILABLE } else { REASON_CREATION_FAILED };
        (!self.has_all_agents()).then(|| (reason.to_owned(), creation_error.message.clone()))
    }

    /// Releases the systems if the startup deadline has passed and the cluster has no room for the agents.
    pub(super) fn handle_unschedulable(&mut self, deadline: i64) -> Option<StateAndMessage> {
        let is_waiting = self.observed.agents.iter().any(|agent| match &agent.state {
            AgentState::Waiting { reason, .. } => UNSCHEDULED_REASONS.contains(&reason.as_str()),
            _ => false,
        });
        if !is_waiting && self.has_all_agents() {
            return None;
        }
        let (_, message) = self.start_blocker.clone().unwrap_or_default();
        Some(self.release_and_requeue(
            StartFailure::Unschedulable,
            format!("not all agents were scheduled within {deadline} s: {message}"),
        ))
    }

    /// Ends an attempt that can't start; the job is queued again after a backoff.
    fn release_and_requeue(&mut self, failure: StartFailure, message: String) -> StateAndMessage {
        let reason = failure.as_str();
        let mut retry = self.status.retry.take().unwrap_or_default();
        retry.failed_starts = retry.failed_starts.saturating_add(1);
        let pause = failure.backoff(retry.failed_starts);
        let next = after(self.observed.now, pause);
        let sentence = format!(
            "{message}; the job released its systems and is queued again; attempt {} starts no earlier than {}",
            self.attempt() + 1,
            next.0
        );
        retry.next_attempt_time = Some(next);
        retry.requeue = true;
        (retry.reason, retry.message) = (Some(reason.to_owned()), Some(message.clone()));
        self.status.retry = Some(retry);
        self.status.failure = Some(FailureStatus {
            attempt: Some(self.attempt()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            time: Some(Time(self.observed.now)),
            ..FailureStatus::default()
        });
        self.events.push(JobEvent {
            warning: true,
            reason: reason.to_owned(),
            message: sentence.clone(),
            attempt: Some(self.attempt()),
            role: None,
            num_csx: None,
        });
        if self.observed.agents.is_empty() {
            self.end_attempt();
            return self.wait_for_admission();
        }
        self.status.stop_time.get_or_insert(Time(self.observed.now));
        self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
        self.requeue_after = Some(REQUEUE_SECONDS);
        (JobState::Restarting, sentence)
    }

    /// Keeps the job in the queue, without systems, until the next attempt is due.
    pub(super) fn back_off(&mut self) -> Option<StateAndMessage> {
        let queue_status = backoff_place(&self.status, self.observed.now)?;
        self.is_retry_pending();
        let message = queue_status.message.clone().unwrap_or_default();
        self.status.queue = Some(queue_status);
        Some((JobState::Queued, message))
    }

    /// Returns whether the next attempt is not due yet; requests a reconcile at that time.
    pub(super) fn is_retry_pending(&mut self) -> bool {
        let remaining =
            self.status.retry.as_ref().and_then(|retry| seconds_until_next_attempt(retry, self.observed.now));
        if let Some(remaining) = remaining {
            self.requeue_after(i64::try_from(remaining).unwrap_or(i64::MAX));
        }
        remaining.is_some()
    }
}
