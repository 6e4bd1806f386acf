//! Iterations: opens them, decides commits, and tracks which shards have recorded a commit.

use std::collections::BTreeSet;

use millrace_emulator::placement::ShardId;

use crate::message::{AgentCommand, FailureCause, ShardState};
use crate::types::{AgentId, CommitRecord, Iteration, IterationKind, LeafResult, Role, add_metrics};

use super::membership::{is_placed, memoryx_agents};
use super::run_policy::{LeafTable, NextAction, StepProgress, gradient_scale};
use super::spikes::Spike;
use super::{Coordinator, CoordinatorCommand, Evaluation, Phase, RunOutcome};

#[derive(Debug)]
pub(super) struct CurrentIteration {
    iteration: Iteration,
    leaves: LeafTable,
    norms: Vec<Option<f64>>,
    prepared: BTreeSet<AgentId>,
}

#[derive(Debug)]
pub(super) struct EvaluationInProgress {
    sums: Evaluation,
    loss_sum: f64,
}

/// A commit that no replica of some shards has recorded yet.
#[derive(Debug)]
pub(super) struct PendingCommit {
    pub(super) record: CommitRecord,
    /// Sums of the metrics of the model's graph.
    metrics: Vec<f64>,
    waiting: BTreeSet<ShardId>,
}

impl Coordinator {
    pub(super) fn on_linked(&mut self, agent: AgentId, out: &mut Vec<CoordinatorCommand>) {
        let Phase::Linking(waiting) = &mut self.phase else { return };
        waiting.remove(&agent);
        if waiting.is_empty() {
            self.phase = Phase::Running;
            out.push(CoordinatorCommand::ReportRunning);
        }
    }

    /// Opens the next iteration or begins the next action. Returns false if there is nothing more to do now.
    pub(super) fn next_iteration(&mut self, out: &mut Vec<CoordinatorCommand>) -> bool {
        if self.checkpoint_wanted {
            if !self.is_checkpointed() {
                self.begin_checkpoint(out);
                return false;
            }
            self.checkpoint_wanted = false;
        }
        if let Some(EvaluationInProgress { sums, .. }) = &self.evaluating {
            let wanted = self.policy.eval.map_or(0, |eval| eval.batches);
            if sums.batches < wanted {
                self.open_iteration(IterationKind::Eval { step: self.step, batch: sums.batches }, &[], out);
                return false;
            }
            out.push(CoordinatorCommand::ReportEvaluation(sums.clone()));
            self.evaluated_step = Some(sums.step);
            self.evaluating = None;
            self.done.evaluated = true;
            return true;
        }
        match self.policy.next(self.step, self.done) {
            NextAction::Evaluate { .. } => {
                let sums = Evaluation { step: self.step, ..Evaluation::default() };
                self.evaluating = Some(EvaluationInProgress { sums, loss_sum: 0.0 });
                out.push(CoordinatorCommand::Evaluating);
                return true;
            }
            NextAction::Checkpoint => self.begin_checkpoint(out),
            NextAction::Train => {
                let (step, batch) = (self.step + 1, self.next_batch());
                if let Some(factors) = self.loss_factors(batch, out) {
                    self.open_iteration(IterationKind::Train { step, batch }, &factors, out);
                    if step < self.policy.max_steps {
                        self.weigh_batch(batch + 1, out);
                    }
                }
            }
            NextAction::End => match self.remaining_sources.pop_front() {
                Some(source) => self.switch_source(source, out),
                None => self.finish(RunOutcome::Complete, out),
            },
        }
        false
    }

