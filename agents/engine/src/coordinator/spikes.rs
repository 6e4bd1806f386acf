//! Handles spikes: steps whose loss or gradient norm is not finite, or far above its mean over recent steps. The
//! coordinator detects a spike before the commit, when no parameter has changed, so that nothing has to be rolled back.
//!
//! ```text
//!  step         119   120                120   121
//!  batch        118   119                120   121
//!  loss         2.1   9.7  > 3 x 2.1     2.1   2.0
//!  decision  commit   skip            commit   commit
//! ```
//!
//! * The decision is a pure function of the results of the step and of the [`TrainingHistory`], which every commit and
//!   every checkpoint records. It is the same on any number of systems, and after any failure.
//! * The step is executed again with the next batch, in a new epoch, so that all agents discard the skipped one.

use millrace_emulator::plan::ChunkId;

use crate::message::FailureCause;
use crate::types::TrainingHistory;

use super::{Coordinator, CoordinatorCommand, RunOutcome};

/// What counts as a jump of the loss or of the gradient norm, and what follows from a spike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpikePolicy {
    /// A value above this multiple of its mean is a jump; `None` for no bound.
    pub factor: Option<f64>,
    /// Number of steps that the mean is over. There are no jumps before that many steps.
    pub window: u32,
    /// Whether the run continues with the next batch; otherwise it ends.
    pub skip: bool,
}

/// Maximum number of batches that are skipped in a row. If each of them spikes, the cause is not in the data.
pub const MAX_CONSECUTIVE_SKIPS: u64 = 10;

/// A batch that was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedBatch {
    /// The step that was to use it.
    pub step: u64,
    /// Its number in the training data, from 0.
    pub batch: u64,
    /// Number of batches that the run has skipped, with this one.
    pub skipped_batches: u64,
    /// Why, as the beginning of a sentence.
    pub reason: String,
}

/// A spike of a step that is not committed.
pub(super) struct Spike {
    pub(super) reason: String,
    pub(super) cause: FailureCause,
}

impl TrainingHistory {
    /// Returns the history after a step with this loss and gradient norm. The mean is exponential: each of the first
    /// `window` steps has the same weight, and each later one has 1 / `window`.
    #[must_use]
    pub fn after_step(self, window: u32, loss: f32, norm: f32) -> Self {
        let steps = self.steps.saturating_add(1).min(window.max(1));
        let share = 1.0 / f64::from(steps);
        let towards = |mean: f32, value: f32| (f64::from(mean) + (f64::from(value) - f64::from(mean)) * share) as f32;
        Self { steps, mean_loss: towards(self.mean_loss, loss), mean_norm: towards(self.mean_norm, norm), ..self }
    }
}

impl SpikePolicy {
    /// Describes how the loss or the norm has jumped; `None` if neither has. `largest` names the part of the model with
    /// the largest gradient.
    pub(super) fn describe_jump(
        &self,
        history: &TrainingHistory,
        step: u64,
        (loss, norm): (f32, f32),
        largest: &str,
    ) -> Option<String> {
        let (factor, window) = (self.factor?, self.window);
        if history.steps < window {
            return None;
        }
        // A mean of 0 or less is possible for a loss of the user's own; there is nothing to compare with then.
        let jumps = |value: f32, mean: f32| mean > 0.0 && f64::from(value) > factor * f64::from(mean);
        let (value, mean, name, place) = if jumps(loss, history.mean_loss) {
            (loss, history.mean_loss, "loss", String::new())
        } else if jumps(norm, history.mean_norm) {
            (norm, history.mean_norm, "gradient norm", format!("; the largest gradient is that of {largest}"))
        } else {
            return None;
        };
        Some(format!(
            "the {name} of step {step} is {value:.5}, more than {factor} times {mean:.5}, the mean over the last \
             {window} steps{place}"
        ))
    }
}

impl Coordinator {
    /// Returns the history up to the newest committed step. Before the first commit, the parameters are those of the
    /// restore point.
    pub(super) fn history(&self) -> TrainingHistory {
        self.record.map_or(self.restore_point.history, |record| record.history)
    }

    /// Returns the number of the batch for the next step.
    pub(super) fn next_batch(&self) -> u64 {
        self.step + self.history().skipped_batches + self.skips_of_step
    }

    /// Returns the history after a commit of the next step.
    pub(super) fn history_after(&self, loss: f32, norm: f32) -> TrainingHistory {
        let before = self.history();
        let skipped_batches = before.skipped_batches + self.skips_of_step;
        match self.policy.spikes {
            Some(spikes) => TrainingHistory { skipped_batches, ..before }.after_step(spikes.window, loss, norm),
            None => TrainingHistory { skipped_batches, ..TrainingHistory::default() },
        }
    }

