//! Detects what breaks an attempt, and decides the consequence.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::super::agent::{BAD_INPUT, OUT_OF_MEMORY, failure, first_to_fail};
use super::super::retry::{after, restart_pause};
use super::super::{Agent, AgentState, Command, End, Outcome};
use super::{BRIEF, HEARTBEAT, Now, Visit, seconds};
use crate::{Failure, State};

/// Seconds after which an agent that ended successfully counts as missing, unless its coordinator has ended too: at the
/// end of a job all agents end, the coordinator last.
const MISSED_AFTER: i64 = 15;
/// Exit code of a coordinator that was requested to end, directly or through a shard.
const INTERRUPTED: u8 = 130;
/// The coordinator's reason if an earlier job still holds the same model_dir.
const IN_USE: &str = "ModelDirInUse";
/// The coordinator's reason for a loss or gradient that is not finite.
const NOT_FINITE: &str = "NonFiniteLoss";
/// The coordinator's name among the agents.
const COORDINATOR: &str = "coordinator-0";

/// Returns the final state for a failure that every further attempt would repeat; `None` if a retry may help.
pub(super) fn beyond_retrying(exit_code: i32, reason: &str) -> Option<State> {
    match reason {
        IN_USE => None,
        _ if exit_code == BAD_INPUT => Some(State::BadParams),
        NOT_FINITE => Some(State::NonFiniteLoss),
        _ => None,
    }
}

