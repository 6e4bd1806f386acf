//! Attention without a T x T matrix in memory, causal or not: multi-head, grouped-query and multi-query, with a sliding
//! window and sinks, linear or trained biases, soft-capped scores, spans and a mask of keys, and keys of another
//! sequence.
//!
//! Scores are computed by blocks of 96 queries and 384 keys (constants: part of the numerics) with a running maximum
//! and sum (online softmax). Forward saves the output and, for each row, the logarithm of the sum of exponentials;
//! backward recomputes the probabilities from those. With causal attention, blocks and kernel tiles above the
//! diagonal are skipped.
//!
//! Pairs of (sample, query head) are distributed over the threads. Within a pair the order is fixed: key blocks in
//! ascending order, and within each the query blocks in ascending order (forward: the other way round). Gradients of
//! keys and values that several query heads share are computed for each query head, then summed in ascending order.
//!
//! Dropout on probabilities is keyed by (sample key, head, query, key), see [`AttentionParams::sample_keys`].

mod backward;
mod block;
mod forward;
mod relative;
mod scores;

pub use backward::backward;
pub use forward::{forward, forward_rows};
pub use relative::RelativeBias;
pub use scores::alibi_slope;

use super::buffer::Buffer;
use super::matrix::{MatMut, MatPtr, MatRef};
use crate::numerics::GEMM_INNER_BLOCK;
use crate::numerics::random::{DropoutMask, subkey};

/// Queries per block: a multiple of the rows of every kernel.
const QUERY_BLOCK: usize = 96;
/// Keys per block: a multiple of the columns of every kernel, and of [`QUERY_BLOCK`]. Part of the numerics, because the
/// running sum is rescaled once per block.
const KEY_BLOCK: usize = 384;

/// Parameters of an attention operation.
#[derive(Clone, Copy, Debug)]
pub struct AttentionParams<'a> {
    /// Number of samples.
    pub samples: usize,
    /// Tokens of a sample that are queries, T.
    pub tokens: usize,
    /// Tokens of a sample that are keys; T if attention is causal.
    pub key_tokens: usize,
    /// Number of heads of queries.
    pub heads: usize,
    /// Number of heads of keys and values; divides `heads`. Adjacent heads of queries share one.
    pub key_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the scores, usually 1/√head_dim.
    pub scale: f32,
    /// Whether a query attends only to itself and the tokens before it.
    pub causal: bool,
    /// Number of tokens that a query attends to, itself included; `None` for all before it. Causal attention only.
    pub window: Option<usize>,
    /// Number of first tokens that every later query attends to besides the window. Only with a window.
    pub sinks: usize,
    /// Whether a score is decreased in proportion to the distance of query and key (ALiBi), see [`alibi_slope`]. Causal
    /// attention only.
    pub alibi: bool,
    /// Bound of the scores: a score s becomes `softcap` tanh(s / `softcap`). Not with biases.
    pub softcap: Option<f32>,
    /// Trained bias of the scores, by distance. Each head of queries has its own keys.
    pub relative: Option<RelativeBias<'a>>,
    /// One integer for each key token of each sample; no query attends to a token whose integer is 0. The output of a
    /// query that attends to no token is 0. `None` for no such token.
    pub key_mask: Option<&'a [i32]>,
    /// One integer for each token of each sample: the number of later queries that attend to it, so that sequences in
    /// one sample do not see each other. `None` for all later ones. If attention is not causal, `earlier` is given,
    /// too.
    pub spans: Option<&'a [i32]>,
    /// Likewise, the number of earlier queries that attend to a token. `None` for all earlier ones, or if it is causal.
    pub earlier: Option<&'a [i32]>,
    /// Dropout on the probabilities.
    pub dropout: Option<DropoutMask>,
    /// With dropout: one key for each sample, from (seed, sample number, layer).
    pub sample_keys: &'a [u64],
}