    /// Returns the spike of the next step if its loss or its gradient norm has jumped. `norms` are the squared norms of
    /// the gradients of all chunks.
    pub(super) fn find_jump(&self, loss: f32, norm: f32, norms: &[f64]) -> Option<Spike> {
        let (spikes, history, step) = (self.policy.spikes?, self.history(), self.step + 1);
        let largest = (0..norms.len()).max_by(|&a, &b| norms[a].total_cmp(&norms[b]))?;
        let reason = spikes.describe_jump(&history, step, (loss, norm), self.group_name(largest))?;
        Some(Spike { reason, cause: FailureCause::LossSpike })
    }

    /// Returns the name of the parameters of a chunk.
    pub(super) fn group_name(&self, chunk: ChunkId) -> &str {
        self.plan.chunks.get(chunk).map_or("", |chunk| &self.plan.groups[chunk.group].name)
    }

    /// Skips the batch of the current step, or ends the run.
    pub(super) fn on_spike(&mut self, spike: Spike, out: &mut Vec<CoordinatorCommand>) {
        let (step, batch) = (self.step + 1, self.next_batch());
        let skips = self.policy.spikes.is_some_and(|spikes| spikes.skip);
        if !skips {
            self.end_at_spike(spike, out);
            return;
        }
        if self.skips_of_step >= MAX_CONSECUTIVE_SKIPS {
            let reason = format!("{}. The {MAX_CONSECUTIVE_SKIPS} batches before were skipped", spike.reason);
            self.end_at_spike(Spike { reason, ..spike }, out);
            return;
        }
        self.skips_of_step += 1;
        let skipped_batches = self.history().skipped_batches + self.skips_of_step;
        // A run restored from a checkpoint skips the same batches again.
        if step > self.reported_step {
            out.push(CoordinatorCommand::ReportSkip(SkippedBatch {
                step,
                batch,
                skipped_batches,
                reason: spike.reason,
            }));
        }
        self.failures.clear();
        self.restart_gathering();
    }

    /// Ends the run with the spike as its failure.
    pub(super) fn end_at_spike(&mut self, Spike { reason, cause }: Spike, out: &mut Vec<CoordinatorCommand>) {
        let skip = match self.policy.spikes {
            Some(SpikePolicy { skip: true, .. }) => "",
            _ => ", or with loss_spike_action: skip",
        };
        let reason = format!(
            "{reason}. Older checkpoints are kept: resume from one with a lower learning rate, with \
             max_gradient_norm{skip}"
        );
        self.end(RunOutcome::Failed { reason, agent: None, cause }, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: SpikePolicy = SpikePolicy { factor: Some(3.0), window: 4, skip: true };

    fn jump(history: &TrainingHistory, loss: f32, norm: f32) -> Option<String> {
        POLICY.describe_jump(history, 9, (loss, norm), "layer.2")
    }

    #[test]
    fn mean_weighs_the_first_steps_equally_and_follows_later_ones() {
        let mut history = TrainingHistory::default();
        for loss in [1.0, 2.0, 3.0, 6.0] {
            assert_eq!(jump(&history, 1e9, 1e9), None, "the first steps have no mean to compare with");
            history = history.after_step(POLICY.window, loss, 2.0 * loss);
        }
        assert_eq!((history.steps, history.mean_loss, history.mean_norm), (4, 3.0, 6.0));
        let later = history.after_step(POLICY.window, 7.0, 6.0);
        assert_eq!((later.steps, later.mean_loss, later.mean_norm), (4, 4.0, 6.0));
    }

    #[test]
    fn jump_names_value_mean_and_place() {
        let history = TrainingHistory { steps: 4, mean_loss: 2.0, mean_norm: 0.5, skipped_batches: 0 };
        assert_eq!(jump(&history, 6.0, 1.5), None, "exactly the multiple is no jump");
        let of_loss = "the loss of step 9 is 6.50000, more than 3 times 2.00000, the mean over the last 4 steps";
        assert_eq!(jump(&history, 6.5, 9.0).unwrap(), of_loss);
        let of_norm = "the gradient norm of step 9 is 2.00000, more than 3 times 0.50000, the mean over the last 4 \
                       steps; the largest gradient is that of layer.2";
        assert_eq!(jump(&history, 6.0, 2.0).unwrap(), of_norm);
        let negative = TrainingHistory { mean_loss: -1.0, ..history };
        assert_eq!(jump(&negative, 6.0, 1.0), None);
    }
}
