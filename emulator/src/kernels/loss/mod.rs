//! The classifier over the vocabulary with its cross-entropy, in blocks of the vocabulary.
//!
//! The loss of a token is ln Σ exp(logit) - logit of its label; tokens with a negative label are skipped. Logits exist
//! for [`VOCABULARY_BLOCK`] words at a time, in memory of the caller. The forward pass iterates over the blocks in
//! ascending order with a running maximum and sum; the backward pass iterates in descending order and recomputes the
//! logits, unless the forward pass kept them. Both give the same bits.
//!
//! Gradients are those of the *sum* of the tokens' losses, times a factor.

mod of_logits;

pub use of_logits::{backward_of_logits, forward_of_logits};

use super::gemm::{Accumulate, GemmWorkspace, PackedB, gemm, gemm_over_leaves};
use super::isa::{REDUCTION_LANES, max_lanes, simd_fn, sum_lanes};
use super::math::{exp, tanh};
use super::matrix::{MatMut, MatRef};
use super::pool::{rows, rows_mut};
use super::{Context, elementwise};

/// Words per block. Part of the numerics, because it divides sums over the vocabulary.
pub const VOCABULARY_BLOCK: usize = 2048;

/// Rows per work item.
const GRAIN_ROWS: usize = 16;

/// A linear layer to the vocabulary: logits = x·Wᵀ + bias.
#[derive(Clone, Copy, Debug)]
pub struct Classifier<'a> {
    /// W, vocabulary x hidden.
    pub weights: &'a [f32],
    /// Number of words.
    pub vocabulary: usize,
    /// Elements of a token's vector.
    pub hidden: usize,
    /// One value for each word.
    pub bias: Option<&'a [f32]>,
    /// Bound of the logits: a logit l becomes `softcap` tanh(l / `softcap`).
    pub softcap: Option<f32>,
}

/// The tokens that the classifier predicts, and their labels.
#[derive(Clone, Copy, Debug)]
pub struct ClassifierInput<'a> {
    /// Activations, tokens x hidden.
    pub x: &'a [f32],
    /// One per token; tokens with a negative label are skipped.
    pub labels: &'a [i32],
}

/// Sums over the tokens of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSums {
    /// Sum of the losses, added in f64 in the order of the tokens.
    pub loss: f64,
    /// Tokens that count.
    pub tokens: u64,
    /// Number of tokens whose label has the highest logit.
    pub correct: u64,
}

impl std::ops::AddAssign for LossSums {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.tokens += other.tokens;
        self.correct += other.correct;
    }
}

/// What [`forward`] computed, for [`backward`].
#[derive(Clone, Copy, Debug)]
pub struct SavedLosses<'a> {
    /// ln Σ exp(logit) of each token.
    pub lse: &'a [f32],
    /// All logits, if they were kept.
    pub logits: Option<&'a [f32]>,
}

/// Destinations of the gradients.
#[derive(Debug)]
pub struct LossGradients<'a> {
    /// Gradient of x, tokens x hidden; `None` if not required.
    pub dx: Option<&'a mut [f32]>,
    /// Gradient of W, vocabulary x hidden; `None` if not required.
    pub dweights: Option<&'a mut [f32]>,
    /// Gradient of the bias.
    pub dbias: Option<&'a mut [f32]>,
    /// Number of leaves. The gradients of W and of the bias are summed along their tree.
    pub leaves: usize,
    /// Whether `dweights` and `dbias` are stored or accumulated; `dx` is always stored.
    pub accumulate: Accumulate,
    /// Factor of all gradients.
    pub factor: f32,
}

/// Scratch memory; grows to the largest use and is then reused.
#[derive(Debug, Default)]
pub struct LossWorkspace {
    tokens: Vec<TokenState>,
    packed_x: PackedB,
    gemm: GemmWorkspace,
}

impl LossWorkspace {
    /// An empty one.
    pub fn new() -> Self {
        LossWorkspace::default()
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        let tokens = self.tokens.capacity() * size_of::<TokenState>();
        tokens + self.packed_x.bytes() + self.gemm.bytes()
    }
}

