//! Searches for a division of the job that fits into wafer memory.

use std::cell::LazyCell;

use serde::{Deserialize, Serialize};

use super::activation_memory::{LayerMemory, MemoryAnalysis};
use super::groups::TensorGroups;
use super::leaves::BatchSpec;
use super::tiles::SampleTiling;
use super::{CompileError, wafer_activation_bytes};
use crate::graph::Graph;
use crate::plan::{Encoding, GroupId, LeafLayout};

/// Bytes of a gradient, on every machine.
const GRADIENT_BYTES: u64 = 4;
/// Bytes of a weight in the emulating process.
const HOST_WEIGHT_BYTES: u64 = 4;

pub(super) struct Fit {
    pub train: LeafLayout,
    pub eval: LeafLayout,
    pub resident: Vec<GroupId>,
    pub recompute: Vec<bool>,
    pub leaves_per_round: u32,
    pub tiles: u32,
}

/// Weight elements that a system holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightElements {
    /// Elements of the resident groups.
    pub resident: u64,
    /// Elements of the streamed groups of a layer and its successor, for the pair where this sum is largest.
    pub two_layers: u64,
    /// Elements of the largest layer, resident or not.
    pub largest_layer: u64,
}

/// Bytes that a system holds for weights and gradients, independent of its activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightBytes {
    /// Weights that stay from the forward to the backward pass.
    pub resident: u64,
    /// Streamed weights. On the wafer: a window of chunks. In the process: the current and the next layer.
    pub window: u64,
    /// Gradients in f32. On the wafer: a window of chunks. In the process: the open partial sums of the current layer.
    pub gradients: u64,
}

impl WeightBytes {
    /// Returns the sum of all parts.
    pub const fn total(self) -> u64 {
        self.resident + self.window + self.gradients
    }
}

impl WeightElements {
    /// Counts the weights of `layers`, each given as a list of groups, with these groups resident.
    pub fn new<'a>(
        layers: impl Iterator<Item = &'a [GroupId]>,
        elements: impl Fn(GroupId) -> u64,
        resident: &[GroupId],
    ) -> Self {
        let (mut two_layers, mut largest_layer, mut before) = (0, 0, 0);
        for groups in layers {
            let streamed = groups.iter().filter(|group| !resident.contains(group)).map(|&group| elements(group)).sum();
            two_layers = two_layers.max(before + streamed);
            largest_layer = largest_layer.max(groups.iter().map(|&group| elements(group)).sum());
            before = streamed;
        }
        Self { resident: resident.iter().map(|&group| elements(group)).sum(), two_layers, largest_layer }
    }

    /// Returns the bytes on the wafer. Weights pass through a window of `window` elements, gradients through another; a
    /// chunk of gradients leaves as soon as it is complete. The size of a layer does not matter.
    ///
    /// A real system accumulates the gradients of all its samples in one buffer. Partial sums exist only because of the
    /// leaf tree, so they take no wafer memory.
    pub fn on_wafer(self, weight_bytes: u64, window: u64) -> WeightBytes {
        WeightBytes {
            resident: self.resident.saturating_mul(weight_bytes),
            window: self.two_layers.min(window).saturating_mul(weight_bytes),
            gradients: self.largest_layer.min(window).saturating_mul(GRADIENT_BYTES),
        }
    }

    /// Returns the bytes in the emulating process with `leaves` leaves. The process holds whole layers, in f32.
    ///
    /// The gradient of each leaf of the current layer is joined with its sibling as soon as it is computed. Of n
    /// contiguous leaves at most 2 log2(n + 1) sums stay open while one more is computed, and never more than n.
    pub fn on_host(self, leaves: u32) -> WeightBytes {
        let leaves = u64::from(leaves);
        let sums = leaves.min(2 * u64::from((leaves + 1).next_power_of_two().ilog2()) + 1);
        WeightBytes {
            resident: self.resident.saturating_mul(HOST_WEIGHT_BYTES),
            window: self.two_layers.saturating_mul(HOST_WEIGHT_BYTES),
            gradients: self.largest_layer.saturating_mul(GRADIENT_BYTES).saturating_mul(sums),
        }
    }
}

/// Searches for a combination of resident groups, recomputation, rounds and leaf size that fits.
pub(super) struct FitSearch<'a> {
    pub graph: &'a Graph,
    pub tensor_groups: &'a TensorGroups,
    pub encoding: Encoding,
    /// Bytes of the wafer.
    pub memory: u64,
    /// Elements of weights, and of gradients, in flight on the wafer.
    pub window: u64,
}

