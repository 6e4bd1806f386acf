//! The transitions of a job from one state to the next.

mod deletion;
mod failure;
mod reports;
mod start;

pub use deletion::decide_deleted;
#[cfg(test)]
pub(crate) use reports::REPORT_TIMEOUT_SECONDS;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{
    ConditionType, Deadlines, JobState, OverruledKey, QueueReason, QueueStatus, Role, RoleStatus, TrainJob,
    TrainJobSpec, TrainJobStatus,
};

use crate::conditions::{CHECKPOINT_WRITE_FAILED, ConditionInputs, update_conditions};
use crate::retry::clear_backoff;
use crate::{
    AgentState, JobCommand, JobDecision, JobEvent, JobObservation, ObservedAgent, ReportedOutcome, backoff_place,
};
use failure::final_state;

/// Grace period of agents that have no work left, in seconds.
const IDLE_GRACE_SECONDS: u32 = 10;
/// Interval of reconciles of a job with running work, in seconds, without any change.
const REQUEUE_SECONDS: u64 = 30;
/// Minimum age at which `lastObservedTime` of an unchanged status is renewed, in seconds, while the job holds systems:
/// a little less than [`REQUEUE_SECONDS`].
const STATUS_REFRESH_SECONDS: i64 = 25;

/// Decides the next status and commands of a job; see the documentation of the crate.
pub fn decide(job: &TrainJob, observed: &JobObservation) -> JobDecision {
    let old = job.status.clone().unwrap_or_default();
    let bounds = observed.max_deadlines;
    let limits = &job.spec.deadlines;
    let mut visit = Decider {
        spec: &job.spec,
        deadlines: Deadlines {
            startup_seconds: limits.startup_seconds.min(bounds.startup_seconds),
            progress_seconds: limits.progress_seconds.min(bounds.progress_seconds),
            active_seconds: limits.active_seconds,
        },
        grace_seconds: job.spec.checkpoint.grace_period_seconds.min(bounds.grace_period_seconds),
        observed,
        before: old.state(),
        commands: Vec::new(),
        events: Vec::new(),
        requeue_after: None,
        start_blocker: None,
        refused: None,
        unusable_record: unusable_record(&old, observed),
        status: old.clone(),
    };
    let (state, message) = visit.state();
    let mut decision = visit.conclude(state, message, job.metadata.generation);
    decision.status.last_observed_time = last_observed(&old, &decision.status, observed.now);
    decision
}

/// Returns the new `lastObservedTime`: now if the status has changed, or if the job holds systems and the old time is
/// at least [`STATUS_REFRESH_SECONDS`] old.
fn last_observed(old: &TrainJobStatus, new: &TrainJobStatus, now: Timestamp) -> Option<Time> {
    let is_due = |time: &Time| !new.systems.is_empty() && seconds(time.0, now) >= STATUS_REFRESH_SECONDS;
    match &old.last_observed_time {
        Some(time) if old == new && !is_due(time) => Some(time.clone()),
        _ => Some(Time(now)),
    }
}

/// The current state of a job, and its message.
type StateAndMessage = (JobState, String);

struct Decider<'a> {
    spec: &'a TrainJobSpec,
    /// Deadlines of the spec, within the appliance's bounds.
    deadlines: Deadlines,
    /// Seconds to save the job's state, within the appliance's bound.
    grace_seconds: u32,
    observed: &'a JobObservation,
    before: Option<JobState>,
    status: TrainJobStatus,
    commands: Vec<JobCommand>,
    events: Vec<JobEvent>,
    requeue_after: Option<u64>,
    /// Reason and message of what prevents agents from being ready.
    start_blocker: Option<(String, String)>,
    refused: Option<String>,
    /// Why the record of an earlier admission can't be used. Nothing can be started then, and the agents of an attempt
    /// are known only from the status.
    unusable_record: Option<String>,
}

/// Returns why this program can't use the record in `status`; `None` if it can, or if there is no record.
fn unusable_record(status: &TrainJobStatus, observed: &JobObservation) -> Option<String> {
    status.resolved.as_ref()?;
    observed.resolution.as_ref()?.as_ref().err().map(|error| error.message.clone())
}

impl<'a> Decider<'a> {
    /// Returns why no further attempt may begin with the agents of the job's record; `None` if it has no record.
    fn agents_refused(&self) -> Option<&String> {
        self.status.resolved.as_ref().and(self.observed.agents_refused.as_ref())
    }