/// Layout of queries, keys and values: row t begins at `t * row_stride`; within a row, queries begin at `q`, keys at
/// `k` and values at `v`, each as long as its heads together. Three separate matrices in one slice can be described
/// as well: `row_stride` is then their width, and the offsets their first elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkvLayout {
    /// Distance between rows of queries.
    pub row_stride: usize,
    /// Distance between rows of keys and values.
    pub key_stride: usize,
    /// Offset of the queries.
    pub q: usize,
    /// Offset of the keys.
    pub k: usize,
    /// Offset of the values.
    pub v: usize,
}

impl QkvLayout {
    /// Creates the layout of rows of queries, keys, values.
    pub const fn packed(attention: &AttentionParams<'_>) -> Self {
        let (hidden, keys) = (attention.heads * attention.head_dim, attention.key_heads * attention.head_dim);
        let row_stride = hidden + 2 * keys;
        QkvLayout { row_stride, key_stride: row_stride, q: 0, k: hidden, v: hidden + keys }
    }

    /// Creates the layout of rows of queries, and other rows of keys, values.
    pub const fn separate(attention: &AttentionParams<'_>) -> Self {
        let (hidden, keys) = (attention.heads * attention.head_dim, attention.key_heads * attention.head_dim);
        QkvLayout { row_stride: hidden, key_stride: 2 * keys, q: 0, k: 0, v: keys }
    }
}

impl AttentionParams<'_> {
    /// Elements of a row of the output, heads x head_dim.
    pub fn hidden(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Rows of the output, samples x tokens.
    pub fn rows(&self) -> usize {
        self.samples * self.tokens
    }

    /// Values saved from forward to backward, besides the output: samples x heads x tokens, in this order.
    pub fn saved_len(&self) -> usize {
        self.samples * self.heads * self.tokens
    }

    /// Elements that [`backward()`] needs: for the gradients of keys and values before query heads are summed, unless
    /// each query head has its own, or for the gradients of trained biases before samples are summed.
    pub fn partial_len(&self) -> usize {
        let biases = self.relative.map_or(0, |relative| self.samples * self.heads * relative.buckets);
        if self.key_heads == self.heads { biases } else { 2 * self.samples * self.key_tokens * self.hidden() }
    }

    /// Returns the number of query heads that share a head of keys and values.
    fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    fn check(&self) {
        assert!(self.key_heads > 0 && self.heads.is_multiple_of(self.key_heads), "{} key heads", self.key_heads);
        assert!(self.head_dim <= GEMM_INNER_BLOCK, "a head of {} elements", self.head_dim);
        assert!(self.dropout.is_none() || self.sample_keys.len() == self.samples, "one dropout key for each sample");
        assert!(self.causal || (self.window.is_none() && !self.alibi), "windows and ALiBi are causal");
        let is_earlier_bounded = self.spans.is_some() && !self.causal;
        assert!(self.earlier.is_some() == is_earlier_bounded, "tokens of a sequence are bounded on both sides");
        assert!(!is_earlier_bounded || self.key_tokens == self.tokens, "spans are those of the own sequence");
        assert!(!self.causal || self.key_tokens == self.tokens, "causal attention is that of one sequence");
        assert!(self.softcap.is_none() || (self.relative.is_none() && !self.alibi), "soft-capping excludes biases");
        assert!(self.relative.is_none() || self.key_heads == self.heads, "biases are those of heads with own keys");
        let keys = self.samples * self.key_tokens;
        let fits = |integers: Option<&[i32]>| integers.is_none_or(|integers| integers.len() == keys);
        assert!([self.key_mask, self.spans, self.earlier].into_iter().all(fits), "one integer for each token");
    }

    /// Returns the key of a head's dropout. The key of query i is `subkey(_, i)`, and the elements are the indices of
    /// keys.
    fn head_dropout(&self, pair: usize) -> Option<(DropoutMask, u64)> {
        let (sample, head) = (pair / self.heads, pair % self.heads);
        self.dropout.filter(|d| !d.is_off()).map(|dropout| (dropout, subkey(self.sample_keys[sample], head as u64)))
    }

    /// Tokens x head_dim of the query head of pair `pair` in rows of `row_stride` that begin at `offset`.
    fn head<'d>(&self, data: &'d [f32], row_stride: usize, offset: usize, pair: usize) -> MatRef<'d> {
        let (sample, head) = (pair / self.heads, pair % self.heads);
        let first = sample * self.tokens * row_stride + offset + head * self.head_dim;
        MatRef::new(&data[first..], self.tokens, self.head_dim, row_stride, 1)
    }

    /// Key tokens x head_dim of the keys or values of pair `pair`, which begin at `offset`.
    fn key_head<'d>(&self, data: &'d [f32], row_stride: usize, offset: usize, pair: usize) -> MatRef<'d> {
        let (sample, head) = (pair / self.heads, pair % self.heads / self.group());
        let first = sample * self.key_tokens * row_stride + offset + head * self.head_dim;
        MatRef::new(&data[first..], self.key_tokens, self.head_dim, row_stride, 1)
    }
}

