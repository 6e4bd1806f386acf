//! Finds another checkpoint when a shard can't load one; see
//! [`CoordinatorCommand::FindCheckpoint`](millrace_engine::coordinator::CoordinatorCommand::FindCheckpoint).
//!
//! ```text
//!  can't load ─► verify all checkpoints ─► load the newest undamaged one ─► can't load it ─1 s─► verify ─► load ─► …
//! ```
//!
//! * A checkpoint that is damaged is replaced by the newest one that is not.
//! * A shard that can't load one that is undamaged has storage that fails at the moment. It tries again up to
//!   [`MAX_LOAD_RETRIES`] times with increasing delays; then the run ends.

use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_checkpoint::VerificationLevel;
use millrace_engine::coordinator::{CoordinatorEvent, RunOutcome};
use millrace_engine::message::{FailureCause, ParameterSource};
use millrace_engine::types::AgentId;

use super::super::resume::{StartPoint, check_same_bits, is_in_model_dir, newest_of_run};
use super::super::run_end::RunEnd;
use super::CoordinatorDriver;
use super::checkpointing::{SaveTaskResult, retry_delay};
use crate::error::AgentError;

/// Maximum retries of a load of a checkpoint that is undamaged: for half a minute.
const MAX_LOAD_RETRIES: u32 = 5;

/// The checkpoint that was found undamaged last, and how often it could not be loaded.
#[derive(Debug, Default)]
pub struct VerifiedCheckpoint {
    path: Option<PathBuf>,
    retries: u32,
}

impl VerifiedCheckpoint {
    /// Counts a failure to load the checkpoint in `path`. Returns the delay before all checkpoints are verified: zero
    /// if this one was not verified before. `None` if it was, and has failed too often since.
    fn delay_after_failure(&mut self, path: &Path) -> Option<Duration> {
        if self.path.as_deref() != Some(path) {
            return Some(Duration::ZERO);
        }
        let delay = retry_delay(self.retries);
        self.retries += 1;
        (self.retries <= MAX_LOAD_RETRIES).then_some(delay)
    }

    /// Records that all shards have loaded their parameters.
    pub const fn on_running(&mut self) {
        self.retries = 0;
    }
}

impl CoordinatorDriver {
    /// Searches the newest complete checkpoint and verifies every byte of it, because a shard could not load the one in
    /// `path`. Ends the run if that one is not of model_dir, or is undamaged and could not be loaded repeatedly.
    pub(super) fn find_checkpoint(
        &mut self,
        agent: AgentId,
        path: &str,
        reason: String,
        cause: FailureCause,
    ) -> Result<(), AgentError> {
        let is_of_run = is_in_model_dir(&self.launch, Path::new(path));
        let delay = self.verified_checkpoint.delay_after_failure(Path::new(path)).filter(|_| is_of_run);
        let Some(delay) = delay else {
            let outcome = RunOutcome::Failed { reason, agent: Some(agent), cause };
            self.finish_agents();
            self.end = Some(RunEnd::of(outcome, self.launch.mode, self.stop_reason.as_deref()));
            return Ok(());
        };
        let when = if delay.is_zero() { String::new() } else { format!(" in {} s", delay.as_secs()) };
        tracing::warn!(peer = %agent, "{agent} can't load {path}: {reason}; all checkpoints are verified{when}");
        let (launch, compiled) = (self.launch.clone(), self.compiled.clone());
        let (lock, results) = (self.lock.clone(), self.save_results_sender.clone());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let verify = move || {
                let found = newest_of_run(&launch, &compiled, VerificationLevel::Full, &lock);
                let found = found.and_then(|mut found| {
                    check_same_bits(&launch, &compiled, &mut found)?;
                    Ok(Box::new(found))
                });
                let _ = results.send(SaveTaskResult::Found(found));
            };
            let _ = tokio::task::spawn_blocking(verify).await;
        });
        Ok(())
    }

    pub(super) fn on_checkpoint_found(&mut self, found: StartPoint) -> Result<(), AgentError> {
        found.report.iter().for_each(|sentence| self.reporter.line(sentence));
        if let ParameterSource::Checkpoint { path, .. } = &found.source {
            let path = PathBuf::from(path);
            if self.verified_checkpoint.path.as_ref() != Some(&path) {
                self.verified_checkpoint = VerifiedCheckpoint { path: Some(path), retries: 0 };
            }
        }
        self.last_saved = found.saved.clone();
        let (source, is_saved, history) = (found.source.clone(), found.saved.is_some(), found.history);
        self.start_point = found;
        self.handle_event(CoordinatorEvent::CheckpointFound { source, is_saved, history })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undamaged_checkpoint_is_loaded_again_with_increasing_delays() {
        let mut verified = VerifiedCheckpoint::default();
        let (path, other) = (Path::new("m/checkpoint_2"), Path::new("m/checkpoint_1"));
        assert_eq!(verified.delay_after_failure(path), Some(Duration::ZERO), "it was not verified yet");
        verified.path = Some(path.to_owned());
        for delay in [1, 2, 4, 8, 16] {
            assert_eq!(verified.delay_after_failure(path), Some(Duration::from_secs(delay)));
        }
        assert_eq!(verified.delay_after_failure(other), Some(Duration::ZERO));
        assert_eq!(verified.delay_after_failure(path), None);
        verified.on_running();
        assert_eq!(verified.delay_after_failure(path), Some(Duration::from_secs(1)));
    }
}
