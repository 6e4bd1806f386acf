//! The losses of a graph that have a divisor of their own.
//!
//! What a training step minimizes is the sum of all losses, divided as the reduction says. A loss with a *weight* is
//! divided by the sum of the weight over the batch instead: the mean over the tokens that a mask selects has the number
//! of these tokens in a sample as its weight, and a classifier with class weights the sum of those of its labels.
//! Weights are functions of the samples and of random numbers, such as a random mask, and not of parameters, so that
//! they are known before the step.

use std::ops::Range;

use super::{Graph, GraphError, Layer, LossReduction, NodeId, OpNode, ValueId};
use crate::ops::SumLoss;
use crate::schedule::Liveness;

/// A loss with a weight. The sum of the weight over a batch is the divisor of the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedLoss {
    /// The operator.
    pub node: NodeId,
    /// The position of its weight among its inputs.
    pub input: usize,
    /// The weight, a number.
    pub weight: ValueId,
    /// The positions of the sums of loss and weight among those that systems report for each leaf, which follow those
    /// of the metrics.
    pub sums: Range<usize>,
}

impl Graph {
    /// Returns the losses that have a weight, in the order of their operators.
    pub fn weighted_losses(&self) -> impl Iterator<Item = WeightedLoss> {
        let losses = self.nodes.iter().enumerate().filter(|(_, node)| node.output.is_none());
        let weighted = losses.filter_map(|(id, node)| {
            let input = node.op.operator().weight_input()?;
            Some((id, input, *node.inputs.get(input)?))
        });
        let first = self.metric_elements();
        weighted.enumerate().map(move |(index, (node, input, weight))| {
            let start = first + 2 * index;
            WeightedLoss { node, input, weight, sums: start..start + 2 }
        })
    }

    /// Returns the number of sums that systems report for each leaf, besides those of its losses: of all metrics, and
    /// of the losses that have a weight.
    pub fn reported_sums(&self) -> usize {
        self.weighted_losses().last().map_or_else(|| self.metric_elements(), |last| last.sums.end)
    }

    /// Returns a graph that only computes the weights of losses: each is the loss of its own operator, in the same
    /// order. `None` if no loss has one.
    pub fn of_loss_weights(&self) -> Option<Self> {
        let weights: Vec<ValueId> = self.weighted_losses().map(|loss| loss.weight).collect();
        if weights.is_empty() {
            return None;
        }
        let mut is_needed = vec![false; self.values.len()];
        weights.iter().for_each(|&weight| is_needed[weight] = true);
        let mut is_kept = vec![false; self.nodes.len()];
        for (id, node) in self.nodes.iter().enumerate().rev() {
            is_kept[id] = node.output.is_some_and(|output| is_needed[output]);
            node.inputs.iter().filter(|_| is_kept[id]).for_each(|&input| is_needed[input] = true);
        }
        let mut graph = Self { tensors: Vec::new(), ..self.clone() };
        graph.nodes.iter_mut().enumerate().for_each(|(id, node)| node.draws_as = Some(id));
        graph = graph.with_nodes(&is_kept);
        let loss = |&weight: &ValueId| OpNode::new(SumLoss { factor: 1.0 }, vec![weight, weight], Vec::new(), None);
        graph.nodes.extend(weights.iter().map(loss));
        graph.layers = vec![Layer { name: "weights".to_owned(), nodes: 0..graph.nodes.len(), block: None }];
        Some(graph)
    }

    /// Checks the weights of losses of a graph that is valid otherwise.
    pub(super) fn check_loss_weights(&self) -> Result<(), GraphError> {
        let Some(first) = self.weighted_losses().next() else { return Ok(()) };
        if self.reduction != Some(LossReduction::Samples) {
            return Err(GraphError::WeightsWithoutSamples(self.node_name(first.node)));
        }
        let liveness = Liveness::new(self);
        match self.weighted_losses().find(|loss| liveness.depends_on_tensor(loss.weight)) {
            Some(WeightedLoss { node, weight, .. }) => {
                let value = self.values[weight].name.clone();
                Err(GraphError::TrainedWeight { location: self.node_name(node), value })
            }
            None => Ok(()),
        }
    }
}
