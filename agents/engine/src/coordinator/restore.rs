//! Restores all shards from the newest checkpoint after one of them has lost its parameters.
//!
//! ```text
//!  step    40 ──────────── 57        checkpoint at 40, committed up to 57 when memoryx-1 is lost
//!  then    40 ─ 41 ─ … ─── 57 ─ 58   all shards load the checkpoint; nothing is reported before 58
//! ```
//!
//! * No other agent restarts: systems and SwarmX nodes enter a new epoch.
//! * The steps since the checkpoint are executed again with the same bits, so their reports and evaluations are not
//!   repeated.
//! * A checkpoint that all shards have written is published first. One that still needs the lost shard is abandoned.

use crate::message::{ParameterSource, ShardState};
use crate::types::{AgentId, TrainingHistory};

use super::{Coordinator, CoordinatorCommand, StepProgress};

/// The newest state that every shard can load.
#[derive(Clone, Debug)]
pub(super) struct RestorePoint {
    pub(super) source: ParameterSource,
    /// Whether it is a checkpoint of this run, so that none has to be written at its step.
    pub(super) is_saved: bool,
    /// Skipped batches and means up to it.
    pub(super) history: TrainingHistory,
}

impl Coordinator {
    /// Sets the point to restore from, after the checkpoint of `step` was published in `path`.
    pub(super) fn set_restore_point(&mut self, step: u64, path: String, history: TrainingHistory) {
        let source = ParameterSource::Checkpoint { path, optimizer: true, step };
        self.restore_point = RestorePoint { source, is_saved: true, history };
    }

    /// Returns whether the evaluation after `step` was reported: at the latest before the next step.
    pub(super) fn is_evaluated(&self, step: u64) -> bool {
        let is_known = self.resume_state.progress_at(step).evaluated || step < self.resume_state.step;
        is_known || step < self.reported_step || self.evaluated_step == Some(step)
    }

    /// Makes the shards load the newest checkpoint, because `lost` has no parameters. Returns true if no shard has to
    /// load anything.
    pub(super) fn restore(
        &mut self,
        lost: AgentId,
        states: &[(AgentId, ShardState)],
        out: &mut Vec<CoordinatorCommand>,
    ) -> bool {
        if self.is_driver_saving() {
            return false;
        }
        // A shard may still record a commit that it has not acknowledged.
        let is_settled = self.pending_commit.is_none();
        let RestorePoint { source, is_saved, .. } = self.restore_point.clone();
        // Another shard may be lost while steps of the previous restore are executed again.
        let (from, to) = (source.step(), self.step.max(self.reported_step));
        out.push(CoordinatorCommand::ReportRestore { shard: lost, from, to });
        (self.checkpoint, self.failed_save, self.pending_commit, self.record) = (None, None, None, None);
        (self.source, self.step, self.skips_of_step) = (source, from, 0);
        self.done = StepProgress { evaluated: self.is_evaluated(from), saved: is_saved };
        let is_there = |state: &ShardState| is_settled && state.loaded && state.committed == from;
        let others = states.iter().filter(|(_, state)| !is_there(state)).map(|&(shard, _)| shard);
        self.load_shards(others.collect(), out)
    }
}