    /// Returns why no further attempt of a job that was admitted before may begin; `None` if one may.
    fn obstacle(&self) -> Option<String> {
        self.unusable_record.as_ref().or(self.agents_refused()).cloned()
    }

    fn state(&mut self) -> StateAndMessage {
        self.take_report();
        match self.before {
            Some(state) if self.status.is(ConditionType::Finished) => self.clean_up_finished(state),
            _ if !self.status.is(ConditionType::Admitted) => self.wait_for_admission(),
            Some(state @ (JobState::Suspending | JobState::Resizing | JobState::Restarting)) => self.stopping(state),
            _ => self.continue_attempt(),
        }
    }

    /// Returns the number of agents of each role in the attempt.
    fn wanted(&self) -> Vec<(Role, u32)> {
        if self.unusable_record.is_none() {
            return self.observed.desired_agents.clone();
        }
        let roles = self.status.roles.iter();
        roles.filter_map(|role| Some((Role::from_name(&role.name)?, role.desired))).collect()
    }

    fn attempt(&self) -> u32 {
        self.status.attempt.unwrap_or(0)
    }

    fn seconds_since(&self, time: Option<&Time>) -> i64 {
        time.map_or(0, |time| seconds(time.0, self.observed.now))
    }

    /// Handles a job that is not admitted: suspended, rejected, queued, or just granted its systems.
    fn wait_for_admission(&mut self) -> StateAndMessage {
        if !self.observed.agents.is_empty() {
            self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
        }
        let refused = match (&self.observed.resolution, &self.status.resolved) {
            (Some(Err(error)), None) => Some(error.message.clone()),
            _ => None,
        };
        if let Some(why) = refused {
            self.refused = Some(why.clone());
            return self.finish(JobState::BadParams, why);
        }
        let granted = self.observed.grant.as_ref().filter(|grant| grant.attempt == self.attempt() + 1);
        let declined = self.spec.suspend
            || self.obstacle().is_some()
            || backoff_place(&self.status, self.observed.now).is_some()
            || granted.is_some_and(|grant| grant.systems.len() != self.spec.num_csx as usize);
        if let Some(grant) = granted.filter(|_| declined) {
            // Skipping the attempt's number shows the ledger that the grant was released.
            self.status.attempt = Some(grant.attempt);
        }
        if self.spec.suspend {
            self.status.queue = None;
            if let Some(retry) = &mut self.status.retry {
                // A user who resumes the job wants it to start at once.
                clear_backoff(retry);
            }
            let message = match self.status.checkpoint.as_ref().and_then(|saved| saved.step) {
                Some(step) => format!("the job is suspended at step {step}; set spec.suspend to false to resume it"),
                None => "the job is suspended; set spec.suspend to false to start it".to_owned(),
            };
            return (JobState::Suspended, message);
        }
        if let Some(why) = self.obstacle() {
            self.status.queue = None;
            self.requeue_after = Some(REQUEUE_SECONDS);
            return (JobState::Queued, why);
        }
        if self.status.resolved.is_some() && self.exceeds_largest_num_csx() {
            self.status.queue = None;
            return (JobState::Queued, self.refused.clone().unwrap_or_default());
        }
        if let Some(waiting) = self.back_off() {
            return waiting;
        }
        if self.observed.resolution.is_none() {
            // Without a plan, the rest of the observation is not known either.
            let message = "planning the job; it is queued when the plan is ready".to_owned();
            let reason = Some(QueueReason::Planning.as_str().to_owned());
            self.status.queue = Some(QueueStatus { position: None, reason, message: Some(message.clone()) });
            return (JobState::Queued, message);
        }
        match granted {
            Some(grant) if !declined && self.observed.agents.is_empty() => self.begin_attempt(grant.systems.clone()),
            _ => {
                self.status.queue = self.observed.queue_place.clone();
                let place = self.status.queue.as_ref().and_then(|place| place.message.clone());
                (JobState::Queued, place.unwrap_or_else(|| "the job is in the queue".to_owned()))
            }
        }
    }

