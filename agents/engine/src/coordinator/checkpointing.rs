//! Checkpoints: the driver stages them, every shard writes its part while training continues, and the driver publishes
//! them.
//!
//! A checkpoint that can't be written is abandoned once every shard has reported, so that no shard is still writing
//! when the next one begins. The run continues without it. Only a run that would otherwise end waits until its last
//! step is saved.

use std::collections::BTreeSet;
use std::fmt;

use crate::message::{AgentCommand, ChunkDigests, FailureCause, ShardState, SnapshotRequest};
use crate::types::{AgentId, CommitRecord, Epoch, TrainingHistory};

use super::{Coordinator, CoordinatorCommand, NextAction, Phase, RunOutcome};

pub(super) struct CheckpointInProgress {
    step: u64,
    record: Option<CommitRecord>,
    history: TrainingHistory,
    epoch: Epoch,
    digests: Vec<Option<ChunkDigests>>,
    /// The request to the shards, once the directory exists.
    snapshot: Option<SnapshotRequest>,
    /// Shards that have not reported.
    waiting: BTreeSet<AgentId>,
    /// The first failure of a shard to write its part.
    failed: Option<WriteFailure>,
}

#[derive(Debug)]
struct WriteFailure {
    agent: AgentId,
    reason: String,
    cause: FailureCause,
}

impl fmt::Debug for CheckpointInProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, snapshot, waiting, .. } = self;
        f.debug_struct("Saving").field("step", step).field("snapshot", snapshot).field("waiting", waiting).finish()
    }
}

impl Coordinator {
    /// Returns whether nothing remains to be saved at this step.
    pub(super) const fn is_checkpointed(&self) -> bool {
        self.done.saved || !self.policy.train
    }