    /// Opens an iteration. `factors` are those of the losses that have a weight.
    fn open_iteration(&mut self, task: IterationKind, factors: &[f64], out: &mut Vec<CoordinatorCommand>) {
        let iteration = Iteration { number: self.next_iteration, task };
        self.next_iteration += 1;
        let leaves = if task.is_training() { self.plan.leaves } else { self.plan.eval_leaves };
        self.current = Some(CurrentIteration {
            iteration,
            leaves: LeafTable::new(leaves.count),
            norms: vec![None; self.plan.chunks.len()],
            prepared: BTreeSet::new(),
        });
        let Some(placement) = &self.placement else { return };
        if !factors.is_empty() {
            let (iteration, factors) = (iteration.number, factors.to_vec());
            let scale = AgentCommand::ScaleLosses { epoch: self.epoch, iteration, factors };
            let systems = placement.systems.iter().map(|system| AgentId::new(Role::Cs2, system.id));
            out.extend(systems.map(|system| CoordinatorCommand::Send(system, scale.clone())));
        }
        let order = AgentCommand::Open { epoch: self.epoch, iteration };
        let agents = self.members.keys().filter(|&&agent| is_placed(placement, agent));
        out.extend(agents.map(|&agent| CoordinatorCommand::Send(agent, order.clone())));
    }

    pub(super) fn on_leaf_results(
        &mut self,
        iteration: u64,
        results: Vec<LeafResult>,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let Some(current) = self.current.as_mut().filter(|current| current.iteration.number == iteration) else {
            return;
        };
        results.into_iter().for_each(|result| current.leaves.insert(result));
        let Some(total) = current.leaves.sum() else { return };
        let task = current.iteration.task;
        if !total.loss.is_finite() {
            self.on_non_finite_loss(&total, task, out);
            return;
        }
        match task {
            IterationKind::Train { .. } => self.try_commit(out),
            IterationKind::Eval { .. } => self.eval_batch(total, out),
        }
    }

    fn on_non_finite_loss(&mut self, total: &LeafResult, task: IterationKind, out: &mut Vec<CoordinatorCommand>) {
        let layer = total.bad_layer.and_then(|layer| self.plan.graph.layers.get(layer as usize));
        let layer = layer.map_or("the loss", |layer| layer.name.as_str());
        let (of_step, cause) = (self.step + 1, FailureCause::NotFinite);
        let reason =
            format!("the loss of step {of_step} is not finite; layer {layer} was the first with a non-finite output");
        match task {
            IterationKind::Train { .. } => self.on_spike(Spike { reason, cause }, out),
            // The weights are the cause, whatever the batch.
            IterationKind::Eval { .. } => self.end_at_spike(Spike { reason, cause }, out),
        }
    }

    fn eval_batch(&mut self, total: LeafResult, out: &mut Vec<CoordinatorCommand>) {
        self.current = None;
        self.failures.clear();
        let Some(mut evaluating) = self.evaluating.take() else { return };
        let EvaluationInProgress { sums, loss_sum } = &mut evaluating;
        *loss_sum += total.loss;
        sums.tokens += total.tokens;
        sums.correct += total.correct;
        sums.other += total.other;
        add_metrics(&mut sums.metrics, &total.metrics);
        sums.batches += 1;
        self.set_losses(sums, *loss_sum);
        out.push(CoordinatorCommand::ReportEvalBatch(sums.clone()));
        self.evaluating = Some(evaluating);
    }

    pub(super) fn on_prepared(
        &mut self,
        agent: AgentId,
        step: u64,
        norms: &[(usize, f64)],
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let Some(current) = &mut self.current else { return };
        let task = current.iteration.task;
        if !task.is_training() || task.step() != step {
            return;
        }
        for &(chunk, norm) in norms {
            if let Some(slot) = current.norms.get_mut(chunk) {
                *slot = Some(norm);
            }
        }
        current.prepared.insert(agent);
        self.try_commit(out);
    }

