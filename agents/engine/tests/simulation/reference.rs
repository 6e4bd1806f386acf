//! A reference run in one process, one leaf after the other. Every simulated run must have the same result, bit for
//! bit.

use millrace_emulator::plan::StreamPlan;
use millrace_engine::coordinator::{Evaluation, LossScaling, MAX_CONSECUTIVE_SKIPS, RunPolicy, gradient_scale};
use millrace_engine::types::{CommitRecord, IterationKind, LeafResult, OtherLosses, TrainingHistory, add_metrics};

use crate::model::{Leaf, Parameters, factor, layer_chunks, samples, squared_norm, sum};

/// Weights and commits after every step.
pub struct Reference {
    /// By step, then by chunk.
    pub states: Vec<Vec<Parameters>>,
    /// By step; the first is the commit of step 1.
    pub commits: Vec<CommitRecord>,
    /// By step.
    pub evaluations: Vec<Evaluation>,
}

impl Reference {
    /// Makes all updates and evaluations. Returns `None` if too many batches in a row spike.
    pub fn new(plan: &StreamPlan, policy: &RunPolicy) -> Option<Self> {
        let first = (0..plan.chunks.len()).map(|chunk| Parameters::initial(plan, chunk)).collect();
        let mut reference = Self { states: vec![first], commits: Vec::new(), evaluations: Vec::new() };
        for step in 0..=policy.max_steps {
            reference.evaluations.push(reference.evaluate(plan, policy, step));
            if step < policy.max_steps {
                reference.train(plan, policy, step + 1)?;
            }
        }
        Some(reference)
    }

    /// Returns the history after `step` updates.
    pub fn history(&self, step: u64) -> TrainingHistory {
        let commit = (step as usize).checked_sub(1).map(|at| &self.commits[at]);
        commit.map_or_else(TrainingHistory::default, |commit| commit.history)
    }

    fn weights(&self, plan: &StreamPlan, step: u64, layer: usize) -> Vec<Vec<f32>> {
        let state = &self.states[step as usize];
        layer_chunks(plan, layer).iter().map(|(_, chunk)| state[*chunk].weights.clone()).collect()
    }

    fn forward(&self, plan: &StreamPlan, task: IterationKind, count: u32) -> (Vec<Leaf>, Vec<LeafResult>) {
        let samples = samples(plan, task, 0..count);
        let factor = if task.is_training() { factor(plan, &samples) } else { 1.0 };
        let leaf = |(at, sample)| Leaf::new(at as u32, sample, factor);
        let mut leaves: Vec<Leaf> = samples.into_iter().enumerate().map(leaf).collect();
        for layer in 0..plan.layers.len() {
            let weights = self.weights(plan, task.required_step(), layer);
            leaves.iter_mut().for_each(|leaf| leaf.forward(&weights));
        }
        let results = leaves.iter_mut().map(Leaf::result).collect();
        (leaves, results)
    }

    /// Makes the update `step` with the first batch that does not spike.
    fn train(&mut self, plan: &StreamPlan, policy: &RunPolicy, step: u64) -> Option<()> {
        let before = self.history(step - 1);
        for skips in 0..=MAX_CONSECUTIVE_SKIPS {
            let skipped_batches = before.skipped_batches + skips;
            let task = IterationKind::Train { step, batch: step - 1 + skipped_batches };
            let history = TrainingHistory { skipped_batches, ..before };
            let (commit, gradients) = self.try_step(plan, policy, task, history);
            if !spikes(policy, &before, &commit) {
                let mut state = self.states[step as usize - 1].clone();
                state.iter_mut().zip(&gradients).for_each(|(chunk, gradient)| chunk.update(gradient, &commit));
                self.states.push(state);
                self.commits.push(commit);
                return Some(());
            }
        }
        None
    }