    /// Returns whether a checkpoint has no directory yet. No iteration begins in this state: a checkpoint is consistent
    /// because no update is decided between its staging and the snapshot command to the shards.
    pub(super) fn is_staging(&self) -> bool {
        self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.snapshot.is_none())
    }

    /// Begins a checkpoint, unless another is being written or a shard has not recorded the step yet.
    pub(super) fn begin_checkpoint(&mut self, out: &mut Vec<CoordinatorCommand>) {
        if self.checkpoint.is_some() || self.pending_commit.is_some() {
            return;
        }
        self.done.saved = true;
        self.checkpoint_wanted = false;
        self.failed_save = None;
        self.checkpoint = Some(CheckpointInProgress {
            step: self.step,
            record: self.record.filter(|record| record.step == self.step),
            history: self.history(),
            epoch: self.epoch,
            digests: vec![None; self.plan.chunks.len()],
            snapshot: None,
            waiting: self.snapshot_writers(),
            failed: None,
        });
        out.push(CoordinatorCommand::StageCheckpoint { step: self.step });
    }

    pub(super) fn on_staged(&mut self, snapshot: SnapshotRequest, out: &mut Vec<CoordinatorCommand>) {
        // Replicas may have been lost since the checkpoint began.
        let writers = self.snapshot_writers();
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|checkpoint| checkpoint.step == snapshot.step) else {
            return;
        };
        checkpoint.waiting = writers.clone();
        checkpoint.snapshot = Some(snapshot.clone());
        // A shard that has lost its parameters has nothing to write: the checkpoint is abandoned.
        let is_loaded = |writer: &AgentId| self.members.get(writer).is_some_and(|member| member.state.loaded);
        let writers = writers.into_iter().filter(is_loaded);
        out.extend(writers.map(|writer| CoordinatorCommand::Send(writer, AgentCommand::Snapshot(snapshot.clone()))));
    }

    /// Returns the snapshot that a disconnected agent has to write, if any.
    pub(super) fn missed_snapshot(&self, agent: AgentId) -> Option<SnapshotRequest> {
        let checkpoint = self.checkpoint.as_ref().filter(|checkpoint| checkpoint.waiting.contains(&agent))?;
        checkpoint.snapshot.clone()
    }

    /// Returns the checkpoint if it is waiting for this report of `agent`; `None` for another checkpoint or a repeated
    /// report.
    fn checkpoint_awaiting(&mut self, agent: AgentId, snapshot: &SnapshotRequest) -> Option<&mut CheckpointInProgress> {
        let checkpoint =
            self.checkpoint.as_mut().filter(|checkpoint| checkpoint.snapshot.as_ref() == Some(snapshot))?;
        checkpoint.waiting.remove(&agent).then_some(checkpoint)
    }

    pub(super) fn on_written(
        &mut self,
        agent: AgentId,
        snapshot: &SnapshotRequest,
        digests: Vec<(usize, ChunkDigests)>,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let Some(checkpoint) = self.checkpoint_awaiting(agent, snapshot) else { return };
        for (chunk, digest) in digests {
            if let Some(slot) = checkpoint.digests.get_mut(chunk) {
                *slot = Some(digest);
            }
        }
        self.finish_checkpoint(out);
    }

    pub(super) fn on_write_failed(
        &mut self,
        agent: AgentId,
        snapshot: &SnapshotRequest,
        reason: String,
        cause: FailureCause,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let Some(checkpoint) = self.checkpoint_awaiting(agent, snapshot) else { return };
        checkpoint.failed.get_or_insert(WriteFailure { agent, reason, cause });
        self.finish_checkpoint(out);
    }

    /// Abandons the parts of a checkpoint whose writer is lost, if the run continues with another replica of the shard.
    pub(super) fn fail_lost_snapshot_parts(&mut self, out: &mut Vec<CoordinatorCommand>) {
        let Some(checkpoint) = self.checkpoint.as_ref().filter(|checkpoint| checkpoint.snapshot.is_some()) else {
            return;
        };
        let holds_step = |state: ShardState| state.loaded && state.committed >= checkpoint.step;
        let is_writing = |writer: &AgentId| self.members.get(writer).is_some_and(|member| holds_step(member.state));
        let is_lost = |writer: &&AgentId| !is_writing(writer) && self.has_other_replica(**writer);
        let lost: Vec<AgentId> = checkpoint.waiting.iter().filter(is_lost).copied().collect();
        lost.into_iter().for_each(|writer| self.fail_snapshot_part(writer, out));
    }

    /// Abandons the part of a checkpoint that `agent` is writing, if any: it is lost, or about to load other
    /// parameters.
    pub(super) fn fail_snapshot_part(&mut self, agent: AgentId, out: &mut Vec<CoordinatorCommand>) {
        let Some(checkpoint) = &mut self.checkpoint else { return };
        if checkpoint.snapshot.is_none() || !checkpoint.waiting.remove(&agent) {
            return;
        }
        let reason = format!("{agent} was lost while it wrote its part");
        checkpoint.failed.get_or_insert(WriteFailure { agent, reason, cause: FailureCause::Other });
        self.finish_checkpoint(out);
    }

    /// Publishes the checkpoint, or abandons it, once every shard has reported.
    fn finish_checkpoint(&mut self, out: &mut Vec<CoordinatorCommand>) {
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|checkpoint| checkpoint.waiting.is_empty()) else {
            return;
        };
        let CheckpointInProgress { step, record, history, epoch, .. } = *checkpoint;
        if let Some(WriteFailure { agent, reason, cause }) = checkpoint.failed.take() {
            self.abandon_checkpoint(step, reason, Some(agent), cause, out);
        } else if let Some(digests) = checkpoint.digests.iter().cloned().collect() {
            out.push(CoordinatorCommand::PublishCheckpoint { step, digests, record, history, epoch });
        } else {
            let reason =
                format!("the checkpoint of step {step} lacks chunks, although every shard has written its part");
            self.end(RunOutcome::Failed { reason, agent: None, cause: FailureCause::Other }, out);
        }
    }

    /// Handles a failure of the driver to stage or publish a checkpoint.
    pub(super) fn on_save_failed(
        &mut self,
        step: u64,
        reason: String,
        cause: FailureCause,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        if self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.step == step) {
            self.abandon_checkpoint(step, reason, None, cause, out);
        }
    }

    fn abandon_checkpoint(
        &mut self,
        step: u64,
        reason: String,
        agent: Option<AgentId>,
        cause: FailureCause,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        self.checkpoint = None;
        self.failed_save = Some(step);
        out.push(CoordinatorCommand::ReportSaveFailure { step, reason, agent, cause });
    }

    /// Requests a checkpoint of the last committed step, if the previous attempt failed.
    pub(super) fn retry_checkpoint(&mut self) {
        if self.failed_save.take().is_some() {
            self.done.saved = false;
            self.checkpoint_wanted = true;
        }
    }

    /// Returns whether saving the current step has failed.
    pub(super) fn lacks_checkpoint(&self) -> bool {
        self.policy.train && self.failed_save == Some(self.step)
    }

    /// Returns whether the run only waits for its last step to be saved, after a failure.
    pub fn is_awaiting_checkpoint(&self) -> bool {
        let over =
            self.stopping || (self.evaluating.is_none() && self.policy.next(self.step, self.done) == NextAction::End);
        self.phase != Phase::Ended && over && self.lacks_checkpoint()
    }

    pub(super) fn on_published(&mut self, step: u64, path: String) {
        let published = self.checkpoint.take_if(|checkpoint| checkpoint.step == step);
        if let Some(CheckpointInProgress { history, .. }) = published {
            self.set_restore_point(step, path, history);
        }
    }

    /// Returns whether the driver is creating or publishing the directory of a checkpoint.
    pub(super) fn is_driver_saving(&self) -> bool {
        self.is_staging() || self.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.waiting.is_empty())
    }
}