    /// Begins the next attempt, on these systems.
    fn begin_attempt(&mut self, systems: Vec<String>) -> StateAndMessage {
        let now = Time(self.observed.now);
        let attempt = self.attempt() + 1;
        let num_csx = systems.len() as u32;
        if self.status.resolved.is_none() {
            self.status.resolved = self.observed.resolution.clone().and_then(Result::ok);
            self.warn_overruled(attempt);
        }
        if let Some(retry) = &mut self.status.retry {
            clear_backoff(retry);
            retry.first_step = self.status.checkpoint.as_ref().and_then(|saved| saved.step);
        }
        self.status.attempt = Some(attempt);
        self.status.restarts.get_or_insert(0);
        self.status.queue = None;
        self.status.num_csx = Some(num_csx);
        self.status.systems = systems;
        self.status.start_time.get_or_insert_with(|| now.clone());
        self.status.attempt_start_time = Some(now);
        self.status.stop_time = None;
        self.status.roles.iter_mut().for_each(|role| (role.ready, role.failed) = (0, 0));
        self.commands.push(JobCommand::RunAgents { attempt, num_csx });
        self.start_blocker = Some(("Starting".to_owned(), "the agents are being created".to_owned()));
        self.requeue_after = Some(REQUEUE_SECONDS);
        (JobState::Starting, format!("attempt {attempt} is starting on {num_csx} system(s)"))
    }

    /// Warns if the params differ from the spec.
    fn warn_overruled(&mut self, attempt: u32) {
        if let Some(message) = overruled(&self.status) {
            let reason = "ParamsOverruled".to_owned();
            self.events.push(JobEvent { warning: true, reason, message, attempt: Some(attempt), role: None });
        }
    }

    /// Handles a running attempt.
    fn continue_attempt(&mut self) -> StateAndMessage {
        let attempt = self.attempt();
        self.reset_retries_on_progress();
        if let Some(over) = self.finished_outcome() {
            return over;
        }
        if self.observed.agents.iter().any(|agent| agent.attempt != attempt) {
            // Agents of this attempt can't be created while agents of an older one have the same names.
            self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
            return (JobState::Starting, "agents of an earlier attempt are being removed".to_owned());
        }
        if let Some(why) = self.unusable_record.clone().filter(|_| self.observed.agents.is_empty()) {
            // No agent runs, and none can be started.
            self.end_attempt();
            self.requeue_after = Some(REQUEUE_SECONDS);
            return (JobState::Queued, why);
        }
        if let Some(refused) = self.handle_rejected_start() {
            return refused;
        }
        if let Some((cause, counted)) = self.find_failure() {
            return self.restart(cause, counted);
        }
        let ready = self.count_ready();
        if let Some(late) = self.check_deadlines(ready) {
            return late;
        }
        let num_csx = self.status.num_csx.unwrap_or(self.spec.num_csx);
        if self.spec.suspend {
            return self.stop(JobState::Suspending, "saving the job's state before it is suspended".to_owned());
        }
        if self.spec.num_csx != num_csx && self.obstacle().is_none() && !self.exceeds_largest_num_csx() {
            let wanted = self.spec.num_csx;
            return self.stop(
                JobState::Resizing,
                format!("saving the job's state to resume it with {wanted} system(s) instead of {num_csx}"),
            );
        }
        self.commands.push(match self.unusable_record {
            None => JobCommand::RunAgents { attempt, num_csx },
            Some(_) => JobCommand::FollowCoordinator { attempt },
        });
        self.requeue_after = Some(self.requeue_after.unwrap_or(REQUEUE_SECONDS).min(REQUEUE_SECONDS));
        let report = self.report();
        let reported = report.is_some_and(|report| report.advanced.is_some());
        if ready || reported {
            self.reset_failed_starts();
        }
        if reported && report.is_some_and(|report| report.evaluating) {
            (JobState::Evaluating, format!("attempt {attempt} is evaluating on {num_csx} system(s)"))
        } else if reported {
            (JobState::Training, format!("attempt {attempt} is training on {num_csx} system(s){}", self.resumed()))
        } else if self.has_begun() || (ready && self.is_report_overdue()) {
            (JobState::Training, self.last_training_message(attempt, num_csx))
        } else {
            let (reason, message) = self.start_blocker.clone().unwrap_or_else(|| {
                ("Preparing".to_owned(), "all agents are ready; the first step is being prepared".to_owned())
            });
            (JobState::Starting, format!("attempt {attempt} is starting on {num_csx} system(s); {reason}: {message}"))
        }
    }

