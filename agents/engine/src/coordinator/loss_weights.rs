//! The divisors of losses that have a weight, see [`WeightedLoss`]. Each is the sum of a weight over the batch, which
//! only depends on samples, so that it is known before the step begins:
//!
//! ```text
//! coordinator          activation servers               systems
//! opens step t ------> weigh the leaves of the
//!                      batch of step t + 1
//! adds the weights <-- report them
//! opens step t + 1 --------------------------------->   losses times the factors of the step
//! ```
//!
//! * Weights are added in leaf order. The servers share the leaves; which server weighs which leaf changes no bit.
//! * Weights of leaves stay known when a new epoch begins. Missing ones are requested again from its servers.
//! * A divisor of 0 makes the factor of its loss 0, as a batch without labels does with a single divisor.
//!
//! [`WeightedLoss`]: millrace_emulator::graph::WeightedLoss

use std::collections::BTreeSet;
use std::ops::Range;

use crate::message::AgentCommand;
use crate::types::{AgentId, Epoch, Role};

use super::{Coordinator, CoordinatorCommand, Evaluation};

/// The weights of the leaves of a batch, as far as they are known.
#[derive(Debug)]
pub(super) struct BatchWeights {
    /// For each leaf, the sum of the weight of each loss.
    leaves: Vec<Option<Vec<f64>>>,
    /// The epoch in which they were requested last.
    epoch: Option<Epoch>,
}

impl BatchWeights {
    fn new(leaves: u32) -> Self {
        Self { leaves: vec![None; leaves as usize], epoch: None }
    }

    fn lacks(&self, leaves: &Range<u32>) -> bool {
        let known = self.leaves.get(leaves.start as usize..leaves.end as usize);
        known.is_some_and(|known| known.iter().any(Option::is_none))
    }

    /// Returns the sums over all leaves of the weights of `losses` losses, or `None` while some are missing.
    fn sums(&self, losses: usize) -> Option<Vec<f64>> {
        let mut sums = vec![0.0; losses];
        for leaf in &self.leaves {
            sums.iter_mut().zip(leaf.as_ref()?).for_each(|(sum, weight)| *sum += weight);
        }
        Some(sums)
    }
}

impl Coordinator {
    /// Returns the factors of the losses that have a weight in a step with a batch of the training; `None` until the
    /// weights of its leaves are known, which are requested.
    pub(super) fn loss_factors(&mut self, batch: u64, out: &mut Vec<CoordinatorCommand>) -> Option<Vec<f64>> {
        let losses = self.plan.graph.weighted_losses().count();
        if losses == 0 {
            return Some(Vec::new());
        }
        self.batch_weights.retain(|known, _| *known >= batch);
        self.weigh_batch(batch, out);
        let sums = self.batch_weights.get(&batch)?.sums(losses)?;
        // The commit divides the gradient by the number of samples.
        let samples = self.plan.leaves.batch() as f64;
        Some(sums.into_iter().map(|sum| if sum == 0.0 { 0.0 } else { samples / sum }).collect())
    }

    /// Requests the weights of a batch of the training that are not known, once in each epoch.
    pub(super) fn weigh_batch(&mut self, batch: u64, out: &mut Vec<CoordinatorCommand>) {
        if self.plan.graph.weighted_losses().next().is_none() {
            return;
        }
        let Some(placement) = &self.placement else { return };
        let (epoch, leaves) = (self.epoch, self.plan.leaves.count);
        let weights = self.batch_weights.entry(batch).or_insert_with(|| BatchWeights::new(leaves));
        if weights.epoch.replace(epoch) == Some(epoch) {
            return;
        }
        let servers: BTreeSet<u32> = placement.systems.iter().map(|system| system.activation).collect();
        let share = |index: usize| (u64::from(leaves) * index as u64 / servers.len() as u64) as u32;
        for (index, &server) in servers.iter().enumerate() {
            let leaves = share(index)..share(index + 1);
            if weights.lacks(&leaves) {
                let command = AgentCommand::WeighLosses { epoch, batch, leaves };
                out.push(CoordinatorCommand::Send(AgentId::new(Role::Activation, server), command));
            }
        }
    }

    /// Handles the weights of consecutive leaves of a batch, from `first` on.
    pub(super) fn on_loss_weights(&mut self, batch: u64, first: u32, weights: Vec<Vec<f64>>) {
        let Some(known) = self.batch_weights.get_mut(&batch) else { return };
        let leaves = known.leaves.iter_mut().skip(first as usize);
        for (leaf, weights) in leaves.zip(weights) {
            leaf.get_or_insert(weights);
        }
    }

    /// Sets the losses of an evaluation from its sums, of which `loss_sum` is that of all losses. A loss that has a
    /// weight is divided by the sum of it over all batches, other losses by the number of samples. If no loss has a
    /// weight, all are divided by the number of tokens with a label in the main loss.
    pub(super) fn set_losses(&self, sums: &mut Evaluation, loss_sum: f64) {
        let tokens = sums.tokens.max(1) as f64;
        let (mut means, mut rest) = (0.0, loss_sum);
        let mut main_loss = (loss_sum - sums.other.loss) / tokens;
        let mut losses = self.plan.graph.weighted_losses().peekable();
        if losses.peek().is_none() {
            sums.loss = loss_sum * super::LossScaling::Tokens.factor(sums.tokens);
            sums.main_loss = sums.loss - sums.other.loss / tokens;
            return;
        }
        for loss in losses {
            let Some(&[sum, weight]) = sums.metrics.get(loss.sums) else { continue };
            let mean = if weight == 0.0 { 0.0 } else { sum / weight };
            (means, rest) = (means + mean, rest - sum);
            if loss.node + 1 == self.plan.graph.nodes.len() {
                main_loss = mean;
            }
        }
        let samples = sums.batches * self.plan.eval_leaves.batch();
        (sums.loss, sums.main_loss) = (means + rest / samples as f64, main_loss);
    }
}