/// Queries, keys and values.
#[derive(Clone, Copy, Debug)]
pub struct Qkv<'a> {
    /// Memory of the queries.
    pub queries: &'a [f32],
    /// Memory of the keys and values; may be that of the queries.
    pub keys: &'a [f32],
    /// Where each begins.
    pub layout: QkvLayout,
}

impl<'a> Qkv<'a> {
    /// Returns the parts of rows of queries, keys, values.
    pub const fn packed(attention: &AttentionParams<'_>, qkv: &'a [f32]) -> Self {
        Self { queries: qkv, keys: qkv, layout: QkvLayout::packed(attention) }
    }
}

/// Destination of the gradients of queries, keys and values, with the layout of the [`Qkv`].
#[derive(Debug)]
pub enum QkvGradient<'a> {
    /// Queries, keys and values are in the same memory.
    Together(&'a mut [f32]),
    /// Keys and values are in memory of their own.
    Separate {
        /// Of the queries.
        queries: &'a mut [f32],
        /// Of keys and values.
        keys: &'a mut [f32],
    },
}

/// Scratch memory of [`forward()`] and [`backward()`]; grows to the largest use and stays.
#[derive(Debug, Default)]
pub struct AttentionWorkspace {
    heads: Vec<HeadScratch>,
}

impl AttentionWorkspace {
    /// An empty one.
    pub fn new() -> Self {
        AttentionWorkspace::default()
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        let buffers = |h: &HeadScratch| {
            let all = h.buffers.iter().chain([&h.biases, &h.bias_gradients]);
            all.map(Buffer::bytes).sum::<usize>()
        };
        self.heads.iter().map(buffers).sum()
    }

    fn for_threads(&mut self, threads: usize) -> &mut [HeadScratch] {
        if self.heads.len() < threads {
            self.heads.resize_with(threads, HeadScratch::default);
        }
        &mut self.heads
    }
}

/// Buffers of one thread, used differently by forward and backward pass.
#[derive(Debug, Default)]
struct HeadScratch {
    buffers: [Buffer; 13],
    /// Biases by distance, and their gradients.
    biases: Buffer,
    bias_gradients: Buffer,
}

/// A matrix to whose rows several threads write, each to its own columns.
#[derive(Clone, Copy)]
struct SharedRows {
    target: MatPtr,
    rows: usize,
    cols: usize,
}

impl SharedRows {
    fn new(data: &mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        let mut matrix = MatMut::new(data, rows, cols, row_stride);
        SharedRows { target: matrix.target(), rows, cols }
    }

    /// Returns part of a row.
    ///
    /// # Safety
    /// No other reference to that part exists while the slice lives, and the matrix outlives it.
    #[allow(clippy::mut_from_ref)]
    unsafe fn segment(&self, row: usize, first: usize, len: usize) -> &mut [f32] {
        assert!(row < self.rows && first + len <= self.cols);
        // SAFETY: inside the matrix by the assertion; exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.target.at(row, first), len) }
    }
}

#[cfg(test)]
mod tests;
