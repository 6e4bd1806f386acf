//! Checkpoints: staged by the driver, written by every shard while training goes on, published by the driver.

use std::collections::BTreeSet;
use std::fmt;

use crate::message::{Cause, ChunkDigests, Order, Snapshot};
use crate::types::{AgentId, CommitRecord, Epoch};

use super::{Command, Coordinator, Outcome};

/// A checkpoint being written.
pub(super) struct Saving {
    step: u64,
    record: Option<CommitRecord>,
    epoch: Epoch,
    digests: Vec<Option<ChunkDigests>>,
    /// The order, once its directory is there.
    snapshot: Option<Snapshot>,
    /// Shards that have not written theirs.
    waiting: BTreeSet<AgentId>,
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
        self.saving = Some(Saving {
            step: self.step,
            record: self.record.filter(|record| record.step == self.step),
            epoch: self.epoch,
            digests: vec![None; self.plan.chunks.len()],
            snapshot: None,
            waiting: self.shards().collect(),
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

    pub(super) fn written(
        &mut self,
        agent: AgentId,
        step: u64,
        digests: Vec<(usize, ChunkDigests)>,
        out: &mut Vec<Command>,
    ) {
        let Some(saving) = self.saving.as_mut().filter(|saving| saving.step == step) else { return };
        if saving.snapshot.is_none() || !saving.waiting.remove(&agent) {
            return;
        }
        for (chunk, digest) in digests {
            if let Some(slot) = saving.digests.get_mut(chunk) {
                *slot = Some(digest);
            }
        }
        if !saving.waiting.is_empty() {
            return;
        }
        let (record, epoch) = (saving.record, saving.epoch);
        if let Some(digests) = saving.digests.iter().cloned().collect() {
            out.push(Command::Publish { step, digests, record, epoch });
        } else {
            let reason = format!("the checkpoint of step {step} lacks chunks though every shard has written its own");
            self.end(Outcome::Failed { reason, agent: None, cause: Cause::Other }, out);
        }
    }

    pub(super) fn not_written(
        &mut self,
        agent: AgentId,
        step: u64,
        reason: &str,
        cause: Cause,
        out: &mut Vec<Command>,
    ) {
        if self.saving.as_ref().is_some_and(|saving| saving.step == step) {
            let reason = format!("the checkpoint of step {step} could not be written: {reason}");
            self.end(Outcome::Failed { reason, agent: Some(agent), cause }, out);
        }
    }

    pub(super) fn published(&mut self, step: u64) {
        self.saving.take_if(|saving| saving.step == step);
    }
}
