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
//! * Shards verify what they load. If one of them can't load the checkpoint, all load the newest one that is undamaged.

use crate::message::{FailureCause, ParameterSource, ShardState};
use crate::types::{AgentId, TrainingHistory};

use super::{Coordinator, CoordinatorCommand, Phase, StepProgress};

/// The newest state that every shard can load.
#[derive(Clone, Debug)]
pub(super) struct RestorePoint {
    pub(super) source: ParameterSource,
    /// Whether it is a checkpoint of this run, so that none has to be written at its step.
    pub(super) is_saved: bool,
    /// Skipped batches and means up to it.
    pub(super) history: TrainingHistory,
}

/// The search for a checkpoint that all shards can load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CheckpointSearch {
    /// It begins when no shard is loading any more.
    Due(FailedLoad),
    /// The driver verifies checkpoints.
    InProgress,
}

/// A checkpoint that a shard could not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailedLoad {
    pub(super) agent: AgentId,
    pub(super) path: String,
    pub(super) reason: String,
    pub(super) cause: FailureCause,
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
        // Another shard may be lost while steps of the previous restore are executed again.
        let (from, to) = (self.restore_point.source.step(), self.step.max(self.reported_step));
        out.push(CoordinatorCommand::ReportRestore { shard: lost, from, to });
        self.go_back_to_restore_point();
        let is_there = |state: &ShardState| is_settled && state.loaded && state.committed == from;
        let others = states.iter().filter(|(_, state)| !is_there(state)).map(|&(shard, _)| shard);
        self.load_shards(others.collect(), out)
    }

    /// Continues from the restore point, as if nothing had been committed since.
    fn go_back_to_restore_point(&mut self) {
        let RestorePoint { source, is_saved, .. } = self.restore_point.clone();
        let from = source.step();
        (self.checkpoint, self.failed_save, self.pending_commit, self.record) = (None, None, None, None);
        (self.source, self.step, self.skips_of_step) = (source, from, 0);
        self.done = StepProgress { evaluated: self.is_evaluated(from), saved: is_saved };
    }

    /// Returns the checkpoint that `agent` is loading in a training run, if any.
    pub(super) fn loaded_checkpoint(&self, agent: AgentId) -> Option<String> {
        match (&self.phase, &self.source) {
            (Phase::Loading(waiting), ParameterSource::Checkpoint { path, .. })
                if self.policy.train && waiting.contains(&agent) =>
            {
                Some(path.clone())
            }
            _ => None,
        }
    }

    /// Records that a shard could not load the checkpoint. The search for another one begins when the other shards have
    /// loaded it or failed, so that no report about this load arrives later.
    pub(super) fn on_load_failed(&mut self, failed: FailedLoad) {
        if let Some(member) = self.members.get_mut(&failed.agent) {
            member.state = ShardState::default();
        }
        self.cancel_load(failed.agent);
        self.search.get_or_insert(CheckpointSearch::Due(failed));
    }

    /// Begins the search for another checkpoint if one is due. Returns whether a search is in progress.
    pub(super) fn search_checkpoint(&mut self, out: &mut Vec<CoordinatorCommand>) -> bool {
        if let Some(CheckpointSearch::Due(failed)) =
            self.search.take_if(|search| *search != CheckpointSearch::InProgress)
        {
            let FailedLoad { agent, path, reason, cause } = failed;
            out.push(CoordinatorCommand::FindCheckpoint { agent, path, reason, cause });
            self.search = Some(CheckpointSearch::InProgress);
        }
        self.search.is_some()
    }

    /// Makes all shards load another checkpoint than the one that could not be loaded.
    pub(super) fn on_checkpoint_found(&mut self, found: RestorePoint, out: &mut Vec<CoordinatorCommand>) {
        if self.search.take() != Some(CheckpointSearch::InProgress) {
            return;
        }
        let to = self.step.max(self.reported_step);
        out.push(CoordinatorCommand::ReportFallback { from: found.source.step(), to });
        // The one that is damaged is written again.
        self.resume_state.done.saved &= self.resume_state.step == found.source.step() && found.is_saved;
        self.restore_point = found;
        self.go_back_to_restore_point();
        let shards = self.joined_replicas().map(|(agent, _)| agent).collect();
        for member in self.members.values_mut() {
            member.state = ShardState::default();
        }
        self.phase = Phase::Gathering;
        self.load_shards(shards, out);
    }
}
