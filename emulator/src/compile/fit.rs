//! Making a job fit on the wafer.

use serde::{Deserialize, Serialize};

use super::groups::Cut;
use super::leaves::Batch;
use super::memory::{self, LayerMemory};
use super::{CompileError, wafer_activation_bytes};
use crate::graph::Graph;
use crate::plan::{Encoding, GroupId, Leaves};

/// What was decided.
pub(super) struct Fit {
    pub train: Leaves,
    pub eval: Leaves,
    pub resident: Vec<GroupId>,
    pub recompute: Vec<bool>,
    pub leaves_per_round: u32,
}

/// Numbers of weights that a system holds at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightElements {
    /// Of resident groups.
    pub resident: u64,
    /// Of the window: the streamed groups of a layer and the next one, where these are largest.
    pub window: u64,
    /// Of the largest layer, resident or not: the size of a partial sum.
    pub largest_layer: u64,
}

/// Bytes that a system holds for weights and gradients, whatever its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightBytes {
    /// Weights that stay from forward to backward.
    pub resident: u64,
    /// Weights of the layer at work and of the next one.
    pub window: u64,
    /// Open partial sums of gradients, f32.
    pub gradients: u64,
}

impl WeightBytes {
    /// All of it.
    pub const fn total(self) -> u64 {
        self.resident + self.window + self.gradients
    }
}

impl WeightElements {
    /// Of `layers`, each a list of groups, with these groups resident.
    pub fn new<'a>(
        layers: impl Iterator<Item = &'a [GroupId]>,
        elements: impl Fn(GroupId) -> u64,
        resident: &[GroupId],
    ) -> Self {
        let (mut window, mut largest_layer, mut before) = (0, 0, 0);
        for groups in layers {
            let streamed = groups.iter().filter(|group| !resident.contains(group)).map(|&group| elements(group)).sum();
            window = window.max(before + streamed);
            largest_layer = largest_layer.max(groups.iter().map(|&group| elements(group)).sum());
            before = streamed;
        }
        Self { resident: resident.iter().map(|&group| elements(group)).sum(), window, largest_layer }
    }

    /// Bytes while a system works on `leaves` leaves, with weights of `weight_bytes` each.
    ///
    /// Gradients: of the layer at work, each leaf's is joined with its siblings as soon as it is there. Of a contiguous
    /// run of n leaves, at most 2 log2(n + 1) sums stay open while one more is computed, and never more than n.
    pub fn bytes(self, weight_bytes: u64, leaves: u32) -> WeightBytes {
        let leaves = u64::from(leaves);
        let sums = leaves.min(2 * u64::from((leaves + 1).next_power_of_two().ilog2()) + 1);
        WeightBytes {
            resident: self.resident * weight_bytes,
            window: self.window * weight_bytes,
            gradients: self.largest_layer * 4 * sums,
        }
    }
}

/// The search for what fits.
pub(super) struct Search<'a> {
    pub graph: &'a Graph,
    pub cut: &'a Cut,
    pub encoding: Encoding,
    /// Bytes of the wafer.
    pub memory: u64,
}

