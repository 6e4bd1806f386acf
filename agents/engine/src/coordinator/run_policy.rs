//! Decides what a run does after each step: train, evaluate, checkpoint or end. Pure functions of the policy and the
//! step.

use std::fmt;
use std::sync::Arc;

use crate::types::{LeafResult, OtherLosses, TrainingHistory, add_metrics};

use super::spikes::SpikePolicy;

/// How the summed loss is scaled to the loss that is minimized and reported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScaling {
    /// Mean over the tokens with a label.
    Tokens,
    /// `weight` x sum over tokens / samples of the batch.
    BatchSize {
        /// Usually one over the sequence length.
        weight: f64,
        /// Samples of the batch.
        batch: u64,
    },
}

impl LossScaling {
    /// Returns the factor from a sum of token losses to the loss.
    pub fn factor(self, tokens: u64) -> f64 {
        match self {
            LossScaling::Tokens if tokens == 0 => 0.0,
            LossScaling::Tokens => 1.0 / tokens as f64,
            LossScaling::BatchSize { weight, batch } => weight / batch.max(1) as f64,
        }
    }
}

/// Evaluation in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalPolicy {
    /// Interval in steps; an evaluation also follows the last step. `None`: only that one, which a run that does not
    /// train makes first.
    pub every: Option<u64>,
    /// Batches of one evaluation.
    pub batches: u64,
}

/// Learning rate as a function of the number of updates made so far.
pub type LearningRateFn = Arc<dyn Fn(u64) -> f64 + Send + Sync>;

/// What a run does.
#[derive(Clone)]
pub struct RunPolicy {
    /// Whether it trains at all.
    pub train: bool,
    /// Total number of updates, counted from step 0.
    pub max_steps: u64,
    /// `None` if the run never evaluates.
    pub eval: Option<EvalPolicy>,
    /// Interval of checkpoints in steps; the last step is always saved.
    pub checkpoint_every: Option<u64>,
    /// Whether step 0 is checkpointed.
    pub initial_checkpoint: bool,
    /// How the sums of losses and gradients are scaled.
    pub scaling: LossScaling,
    /// Bound on the global norm of the gradient, if any.
    pub clip: Option<f64>,
    /// What counts as a jump of the loss; `None` for no bound, and no batch is skipped then.
    pub spikes: Option<SpikePolicy>,
    /// Learning rate by number of updates made so far.
    pub learning_rate: LearningRateFn,
}

impl fmt::Debug for RunPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("max_steps", &self.max_steps).field("eval", &self.eval).finish_non_exhaustive()
    }
}

/// The next action at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Evaluate.
    Evaluate {
        /// Batches.
        batches: u64,
    },
    /// Write a checkpoint.
    Checkpoint,
    /// Make the next update.
    Train,
    /// The run is complete.
    End,
}

/// What has been done at the current step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepProgress {
    /// Evaluated at this step.
    pub evaluated: bool,
    /// Checkpointed at this step.
    pub saved: bool,
}

/// State of a run before it continues.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResumeState {
    /// Updates made.
    pub step: u64,
    /// Actions done at that step.
    pub done: StepProgress,
    /// Skipped batches and means up to the source of the parameters.
    pub history: TrainingHistory,
}

impl ResumeState {
    /// Returns the actions known to be done at `step`.
    pub(super) fn progress_at(self, step: u64) -> StepProgress {
        if self.step == step { self.done } else { StepProgress::default() }
    }
}

impl RunPolicy {
    /// Returns the next action after `step` updates. Evaluation comes before the checkpoint of the same step, so that a
    /// run resumed from the checkpoint does not repeat it.
    pub fn next(&self, step: u64, done: StepProgress) -> NextAction {
        let last = !self.train || step >= self.max_steps;
        let due = |every: Option<u64>| step > 0 && every.is_some_and(|every| every > 0 && step.is_multiple_of(every));
        if let Some(EvalPolicy { every, batches }) = self.eval
            && !done.evaluated
            && batches > 0
            && (last || due(every))
        {
            return NextAction::Evaluate { batches };
        }
        let save = self.train && (last || due(self.checkpoint_every) || (step == 0 && self.initial_checkpoint));
        if save && !done.saved {
            return NextAction::Checkpoint;
        }
        if last { NextAction::End } else { NextAction::Train }
    }
}

