//! Writes checkpoints for the driver, and decides when one is due besides those of the params' `checkpoint_steps`: a
//! recovery checkpoint after `checkpoint_seconds` of training, and a retry after a failed one.
//!
//! ```text
//!  published           checkpoint_seconds           recovery checkpoint
//!      │◄─────────────────────────────────────────────────►│
//!
//!  failed ─1 s─► failed ─2 s─► failed ─4 s─► failed ─8 s─► failed: skipped, training continues without it
//! ```
//!
//! * While training continues, a failure is followed by up to [`MAX_SAVE_RETRIES`] retries. Then the checkpoint is
//!   skipped, and the next one is written when it is due.
//! * A run that only has to save its last step retries up to [`MAX_FINAL_SAVE_RETRIES`] times, then fails.

use std::time::{Duration, Instant};

use millrace_checkpoint::Staging;
use millrace_engine::coordinator::CoordinatorEvent;
use millrace_engine::message::{ChunkDigests, FailureCause, SnapshotRequest};
use millrace_engine::types::{AgentId, CommitRecord, TrainingHistory};
use millrace_telemetry::journal::OutcomeReason;

use super::super::checkpoint_writer::PublishedCheckpoint;
use super::super::resume::StartPoint;
use super::storage::{DirectoryCreation, creation_failure};
use super::{Coordinator, CoordinatorDriver, command_reply};
use crate::error::AgentError;

/// Maximum retries while training continues.
const MAX_SAVE_RETRIES: u32 = 4;
/// Maximum retries of the last step's checkpoint.
const MAX_FINAL_SAVE_RETRIES: u32 = 7;
/// Delay before the first retry; doubled for each further one.
const INITIAL_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Returns the delay before the storage is tried again after a failure, with so many failures before it.
pub fn retry_delay(earlier_failures: u32) -> Duration {
    INITIAL_RETRY_DELAY.saturating_mul(1 << earlier_failures.min(16))
}

/// The result of staging, publishing or searching checkpoints, which run on blocking threads.
pub enum SaveTaskResult {
    /// What the run can be restored from, or why there is nothing.
    Found(Result<Box<StartPoint>, AgentError>),
    /// The directory of a checkpoint of this step was created, or could not be.
    Staged(u64, Result<Box<(Staging, SnapshotRequest)>, AgentError>),
    /// The directory of a checkpoint of this step is not created, because the storage does not respond.
    Rejected(u64, AgentError),
    /// The checkpoint of this step was published, or could not be.
    Published(u64, Result<PublishedCheckpoint, AgentError>),
}

/// A checkpoint that could not be written; see
/// [`CoordinatorCommand::ReportSaveFailure`](millrace_engine::coordinator::CoordinatorCommand::ReportSaveFailure).
pub struct SaveFailure {
    pub step: u64,
    pub reason: String,
    pub agent: Option<AgentId>,
    pub cause: FailureCause,
}

impl SaveFailure {
    /// Returns the failure of a run that can't continue without the checkpoint.
    fn failure(&self) -> AgentError {
        let Self { step, reason, agent, cause } = self;
        let prefix = agent.map_or_else(String::new, |agent| format!("{agent}: "));
        let kind = if *cause == FailureCause::NoSpace { OutcomeReason::OutOfSpace } else { OutcomeReason::Failed };
        AgentError::with_reason(kind, format!("the checkpoint of step {step} could not be written: {prefix}{reason}"))
            .hint(
                "free space or repair the storage of model_dir, then run the job again: it resumes from the newest \
                 checkpoint",
            )
    }
}

impl CoordinatorDriver {
    pub(super) fn on_save_result(&mut self, result: SaveTaskResult) -> Result<(), AgentError> {
        match result {
            SaveTaskResult::Found(found) => self.on_checkpoint_found(*found?),
            SaveTaskResult::Staged(_, staged) if self.creation.take_if(|creation| creation.is_given_up).is_some() => {
                // Removes the directory, if it was created in the end.
                tokio::task::spawn_blocking(move || drop(staged));
                Ok(())
            }
            SaveTaskResult::Staged(_, Ok(staged)) => {
                self.creation = None;
                let (staging, snapshot) = *staged;
                self.staging = Some(staging);
                self.handle_event(CoordinatorEvent::Staged(snapshot))
            }
            SaveTaskResult::Published(step, Ok(saved)) => {
                if self.save_timer.published(Instant::now()) {
                    self.reporter.line("Checkpoints are written again.");
                }
                self.reporter.saved(&saved);
                for reply in self.checkpoint_replies.drain(..) {
                    let _ = reply.send(command_reply(step, Some(&saved)));
                }
                let path = saved.path.to_string_lossy().into_owned();
                self.last_saved = Some(saved);
                self.handle_event(CoordinatorEvent::Published { step, path })?;
                self.dismiss_leaving_shards()
            }
            SaveTaskResult::Rejected(step, failure)
            | SaveTaskResult::Staged(step, Err(failure))
            | SaveTaskResult::Published(step, Err(failure)) => {
                self.creation.take_if(|creation| !creation.is_given_up);
                // Another run holds the lock of model_dir: a retry can't help.
                if matches!(failure.reason(), OutcomeReason::Superseded | OutcomeReason::ModelDirInUse) {
                    return Err(failure);
                }
                self.handle_event(CoordinatorEvent::SaveFailed {
                    step,
                    cause: failure.failure_cause(),
                    reason: failure.message(),
                })
            }
        }
    }