    /// Returns whether more systems are requested than have work. This is reported, and the request is otherwise
    /// ignored.
    fn exceeds_largest_num_csx(&mut self) -> bool {
        let Some(largest) = self.observed.largest_num_csx.filter(|largest| self.spec.num_csx > *largest) else {
            return false;
        };
        let wanted = self.spec.num_csx;
        self.refused = Some(format!(
            "numCsx is {wanted}, but a batch has {largest} leaves: set numCsx to at most {largest}; until then the job \
             keeps its number of systems"
        ));
        true
    }

    /// Returns the final state, if the coordinator has reported its outcome and no retry is possible.
    fn finished_outcome(&mut self) -> Option<StateAndMessage> {
        let outcome = self.outcome()?.clone();
        if outcome.exit_code == 0 {
            return Some(self.finish(JobState::Succeeded, outcome.message));
        }
        let state = final_state(i32::from(outcome.exit_code), &outcome.reason)?;
        self.record_failure(&outcome);
        Some(self.finish(state, outcome.message))
    }

    /// Returns the outcome that this attempt's coordinator reported.
    fn outcome(&self) -> Option<&ReportedOutcome> {
        let report = self.report()?;
        report.outcome.as_ref()
    }

    /// Counts the ready agents into the status, records what prevents the first of the others from being ready, and
    /// returns whether all are ready.
    fn count_ready(&mut self) -> bool {
        let wanted = self.wanted();
        let agents = &self.observed.agents;
        let report = self.report();
        // The coordinator may report steps before the last probe has answered. A step requires every agent.
        let works = report.is_some_and(|report| report.advanced.is_some());
        let of = |role, is: &dyn Fn(&ObservedAgent) -> bool| {
            agents.iter().filter(|agent| agent.role == role && is(agent)).count() as u32
        };
        let is_ready = |agent: &ObservedAgent| match agent.state {
            _ if agent.is_terminating => false,
            AgentState::Ready => true,
            AgentState::Starting => works,
            AgentState::Waiting { .. } | AgentState::Ended(_) => false,
        };
        let has_failed =
            |agent: &ObservedAgent| matches!(&agent.state, AgentState::Ended(end) if end.exit_code != Some(0));
        let roles = wanted.into_iter().map(|(role, desired)| RoleStatus {
            name: role.to_string(),
            desired,
            ready: of(role, &is_ready),
            failed: of(role, &has_failed),
        });
        self.status.roles = roles.collect();
        let waiting = agents.iter().find_map(|agent| match &agent.state {
            AgentState::Waiting { reason, message } => Some((reason.clone(), format!("{}: {message}", agent.name))),
            _ => None,
        });
        let short = self.status.roles.iter().find(|role| role.ready < role.desired);
        self.start_blocker = self.temporary_creation_error().or(waiting).or_else(|| {
            let role = short?;
            Some(("Starting".to_owned(), format!("{} of {} {} agents are ready", role.ready, role.desired, role.name)))
        });
        // Nothing is ready if the required agents are not known.
        short.is_none() && !self.status.roles.is_empty()
    }

    fn requeue_after(&mut self, seconds: i64) {
        let seconds = u64::try_from(seconds).unwrap_or(0).max(1);
        self.requeue_after = Some(self.requeue_after.map_or(seconds, |earlier| earlier.min(seconds)));
    }

    /// Requests the attempt to save its state and end.
    fn stop(&mut self, state: JobState, message: String) -> StateAndMessage {
        self.status.stop_time.get_or_insert(Time(self.observed.now));
        self.commands.push(JobCommand::StopAttempt { attempt: self.attempt(), reason: message.clone() });
        self.requeue_after(i64::from(self.grace_seconds).min(REQUEUE_SECONDS as i64));
        (state, message)
    }

