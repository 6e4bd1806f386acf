//! Token and position embeddings.
//!
//! Token numbers come from data. Check them with [`check_tokens`] where data enters; the kernels panic on a token
//! outside of the table.

use super::isa::simd_fn;

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
    /// `dtable[tokens[t]] += dy[t]`, tokens in ascending order. `dtable` holds columns `first ..` of the table's
    /// gradient as rows of `columns` elements, so that columns may be distributed over threads; `dy` has rows of
    /// `width`.
    ///
    /// # Panics
    /// If a token is no row of the table, or lengths do not match.
    #[allow(clippy::expect_used, reason = "tokens are checked against the vocabulary before")]
    pub fn scatter_add(dy: &[f32], width: usize, tokens: &[i32], first: usize, columns: usize, dtable: &mut [f32]) {
        assert!(dy.len() == tokens.len() * width && first + columns <= width);
        for (&token, dy) in tokens.iter().zip(dy.chunks_exact(width.max(1))) {
            let start = usize::try_from(token).expect("a token is not negative") * columns;
            for (d, dy) in dtable[start..start + columns].iter_mut().zip(&dy[first..]) {
                *d += dy;
            }
        }
    }
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
            scatter_add(simd, &dy, width, &tokens, 0, width, &mut dtable);
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
        // Columns in two calls, as two threads would do it.
        let mut part = vec![0.5; vocabulary * 9];
        scatter_add(crate::kernels::Simd::detect(), &dy, width, &tokens, 10, 9, &mut part);
        for (part, expected) in part.chunks(9).zip(dtable.chunks(width)) {
            assert_eq!(part, &expected[10..]);
        }
    }

    #[test]
    fn tokens_outside_are_found() {
        assert_eq!(check_tokens(&[0, 6], 7), Ok(()));
        assert_eq!(check_tokens(&[0, 7, -1], 7), Err((1, 7)));
        assert_eq!(check_tokens(&[0, -1], 7), Err((1, -1)));
    }
}
