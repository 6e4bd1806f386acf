//! Turns: what comes next, when a step is decided, and who has recorded it.

use std::collections::BTreeSet;

use crate::message::{Cause, Order};
use crate::types::{AgentId, CommitRecord, LeafResult, Task, Turn};

use super::members::serves;
use super::program::{Done, LeafTable, LossScaling, Next, gradient_scale};
use super::{Command, Coordinator, Evaluation, Outcome, Phase};

/// The turn being run.
#[derive(Debug)]
pub(super) struct Current {
    turn: Turn,
    leaves: LeafTable,
    norms: Vec<Option<f64>>,
    prepared: BTreeSet<AgentId>,
}

/// An evaluation being run.
#[derive(Debug)]
pub(super) struct Evaluating {
    sums: Evaluation,
    loss_sum: f64,
}

/// A decided commit that some shards have not recorded yet.
#[derive(Debug)]
pub(super) struct Deciding {
    pub(super) record: CommitRecord,
    waiting: BTreeSet<AgentId>,
}

impl Coordinator {
    pub(super) fn linked(&mut self, agent: AgentId, out: &mut Vec<Command>) {
        let Phase::Linking(waiting) = &mut self.phase else { return };
        waiting.remove(&agent);
        if waiting.is_empty() {
            self.phase = Phase::Running;
            out.push(Command::Running);
        }
    }

    /// Opens the next turn or starts the next action; false when there is nothing more to do now.
    pub(super) fn next_turn(&mut self, out: &mut Vec<Command>) -> bool {
        if self.checkpoint_wanted {
            if !self.saved() {
                self.save(out);
                return false;
            }
            self.checkpoint_wanted = false;
        }
        if let Some(Evaluating { sums, .. }) = &self.evaluating {
            let sums = *sums;
            let wanted = self.policy.eval.map_or(0, |eval| eval.batches);
            if sums.batches < wanted {
                self.open(Task::Eval { step: self.step, batch: sums.batches }, out);
                return false;
            }
            self.evaluating = None;
            self.done.evaluated = true;
            out.push(Command::Evaluated(sums));
            return true;
        }
        match self.policy.next(self.step, self.done) {
            Next::Evaluate { .. } => {
                let sums = Evaluation { step: self.step, loss: 0.0, tokens: 0, correct: 0, batches: 0 };
                self.evaluating = Some(Evaluating { sums, loss_sum: 0.0 });
                out.push(Command::Evaluating);
                return true;
            }
            Next::Checkpoint => self.save(out),
            Next::Train => self.open(Task::Train { step: self.step + 1 }, out),
            Next::End => match self.further.pop_front() {
                Some(source) => self.turn_to(source, out),
                None => self.finish(Outcome::Complete, out),
            },
        }
        false
    }

    fn open(&mut self, task: Task, out: &mut Vec<Command>) {
        let turn = Turn { serial: self.serial, task };
        self.serial += 1;
        let leaves = if task.trains() { self.plan.leaves } else { self.plan.eval_leaves };
        self.current = Some(Current {
            turn,
            leaves: LeafTable::new(leaves.count),
            norms: vec![None; self.plan.chunks.len()],
            prepared: BTreeSet::new(),
        });
        let Some(placement) = &self.placement else { return };
        let order = Order::Open { epoch: self.epoch, turn };
        let agents = self.members.keys().filter(|&&agent| serves(placement, agent));
        out.extend(agents.map(|&agent| Command::Send(agent, order.clone())));
    }

    pub(super) fn leaves(&mut self, turn: u64, results: &[LeafResult], out: &mut Vec<Command>) {
        let Some(current) = self.current.as_mut().filter(|current| current.turn.serial == turn) else { return };
        results.iter().for_each(|result| current.leaves.fill(*result));
        let Some(total) = current.leaves.total() else { return };
        if !total.loss.is_finite() {
            self.not_finite(total, out);
            return;
        }
        match current.turn.task {
            Task::Train { .. } => self.decide(out),
            Task::Eval { .. } => self.eval_batch(total, out),
        }
    }

