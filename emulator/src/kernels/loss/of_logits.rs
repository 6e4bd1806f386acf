//! The cross-entropy of logits that other operators have computed.

use super::{GRAIN_ROWS, LossSums, LossWorkspace, advance, begin, finish, logits_to_gradients};
use crate::kernels::Context;
use crate::kernels::pool::{rows, rows_mut};

/// Computes the losses of rows of logits, one for each label. `lse` receives ln Σ exp(logit) of each row for
/// [`backward_of_logits`].
///
/// # Panics
/// If lengths do not match.
pub fn forward_of_logits(
    cx: Context<'_>,
    logits: &[f32],
    labels: &[i32],
    lse: &mut [f32],
    workspace: &mut LossWorkspace,
) -> LossSums {
    assert_eq!(lse.len(), labels.len());
    let (width, tokens) = (width(logits, labels), &mut workspace.tokens);
    begin(tokens, labels.len());
    let data = (rows(logits, width), rows(labels, 1), rows_mut(tokens, 1));
    cx.pool.for_each_rows(labels.len(), GRAIN_ROWS, data, |_, (logits, labels, tokens)| {
        advance(cx.simd, logits.data, width, 0, labels.data, tokens.data);
    });
    finish(tokens, labels, lse)
}

/// Computes the gradient of the sum of losses with respect to the logits, times `factor`, from what
/// [`forward_of_logits`] saved.
///
/// # Panics
/// If lengths do not match.
pub fn backward_of_logits(
    cx: Context<'_>,
    logits: &[f32],
    labels: &[i32],
    lse: &[f32],
    factor: f32,
    gradient: &mut [f32],
) {
    assert_eq!((lse.len(), gradient.len()), (labels.len(), logits.len()));
    let width = width(logits, labels);
    let data = (rows(logits, width), rows_mut(gradient, width), rows(labels, 1), rows(lse, 1));
    cx.pool.for_each_rows(labels.len(), GRAIN_ROWS, data, |_, (logits, gradient, labels, lse)| {
        gradient.data.copy_from_slice(logits.data);
        logits_to_gradients(cx.simd, gradient.data, width, 0, labels.data, lse.data, factor);
    });
}

fn width(logits: &[f32], labels: &[i32]) -> usize {
    assert!(!labels.is_empty() && logits.len().is_multiple_of(labels.len()), "a row of logits for each label");
    logits.len() / labels.len()
}
