//! Masks that change during training: a state tensor after those of the optimizer, 1 for weights that train.
//!
//! The gradient of a chunk is kept as it arrived, because RigL reads that of masked weights; it is masked for its norm,
//! and before the update.

use std::ops::Range;

use millrace_checkpoint::Section;
use millrace_emulator::optimizers;
use millrace_emulator::plan::{ChunkId, StateShape};
use millrace_emulator::sparsity::{MaskArrays, mask_update};
use millrace_params::MaskGrowth;

use super::{ChunkArrays, OptimizerOps, Piece};

/// A change of masks in progress.
pub(super) struct MaskChange {
    /// The gradient of all weights; empty if it is not needed.
    gradient: Vec<f32>,
}

impl OptimizerOps {
    /// Returns whether the masks of the job change.
    pub(super) fn masks_change(&self) -> bool {
        mask_update(&self.job.job).is_some()
    }

    /// Returns the index of the masks in the arrays of a cell: they follow the weights and the optimizer's state.
    fn mask_index(&self) -> usize {
        1 + optimizers::optimizer(&self.job.optimizer().kind).state().len()
    }

    /// Returns whether a section has the masks.
    pub(super) fn is_mask(&self, section: Section) -> bool {
        self.masks_change() && section.index() == self.mask_index()
    }

    /// Fills the masks of a cell with those of the first step, if the job has masks that change.
    pub(super) fn fill_masks(&self, cell: ChunkId, numbers: &mut ChunkArrays) {
        if !self.masks_change() {
            return;
        }
        let mask = numbers.array(self.mask_index());
        mask.fill(1.0);
        for chunk in self.job.plan.chunks_updated_with(cell) {
            self.mask(chunk, &mut mask[self.range_in_cell(chunk)]);
        }
    }

    /// Returns a copy of a range of the gradient, masked.
    pub(super) fn masked_gradient(&self, numbers: &mut ChunkArrays, range: Range<usize>) -> Vec<f32> {
        let mut gradient = numbers.array(1 + self.moments.len())[range.clone()].to_vec();
        mask_values(&mut gradient, &numbers.array(self.mask_index())[range]);
        gradient
    }

    /// Masks the gradient of a cell before the update of `step`, if the job has masks that change. Returns the change
    /// that follows the update.
    pub(super) fn begin_mask_change(&self, numbers: &mut ChunkArrays, step: u64) -> Option<MaskChange> {
        let update = mask_update(&self.job.job)?;
        let index = 1 + self.moments.len();
        let change = update.is_due(step).then(|| MaskChange {
            gradient: match update.growth {
                MaskGrowth::Gradient => numbers.array(index).to_vec(),
                MaskGrowth::Random => Vec::new(),
            },
        });
        let all = 0..numbers.array(index).len();
        let masked = self.masked_gradient(numbers, all);
        numbers.array(index).copy_from_slice(&masked);
        change
    }

    /// Changes the masks of all tensors of a cell after the update of `step`.
    pub(super) fn change_masks(&self, cell: ChunkId, numbers: &mut ChunkArrays, change: &MaskChange, step: u64) {
        let Some(update) = mask_update(&self.job.job) else { return };
        let index = self.mask_index();
        for Piece { tensor, range, state: ranges } in self.pieces(cell) {
            let mut arrays = numbers.arrays();
            let Some(weights) = arrays.next() else { return };
            let mut state: Vec<&mut [f32]> =
                arrays.take(index).zip(ranges).map(|(array, range)| &mut array[range]).collect();
            let Some(mask) = state.pop() else { return };
            let shapes = self.job.plan.whole_tensor_state.iter().flatten();
            let full = state.into_iter().zip(shapes).filter(|(_, shape)| **shape == StateShape::Full);
            let arrays = MaskArrays {
                weights: &mut weights[range.clone()],
                gradient: change.gradient.get(range).unwrap_or_default(),
                mask,
                state: full.map(|(state, _)| state).collect(),
            };
            self.masks.update(update, (self.job.job.run.seed, step), tensor, arrays);
        }
    }
}

/// Sets masked values to zero.
fn mask_values(values: &mut [f32], mask: &[f32]) {
    for (value, mask) in values.iter_mut().zip(mask) {
        *value = if *mask == 0.0 { 0.0 } else { *value };
    }
}