/// Running values of a token over the blocks.
#[derive(Clone, Copy, Debug)]
struct TokenState {
    max: f32,
    sum: f32,
    label_logit: f32,
}

/// Returns position and value of the first label that is neither negative nor a word.
pub fn check_labels(labels: &[i32], vocabulary: usize) -> Result<(), (usize, i32)> {
    let is_outside = |label: &i32| usize::try_from(*label).is_ok_and(|label| label >= vocabulary);
    labels.iter().position(is_outside).map_or(Ok(()), |position| Err((position, labels[position])))
}

/// Returns the number of elements that the logits of `tokens` tokens need.
pub fn logits_len(tokens: usize, vocabulary: usize) -> usize {
    tokens * vocabulary.min(VOCABULARY_BLOCK)
}

/// Computes the losses of the tokens. `lse` receives ln Σ exp(logit) of each token for [`backward`]. `logits` is memory
/// of [`logits_len`] elements, or of tokens x vocabulary to keep all logits for [`backward`], block after block. `sums`
/// receives the sums of each leaf; leaves have equal numbers of tokens.
///
/// # Panics
/// If lengths do not match or a label is not a word (see [`check_labels`]).
pub fn forward(
    cx: Context<'_>,
    classifier: &Classifier<'_>,
    ClassifierInput { x, labels }: ClassifierInput<'_>,
    lse: &mut [f32],
    logits: &mut [f32],
    sums: &mut [LossSums],
    workspace: &mut LossWorkspace,
) {
    classifier.check(x, labels);
    assert!(labels.len().is_multiple_of(sums.len()));
    assert_eq!(lse.len(), labels.len());
    let LossWorkspace { tokens, gemm, .. } = workspace;
    begin(tokens, labels.len());
    let keeps_logits = logits.len() == labels.len() * classifier.vocabulary;
    for block in classifier.blocks() {
        let width = block.len();
        let start = if keeps_logits { labels.len() * block.start } else { 0 };
        let logits = classifier.logits(cx, x, labels.len(), block.clone(), &mut logits[start..], gemm);
        let data = (rows(logits, width), rows(labels, 1), rows_mut(tokens, 1));
        cx.pool.for_each_rows(labels.len(), GRAIN_ROWS, data, |_, (logits, labels, tokens)| {
            advance(cx.simd, logits.data, width, block.start, labels.data, tokens.data);
        });
    }
    let leaf = (labels.len() / sums.len()).max(1);
    let leaves = tokens.chunks(leaf).zip(labels.chunks(leaf)).zip(lse.chunks_mut(leaf));
    for (sums, ((tokens, labels), lse)) in sums.iter_mut().zip(leaves) {
        *sums = finish(tokens, labels, lse);
    }
}

/// Prepares the running values of `count` tokens.
fn begin(tokens: &mut Vec<TokenState>, count: usize) {
    tokens.clear();
    tokens.resize(count, TokenState { max: f32::NEG_INFINITY, sum: 0.0, label_logit: 0.0 });
}

/// Returns the sums over the tokens, and writes ln Σ exp(logit) of each to `lse`.
fn finish(tokens: &[TokenState], labels: &[i32], lse: &mut [f32]) -> LossSums {
    let mut sums = LossSums::default();
    for ((token, label), lse) in tokens.iter().zip(labels).zip(lse) {
        let log_sum = f64::from(token.max) + libm::log(f64::from(token.sum));
        *lse = log_sum as f32;
        if *label >= 0 {
            sums.loss += log_sum - f64::from(token.label_logit);
            sums.tokens += 1;
            sums.correct += u64::from(token.label_logit >= token.max);
        }
    }
    sums
}

