//! Sums and extremes over some dimensions.

use super::runs::{Blocks, Runs};
use super::view::{MAX_VIEW_RANK, View};
use super::{BLOCK_ELEMENTS, GRAIN_ELEMENTS, check_extents};
use crate::kernels::pool::rows_mut;
use crate::kernels::{Accumulate, Context};

/// Elements of the result that are computed together if they are neighbours.
const MIN_ACROSS: usize = 16;

/// How elements are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// Their sum.
    Sum,
    /// The largest; NaN if there is one.
    Max,
    /// The smallest; NaN if there is one.
    Min,
}

impl Fold {
    const fn start(self) -> f64 {
        match self {
            Self::Sum => 0.0,
            Self::Max => f64::NEG_INFINITY,
            Self::Min => f64::INFINITY,
        }
    }

    fn join(self, total: &mut f64, element: f32) {
        let element = f64::from(element);
        match self {
            Self::Sum => *total += element,
            Self::Max if element > *total || element.is_nan() => *total = element,
            Self::Min if element < *total || element.is_nan() => *total = element,
            Self::Max | Self::Min => {}
        }
    }
}

/// Joins, for each element of `out`, what `kernel` computes from the elements of `data` at the same place of those
/// dimensions of `views` that are kept. `out` is dense; it is stored, or added to its previous content.
///
/// # Panics
/// See [`map`](super::map).
#[allow(clippy::too_many_arguments)]
pub fn fold<const N: usize>(
    cx: Context<'_>,
    fold: Fold,
    views: [View; N],
    is_kept: impl Fn(usize) -> bool,
    data: [&[f32]; N],
    out: &mut [f32],
    accumulate: Accumulate,
    kernel: impl Fn([&[f32]; N], &mut [f32]) + Sync,
) {
    check_extents(&views, &data);
    let rank = views[0].rank;
    let mut order = [0; MAX_VIEW_RANK];
    let axes = (0..rank).filter(|axis| is_kept(*axis)).chain((0..rank).filter(|axis| !is_kept(*axis)));
    order.iter_mut().zip(axes).for_each(|(to, axis)| *to = axis);
    let (views, kept) =
        (views.map(|view| view.permuted(&order[..rank])), (0..rank).filter(|axis| is_kept(*axis)).count());
    let nest = Nest {
        fold,
        kept: Runs::new(&views, 0..kept),
        joined: Runs::new(&views, kept..rank),
        offsets: views.map(|view| view.offset),
        data,
    };
    assert_eq!(nest.kept.elements(), out.len(), "the elements of the result");
    let across = nest.kept.run() >= MIN_ACROSS && nest.kept.steps().iter().all(|&step| step <= 1);
    let min_grain = if across { BLOCK_ELEMENTS } else { 1 };
    let grain = (GRAIN_ELEMENTS / nest.joined.elements()).max(min_grain);
    cx.pool.for_each_rows(out.len(), grain, rows_mut(out, 1), |first, out| {
        let store = |out: &mut f32, total: f64| match accumulate {
            Accumulate::Store => *out = total as f32,
            Accumulate::Add => *out += total as f32,
        };
        if across {
            nest.across(first, out.data, &kernel, store);
        } else {
            nest.along(first, out.data, &kernel, store);
        }
    });
}

/// The two loops of a fold, and their operands. Both orders of the loops join the elements in the same order.
struct Nest<'a, const N: usize> {
    fold: Fold,
    kept: Runs<N>,
    joined: Runs<N>,
    offsets: [usize; N],
    data: [&'a [f32]; N],
}

impl<const N: usize> Nest<'_, N> {
    /// Computes neighbouring elements of the result together: blocks are parts of runs that are kept.
    fn across(
        &self,
        first: usize,
        out: &mut [f32],
        kernel: &impl Fn([&[f32]; N], &mut [f32]),
        store: impl Fn(&mut f32, f64),
    ) {
        let (mut blocks, mut terms) = (Blocks::new(), [0.0; BLOCK_ELEMENTS]);
        self.kept.for_each(first, out.len(), self.offsets, |start, positions, len| {
            for skip in (0..len).step_by(BLOCK_ELEMENTS) {
                let count = (len - skip).min(BLOCK_ELEMENTS);
                let mut totals = [self.fold.start(); BLOCK_ELEMENTS];
                self.joined.for_each(0, self.joined.elements(), positions, |_, positions, len| {
                    let steps = self.joined.steps();
                    for element in 0..len {
                        let positions = std::array::from_fn(|n| positions[n] + element * steps[n]);
                        let operands = blocks.read(self.data, positions, self.kept.steps(), skip, count);
                        kernel(operands, &mut terms[..count]);
                        for (total, term) in totals.iter_mut().zip(&terms[..count]) {
                            self.fold.join(total, *term);
                        }
                    }
                });
                for (out, total) in out[start + skip..].iter_mut().zip(&totals[..count]) {
                    store(out, *total);
                }
            }
        });
    }

    /// Computes one element of the result after the other: blocks are parts of runs that are joined.
    fn along(
        &self,
        first: usize,
        out: &mut [f32],
        kernel: &impl Fn([&[f32]; N], &mut [f32]),
        store: impl Fn(&mut f32, f64),
    ) {
        let (mut blocks, mut terms) = (Blocks::new(), [0.0; BLOCK_ELEMENTS]);
        let steps = self.kept.steps();
        self.kept.for_each(first, out.len(), self.offsets, |start, positions, len| {
            for (element, out) in out[start..start + len].iter_mut().enumerate() {
                let positions = std::array::from_fn(|n| positions[n] + element * steps[n]);
                let mut total = self.fold.start();
                self.joined.for_each(0, self.joined.elements(), positions, |_, positions, len| {
                    for skip in (0..len).step_by(BLOCK_ELEMENTS) {
                        let count = (len - skip).min(BLOCK_ELEMENTS);
                        let operands = blocks.read(self.data, positions, self.joined.steps(), skip, count);
                        kernel(operands, &mut terms[..count]);
                        terms[..count].iter().for_each(|term| self.fold.join(&mut total, *term));
                    }
                });
                store(out, total);
            }
        });
    }
}
