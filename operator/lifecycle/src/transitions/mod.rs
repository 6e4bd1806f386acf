//! The transitions of a job from one state to the next.
//!
//! * `admission`: a job without systems waits, then an attempt begins.
//! * `attempt`: an attempt starts and runs; `start`: why it can't start; `reports`: what its coordinator reports.
//! * `resizing`: a running attempt gets or gives up systems.
//! * `losses`: agents that are replaced while their attempt continues; `failure`: what breaks an attempt, and the
//!   consequence.
//! * `ending`: an attempt or a job ends, and its systems are released; `deletion`: a deleted job.

mod admission;
mod attempt;
mod deletion;
mod ending;
mod failure;
mod losses;
mod reports;
mod resizing;
mod start;

pub use deletion::decide_deleted;
#[cfg(test)]
pub(crate) use losses::NODE_LOST_SECONDS;
pub use losses::is_removal_overdue;
#[cfg(test)]
pub(crate) use reports::REPORT_TIMEOUT_SECONDS;
pub use resizing::target_systems;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use millrace_crds::{ConditionType, Deadlines, JobState, OverruledKey, Role, TrainJob, TrainJobSpec, TrainJobStatus};

use crate::conditions::{CHECKPOINT_WRITE_FAILED, ConditionInputs, update_conditions};
use crate::{JobCommand, JobDecision, JobEvent, JobObservation, ResolutionError};

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
        resized_agents: None,
        start_blocker: None,
        rejection: None,
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
    /// The agents of the attempt after this decision, if it has been resized.
    resized_agents: Option<Vec<(Role, u32)>>,
    /// Reason and message of what prevents agents from being ready.
    start_blocker: Option<(String, String)>,
    rejection: Option<String>,
    /// Why the record of an earlier admission can't be used, or why there can't be a record at present. Nothing can be
    /// started then, and the agents of an attempt are known only from the status.
    unusable_record: Option<ResolutionError>,
}

/// Returns why this program can't use the record in `status`, or can't make one at present; `None` if it can.
fn unusable_record(status: &TrainJobStatus, observed: &JobObservation) -> Option<ResolutionError> {
    let error = observed.resolution.as_ref()?.as_ref().err()?;
    (status.resolved.is_some() || error.is_temporary).then(|| error.clone())
}

impl<'a> Decider<'a> {
    /// Returns why no further attempt may begin with the agents of the job's record; `None` if it has no record.
    fn agents_refused(&self) -> Option<&String> {
        self.status.resolved.as_ref().and(self.observed.agents_refused.as_ref())
    }

    /// Returns why no further attempt of a job that was admitted before may begin; `None` if one may.
    fn obstacle(&self) -> Option<String> {
        self.unusable_record.as_ref().map(|error| &error.message).or(self.agents_refused()).cloned()
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
        if let Some(resized) = &self.resized_agents {
            return resized.clone();
        }
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

    fn requeue_after(&mut self, seconds: i64) {
        let seconds = u64::try_from(seconds).unwrap_or(0).max(1);
        self.requeue_after = Some(self.requeue_after.map_or(seconds, |earlier| earlier.min(seconds)));
    }

    fn conclude(mut self, state: JobState, message: String, generation: Option<i64>) -> JobDecision {
        let is_resize_refused = self.status.num_csx.is_some_and(|num_csx| num_csx != self.spec.num_csx);
        let (agents_refused, is_next_phase) = (self.agents_refused().cloned(), self.is_phase_counted());
        let unsaved = self.unsaved(state);
        let storage = self.storage(state);
        let storage_event = self.storage_event(storage.as_ref());
        let missed = self.missed_progress(state);
        let checkpoint = self.status.checkpoint.as_ref();
        let inputs = ConditionInputs {
            message: message.clone(),
            is_planned: self.status.resolved.is_some() || matches!(self.observed.resolution, Some(Ok(_))),
            rejection: self.rejection,
            unusable_record: self.unusable_record.filter(|_| !state.is_final()),
            agents_refused: agents_refused
                .filter(|_| state == JobState::Queued || (is_resize_refused && !state.is_final())),
            overruled: overruled(&self.status),
            systems: self.status.systems.clone(),
            queue: self.status.queue.clone(),
            blocker: self.start_blocker,
            unsaved,
            storage,
            checkpoint: checkpoint.and_then(|saved| Some((saved.step?, saved.digest.clone().unwrap_or_default()))),
        };
        let is_known =
            self.status.conditions.iter().any(|condition| Some(&condition.message) == inputs.unsaved.as_ref());
        let unsaved = inputs.unsaved.clone().filter(|_| !is_known);
        update_conditions(&mut self.status.conditions, state, &inputs, generation, self.observed.now);
        self.status.observed_generation = generation;
        if let Some(message) = unsaved {
            let reason = CHECKPOINT_WRITE_FAILED.to_owned();
            self.events.push(JobEvent {
                warning: true,
                reason,
                message,
                attempt: self.status.attempt,
                role: None,
                num_csx: None,
            });
        }
        // The requested number counts while the job is queued, and the last number it had once it has finished.
        self.status.displayed_csx = match self.status.num_csx {
            None if state.is_final() => self.status.displayed_csx,
            None => Some(self.spec.num_csx),
            held => held,
        };
        self.events.extend(missed);
        self.events.extend(storage_event);
        if self.before != Some(state) {
            let warning = state.is_failure() || (state == JobState::Restarting && !is_next_phase);
            let failure = self.status.failure.as_ref().filter(|_| warning);
            self.events.push(JobEvent {
                warning,
                reason: state.as_str().to_owned(),
                message,
                attempt: self.status.attempt,
                role: failure.and_then(|failure| failure.role.clone()),
                num_csx: None,
            });
        }
        JobDecision {
            status: self.status,
            commands: self.commands,
            events: self.events,
            requeue_after: self.requeue_after,
        }
    }
}

/// Describes where the params differ from the spec, which takes precedence; `None` if they agree.
fn overruled(status: &TrainJobStatus) -> Option<String> {
    let differences = &status.resolved.as_ref()?.differences;
    let describe =
        |key: &OverruledKey| format!("{} is {} in params and {} in spec; spec wins", key.key, key.params, key.spec);
    let sentences: Vec<String> = differences.iter().map(describe).collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// Returns the whole seconds from `from` to `to`; 0 if `to` is earlier.
fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    (to.as_second() - from.as_second()).max(0)
}