    pub(super) fn stage(&mut self, step: u64) {
        let (Some(writer), Some(machine)) = (self.checkpoint_writer.clone(), &self.machine) else { return };
        let (epoch, results) = (machine.epoch(), self.save_results_sender.clone());
        self.recovery =
            self.save_timer.is_by_time() && self.checkpoint_replies.is_empty() && !self.is_requested_by_params(step);
        if self.creation.is_some() {
            // The thread of an earlier checkpoint still waits for the storage.
            let _ = results.send(SaveTaskResult::Rejected(step, creation_failure()));
            return;
        }
        self.creation = Some(DirectoryCreation::begin(step));
        self.reporter.line(format!("Saving checkpoint at step {step}"));
        tokio::task::spawn_blocking(move || {
            results.send(SaveTaskResult::Staged(step, writer.stage(step, epoch).map(Box::new)))
        });
    }

    /// Returns whether the params request a checkpoint of `step`.
    fn is_requested_by_params(&self, step: u64) -> bool {
        let run = &self.compiled.job.run;
        let due = run.checkpoint_steps > 0 && step.is_multiple_of(run.checkpoint_steps);
        due || step == 0 || step >= run.max_steps
    }

    pub(super) fn publish(
        &mut self,
        digests: Vec<ChunkDigests>,
        record: Option<CommitRecord>,
        history: TrainingHistory,
    ) {
        let (Some(writer), Some(staging)) = (self.checkpoint_writer.clone(), self.staging.take()) else { return };
        let (results, step, recovery) = (self.save_results_sender.clone(), staging.step(), self.recovery);
        tokio::task::spawn_blocking(move || {
            let published = writer.publish(staging, digests, record, history, recovery);
            results.send(SaveTaskResult::Published(step, published))
        });
    }

    /// Removes the files that the shards have written, on another thread: the storage may be slow.
    pub(super) fn discard_staging(&mut self) {
        if let Some(staging) = self.staging.take() {
            tokio::task::spawn_blocking(move || drop(staging));
        }
    }

    /// Decides how to continue after a checkpoint that could not be written.
    pub(super) fn on_save_failure(&mut self, save: SaveFailure) -> Result<(), AgentError> {
        self.discard_staging();
        let failure = save.failure();
        let last = self.machine.as_ref().is_some_and(Coordinator::is_awaiting_checkpoint);
        let follows = match self.save_timer.failed(last, Instant::now()) {
            SaveFailureAction::End => return Err(failure),
            SaveFailureAction::Retry(delay) => format!("retrying in {} s", delay.as_secs()),
            SaveFailureAction::Skip => {
                let (step, saved) = self.current_checkpoint();
                let reply = command_reply(step, saved);
                self.checkpoint_replies.drain(..).for_each(|waiting| drop(waiting.send(reply.clone())));
                self.dismiss_leaving_shards()?;
                "skipped; training continues, and the next checkpoint is written when it is due".to_owned()
            }
        };
        self.reporter.not_saved(save.step, &format!("{}; {follows}", failure.message()));
        Ok(())
    }
}

/// The reaction to a failed checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub enum SaveFailureAction {
    Retry(Duration),
    /// Continue training without this checkpoint.
    Skip,
    /// End the run: only the last step was left to be saved.
    End,
}

/// Times recovery checkpoints and retries; see the module documentation.
#[derive(Debug)]
pub struct SaveTimer {
    interval: Option<Duration>,
    /// When a recovery checkpoint is due; `None` before training begins.
    due: Option<Instant>,
    retry: Option<Instant>,
    failures: u32,
    /// Whether a recovery checkpoint was due and has not begun yet.
    by_time: bool,
}