impl Visit<'_> {
    /// Returns what has broken the attempt, if anything, and whether it counts against the retry budget: agents that
    /// were moved on purpose do not.
    pub(super) fn broken(&self) -> Option<(Failure, bool)> {
        let agents = &self.observed.agents;
        let outcome = self.outcome();
        if let Some(outcome) = outcome.filter(|outcome| outcome.exit_code == INTERRUPTED) {
            // Nothing failed: an agent was requested to end, and the coordinator reports which.
            return Some(self.told(outcome));
        }
        let missed = |end: &End| {
            end.exit_code != Some(0) || seconds(end.at.unwrap_or(self.observed.now), self.observed.now) >= MISSED_AFTER
        };
        let ended = agents.iter().filter(|agent| matches!(&agent.state, AgentState::Ended(end) if missed(end)));
        if let Some((agent, end)) = first_to_fail(ended) {
            return Some((failure(agent, end), !agent.moved));
        }
        if let Some(outcome) = outcome {
            // The end of the coordinator's process has not been observed yet.
            return Some(self.told(outcome));
        }
        if let Some(agent) = agents.iter().find(|agent| agent.leaving) {
            let message = format!("{} is being deleted", agent.name);
            return Some((self.gone(agent, "Deleted", message), !agent.moved));
        }
        if self.has_begun() {
            for (role, wanted) in self.wanted() {
                let there = agents.iter().filter(|agent| agent.role == role).count();
                if there < wanted as usize {
                    let cause = Failure {
                        attempt: Some(self.attempt()),
                        role: Some(role.to_string()),
                        reason: Some("Deleted".to_owned()),
                        message: Some(format!("of {wanted} {role} agents {there} are left: the others were deleted")),
                        ..Failure::default()
                    };
                    return Some((cause, true));
                }
            }
        }
        None
    }

    fn gone(&self, agent: &Agent, reason: &str, message: String) -> Failure {
        let end = End { reason: reason.to_owned(), message, ..End::default() };
        failure(agent, &end)
    }

    /// Handles a missed deadline.
    pub(super) fn late(&mut self, ready: bool) -> Option<Now> {
        let deadlines = self.deadlines.clone();
        let running = self.seconds_since(self.status.attempt_start_time.as_ref());
        if let Some(most) = deadlines.active_seconds {
            let active = self.status.active_seconds.unwrap_or(0) as i64 + running;
            if active >= i64::from(most) {
                let message = format!("the job has held systems for {active} s, and deadlines.activeSeconds is {most}");
                return Some(self.finish(State::DeadlineExceeded, message));
            }
            self.look_again_in(i64::from(most) - active);
        }
        let report = self.report();
        let advanced = report.and_then(|report| report.advanced);
        if !ready && advanced.is_none() && !self.has_begun() {
            let most = i64::from(deadlines.startup_seconds);
            if running >= most {
                if let Some(queued) = self.unplaced(most) {
                    return Some(queued);
                }
                let (reason, blocker) = self.blocker.clone().unwrap_or_default();
                let message = format!("the agents were not ready within {most} s: {reason}: {blocker}");
                return Some(self.finish(State::DeadlineExceeded, message));
            }
            self.look_again_in(most - running);
            return None;
        }
        let since = advanced.or(self.status.attempt_start_time.as_ref().map(|time| time.0))?;
        let most = i64::from(deadlines.progress_seconds);
        let idle = seconds(since, self.observed.now);
        if idle >= most {
            let cause = Failure {
                attempt: Some(self.attempt()),
                role: Some("coordinator".to_owned()),
                reason: Some(State::DeadlineExceeded.as_str().to_owned()),
                message: Some(format!("no step was committed for {idle} s, and deadlines.progressSeconds is {most}")),
                ..Failure::default()
            };
            return Some(self.restart(cause, true));
        }
        self.look_again_in(most - idle);
        None
    }

    /// Ends the attempt after a failure, and begins another one if the budget allows.
    pub(super) fn restart(&mut self, cause: Failure, counted: bool) -> Now {
        let what = cause.message.clone().unwrap_or_default();
        let who = cause.role.clone().unwrap_or_default();
        let (reason, exit_code) = (cause.reason.clone().unwrap_or_default(), cause.exit_code);
        self.status.failure = Some(Failure { time: Some(Time(self.observed.now)), ..cause });
        if let Some(state) = exit_code.and_then(|code| beyond_retrying(code, &reason)) {
            return self.finish(state, what);
        }
        let most = self.spec.failure_policy.max_restarts;
        let mut retry = self.status.retry.take().unwrap_or_default();
        retry.restarts = retry.restarts.saturating_add(u32::from(counted));
        if retry.restarts > most {
            self.status.retry = Some(retry);
            let state = match reason.as_str() {
                OUT_OF_MEMORY => State::OutOfMemory,
                "DeadlineExceeded" => State::DeadlineExceeded,
                _ => State::RetriesExhausted,
            };
            let spent = format!("failurePolicy.maxRestarts is {most}, and the job made no progress in between");
            return self.finish(state, format!("{who}: {reason}: {what}; {spent}"));
        }
        self.status.restarts = Some(self.status.restarts.unwrap_or(0).saturating_add(u32::from(counted)));
        let next = self.attempt() + 1;
        let mut then = self.goes_on_from();
        let pause = if counted { restart_pause(retry.restarts) } else { 0 };
        if pause > 0 {
            let time = after(self.observed.now, pause);
            then = format!(
                "{then}; attempt {next} starts at {} at the earliest, restart {} of {most} without progress",
                time.0, retry.restarts
            );
            retry.next_attempt_time = Some(time);
        }
        (retry.requeue, retry.reason, retry.message) = (false, Some(reason.clone()), Some(format!("{who}: {what}")));
        self.status.retry = Some(retry);
        self.count_ready();
        self.status.stop_time.get_or_insert(Time(self.observed.now));
        let grace = self.grace();
        self.commands.push(Command::Remove { grace });
        self.look_again = Some(HEARTBEAT);
        (State::Restarting, format!("attempt {} failed: {who}: {reason}: {what}; {then}", self.attempt()))
    }

    /// Describes where the next attempt begins.
    fn goes_on_from(&self) -> String {
        match self.status.checkpoint.as_ref().and_then(|saved| saved.step) {
            Some(step) => format!("the job goes on from its newest checkpoint, of step {step}"),
            None => "no checkpoint has been written yet, so the job begins again".to_owned(),
        }
    }

    /// Returns the time of the attempt's last progress, the later one of the coordinator's report and the status.
    fn advanced(&self) -> Option<Timestamp> {
        let report = self.report();
        let progress = self.status.progress.as_ref().filter(|progress| progress.attempt == self.status.attempt);
        let written = progress.and_then(|progress| progress.last_update_time.as_ref()).map(|time| time.0);
        report.and_then(|report| report.advanced).max(written)
    }

    /// Resets the count of failures once the attempt has made progress.
    pub(super) fn note_progress(&mut self) {
        let since = self.status.attempt_start_time.as_ref().map(|time| time.0);
        let trained = since.zip(self.advanced()).map_or(0, |(since, advanced)| seconds(since, advanced));
        let saved = self.status.checkpoint.as_ref().and_then(|saved| saved.step);
        self.status.retry = self.status.retry.take().filter(|retry| !retry.is_progress(trained, saved));
    }

    /// Resets the count of failed starts once an attempt has started.
    pub(super) fn note_start(&mut self) {
        if let Some(retry) = &mut self.status.retry {
            retry.failed_starts = 0;
        }
        self.status.retry = self.status.retry.take().filter(|retry| retry.restarts > 0);
    }

    /// Returns the agents' grace period, in seconds: long enough to save the last committed step if all agents that
    /// this requires still run.
    pub(super) fn grace(&self) -> u32 {
        let lost =
            self.observed.agents.iter().any(|agent| {
                !agent.role.can_be_missed() && (agent.leaving || matches!(agent.state, AgentState::Ended(_)))
            });
        if lost || !self.has_begun() { BRIEF } else { self.grace_seconds.max(BRIEF) }
    }

    /// Returns the failure in the coordinator's outcome, and whether it counts against the budget.
    fn told(&self, outcome: &Outcome) -> (Failure, bool) {
        let culprit = outcome.failed_agent.as_deref().unwrap_or(COORDINATOR);
        let agent = self.agent_called(culprit);
        let cause = Failure {
            attempt: Some(self.attempt()),
            role: culprit.rsplit_once('-').map(|(role, _)| role.to_owned()),
            pod: agent.map(|agent| agent.name.clone()),
            node: agent.and_then(|agent| agent.node.clone()),
            exit_code: Some(i32::from(outcome.exit_code)),
            reason: Some(outcome.reason.clone()),
            message: Some(outcome.message.clone()),
            ..Failure::default()
        };
        (cause, !agent.is_some_and(|agent| agent.moved))
    }

    pub(super) fn keep_failure(&mut self, outcome: &Outcome) {
        let (cause, _) = self.told(outcome);
        self.status.failure = Some(Failure { time: Some(Time(self.observed.now)), ..cause });
    }

    fn agent_called(&self, name: &str) -> Option<&Agent> {
        self.observed.agents.iter().find(|agent| format!("{}-{}", agent.role, agent.index) == name)
    }
}
