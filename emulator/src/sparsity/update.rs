//! Changes of masks during training: SET and RigL.
//!
//! At a change, the smallest weights of every sparse parameter become zero. As many weights that are zero then begin to
//! train, chosen by a hash of the element (SET) or by the size of the gradient that they would have had (RigL). A
//! weight that became zero can be chosen, and keeps its value. All others begin at zero, as does their optimizer state.
//! Ties go to the element with the lower number.
//!
//! A change is a function of the whole parameter, its gradient, the seed and the step. It depends neither on chunks nor
//! on shards.
//!
//! Sources: Mocanu et al., "Scalable Training of Artificial Neural Networks with Adaptive Sparse Connectivity" (2018);
//! Evci et al., "Rigging the Lottery" (2020).

use std::f64::consts::PI;

use millrace_params::{DropFraction, MaskGrowth, MaskUpdate};

use super::{SparsityMasks, mask_key};
use crate::graph::TensorId;
use crate::numerics::random::{hash64, subkey};

/// The arrays of a whole tensor.
#[derive(Debug)]
pub struct MaskArrays<'a> {
    /// Weights.
    pub weights: &'a mut [f32],
    /// The gradient of all weights, also of those that are zero. Read only if weights grow by gradient.
    pub gradient: &'a [f32],
    /// 1 for a weight that trains, 0 for one that stays zero.
    pub mask: &'a mut [f32],
    /// State of the optimizer that has the shape of the weights.
    pub state: Vec<&'a mut [f32]>,
}

impl SparsityMasks {
    /// Changes the masks of a tensor after step `step`.
    ///
    /// # Panics
    /// If the arrays are not those of the whole tensor.
    pub fn update(&self, update: &MaskUpdate, (seed, step): (u64, u64), tensor: TensorId, arrays: MaskArrays<'_>) {
        let MaskArrays { weights, gradient, mask, mut state } = arrays;
        let key = subkey(mask_key(seed, tensor), step);
        let fraction = drop_fraction(update.drop_fraction, step);
        for parameter in self.tensors.get(tensor).into_iter().flatten() {
            let range = parameter.elements.clone();
            let (weights, mask) = (&mut weights[range.clone()], &mut mask[range.clone()]);
            let dropped = drop_smallest(weights, mask, fraction);
            let first = range.start;
            grow(mask, dropped, |element| match update.growth {
                MaskGrowth::Random => hash64(key, (first + element) as u64),
                MaskGrowth::Gradient => u64::from(!magnitude(gradient[first + element])),
            });
            clear(weights, mask);
            state.iter_mut().for_each(|state| clear(&mut state[range.clone()], mask));
        }
    }
}

/// Returns the share of weights that become zero after step `step`.
pub(super) fn drop_fraction(DropFraction { initial, minimum, half_period }: DropFraction, step: u64) -> f64 {
    let Some(half_period) = half_period else { return initial };
    let share = step.min(half_period) as f64 / half_period.max(1) as f64;
    minimum + (initial - minimum) * (1.0 + libm::cos(PI * share)) / 2.0
}

/// Masks the smallest of the weights that train, and returns how many.
fn drop_smallest(weights: &[f32], mask: &mut [f32], fraction: f64) -> usize {
    let unmasked = |(element, weight): (usize, &f32)| (mask[element] != 0.0).then(|| (magnitude(*weight), element));
    let mut active: Vec<(u32, usize)> = weights.iter().enumerate().filter_map(unmasked).collect();
    let count = ((fraction * active.len() as f64).round() as usize).min(active.len());
    select(&mut active, count).iter().for_each(|&(_, element)| mask[element] = 0.0);
    count
}

/// Unmasks the `count` masked elements with the lowest ranks.
fn grow(mask: &mut [f32], count: usize, rank: impl Fn(usize) -> u64) {
    let masked = mask.iter().enumerate().filter(|(_, mask)| **mask == 0.0);
    let mut candidates: Vec<(u64, usize)> = masked.map(|(element, _)| (rank(element), element)).collect();
    select(&mut candidates, count).iter().for_each(|&(_, element)| mask[element] = 1.0);
}

/// Returns the `count` smallest items, in any order.
fn select<T: Ord>(items: &mut [T], count: usize) -> &mut [T] {
    if count < items.len() {
        items.select_nth_unstable(count);
    }
    let count = count.min(items.len());
    &mut items[..count]
}

/// Sets the values of masked elements to zero.
fn clear(values: &mut [f32], mask: &[f32]) {
    for (value, mask) in values.iter_mut().zip(mask) {
        *value = if *mask == 0.0 { 0.0 } else { *value };
    }
}

/// Returns bits that are ordered as absolute values are; those of NaN are the largest.
const fn magnitude(value: f32) -> u32 {
    value.to_bits() & (u32::MAX >> 1)
}