    /// Returns the commit of a step and the gradients of all chunks.
    fn try_step(
        &self,
        plan: &StreamPlan,
        policy: &RunPolicy,
        task: IterationKind,
        history: TrainingHistory,
    ) -> (CommitRecord, Vec<Vec<f32>>) {
        let step = task.required_step() + 1;
        let (mut leaves, results) = self.forward(plan, task, plan.leaves.count);
        let mut gradients: Vec<Option<Vec<f32>>> = vec![None; plan.chunks.len()];
        for layer in (0..plan.layers.len()).rev() {
            let mut weights = self.weights(plan, step - 1, layer);
            let chunks = layer_chunks(plan, layer);
            for ((group, _), weights) in chunks.iter().zip(&mut weights) {
                if !plan.layers[layer].backward_groups.contains(group) {
                    weights.fill(0.0);
                }
            }
            let by_leaf: Vec<Vec<Vec<f32>>> = leaves.iter_mut().map(|leaf| leaf.backward(layer, &weights)).collect();
            for (at, (_, chunk)) in chunks.into_iter().enumerate() {
                let leaf = |leaf: u32| Some(by_leaf[leaf as usize][at].clone());
                let Some(one_use) = sum(plan.leaves.tree().root(), &leaf) else { continue };
                match &mut gradients[chunk] {
                    Some(uses) => uses.iter_mut().zip(one_use).for_each(|(uses, one)| *uses += one),
                    none => *none = Some(one_use),
                }
            }
        }
        let gradients: Vec<Vec<f32>> = gradients.into_iter().map(Option::unwrap_or_default).collect();
        let commit = decide(policy, step, &results, &gradients, history);
        (commit, gradients)
    }

    fn evaluate(&self, plan: &StreamPlan, policy: &RunPolicy, step: u64) -> Evaluation {
        let batches = policy.eval.map_or(0, |eval| eval.batches);
        let mut all = Evaluation { step, batches, ..Evaluation::default() };
        let mut loss = 0.0;
        for batch in 0..batches {
            let (_, results) = self.forward(plan, IterationKind::Eval { step, batch }, plan.eval_leaves.count);
            loss += results.iter().map(|result| result.loss).sum::<f64>();
            all.tokens += results.iter().map(|result| result.tokens).sum::<u64>();
            all.correct += results.iter().map(|result| result.correct).sum::<u64>();
            // As the leaves are: each batch in its order, then the batches.
            let (mut other, mut metrics) = (OtherLosses::default(), Vec::new());
            for result in results {
                other += result.other;
                add_metrics(&mut metrics, &result.metrics);
            }
            all.other += other;
            add_metrics(&mut all.metrics, &metrics);
        }
        all.loss = loss * LossScaling::Tokens.factor(all.tokens);
        all.main_loss = all.loss - all.other.loss / all.tokens.max(1) as f64;
        if plan.graph.weighted_losses().next().is_some() && batches > 0 {
            let mean = all.metrics[0] / all.metrics[1];
            (all.loss, all.main_loss) = (mean, mean);
        }
        all
    }
}

/// Returns whether loss or norm are above the mean of the steps before.
fn spikes(policy: &RunPolicy, before: &TrainingHistory, commit: &CommitRecord) -> bool {
    let Some(spikes) = policy.spikes else { return false };
    let jumps = |value: f32, mean: f32| mean > 0.0 && f64::from(value) > spikes.factor.unwrap() * f64::from(mean);
    before.steps >= spikes.window && (jumps(commit.loss, before.mean_loss) || jumps(commit.norm, before.mean_norm))
}

fn decide(
    policy: &RunPolicy,
    step: u64,
    results: &[LeafResult],
    gradients: &[Vec<f32>],
    history: TrainingHistory,
) -> CommitRecord {
    let tokens = results.iter().map(|result| result.tokens).sum();
    let factor = policy.scaling.factor(tokens);
    let norms = gradients.iter().map(|gradient| squared_norm(gradient));
    let (scale, norm) = gradient_scale(norms, factor, policy.clip);
    let loss: f64 = results.iter().map(|result| result.loss).sum();
    let (loss, norm) = ((loss * factor) as f32, norm as f32);
    CommitRecord {
        step,
        scale: scale as f32,
        learning_rate: (policy.learning_rate)(step - 1) as f32,
        loss,
        norm,
        tokens,
        history: policy.spikes.map_or(history, |spikes| history.after_step(spikes.window, loss, norm)),
    }
}
