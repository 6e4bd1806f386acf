//! Token and position embeddings.
//!
//! Token numbers come from data. Check them with [`check_tokens`] where data enters; the kernels panic on a token
//! outside of the table.

use super::isa::simd_fn;
use super::strip_sums::{STRIP, StripSums};
use crate::tree::Node;

/// Returns the position and value of the first token outside of a table of `vocabulary` rows.
pub fn check_tokens(tokens: &[i32], vocabulary: usize) -> Result<(), (usize, i32)> {
    let is_outside = |token: &i32| usize::try_from(*token).map_or(true, |token| token >= vocabulary);
    tokens.iter().position(is_outside).map_or(Ok(()), |position| Err((position, tokens[position])))
}

simd_fn! {
    /// `out[t] = table[tokens[t]]` for rows of `width` elements.
    ///
    /// # Panics
    /// If a token is no row of the table, or lengths do not match.
    pub fn gather(table: &[f32], width: usize, tokens: &[i32], out: &mut [f32]) {
        assert_eq!(out.len(), tokens.len() * width);
        for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(width.max(1))) {
            out.copy_from_slice(row(table, width, token));
        }
    }
}

simd_fn! {
    /// `dtable[tokens[t]] += dy[t]`, tokens in ascending order, for rows of `width` elements.
    ///
    /// # Panics
    /// If a token is no row of the table, or lengths do not match.
    #[allow(clippy::expect_used, reason = "tokens are checked against the vocabulary before")]
    pub fn scatter_add(dy: &[f32], width: usize, tokens: &[i32], dtable: &mut [f32]) {
        assert_eq!(dy.len(), tokens.len() * width);
        for (&token, dy) in tokens.iter().zip(dy.chunks_exact(width.max(1))) {
            let start = usize::try_from(token).expect("a token is not negative") * width;
            for (d, dy) in dtable[start..start + width].iter_mut().zip(dy) {
                *d += dy;
            }
        }
    }
}

/// A row of the table, and a position where its token stands.
pub type TokenPosition = (u32, u32);

/// Rows of a gradient to be added to rows of a table's gradient, see [`sort_tokens`].
#[derive(Clone, Copy, Debug)]
pub struct ScatterRows<'a> {
    /// The gradient: a row of `width` elements for each position.
    pub dy: &'a [f32],
    /// Elements of a row.
    pub width: usize,
    /// All positions by token, those of a token in ascending order.
    pub order: &'a [TokenPosition],
    /// Number of leaves, which have equal numbers of positions.
    pub leaves: usize,
}

/// Writes the positions of `tokens` to `order`, by token.
///
/// # Panics
/// If a token is negative.
#[allow(clippy::expect_used, reason = "tokens are checked against the vocabulary before")]
pub fn sort_tokens(tokens: &[i32], order: &mut Vec<TokenPosition>) {
    order.clear();
    let token = |token: &i32| u32::try_from(*token).expect("a token is not negative");
    order.extend(tokens.iter().map(token).zip(0..));
    order.sort_unstable();
}

simd_fn! {
    /// Adds to rows `first ..` of a table's gradient (or stores in them, if not `accumulate`) the sums of the rows of
    /// `dy` at the positions of each token: those of a leaf in ascending order to zero, the sums of leaves along their
    /// tree, and the total to the previous content. Rows may be distributed over threads.
    ///
    /// # Panics
    /// If lengths do not match, or there are more than [`crate::tree::MAX_BLOCK_LEAVES`] leaves.
    pub fn scatter(rows: ScatterRows<'_>, first: usize, dtable: &mut [f32], accumulate: bool) {
        let ScatterRows { width, order, .. } = rows;
        if !accumulate {
            dtable.fill(0.0);
        }
        let last = first + dtable.len() / width.max(1);
        let begin = order.partition_point(|(token, _)| (*token as usize) < first);
        let end = order.partition_point(|(token, _)| (*token as usize) < last);
        for of_token in order[begin..end].chunk_by(|(a, _), (b, _)| a == b) {
            let start = (of_token[0].0 as usize - first) * width;
            for (strip, dtable) in dtable[start..start + width].chunks_mut(STRIP).enumerate() {
                let sum = sum_of_token(rows, of_token, strip * STRIP, dtable.len());
                for (d, sum) in dtable.iter_mut().zip(sum) {
                    *d = if accumulate { *d + sum } else { sum };
                }
            }
        }
    }
}

/// Returns the sum over `positions`, all of one token, of `columns` elements of `dy` from `begin` on. A leaf without
/// the token adds zero, which changes nothing, because no sum that begins with +0 is -0.
#[inline(always)]
fn sum_of_token(
    ScatterRows { dy, width, leaves, .. }: ScatterRows<'_>,
    mut positions: &[TokenPosition],
    begin: usize,
    columns: usize,
) -> [f32; STRIP] {
    let leaf_positions = dy.len() / width.max(1) / leaves;
    let tree = Node::new(0, leaves as u32);
    let mut of_leaves = StripSums::new();
    for leaf in 0..leaves {
        let mut of_leaf = [0.0; STRIP];
        while let Some(((_, position), rest)) = positions.split_first()
            && (*position as usize) < (leaf + 1) * leaf_positions
        {
            let dy = &dy[*position as usize * width + begin..][..columns];
            of_leaf.iter_mut().zip(dy).for_each(|(sum, dy)| *sum += dy);
            positions = rest;
        }
        of_leaves.push(of_leaf, tree.joins_after(leaf as u32));
    }
    of_leaves.total()
}

