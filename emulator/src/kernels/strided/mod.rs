//! Loops over operands of any strides: the core of element-wise operators, of those that only move elements, and of
//! sums.
//!
//! ```text
//! map   out[i, j] = f(a[i, j], b[i, j])              for each element of a dense result
//! fold  out[i]    = sum over j of f(a[i, j], b[i, j])
//! ```
//!
//! A [`View`] says where the elements of an operand are; a vector that is added to each row is a view with a stride of
//! 0. The function `f` is called with blocks of contiguous elements, so that it is an ordinary kernel: elements that
//! are not contiguous are copied to a block first.
//!
//! * All operands are slices of f32, which are only moved here: integers and truth values keep their bits.
//! * A result does not depend on how the elements are divided among threads. Sums are computed in f64, in the order of
//!   the elements, and rounded once.

mod fold;
mod runs;
mod view;

pub use fold::{Fold, fold};
pub use view::{MAX_VIEW_RANK, View};

use super::Context;
use super::pool::rows_mut;
use runs::{Blocks, Runs};

/// Elements of a block.
pub const BLOCK_ELEMENTS: usize = 256;

/// Elements of the result that a thread computes at a time.
const GRAIN_ELEMENTS: usize = 4096;

/// Computes each element of `out`, which is dense, from the elements of `data` at the same place of `views`.
///
/// # Panics
/// If the sizes of the views differ, a view does not fit into its slice, or `out` has another number of elements.
pub fn map<const N: usize>(
    cx: Context<'_>,
    views: [View; N],
    data: [&[f32]; N],
    out: &mut [f32],
    kernel: impl Fn([&[f32]; N], &mut [f32]) + Sync,
) {
    check_extents(&views, &data);
    let runs = Runs::new(&views, 0..views[0].rank);
    assert_eq!(runs.elements(), out.len(), "the elements of the result");
    let offsets = views.map(|view| view.offset);
    cx.pool.for_each_rows(out.len(), GRAIN_ELEMENTS, rows_mut(out, 1), |first, out| {
        let mut blocks = Blocks::new();
        runs.for_each(first, out.data.len(), offsets, |start, positions, len| {
            for skip in (0..len).step_by(BLOCK_ELEMENTS) {
                let count = (len - skip).min(BLOCK_ELEMENTS);
                let operands = blocks.read(data, positions, runs.steps(), skip, count);
                kernel(operands, &mut out.data[start + skip..][..count]);
            }
        });
    });
}

/// Copies the elements of `data`, which is dense, to `out` at `view`. No two elements of the view are the same.
///
/// # Panics
/// If the view does not fit into `out`, or `data` has another number of elements.
pub fn copy_to(view: View, data: &[f32], out: &mut [f32]) {
    assert!(view.end() <= out.len() && view.elements() == data.len(), "{view:?} of {} elements", out.len());
    let runs = Runs::new(&[view], 0..view.rank);
    let [step] = runs.steps();
    runs.for_each(0, data.len(), [view.offset], |start, [position], len| {
        let to = out[position..].iter_mut().step_by(step.max(1));
        to.zip(&data[start..start + len]).for_each(|(to, from)| *to = *from);
    });
}

/// Checks that the views have the same sizes, and fit into their slices.
fn check_extents<const N: usize>(views: &[View; N], data: &[&[f32]; N]) {
    for (view, data) in views.iter().zip(data) {
        assert_eq!(view.sizes(), views[0].sizes(), "the sizes of the operands");
        assert!(view.end() <= data.len(), "{view:?} of {} elements", data.len());
    }
}

/// Copies the elements of `data` at `view` to `out`.
///
/// # Panics
/// See [`map`].
pub fn copy(cx: Context<'_>, view: View, data: &[f32], out: &mut [f32]) {
    map(cx, [view], [data], out, |[x], out| out.copy_from_slice(x));
}

#[cfg(test)]
mod tests;