/// Losses of all leaves of an iteration, inserted in any order and summed in leaf order.
#[derive(Clone, Debug)]
pub struct LeafTable {
    leaves: Vec<Option<LeafResult>>,
}

impl LeafTable {
    /// Creates a table for `count` leaves.
    pub fn new(count: u32) -> Self {
        Self { leaves: vec![None; count as usize] }
    }

    /// Inserts the result of one leaf; ignores repeated and unknown leaves.
    pub fn insert(&mut self, result: LeafResult) {
        if let Some(slot) = self.leaves.get_mut(result.leaf as usize) {
            slot.get_or_insert(result);
        }
    }

    /// Returns the sum over all leaves in leaf order, or `None` while some are missing.
    pub fn sum(&self) -> Option<LeafResult> {
        let other = OtherLosses::default();
        let metrics = Vec::new();
        let mut total = LeafResult { leaf: 0, loss: 0.0, tokens: 0, correct: 0, other, metrics, bad_layer: None };
        for leaf in &self.leaves {
            let leaf = leaf.as_ref()?;
            total.loss += leaf.loss;
            total.tokens += leaf.tokens;
            total.correct += leaf.correct;
            total.other += leaf.other;
            add_metrics(&mut total.metrics, &leaf.metrics);
            total.bad_layer = total.bad_layer.or(leaf.bad_layer);
        }
        Some(total)
    }
}

/// Returns the factor on the gradient, and the norm before clipping, from the squared norms of all chunks in plan
/// order.
///
/// The norm is that of the scaled gradient, `factor * sqrt(sum)`; clipping multiplies by
/// `min(1, bound / (norm + 1e-6))`, as `torch.nn.utils.clip_grad_norm_` does.
pub fn gradient_scale(norms: impl IntoIterator<Item = f64>, factor: f64, clip: Option<f64>) -> (f64, f64) {
    let norm = norms.into_iter().sum::<f64>().sqrt() * factor;
    let shrink = clip.map_or(1.0, |bound| (bound / (norm + 1e-6)).min(1.0));
    (factor * shrink, norm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_executes_each_due_action_once_in_order() {
        let policy = RunPolicy {
            train: true,
            max_steps: 5,
            eval: Some(EvalPolicy { every: Some(2), batches: 3 }),
            checkpoint_every: Some(4),
            initial_checkpoint: true,
            scaling: LossScaling::Tokens,
            clip: None,
            spikes: None,
            learning_rate: Arc::new(|_| 0.0),
        };
        let (mut step, mut done, mut seen) = (0, StepProgress::default(), String::new());
        loop {
            match policy.next(step, done) {
                NextAction::Evaluate { batches } => {
                    assert_eq!(batches, 3);
                    done.evaluated = true;
                    seen.push('e');
                }
                NextAction::Checkpoint => {
                    done.saved = true;
                    seen.push('c');
                }
                NextAction::Train => {
                    (step, done) = (step + 1, StepProgress::default());
                    seen.push('t');
                }
                NextAction::End => break,
            }
        }
        assert_eq!(seen, "cttettectec");
    }

    #[test]
    fn clipping_follows_the_norm_of_the_scaled_gradient() {
        let (scale, norm) = gradient_scale([9.0, 16.0], 0.5, Some(1.0));
        assert_eq!(norm, 2.5);
        assert!((scale - 0.5 / (2.5 + 1e-6)).abs() < 1e-12);
        assert_eq!(gradient_scale([9.0, 16.0], 0.5, Some(10.0)).0, 0.5);
    }
}
