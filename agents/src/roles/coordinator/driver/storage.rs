//! Storage that does not respond: which writes have not returned for long, and a checkpoint whose directory can't be
//! created in time. No step begins while a directory is being created, so the checkpoint is given up.

use std::time::{Duration, Instant};

use millrace_engine::coordinator::CoordinatorEvent;
use millrace_engine::message::{FailureCause, StalledWrite};
use millrace_engine::types::AgentId;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::CoordinatorDriver;
use crate::error::AgentError;
use crate::model_dir_uploads::ModelDirUploads;
use crate::write_watch::{MAX_CHECKPOINT_WRITE_TIME, OngoingWrite};

/// Time between two checks whether the storage of model_dir responds.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the creation of a checkpoint's directory may delay the next step.
const MAX_CREATION_TIME: Duration = Duration::from_secs(10);

/// Returns the times of the checks.
pub fn checks() -> Interval {
    let mut checks = interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    checks
}

/// The creation of a checkpoint's directory, on another thread.
pub struct DirectoryCreation {
    /// The step of the checkpoint.
    step: u64,
    began: Instant,
    /// Whether the checkpoint was given up, although the thread still waits for the storage.
    pub(super) is_given_up: bool,
}

impl DirectoryCreation {
    /// Describes a creation that begins now.
    pub fn begin(step: u64) -> Self {
        Self { step, began: Instant::now(), is_given_up: false }
    }
}

/// Returns the failure of a checkpoint whose directory can't be created in time.
pub fn creation_failure() -> AgentError {
    let seconds = MAX_CREATION_TIME.as_secs();
    AgentError::local(format!("the storage of model_dir has not created its directory in {seconds} s"))
}

impl CoordinatorDriver {
    /// Gives up a checkpoint for which the next step has waited for too long, and reports writes to the storage of
    /// model_dir that have not returned for long.
    pub(super) fn check_storage(&mut self) -> Result<(), AgentError> {
        let is_overdue =
            |creation: &&mut DirectoryCreation| !creation.is_given_up && creation.began.elapsed() > MAX_CREATION_TIME;
        if let Some(creation) = self.creation.as_mut().filter(is_overdue) {
            creation.is_given_up = true;
            let (step, reason) = (creation.step, creation_failure().message());
            self.handle_event(CoordinatorEvent::SaveFailed { step, cause: FailureCause::Other, reason })?;
        }
        let own = self.checkpoint_writer.as_ref().and_then(|writer| writer.writes().ongoing());
        let is_given_up = self.creation.as_ref().is_some_and(|creation| creation.is_given_up);
        let own = own.filter(|write| is_given_up || write.exceeds(MAX_CHECKPOINT_WRITE_TIME));
        let uploads = self.uploads.as_ref().and_then(ModelDirUploads::failing);
        self.reporter.check_storage(self.stalled_shards.values().cloned().chain(own).chain(uploads));
        Ok(())
    }

    /// Records what a shard reports about the storage.
    pub(super) fn on_storage_report(&mut self, shard: AgentId, write: Option<&StalledWrite>) {
        let now = Instant::now();
        match write {
            None => drop(self.stalled_shards.remove(&shard)),
            Some(StalledWrite { file, seconds }) => {
                let began = now.checked_sub(Duration::from_secs(*seconds)).unwrap_or(now);
                self.stalled_shards.insert(shard, OngoingWrite { file: file.into(), began });
            }
        }
    }
}