/// Computes the gradients of the sum of losses, times a factor, from what [`forward`] saved. `logits` is memory of
/// [`logits_len`] elements.
///
/// # Panics
/// If lengths do not match or a label is not a word.
pub fn backward(
    cx: Context<'_>,
    classifier: &Classifier<'_>,
    ClassifierInput { x, labels }: ClassifierInput<'_>,
    saved: SavedLosses<'_>,
    gradients: LossGradients<'_>,
    logits: &mut [f32],
    workspace: &mut LossWorkspace,
) {
    classifier.check(x, labels);
    let LossGradients { mut dx, mut dweights, mut dbias, leaves, accumulate, factor } = gradients;
    let (count, hidden) = (labels.len(), classifier.hidden);
    let lse = saved.lse;
    assert_eq!(lse.len(), count);
    assert!(saved.logits.is_none_or(|logits| logits.len() == count * classifier.vocabulary));
    assert!(dx.as_ref().is_none_or(|dx| dx.len() == x.len()));
    assert!(dweights.as_ref().is_none_or(|d| d.len() == classifier.weights.len()));
    assert!(dbias.as_ref().is_none_or(|d| d.len() == classifier.vocabulary));
    let LossWorkspace { packed_x, gemm: scratch, .. } = workspace;
    if dweights.is_some() {
        packed_x.pack_for_leaves(cx, MatRef::row_major(x, count, hidden), leaves);
    }
    let mut dx_mode = Accumulate::Store;
    for block in classifier.blocks().rev() {
        let width = block.len();
        let errors = match saved.logits {
            Some(saved) => {
                let errors = &mut logits[..count * width];
                errors.copy_from_slice(&saved[count * block.start..count * block.end]);
                errors
            }
            None => classifier.logits(cx, x, count, block.clone(), logits, scratch),
        };
        let data = (rows_mut(errors, width), rows(labels, 1), rows(lse, 1));
        cx.pool.for_each_rows(count, GRAIN_ROWS, data, |_, (errors, labels, lse)| match classifier.softcap {
            None => {
                logits_to_gradients(cx.simd, errors.data, width, block.start, labels.data, lse.data, factor);
            }
            Some(cap) => {
                let scales = (factor, 1.0 / cap);
                capped_to_gradients(cx.simd, errors.data, width, block.start, labels.data, lse.data, scales);
            }
        });
        let errors = MatRef::row_major(errors, count, width);
        if let Some(dx) = &mut dx {
            let weights = &classifier.weights[block.start * hidden..block.end * hidden];
            let weights = MatRef::row_major(weights, width, hidden);
            gemm(cx, errors, weights, MatMut::row_major(dx, count, hidden), dx_mode, None, scratch);
            dx_mode = Accumulate::Add;
        }
        if let Some(dweights) = &mut dweights {
            let dweights = &mut dweights[block.start * hidden..block.end * hidden];
            let dweights = MatMut::row_major(dweights, width, hidden);
            gemm_over_leaves(cx, errors.t(), &*packed_x, leaves, dweights, accumulate, scratch);
        }
        if let Some(dbias) = &mut dbias {
            let add = accumulate == Accumulate::Add;
            let (errors, dbias) = (errors.data(), rows_mut(&mut dbias[block.clone()], 1));
            cx.pool.for_each_rows(width, 256, dbias, |first, dbias| {
                elementwise::column_sums(cx.simd, errors, width, leaves, first, dbias.data, add);
            });
        }
    }
}

impl Classifier<'_> {
    fn check(&self, x: &[f32], labels: &[i32]) {
        assert_eq!(self.weights.len(), self.vocabulary * self.hidden);
        assert_eq!(x.len(), labels.len() * self.hidden);
        assert!(self.bias.is_none_or(|bias| bias.len() == self.vocabulary));
        assert_eq!(check_labels(labels, self.vocabulary), Ok(()), "a label is outside the vocabulary");
    }

    fn blocks(&self) -> impl DoubleEndedIterator<Item = std::ops::Range<usize>> {
        let vocabulary = self.vocabulary;
        (0..vocabulary).step_by(VOCABULARY_BLOCK).map(move |start| start..(start + VOCABULARY_BLOCK).min(vocabulary))
    }

    /// Computes the logits of the words of `block` for all tokens, at the beginning of `logits`.
    fn logits<'l>(
        &self,
        cx: Context<'_>,
        x: &[f32],
        tokens: usize,
        block: std::ops::Range<usize>,
        logits: &'l mut [f32],
        workspace: &mut GemmWorkspace,
    ) -> &'l mut [f32] {
        let width = block.len();
        let logits = &mut logits[..tokens * width];
        let weights =
            MatRef::row_major(&self.weights[block.start * self.hidden..block.end * self.hidden], width, self.hidden);
        let (x, c) = (MatRef::row_major(x, tokens, self.hidden), MatMut::row_major(logits, tokens, width));
        gemm(cx, x, weights.t(), c, Accumulate::Store, self.bias.map(|bias| &bias[block]), workspace);
        if let Some(cap) = self.softcap {
            cx.pool.for_each_rows(tokens, GRAIN_ROWS, rows_mut(logits, width), |_, logits| {
                soft_cap(cx.simd, logits.data, cap);
            });
        }
        logits
    }
}

