//! The reports of an attempt's coordinator, and their effect on the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use millrace_crds::{CheckpointStatus, ConditionType, JobState};

use super::Decider;
use crate::conditions::{STORAGE_RESPONDS, STORAGE_STALLED, StorageHealth};
use crate::{CoordinatorReport, JobEvent, StorageStall};

/// Seconds after which an attempt whose agents are all ready counts as training, even if its coordinator is
/// unreachable.
pub(crate) const REPORT_TIMEOUT_SECONDS: i64 = 20;

impl<'a> Decider<'a> {
    /// Returns the report of this attempt's coordinator.
    pub(super) fn report(&self) -> Option<&'a CoordinatorReport> {
        self.observed.report.as_ref().filter(|report| report.attempt == self.attempt())
    }

    /// Returns why the newest checkpoint could not be written, while the reporting attempt runs.
    pub(super) fn unsaved(&self, state: JobState) -> Option<String> {
        let report = self.report()?;
        report.failed_checkpoint.clone().filter(|_| matches!(state, JobState::Training | JobState::Evaluating))
    }

    /// Returns whether the storage of model_dir responds, as the attempt reports it while it runs. Until the attempt
    /// reports, that is what the condition says.
    pub(super) fn storage(&self, state: JobState) -> Option<StorageHealth> {
        let runs = matches!(
            state,
            JobState::Starting
                | JobState::Training
                | JobState::Evaluating
                | JobState::Suspending
                | JobState::Resizing
                | JobState::Restarting
        );
        if !runs {
            return None;
        }
        match self.report().and_then(|report| report.storage.as_ref()) {
            Some(Ok(())) => Some(StorageHealth::Responds),
            Some(Err(stall)) => Some(StorageHealth::Stalled(describe_stall(stall))),
            None => match self.status.condition(ConditionType::StorageResponding) {
                Some(Condition { status, message, .. }) if status == "False" => {
                    Some(StorageHealth::Stalled(message.clone()))
                }
                Some(Condition { status, .. }) if status == "True" => Some(StorageHealth::Responds),
                _ => None,
            },
        }
    }

    /// Returns the event of storage that has stopped to respond, or responds again.
    pub(super) fn storage_event(&self, storage: Option<&StorageHealth>) -> Option<JobEvent> {
        let stalled = |stalled: &Condition| stalled.status == "False";
        let was_stalled = self.status.condition(ConditionType::StorageResponding).is_some_and(stalled);
        let (warning, reason, message) = match storage? {
            StorageHealth::Stalled(stall) if !was_stalled => (true, STORAGE_STALLED, stall.clone()),
            StorageHealth::Responds if was_stalled => {
                (false, STORAGE_RESPONDS, "the storage of model_dir responds to writes again".to_owned())
            }
            _ => return None,
        };
        let (reason, attempt) = (reason.to_owned(), self.status.attempt);
        Some(JobEvent { warning, reason, message, attempt, ..JobEvent::default() })
    }

    /// Describes the step at which the attempt resumed and the steps that were lost; empty if nothing was trained
    /// before.
    pub(super) fn resumed(&self) -> String {
        let report = self.report();
        match report.and_then(|report| report.resumed) {
            None => String::new(),
            Some((0, lost)) => format!(" again from step 0: no checkpoint; {lost} step(s) are lost"),
            // The first attempt of this job: an earlier job, or an import, has made the checkpoint.
            Some((step, 0)) if self.attempt() == 1 => format!(" from step {step} of an existing checkpoint"),
            Some((step, 0)) => format!(" from step {step}, without losing a step"),
            Some((step, lost)) => format!(" from step {step}; rerunning {lost} lost step(s)"),
        }
    }

    /// Returns the event of a state that began and ended since the last reconcile: the attempt made steps, but the job
    /// goes from `Starting` to `state`, which is neither training nor evaluating.
    pub(super) fn missed_progress(&self, state: JobState) -> Option<JobEvent> {
        let has_ended = !matches!(state, JobState::Starting | JobState::Training | JobState::Evaluating);
        let report = self.report().filter(|report| report.advanced.is_some())?;
        if self.before != Some(JobState::Starting) || !has_ended {
            return None;
        }
        let (missed, done) =
            if report.evaluating { (JobState::Evaluating, "evaluated") } else { (JobState::Training, "trained") };
        let (attempt, resumed, next) = (self.attempt(), self.resumed(), state.as_str());
        let message = format!("attempt {attempt} {done}{resumed}, until the state became {next}");
        let reason = missed.as_str().to_owned();
        Some(JobEvent { reason, message, attempt: Some(attempt), ..JobEvent::default() })
    }

    /// Records the checkpoint that the coordinator has saved.
    pub(super) fn take_report(&mut self) {
        let Some(report) = self.report() else { return };
        let Some((step, digest)) = &report.checkpoint else { return };
        let is_known = self
            .status
            .checkpoint
            .as_ref()
            .is_some_and(|saved| saved.step == Some(*step) && saved.digest.as_deref() == Some(digest));
        if !is_known {
            let time = Some(Time(report.advanced.unwrap_or(self.observed.now)));
            self.status.checkpoint = Some(CheckpointStatus { step: Some(*step), digest: Some(digest.clone()), time });
        }
    }

    /// Returns whether all agents have been ready for so long that the coordinator's first report should have arrived.
    pub(super) fn is_report_overdue(&self) -> bool {
        let ready = self.status.condition(ConditionType::RolesReady).filter(|ready| ready.status == "True");
        ready.is_some_and(|ready| self.seconds_since(Some(&ready.last_transition_time)) >= REPORT_TIMEOUT_SECONDS)
    }

    /// Returns the message that the status has already, because an operator that has just begun to follow the
    /// coordinator does not know yet from which step the attempt resumed.
    pub(super) fn last_training_message(&self, attempt: u32, num_csx: u32) -> String {
        let plain = format!("attempt {attempt} is training on {num_csx} system(s)");
        let last = self.status.condition(ConditionType::Succeeded).map(|condition| &condition.message);
        last.filter(|last| last.starts_with(&plain)).cloned().unwrap_or(plain)
    }
}

/// Describes a write that the storage does not respond to.
pub(super) fn describe_stall(stall: &StorageStall) -> String {
    let (file, since) = (&stall.file, stall.since.strftime("%Y-%m-%dT%H:%M:%SZ"));
    format!("the storage of model_dir has not responded to a write to {file} since {since}")
}