    /// Commits the current step once all its results are known. The next iteration may be opened immediately after it:
    /// each shard receives the commit first.
    fn try_commit(&mut self, out: &mut Vec<CoordinatorCommand>) {
        let Some(current) = &self.current else { return };
        let (Some(total), IterationKind::Train { step, .. }) = (current.leaves.sum(), current.iteration.task) else {
            return;
        };
        let replicas: BTreeSet<AgentId> =
            self.placement.iter().flat_map(|placement| memoryx_agents(placement)).collect();
        if !replicas.is_subset(&current.prepared) {
            return;
        }
        let norms: Option<Vec<f64>> = current.norms.iter().copied().collect();
        let Some(norms) = norms else { return };
        let factor = self.policy.scaling.factor(total.tokens);
        if let Some(chunk) = norms.iter().position(|norm| !norm.is_finite()) {
            let reason = format!("the gradient of step {step} is not finite in {}", self.group_name(chunk));
            self.on_spike(Spike { reason, cause: FailureCause::NotFinite }, out);
            return;
        }
        let (scale, norm) = gradient_scale(norms.iter().copied(), factor, self.policy.clip);
        let (loss, norm) = ((total.loss * factor) as f32, norm as f32);
        if let Some(spike) = self.find_jump(loss, norm, &norms) {
            self.on_spike(spike, out);
            return;
        }
        let record = CommitRecord {
            step,
            scale: scale as f32,
            learning_rate: (self.policy.learning_rate)(step - 1) as f32,
            loss,
            norm,
            tokens: total.tokens,
            history: self.history_after(loss, norm),
        };
        self.current = None;
        self.failures.clear();
        self.issue_commit(record, total.metrics, &replicas, out);
    }

    /// Issues a commit that a replica of every shard must record, to these `replicas`. A disconnected one receives it
    /// when it joins again. `metrics` are sums of the metrics of the model's graph, as far as they are known.
    ///
    /// Replicas of all shards may have recorded it already: `replicas` catch up with them, or one that knows the step
    /// from an earlier coordinator has joined while these executed it again.
    pub(super) fn issue_commit(
        &mut self,
        record: CommitRecord,
        metrics: Vec<f64>,
        replicas: &BTreeSet<AgentId>,
        out: &mut Vec<CoordinatorCommand>,
    ) {
        let recorded = self.shards_at(record.step);
        let waiting: BTreeSet<ShardId> = (0..self.required.shards).filter(|shard| !recorded.contains(shard)).collect();
        replicas.iter().for_each(|&replica| self.send_commit(replica, record, out));
        if !waiting.is_empty() || record.step > self.step {
            self.done = StepProgress { evaluated: self.is_evaluated(record.step), saved: false };
            self.skips_of_step = 0;
        }
        self.step = record.step;
        self.record = Some(record);
        if waiting.is_empty() {
            self.pending_commit = None;
            self.report_step(record, metrics, out);
        } else {
            self.pending_commit = Some(PendingCommit { record, metrics, waiting });
        }
    }

    /// Sends a commit to a replica that has joined and can record it. It precedes every later command on the stream.
    pub(super) fn send_commit(&mut self, replica: AgentId, record: CommitRecord, out: &mut Vec<CoordinatorCommand>) {
        let Some(member) = self.members.get_mut(&replica) else { return };
        member.state = ShardState { loaded: true, committed: record.step, record: Some(record), prepared: None };
        out.push(CoordinatorCommand::Send(replica, AgentCommand::Commit { record }));
    }

    pub(super) fn on_committed(&mut self, agent: AgentId, step: u64, out: &mut Vec<CoordinatorCommand>) {
        let shard = self.shard_of(agent);
        let Some(deciding) = self.pending_commit.as_mut().filter(|deciding| deciding.record.step == step) else {
            return;
        };
        deciding.waiting.remove(&shard);
        let (record, metrics) = (deciding.record, std::mem::take(&mut deciding.metrics));
        if deciding.waiting.is_empty() {
            self.pending_commit = None;
        }
        self.report_step(record, metrics, out);
    }

    /// Reports a committed step to the driver, once.
    pub(super) fn report_step(&mut self, record: CommitRecord, metrics: Vec<f64>, out: &mut Vec<CoordinatorCommand>) {
        if record.step > self.reported_step {
            self.reported_step = record.step;
            out.push(CoordinatorCommand::ReportStep { record, metrics });
        }
    }
}