/// Returns the column of a label in the block of `width` words that begins at `first`.
#[inline(always)]
fn label_column(label: i32, first: usize, width: usize) -> Option<usize> {
    usize::try_from(label).ok().and_then(|label| label.checked_sub(first)).filter(|column| *column < width)
}

simd_fn! {
    /// Updates the running maxima and sums with the logits of a block.
    fn advance(logits: &[f32], width: usize, first: usize, labels: &[i32], tokens: &mut [TokenState]) {
        for ((row, label), token) in logits.chunks_exact(width).zip(labels).zip(tokens) {
            if let Some(column) = label_column(*label, first, width) {
                token.label_logit = row[column];
            }
            let (vectors, rest) = row.as_chunks::<REDUCTION_LANES>();
            let mut highest = [token.max; REDUCTION_LANES];
            for vector in vectors {
                for (highest, x) in highest.iter_mut().zip(vector) {
                    *highest = if *x > *highest { *x } else { *highest };
                }
            }
            let max = rest.iter().fold(max_lanes(highest), |max, x| if *x > max { *x } else { max });
            let mut sums = [0.0f32; REDUCTION_LANES];
            for vector in vectors {
                for (sum, x) in sums.iter_mut().zip(vector) {
                    *sum += exp(x - max);
                }
            }
            for (sum, x) in sums.iter_mut().zip(rest) {
                *sum += exp(x - max);
            }
            token.sum = token.sum.mul_add(exp(token.max - max), sum_lanes(sums));
            token.max = max;
        }
    }
}

simd_fn! {
    /// Replaces logits by the gradient of the sum of losses with respect to them, times `factor`: probabilities, minus
    /// one at the label; zero for a skipped token.
    fn logits_to_gradients(
        logits: &mut [f32],
        width: usize,
        first: usize,
        labels: &[i32],
        lse: &[f32],
        factor: f32,
    ) {
        for ((row, label), lse) in logits.chunks_exact_mut(width).zip(labels).zip(lse) {
            if *label < 0 {
                row.fill(0.0);
                continue;
            }
            for x in row.iter_mut() {
                *x = exp(*x - lse);
            }
            if let Some(column) = label_column(*label, first, width) {
                row[column] -= 1.0;
            }
            if factor != 1.0 {
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }
}

simd_fn! {
    fn soft_cap(logits: &mut [f32], cap: f32) {
        let inverse = 1.0 / cap;
        logits.iter_mut().for_each(|x| *x = cap * tanh(*x * inverse));
    }
}

simd_fn! {
    /// As `logits_to_gradients`, for soft-capped logits. `scales` are the factor and one over the cap.
    fn capped_to_gradients(
        logits: &mut [f32],
        width: usize,
        first: usize,
        labels: &[i32],
        lse: &[f32],
        scales: (f32, f32),
    ) {
        let (factor, inverse) = scales;
        for ((row, label), lse) in logits.chunks_exact_mut(width).zip(labels).zip(lse) {
            if *label < 0 {
                row.fill(0.0);
                continue;
            }
            let slope = |x: f32| (x * inverse).mul_add(-(x * inverse), 1.0) * factor;
            let label = label_column(*label, first, width).map(|column| (column, row[column]));
            row.iter_mut().for_each(|x| *x = exp(*x - lse) * slope(*x));
            if let Some((column, logit)) = label {
                row[column] = (exp(logit - lse) - 1.0) * slope(logit);
            }
        }
    }
}

#[cfg(test)]
mod tests;
