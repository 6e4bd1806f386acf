//! Admission: what a job waits for before it has systems, and the beginning of an attempt.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use millrace_crds::{JobState, QueueReason, QueueStatus};

use super::{Decider, IDLE_GRACE_SECONDS, REQUEUE_SECONDS, StateAndMessage, overruled};
use crate::retry::clear_backoff;
use crate::{JobCommand, JobEvent, backoff_place};

impl Decider<'_> {
    /// Handles a job that is not admitted: suspended, rejected, queued, or just granted its systems.
    pub(super) fn wait_for_admission(&mut self) -> StateAndMessage {
        if !self.observed.agents.is_empty() {
            self.commands.push(JobCommand::RemoveAgents { grace: IDLE_GRACE_SECONDS });
        }
        let rejection = match (&self.observed.resolution, &self.status.resolved) {
            (Some(Err(error)), None) if !error.is_temporary => Some(error.message.clone()),
            _ => None,
        };
        if let Some(message) = rejection {
            self.rejection = Some(message.clone());
            return self.finish(JobState::BadParams, message);
        }
        let granted = self.observed.grant.as_ref().filter(|grant| grant.attempt == self.attempt() + 1);
        let is_declined = self.spec.suspend
            || self.obstacle().is_some()
            || backoff_place(&self.status, self.observed.now).is_some()
            || granted.is_some_and(|grant| grant.systems.len() != self.spec.num_csx as usize);
        if let Some(grant) = granted.filter(|_| is_declined) {
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
        if let Some(message) = self.obstacle() {
            self.status.queue = None;
            self.requeue_after = Some(REQUEUE_SECONDS);
            return (JobState::Queued, message);
        }
        if self.status.resolved.is_some() && self.exceeds_largest_num_csx() {
            self.status.queue = None;
            return (JobState::Queued, self.rejection.clone().unwrap_or_default());
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
            Some(grant) if !is_declined && self.observed.agents.is_empty() => self.begin_attempt(grant.systems.clone()),
            _ => {
                self.status.queue = self.observed.queue_place.clone();
                let queue_message = self.status.queue.as_ref().and_then(|queue_message| queue_message.message.clone());
                (JobState::Queued, queue_message.unwrap_or_else(|| "the job is in the queue".to_owned()))
            }
        }
    }

    /// Begins the next attempt, on these systems.
    pub(super) fn begin_attempt(&mut self, systems: Vec<String>) -> StateAndMessage {
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
        self.status.lost_agents.clear();
        self.status.restarts.get_or_insert(0);
        self.status.queue = None;
        self.status.num_csx = Some(num_csx);
        self.status.systems = systems;
        self.status.resizes = None;
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
    pub(super) fn warn_overruled(&mut self, attempt: u32) {
        if let Some(message) = overruled(&self.status) {
            let reason = "ParamsOverruled".to_owned();
            self.events.push(JobEvent {
                warning: true,
                reason,
                message,
                attempt: Some(attempt),
                role: None,
                num_csx: None,
            });
        }
    }

    /// Returns whether more systems are requested than have work. This is reported, and the request is otherwise
    /// ignored.
    pub(super) fn exceeds_largest_num_csx(&mut self) -> bool {
        let Some(largest) = self.observed.largest_num_csx.filter(|largest| self.spec.num_csx > *largest) else {
            return false;
        };
        let requested = self.spec.num_csx;
        self.rejection = Some(format!(
            "numCsx is {requested}, but a batch has {largest} leaves: set numCsx to at most {largest}; until then the \
             job keeps its number of systems"
        ));
        true
    }
}