impl Fit {
    /// Returns a division into leaves of one sample, one of which a system holds at a time, in `tiles`.
    fn of_single_samples(train: BatchSpec, eval: BatchSpec, tiles: u32) -> Self {
        let single = |batch: BatchSpec| LeafLayout { count: batch.samples as u32, samples: 1 };
        let (train, eval) = (single(train), single(eval));
        Self { train, eval, resident: Vec::new(), recompute: Vec::new(), leaves_per_round: 1, tiles }
    }
}

/// Candidates for the number of last layers that stay on the wafer, best first.
const RESIDENT_LAYER_CANDIDATES: [usize; 3] = [2, 1, 0];
/// Resident weights may reduce the leaves of a round by one part in this many.
const RESIDENT_SLACK: u32 = 16;

impl FitSearch<'_> {
    /// Tries the options in the order given in the module documentation of [`super`].
    pub fn fit(&self, train: BatchSpec, eval: BatchSpec) -> Result<Fit, CompileError> {
        let none = vec![false; self.graph.layers.len()];
        let bytes = wafer_activation_bytes(self.encoding);
        let analysis = MemoryAnalysis::new(self.graph, [bytes]);
        let saving = (analysis.training(&none), none);
        // Not computed if everything can be saved.
        let recomputing = LazyCell::new(|| {
            let flags = analysis.recompute_helps(&saving.0);
            (analysis.training(&flags), flags)
        });
        let streamed = self.weights(&[]);
        for leaves in train.possible_leaves() {
            let saves_all = self.max_leaves(&saving.0.layers[0], streamed, leaves, Workload::Training) == leaves.count;
            let (memory, recompute) = if saves_all { &saving } else { &*recomputing };
            let layers = &memory.layers[0];
            let maximum = self.max_leaves(layers, streamed, leaves, Workload::Training);
            let evaluation = self.eval_leaves(layers, streamed, eval);
            if let (1.., Some((eval, maximum_eval))) = (maximum, evaluation) {
                let of_both = |weights| {
                    let fitting = |leaves, pass| self.max_leaves(layers, weights, leaves, pass);
                    (fitting(leaves, Workload::Training), fitting(eval, Workload::Evaluation))
                };
                let is_cheap = |weights| {
                    let (fitting, fitting_eval) = of_both(weights);
                    fitting >= maximum - maximum / RESIDENT_SLACK
                        && fitting_eval >= maximum_eval - maximum_eval / RESIDENT_SLACK
                };
                let resident = self.max_resident_groups(is_cheap);
                let (maximum, maximum_eval) = of_both(self.weights(&resident));
                // If one batch is a single leaf within its bound, that must not force rounds on the other batch.
                let unbound = leaves.count.max(eval.count);
                let or_any = |maximum, leaves: LeafLayout| if maximum == leaves.count { unbound } else { maximum };
                let leaves_per_round = or_any(maximum, leaves).min(or_any(maximum_eval, eval));
                let recompute = recompute.clone();
                return Ok(Fit { train: leaves, eval, resident, recompute, leaves_per_round, tiles: 1 });
            }
        }
        let (memory, recompute) = &*recomputing;
        let tiles = self.fit_in_tiles(&memory.layers[0], Workload::Training)?;
        Ok(Fit { recompute: recompute.clone(), ..Fit::of_single_samples(train, eval, tiles) })
    }

    /// Returns what fits for a job that only evaluates. Nothing is saved, so nothing is recomputed. The training batch,
    /// whose leaves are never computed, is cut as if it fitted.
    pub fn fit_evaluation(&self, train: BatchSpec, eval: BatchSpec) -> Result<Fit, CompileError> {
        let recompute = vec![false; self.graph.layers.len()];
        let bytes = wafer_activation_bytes(self.encoding);
        let [layers] = MemoryAnalysis::new(self.graph, [bytes]).training(&recompute).layers;
        let fitting = self.eval_leaves(&layers, self.weights(&[]), eval);
        if let (Some((eval, leaves_per_round)), Some(train)) = (fitting, train.possible_leaves().next()) {
            let fitting = |weights| self.max_leaves(&layers, weights, eval, Workload::Evaluation);
            let least = leaves_per_round - leaves_per_round / RESIDENT_SLACK;
            let resident = self.max_resident_groups(|weights| fitting(weights) >= least);
            let leaves_per_round = fitting(self.weights(&resident));
            return Ok(Fit { train, eval, resident, recompute, leaves_per_round, tiles: 1 });
        }
        let tiles = self.fit_in_tiles(&layers, Workload::Evaluation)?;
        Ok(Fit { recompute, ..Fit::of_single_samples(train, eval, tiles) })
    }

    /// Returns the smallest number of tiles in which one sample fits, also in an evaluation. `memory` is that of whole
    /// samples. See [`super::tiles`].
    fn fit_in_tiles(&self, memory: &[LayerMemory], pass: Workload) -> Result<u32, CompileError> {
        let mut error = self.does_not_fit_error(memory, pass, 1);
        let Some(tiling) = SampleTiling::new(self.graph) else { return Err(error) };
        let bytes = wafer_activation_bytes(self.encoding);
        let search = Self { window: u64::MAX, ..*self };
        for tiles in tiling.possible_tiles() {
            let layers = tiling.memory(memory, bytes, tiles);
            let fits = |pass| search.bytes_needed(&layers, search.weights(&[]), 1, 1, pass).0 <= search.memory;
            if fits(pass) && fits(Workload::Evaluation) {
                return Ok(tiles);
            }
            error = search.does_not_fit_error(&layers, pass, tiles);
        }
        Err(error)
    }

    /// Returns the largest set of groups that may stay on the wafer.
    fn max_resident_groups(&self, is_cheap: impl Fn(WeightElements) -> bool) -> Vec<GroupId> {
        let candidates = RESIDENT_LAYER_CANDIDATES.map(|layers| self.resident_groups(layers));
        candidates.into_iter().find(|resident| is_cheap(self.weights(resident))).unwrap_or_default()
    }

    /// Returns the groups of the last `layers` layers and those that several layers share, ascending.
    fn resident_groups(&self, layers: usize) -> Vec<GroupId> {
        let last = self.tensor_groups.layers.iter().rev().take(layers).flatten().copied();
        // If there is only one layer, a shared group that the loss does not use is streamed for each of its uses.
        let shared = self.tensor_groups.shared().filter(|_| layers > 1);
        let mut groups: Vec<GroupId> = last.chain(shared).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    fn weights(&self, resident: &[GroupId]) -> WeightElements {
        let layers = self.tensor_groups.layers.iter().map(Vec::as_slice);
        WeightElements::new(layers, |group| self.tensor_groups.elements(group), resident)
    }

    /// Returns the bytes needed for `count` leaves of `samples` each, and the layer that needs them.
    fn bytes_needed(
        &self,
        layers: &[LayerMemory],
        weights: WeightElements,
        count: u32,
        samples: u32,
        pass: Workload,
    ) -> (u64, usize) {
        let (count, samples) = (u64::from(count), u64::from(samples));
        let retained_and_working = |layer: &LayerMemory| match pass {
            Workload::Training => (layer.retained, layer.working()),
            Workload::Evaluation => (layer.retained_eval, layer.working_eval),
        };
        let peak = layers.iter().enumerate().map(|(index, layer)| {
            let (retained, working) = retained_and_working(layer);
            let leaves = retained.saturating_mul(count).saturating_add(working);
            (leaves.saturating_mul(samples), index)
        });
        let (activations, index) = peak.max().unwrap_or_default();
        (activations.saturating_add(self.weight_bytes(weights, pass).total()), index)
    }

    /// Returns the bytes of weights and gradients on the wafer.
    fn weight_bytes(&self, weights: WeightElements, pass: Workload) -> WeightBytes {
        let bytes = weights.on_wafer(self.encoding.bytes() as u64, self.window);
        if pass == Workload::Evaluation { WeightBytes { gradients: 0, ..bytes } } else { bytes }
    }

    /// Returns how many of `leaves` fit at once; 0 if not even one does.
    fn max_leaves(&self, layers: &[LayerMemory], weights: WeightElements, leaves: LeafLayout, pass: Workload) -> u32 {
        let fits = |count| self.bytes_needed(layers, weights, count, leaves.samples, pass).0 <= self.memory;
        let (mut maximum, mut too_many) = (0, leaves.count + 1);
        while maximum + 1 < too_many {
            let middle = maximum + (too_many - maximum) / 2;
            *(if fits(middle) { &mut maximum } else { &mut too_many }) = middle;
        }
        maximum
    }

    /// Returns the largest evaluation leaves of which at least one fits, and how many fit.
    fn eval_leaves(
        &self,
        layers: &[LayerMemory],
        weights: WeightElements,
        eval: BatchSpec,
    ) -> Option<(LeafLayout, u32)> {
        eval.possible_leaves()
            .map(|leaves| (leaves, self.max_leaves(layers, weights, leaves, Workload::Evaluation)))
            .find(|&(_, maximum)| maximum > 0)
    }

    fn does_not_fit_error(&self, layers: &[LayerMemory], pass: Workload, tiles: u32) -> CompileError {
        let weights = self.weights(&[]);
        let (needed, layer) = self.bytes_needed(layers, weights, 1, 1, pass);
        CompileError::DoesNotFit {
            layer: self.graph.layers.get(layer).map_or_else(String::new, |layer| layer.name.clone()),
            needed,
            weights: self.weight_bytes(weights, pass).total(),
            available: self.memory,
            tiles,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Workload {
    Training,
    Evaluation,
}