    fn not_finite(&mut self, total: LeafResult, out: &mut Vec<Command>) {
        let layer = total.bad_layer.and_then(|layer| self.plan.graph.layers.get(layer as usize));
        let layer = layer.map_or("the loss", |layer| layer.name.as_str());
        let reason = format!(
            "the loss of step {} is not finite; layer {layer} was the first with a non-finite output. Older checkpoints \
             are kept: resume from one with a lower learning rate, or with max_gradient_norm",
            self.step + 1
        );
        self.end(Outcome::Failed { reason, agent: None, cause: Cause::NotFinite }, out);
    }

    fn eval_batch(&mut self, total: LeafResult, out: &mut Vec<Command>) {
        self.current = None;
        self.failures.clear();
        let Some(evaluating) = &mut self.evaluating else { return };
        let Evaluating { sums, loss_sum } = evaluating;
        *loss_sum += total.loss;
        sums.tokens += total.tokens;
        sums.correct += total.correct;
        sums.batches += 1;
        sums.loss = *loss_sum * LossScaling::Tokens.factor(sums.tokens);
        out.push(Command::EvalBatch(*sums));
    }

    pub(super) fn prepared(&mut self, agent: AgentId, step: u64, norms: &[(usize, f64)], out: &mut Vec<Command>) {
        let Some(current) = &mut self.current else { return };
        if current.turn.task != (Task::Train { step }) {
            return;
        }
        for &(chunk, norm) in norms {
            if let Some(slot) = current.norms.get_mut(chunk) {
                *slot = Some(norm);
            }
        }
        current.prepared.insert(agent);
        self.decide(out);
    }

    /// Commits the current step once everything of it is known. The next turn may be opened behind it at once: each
    /// shard hears of the commit first.
    fn decide(&mut self, out: &mut Vec<Command>) {
        let Some(current) = &self.current else { return };
        let (Some(total), Task::Train { step }) = (current.leaves.total(), current.turn.task) else { return };
        if !self.shards().all(|shard| current.prepared.contains(&shard)) {
            return;
        }
        let norms: Option<Vec<f64>> = current.norms.iter().copied().collect();
        let Some(norms) = norms else { return };
        let factor = self.policy.scaling.factor(total.tokens);
        let bad = norms.iter().position(|norm| !norm.is_finite());
        let (scale, norm) = gradient_scale(norms, factor, self.policy.clip);
        if let Some(chunk) = bad {
            let group = &self.plan.groups[self.plan.chunks[chunk].group].name;
            let reason = format!(
                "the gradient of step {step} is not finite in {group}. Older checkpoints are kept: resume from one with a \
                 lower learning rate, or with max_gradient_norm"
            );
            self.end(Outcome::Failed { reason, agent: None, cause: Cause::NotFinite }, out);
            return;
        }
        let record = CommitRecord {
            step,
            scale: scale as f32,
            learning_rate: (self.policy.learning_rate)(step - 1) as f32,
            loss: (total.loss * factor) as f32,
            norm: norm as f32,
            tokens: total.tokens,
        };
        self.current = None;
        self.failures.clear();
        self.resolve(record, out);
    }

    /// A commit is decided: every shard must record it. One that is away hears of it when it is back.
    pub(super) fn resolve(&mut self, record: CommitRecord, out: &mut Vec<Command>) {
        let here = self.shards().filter(|shard| self.members.contains_key(shard));
        out.extend(here.map(|shard| Command::Send(shard, Order::Commit { record })));
        self.step = record.step;
        self.record = Some(record);
        self.done = Done::default();
        self.deciding = Some(Deciding { record, waiting: self.shards().collect() });
    }

    pub(super) fn committed(&mut self, agent: AgentId, step: u64, out: &mut Vec<Command>) {
        let Some(member) = self.members.get_mut(&agent) else { return };
        member.state.committed = member.state.committed.max(step);
        member.state.prepared = None;
        let Some(deciding) = self.deciding.as_mut().filter(|deciding| deciding.record.step == step) else { return };
        deciding.waiting.remove(&agent);
        let record = deciding.record;
        if deciding.waiting.is_empty() {
            self.deciding = None;
        }
        self.tell(record, out);
    }

    /// Tells the driver of a committed step, once.
    pub(super) fn tell(&mut self, record: CommitRecord, out: &mut Vec<Command>) {
        if record.step > self.told {
            self.told = record.step;
            out.push(Command::Step(record));
        }
    }
}