    /// Handles an attempt that is ending.
    fn stopping(&mut self, state: JobState) -> StateAndMessage {
        if let Some(outcome) = self.outcome().filter(|outcome| outcome.exit_code == 0) {
            // It completed before it was stopped.
            let message = outcome.message.clone();
            return self.finish(JobState::Succeeded, message);
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

    /// Returns the message of the state in the status.
    fn state_message(&self) -> String {
        self.status.condition(ConditionType::Succeeded).map(|it| it.message.clone()).unwrap_or_default()
    }

    /// Handles the end of the last agent. A job that only restarts keeps its systems.
    fn on_last_agent_gone(&mut self, state: JobState) -> StateAndMessage {
        let same = self.spec.num_csx as usize == self.status.systems.len();
        let requeue = self.status.retry.as_ref().is_some_and(|retry| retry.requeue);
        if state == JobState::Restarting && !self.spec.suspend && same && !requeue && self.obstacle().is_none() {
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
    fn count_active_seconds(&mut self) {
        let ran = self.seconds_since(self.status.attempt_start_time.as_ref());
        let active = self.status.active_seconds.unwrap_or(0) + u64::try_from(ran).unwrap_or(0);
        self.status.active_seconds = Some(active);
    }

    /// Releases the systems of an attempt that has no agents left.
    fn end_attempt(&mut self) {
        self.count_active_seconds();
        self.release();
    }

    fn release(&mut self) {
        self.status.systems.clear();
        self.status.num_csx = None;
        self.status.roles.clear();
        self.status.stop_time = None;
        self.status.attempt_start_time = None;
    }

    fn finish(&mut self, state: JobState, message: String) -> StateAndMessage {
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
    fn clean_up_finished(&mut self, state: JobState) -> StateAndMessage {
        let message = self.state_message();
        if state == JobState::BadParams && !self.status.is(ConditionType::Accepted) {
            self.refused = Some(message.clone());
        }
        if !self.observed.agents.is_empty() {
            self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
            self.requeue_after = Some(REQUEUE_SECONDS);
            return (state, message);
        }
        self.release();
        if let Some(ttl) = self.spec.ttl_seconds_after_finished {
            let left = i64::from(ttl) - self.seconds_since(self.status.finish_time.as_ref());
            if left <= 0 {
                self.commands.push(JobCommand::DeleteJob);
            } else {
                self.requeue_after(left);
            }
        }
        (state, message)
    }

    fn conclude(mut self, state: JobState, message: String, generation: Option<i64>) -> JobDecision {
        let is_resize_refused = self.status.num_csx.is_some_and(|num_csx| num_csx != self.spec.num_csx);
        let agents_refused = self.agents_refused().cloned();
        let unsaved = self.unsaved(state);
        let checkpoint = self.status.checkpoint.as_ref();
        let facts = ConditionInputs {
            message: message.clone(),
            refused: self.refused,
            unusable_record: self.unusable_record.filter(|_| !state.is_final()),
            agents_refused: agents_refused
                .filter(|_| state == JobState::Queued || (is_resize_refused && !state.is_final())),
            overruled: overruled(&self.status),
            systems: self.status.systems.clone(),
            queue: self.status.queue.clone(),
            blocker: self.start_blocker,
            unsaved,
            checkpoint: checkpoint.and_then(|saved| Some((saved.step?, saved.digest.clone().unwrap_or_default()))),
        };
        let known = self.status.conditions.iter().any(|known| Some(&known.message) == facts.unsaved.as_ref());
        let unsaved = facts.unsaved.clone().filter(|_| !known);
        update_conditions(&mut self.status.conditions, state, &facts, generation, self.observed.now);
        self.status.observed_generation = generation;
        if let Some(message) = unsaved {
            let reason = CHECKPOINT_WRITE_FAILED.to_owned();
            self.events.push(JobEvent { warning: true, reason, message, attempt: self.status.attempt, role: None });
        }
        // The requested number counts while the job is queued, and the last number it had once it has finished.
        self.status.displayed_csx = match self.status.num_csx {
            None if state.is_final() => self.status.displayed_csx,
            None => Some(self.spec.num_csx),
            held => held,
        };
        if self.before != Some(state) {
            let warning = state.is_failure() || state == JobState::Restarting;
            let failure = self.status.failure.as_ref().filter(|_| warning);
            self.events.push(JobEvent {
                warning,
                reason: state.as_str().to_owned(),
                message,
                attempt: self.status.attempt,
                role: failure.and_then(|failure| failure.role.clone()),
            });
        }
        JobDecision {
            status: self.status,
            commands: self.commands,
            events: self.events,
            look_again: self.requeue_after,
        }
    }
}

/// Describes where the params differ from the spec, which takes precedence; `None` if they agree.
fn overruled(status: &TrainJobStatus) -> Option<String> {
    let differences = &status.resolved.as_ref()?.differences;
    let of = |it: &OverruledKey| format!("{} is {} in params and {} in spec; spec wins", it.key, it.params, it.spec);
    let sentences: Vec<String> = differences.iter().map(of).collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// Returns the whole seconds from `from` to `to`; 0 if `to` is earlier.
fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    (to.as_second() - from.as_second()).max(0)
}