impl Search<'_> {
    /// Tries what the module text of [`super`] says, in its order.
    pub fn fit(&self, train: Batch, eval: Batch) -> Result<Fit, CompileError> {
        let none = vec![false; self.graph.layers.len()];
        let all = memory::recompute_helps(self.graph);
        let bytes = wafer_activation_bytes(self.encoding);
        let analysed = [none, all].map(|flags| (memory::analyse(self.graph, &flags, bytes), flags));
        let [saving, recomputing] = &analysed;
        for leaves in train.cuts() {
            for resident in [self.resident(2), self.resident(1)] {
                let weights = self.weights(&resident);
                let whole = self.most_leaves(&saving.0, weights, leaves, Pass::Training) == leaves.count;
                let (layers, recompute) = if whole { saving } else { recomputing };
                let most = self.most_leaves(layers, weights, leaves, Pass::Training);
                let evaluation = self.eval_leaves(layers, weights, eval);
                if let (1.., Some((eval, most_eval))) = (most, evaluation) {
                    // A bound that is the whole batch of one kind must not force rounds on the other.
                    let unbound = leaves.count.max(eval.count);
                    let or_any = |most, leaves: Leaves| if most == leaves.count { unbound } else { most };
                    let leaves_per_round = or_any(most, leaves).min(or_any(most_eval, eval));
                    return Ok(Fit { train: leaves, eval, resident, recompute: recompute.clone(), leaves_per_round });
                }
            }
        }
        Err(self.refusal(&recomputing.0, Pass::Training))
    }

    /// What fits of a job that only evaluates: nothing is kept, so nothing is recomputed, and the training batch, of
    /// which no leaf is ever computed, is cut as if it fitted.
    pub fn fit_evaluation(&self, train: Batch, eval: Batch) -> Result<Fit, CompileError> {
        let recompute = vec![false; self.graph.layers.len()];
        let layers = memory::analyse(self.graph, &recompute, wafer_activation_bytes(self.encoding));
        for resident in [self.resident(2), self.resident(1)] {
            let fitting = self.eval_leaves(&layers, self.weights(&resident), eval);
            if let (Some((eval, leaves_per_round)), Some(train)) = (fitting, train.cuts().next()) {
                return Ok(Fit { train, eval, resident, recompute, leaves_per_round });
            }
        }
        Err(self.refusal(&layers, Pass::Evaluation))
    }

    /// The groups of the last `layers` layers, and those that several layers share, ascending.
    fn resident(&self, layers: usize) -> Vec<GroupId> {
        let last = self.cut.layers.iter().rev().take(layers).flatten().copied();
        // With one layer only, a shared group the loss does not use is streamed for each of its uses.
        let shared = self.cut.shared().filter(|_| layers > 1);
        let mut groups: Vec<GroupId> = last.chain(shared).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    fn weights(&self, resident: &[GroupId]) -> WeightElements {
        let layers = self.cut.layers.iter().map(Vec::as_slice);
        WeightElements::new(layers, |group| self.cut.elements(group), resident)
    }

    /// Bytes needed with `count` leaves of `samples` each, and the layer at which.
    fn need(
        &self,
        layers: &[LayerMemory],
        weights: WeightElements,
        count: u32,
        samples: u32,
        pass: Pass,
    ) -> (u64, usize) {
        let (count, samples) = (u64::from(count), u64::from(samples));
        let of = |layer: &LayerMemory| match pass {
            Pass::Training => (layer.held, layer.working()),
            Pass::Evaluation => (layer.held_eval, layer.working_eval),
        };
        let peak = layers.iter().enumerate().map(|(at, layer)| {
            let (held, working) = of(layer);
            let leaves = held.saturating_mul(count).saturating_add(working);
            (leaves.saturating_mul(samples), at)
        });
        let (activations, at) = peak.max().unwrap_or_default();
        (activations.saturating_add(self.weight_bytes(weights, count as u32, pass).total()), at)
    }

    /// Bytes of weights and gradients while a system works on `leaves` leaves.
    fn weight_bytes(&self, weights: WeightElements, leaves: u32, pass: Pass) -> WeightBytes {
        let bytes = weights.bytes(self.encoding.bytes() as u64, leaves);
        if pass == Pass::Evaluation { WeightBytes { gradients: 0, ..bytes } } else { bytes }
    }

    /// The most of `leaves` that fit at once; 0 if not even one does.
    fn most_leaves(&self, layers: &[LayerMemory], weights: WeightElements, leaves: Leaves, pass: Pass) -> u32 {
        let fits = |count| self.need(layers, weights, count, leaves.samples, pass).0 <= self.memory;
        let (mut most, mut too_many) = (0, leaves.count + 1);
        while most + 1 < too_many {
            let middle = most + (too_many - most) / 2;
            *(if fits(middle) { &mut most } else { &mut too_many }) = middle;
        }
        most
    }

    /// The largest evaluation leaves of which one fits, and how many do.
    fn eval_leaves(&self, layers: &[LayerMemory], weights: WeightElements, eval: Batch) -> Option<(Leaves, u32)> {
        eval.cuts()
            .map(|leaves| (leaves, self.most_leaves(layers, weights, leaves, Pass::Evaluation)))
            .find(|&(_, most)| most > 0)
    }

    fn refusal(&self, layers: &[LayerMemory], pass: Pass) -> CompileError {
        let weights = self.weights(&self.resident(1));
        let (needed, at) = self.need(layers, weights, 1, 1, pass);
        CompileError::DoesNotFit {
            layer: self.graph.layers.get(at).map_or_else(String::new, |layer| layer.name.clone()),
            needed,
            weights: self.weight_bytes(weights, 1, pass).total(),
            available: self.memory,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Training,
    Evaluation,
}