impl SaveTimer {
    /// Creates a timer for a recovery checkpoint every `seconds`; 0 disables them.
    pub fn new(seconds: u64) -> Self {
        let interval = (seconds > 0).then(|| Duration::from_secs(seconds));
        Self { interval, due: None, retry: None, failures: 0, by_time: false }
    }

    /// Starts the interval when training begins. Later calls change nothing.
    pub fn on_training(&mut self, now: Instant) {
        self.due = self.due.or_else(|| self.interval.map(|interval| now + interval));
    }

    /// Returns when [`SaveTimer::fire`] has something to do; `None` if nothing is scheduled.
    pub fn deadline(&self) -> Option<Instant> {
        self.due.into_iter().chain(self.retry).min()
    }

    /// Returns what is due at `now`: a recovery checkpoint or a retry.
    pub fn fire(&mut self, now: Instant) -> Option<SaveTrigger> {
        if self.retry.take_if(|retry| *retry <= now).is_some() {
            return Some(SaveTrigger::Retry);
        }
        self.due.filter(|due| *due <= now)?;
        self.due = self.interval.map(|interval| now + interval);
        self.by_time = true;
        Some(SaveTrigger::Recovery)
    }

    /// Records that the run stops: its checkpoint is the one to resume from, not a recovery checkpoint.
    pub const fn on_stopping(&mut self) {
        self.by_time = false;
    }

    /// Returns whether the checkpoint that begins now was due as a recovery checkpoint; false on the next call.
    pub fn is_by_time(&mut self) -> bool {
        std::mem::take(&mut self.by_time)
    }

    /// Records a published checkpoint; returns whether a previous try had failed.
    pub fn published(&mut self, now: Instant) -> bool {
        self.due = self.interval.map(|interval| now + interval);
        self.retry = None;
        std::mem::take(&mut self.failures) > 0
    }

    /// Records a failed checkpoint. `last` means that the run has nothing else to do.
    pub fn failed(&mut self, last: bool, now: Instant) -> SaveFailureAction {
        let delay = retry_delay(self.failures);
        self.failures += 1;
        match (last, self.failures) {
            (false, 1..=MAX_SAVE_RETRIES) | (true, 1..=MAX_FINAL_SAVE_RETRIES) => {
                self.retry = Some(now + delay);
                SaveFailureAction::Retry(delay)
            }
            (true, _) => SaveFailureAction::End,
            (false, _) => {
                self.failures = 0;
                SaveFailureAction::Skip
            }
        }
    }
}

/// An action of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveTrigger {
    /// A recovery checkpoint: the interval has elapsed.
    Recovery,
    /// A retry of a failed checkpoint.
    Retry,
}

impl SaveTrigger {
    /// Returns the event for the coordinator's state machine.
    pub const fn event(self) -> CoordinatorEvent {
        match self {
            Self::Recovery => CoordinatorEvent::CheckpointRequested,
            Self::Retry => CoordinatorEvent::RetrySave,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn recovery_checkpoint_is_due_an_interval_after_the_last() {
        let start = Instant::now();
        let mut timer = SaveTimer::new(600);
        assert_eq!(timer.deadline(), None, "nothing is trained yet");
        timer.on_training(start);
        timer.on_training(start + seconds(100));
        assert_eq!(timer.fire(start + seconds(599)), None);
        assert!(!timer.published(start + seconds(599)), "one that a step asked for");
        assert_eq!(timer.fire(start + seconds(1_198)), None);
        assert_eq!(timer.fire(start + seconds(1_199)), Some(SaveTrigger::Recovery));
        assert!(timer.is_by_time() && !timer.is_by_time());
        let mut never = SaveTimer::new(0);
        never.on_training(start);
        assert_eq!(never.deadline(), None);
    }

    #[test]
    fn failed_write_is_retried_then_skipped() {
        let start = Instant::now();
        let mut timer = SaveTimer::new(0);
        for delay in [1, 2, 4, 8] {
            assert_eq!(timer.failed(false, start), SaveFailureAction::Retry(seconds(delay)));
            assert_eq!(timer.fire(start + seconds(delay)), Some(SaveTrigger::Retry));
        }
        assert_eq!(timer.failed(false, start), SaveFailureAction::Skip);
        assert_eq!(timer.deadline(), None);
        assert_eq!(
            timer.failed(false, start),
            SaveFailureAction::Retry(seconds(1)),
            "the next one has its own retries"
        );
        assert!(timer.published(start) && !timer.published(start));
        for retry in 0..7 {
            assert_eq!(timer.failed(true, start), SaveFailureAction::Retry(seconds(1 << retry)));
        }
        assert_eq!(timer.failed(true, start), SaveFailureAction::End);
    }
}
