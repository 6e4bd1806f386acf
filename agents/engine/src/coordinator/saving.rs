//! Checkpoints: staged by the driver, written by every shard while training goes on, published by the driver.
//!
//! A checkpoint that can't be written is given up once every shard has answered, so that no shard still writes when the
//! next one begins. The run goes on without it; only a run that would end now waits until its last step is saved.

use std::collections::BTreeSet;
use std::fmt;

use crate::message::{Cause, ChunkDigests, Order, Snapshot};
use crate::types::{AgentId, CommitRecord, Epoch};

use super::{Command, Coordinator, Next, Outcome, Phase};

/// A checkpoint being written.
pub(super) struct Saving {
    step: u64,
    record: Option<CommitRecord>,
    epoch: Epoch,
    digests: Vec<Option<ChunkDigests>>,
    /// The order, once its directory is there.
    snapshot: Option<Snapshot>,
    /// Shards that have not answered.
    waiting: BTreeSet<AgentId>,
    /// Why it can't be published, where a shard could not write its part.
    failed: Option<NotWritten>,
}

#[derive(Debug)]
struct NotWritten {
    agent: AgentId,
    reason: String,
    cause: Cause,
}

impl fmt::Debug for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, snapshot, waiting, .. } = self;
        f.debug_struct("Saving").field("step", step).field("snapshot", snapshot).field("waiting", waiting).finish()
    }
}

impl Coordinator {
    /// Whether nothing is left to be saved at this step.
    pub(super) const fn saved(&self) -> bool {
        self.done.saved || !self.policy.train
    }

    /// Whether a checkpoint has no directory yet. Nothing may be trained meanwhile: a checkpoint is consistent because
    /// no update is decided between its staging and the shards' hearing of it.
    pub(super) fn staging(&self) -> bool {
        self.saving.as_ref().is_some_and(|saving| saving.snapshot.is_none())
    }

    /// Starts a checkpoint, unless another is still being written or the step is not yet on every shard.
    pub(super) fn save(&mut self, out: &mut Vec<Command>) {
        if self.saving.is_some() || self.deciding.is_some() {
            return;
        }
        self.done.saved = true;
        self.checkpoint_wanted = false;
        self.unsaved = None;
        self.saving = Some(Saving {
            step: self.step,
            record: self.record.filter(|record| record.step == self.step),
            epoch: self.epoch,
            digests: vec![None; self.plan.chunks.len()],
            snapshot: None,
            waiting: self.shards().collect(),
            failed: None,
        });
        out.push(Command::Stage { step: self.step });
    }

    pub(super) fn staged(&mut self, snapshot: Snapshot, out: &mut Vec<Command>) {
        let shards: Vec<AgentId> = self.shards().filter(|shard| self.members.contains_key(shard)).collect();
        let Some(saving) = self.saving.as_mut().filter(|saving| saving.step == snapshot.step) else { return };
        out.extend(shards.iter().map(|&shard| Command::Send(shard, Order::Snapshot(snapshot.clone()))));
        saving.snapshot = Some(snapshot);
    }

    /// The order that a shard which was away may have missed.
    pub(super) fn missed_snapshot(&self, shard: AgentId) -> Option<Order> {
        let saving = self.saving.as_ref().filter(|saving| saving.waiting.contains(&shard))?;
        saving.snapshot.clone().map(Order::Snapshot)
    }

    /// The checkpoint that `agent` has answered about; `None` where that is another one, or it has answered before.
    fn answered(&mut self, agent: AgentId, snapshot: &Snapshot) -> Option<&mut Saving> {
        let saving = self.saving.as_mut().filter(|saving| saving.snapshot.as_ref() == Some(snapshot))?;
        saving.waiting.remove(&agent).then_some(saving)
    }

    pub(super) fn written(
        &mut self,
        agent: AgentId,
        snapshot: &Snapshot,
        digests: Vec<(usize, ChunkDigests)>,
        out: &mut Vec<Command>,
    ) {
        let Some(saving) = self.answered(agent, snapshot) else { return };
        for (chunk, digest) in digests {
            if let Some(slot) = saving.digests.get_mut(chunk) {
                *slot = Some(digest);
            }
        }
        self.conclude_saving(out);
    }

    pub(super) fn not_written(
        &mut self,
        agent: AgentId,
        snapshot: &Snapshot,
        reason: String,
        cause: Cause,
        out: &mut Vec<Command>,
    ) {
        let Some(saving) = self.answered(agent, snapshot) else { return };
        saving.failed.get_or_insert(NotWritten { agent, reason, cause });
        self.conclude_saving(out);
    }

    /// Has the checkpoint published, or gives it up, once every shard has answered.
    fn conclude_saving(&mut self, out: &mut Vec<Command>) {
        let Some(saving) = self.saving.as_mut().filter(|saving| saving.waiting.is_empty()) else { return };
        let (step, record, epoch) = (saving.step, saving.record, saving.epoch);
        if let Some(NotWritten { agent, reason, cause }) = saving.failed.take() {
            self.give_up_saving(step, reason, Some(agent), cause, out);
        } else if let Some(digests) = saving.digests.iter().cloned().collect() {
            out.push(Command::Publish { step, digests, record, epoch });
        } else {
            let reason = format!("the checkpoint of step {step} lacks chunks though every shard has written its own");
            self.end(Outcome::Failed { reason, agent: None, cause: Cause::Other }, out);
        }
    }

    /// The driver could not stage or publish a checkpoint.
    pub(super) fn not_saved(&mut self, step: u64, reason: String, cause: Cause, out: &mut Vec<Command>) {
        if self.saving.as_ref().is_some_and(|saving| saving.step == step) {
            self.give_up_saving(step, reason, None, cause, out);
        }
    }

    fn give_up_saving(
        &mut self,
        step: u64,
        reason: String,
        agent: Option<AgentId>,
        cause: Cause,
        out: &mut Vec<Command>,
    ) {
        self.saving = None;
        self.unsaved = Some(step);
        out.push(Command::NotSaved { step, reason, agent, cause });
    }

    /// Has the last committed step saved, where the last attempt at saving one failed.
    pub(super) fn save_again(&mut self) {
        if self.unsaved.take().is_some() {
            self.done.saved = false;
            self.checkpoint_wanted = true;
        }
    }

    /// Whether the step that the run is at could not be saved.
    pub(super) fn misses_checkpoint(&self) -> bool {
        self.policy.train && self.unsaved == Some(self.step)
    }

    /// Whether nothing is left to be done but to save the last step, which has failed.
    pub fn awaits_save(&self) -> bool {
        let over = self.stopping || (self.evaluating.is_none() && self.policy.next(self.step, self.done) == Next::End);
        self.phase != Phase::Ended && over && self.misses_checkpoint()
    }

    pub(super) fn published(&mut self, step: u64) {
        self.saving.take_if(|saving| saving.step == step);
    }
}