simd_fn! {
    /// `out[t] = table[tokens[t]] + positions[t % length]`, for samples of `length` tokens one after the other.
    ///
    /// # Panics
    /// If a token is no row of the table, or lengths do not match.
    pub fn gather_with_positions(
        table: &[f32],
        positions: &[f32],
        width: usize,
        tokens: &[i32],
        length: usize,
        out: &mut [f32],
    ) {
        assert!(out.len() == tokens.len() * width && positions.len() >= length.min(tokens.len()) * width);
        for (t, (&token, out)) in tokens.iter().zip(out.chunks_exact_mut(width.max(1))).enumerate() {
            let position = t % length * width;
            let rows = row(table, width, token).iter().zip(&positions[position..position + width]);
            for (out, (token, position)) in out.iter_mut().zip(rows) {
                *out = token + position;
            }
        }
    }
}

simd_fn! {
    /// `dpositions[p]` += Σ over samples of `dy[sample, p]`: samples are added in ascending order to zero, and the
    /// total to the previous content (or stored, if not `accumulate`).
    ///
    /// # Panics
    /// If `dy` is not whole samples of `dpositions.len()` elements.
    pub fn position_backward(dy: &[f32], dpositions: &mut [f32], accumulate: bool) {
        let sample = dpositions.len();
        assert_eq!(dy.len() % sample.max(1), 0);
        for (i, d) in dpositions.iter_mut().enumerate() {
            let mut total = 0.0;
            for dy in dy[i..].iter().step_by(sample) {
                total += dy;
            }
            *d = if accumulate { *d + total } else { total };
        }
    }
}

#[inline(always)]
#[allow(clippy::expect_used, reason = "tokens are checked against the vocabulary before")]
fn row(table: &[f32], width: usize, token: i32) -> &[f32] {
    let token = usize::try_from(token).expect("a token is not negative");
    &table[token * width..(token + 1) * width]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{every_simd, uniform};

    #[test]
    fn rows_are_gathered_and_gradients_return_to_them_in_order() {
        let (vocabulary, width, length) = (7, 19, 4);
        let tokens = [3, 0, 3, 6, 6, 6, 1, 3];
        let (table, positions) = (uniform(vocabulary * width, -1.0, 1.0, 1), uniform(length * width, -1.0, 1.0, 2));
        let dy = uniform(tokens.len() * width, -1.0, 1.0, 3);
        let [plain, placed, dtable, dpositions] = every_simd(|simd| {
            let [mut plain, mut placed] = [vec![0.0; dy.len()], vec![0.0; dy.len()]];
            let [mut dtable, mut dpositions] = [vec![0.5; table.len()], vec![0.5; positions.len()]];
            gather(simd, &table, width, &tokens, &mut plain);
            gather_with_positions(simd, &table, &positions, width, &tokens, length, &mut placed);
            scatter_add(simd, &dy, width, &tokens, &mut dtable);
            position_backward(simd, &dy, &mut dpositions, true);
            [plain, placed, dtable, dpositions]
        });
        let mut expected = vec![0.5; table.len()];
        for (t, token) in tokens.iter().enumerate() {
            for c in 0..width {
                let value = table[*token as usize * width + c];
                assert_eq!(plain[t * width + c], value);
                assert_eq!(placed[t * width + c], value + positions[t % length * width + c]);
                expected[*token as usize * width + c] += dy[t * width + c];
            }
        }
        assert_eq!(dtable, expected);
        for (i, d) in dpositions.iter().enumerate() {
            assert_eq!(*d, 0.5 + (dy[i] + dy[length * width + i]));
        }
    }

    #[test]
    fn rows_of_leaves_are_added_along_the_tree() {
        let (vocabulary, width, leaves) = (7, 150, 3);
        let tokens = [3, 0, 3, 3, 6, 6, 6, 1, 3];
        let dy = uniform(tokens.len() * width, -1.0, 1.0, 3);
        let mut order = vec![(9, 9)];
        sort_tokens(&tokens, &mut order);
        for accumulate in [false, true] {
            let former = uniform(vocabulary * width, -1.0, 1.0, 4);
            let found = every_simd(|simd| {
                let rows = ScatterRows { dy: &dy, width, order: &order, leaves };
                let mut table = former.clone();
                // In two calls, as two threads would do it.
                let (head, tail) = table.split_at_mut(4 * width);
                scatter(simd, rows, 0, head, accumulate);
                scatter(simd, rows, 4, tail, accumulate);
                table
            });
            let of_leaf = |leaf: usize| {
                let mut table = vec![0.0; vocabulary * width];
                let (tokens, dy) = (&tokens[leaf * 3..][..3], &dy[leaf * 3 * width..][..3 * width]);
                scatter_add(crate::kernels::Simd::detect(), dy, width, tokens, &mut table);
                table
            };
            let [a, b, c] = [0, 1, 2].map(of_leaf);
            for (i, found) in found.iter().enumerate() {
                let sum = a[i] + (b[i] + c[i]);
                assert_eq!(*found, if accumulate { former[i] + sum } else { sum });
            }
        }
    }

    #[test]
    fn tokens_outside_are_found() {
        assert_eq!(check_tokens(&[0, 6], 7), Ok(()));
        assert_eq!(check_tokens(&[0, 7, -1], 7), Err((1, 7)));
        assert_eq!(check_tokens(&[0, -1], 7), Err((1, -1)));
    }
}
