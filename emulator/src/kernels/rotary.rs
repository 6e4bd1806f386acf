//! Rotary position embedding: pairs of a head's elements are rotated by an angle that grows with the position.
//!
//! Pair i of the row at position p is rotated by p · frequency(i). The gradient is rotated back. Angles are computed in
//! f64 with the functions of `libm`, so they are the same on every machine, and rounded to f32 once.
//! Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

use super::isa::{Simd, simd_fn};

/// Which elements of a head form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// Element i and element i + n/2 of n rotated elements (GPT-NeoX, LLaMA).
    Halves,
    /// Elements 2i and 2i + 1 (GPT-J).
    Adjacent,
}

/// Cosines and sines of every position and pair. Grows to the largest use and stays.
#[derive(Debug, Default)]
pub struct RotaryTable {
    frequencies: Vec<f64>,
    positions: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RotaryTable {
    /// Computes the table, unless it is already that of these frequencies and at least as many positions.
    pub fn prepare(&mut self, positions: usize, pairs: usize, frequency: impl Fn(usize) -> f64) {
        let is_unchanged =
            self.frequencies.len() == pairs && (0..pairs).all(|pair| self.frequencies[pair] == frequency(pair));
        if is_unchanged && self.positions >= positions {
            return;
        }
        self.frequencies.clear();
        self.frequencies.extend((0..pairs).map(frequency));
        self.positions = positions;
        let angles = |position: usize| self.frequencies.iter().map(move |frequency| position as f64 * frequency);
        self.cos.clear();
        self.cos.extend((0..positions).flat_map(angles).map(|angle| libm::cos(angle) as f32));
        self.sin.clear();
        self.sin.extend((0..positions).flat_map(angles).map(|angle| libm::sin(angle) as f32));
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> usize {
        (self.cos.capacity() + self.sin.capacity()) * size_of::<f32>()
    }

    /// Returns cosines and sines of a position.
    fn of(&self, position: usize) -> (&[f32], &[f32]) {
        let pairs = self.frequencies.len();
        let range = position * pairs..(position + 1) * pairs;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// What is rotated of a row, and how.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// Which elements form a pair.
    pub pairs: RotaryPairs,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of heads that are rotated, at the beginning of the row.
    pub heads: usize,
    /// Whether to rotate in the other direction, as for gradients.
    pub is_reverse: bool,
}

/// Rotates the first elements of each head at the beginning of a row at `position`. Other elements of the row stay.
///
/// # Panics
/// If the position is not in the table, or the row is shorter than its heads.
pub fn rotate_row(simd: Simd, table: &RotaryTable, rotation: Rotation, position: usize, row: &mut [f32]) {
    let (cos, sin) = table.of(position);
    let Rotation { pairs, head_dim, heads, is_reverse } = rotation;
    match pairs {
        RotaryPairs::Halves => rotate_halves(simd, cos, sin, is_reverse, head_dim, heads, row),
        RotaryPairs::Adjacent => rotate_adjacent(simd, cos, sin, is_reverse, head_dim, heads, row),
    }
}

simd_fn! {
    fn rotate_halves(cos: &[f32], sin: &[f32], is_reverse: bool, head_dim: usize, heads: usize, row: &mut [f32]) {
        let sign = if is_reverse { -1.0f32 } else { 1.0 };
        for head in row.chunks_exact_mut(head_dim).take(heads) {
            let (first, second) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                let (sin, x, y) = (sign * sin, *a, *b);
                *a = x.mul_add(*cos, -(y * sin));
                *b = x.mul_add(sin, y * cos);
            }
        }
    }
}

simd_fn! {
    fn rotate_adjacent(cos: &[f32], sin: &[f32], is_reverse: bool, head_dim: usize, heads: usize, row: &mut [f32]) {
        let sign = if is_reverse { -1.0f32 } else { 1.0 };
        for head in row.chunks_exact_mut(head_dim).take(heads) {
            for (([a, b], cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                let (sin, x, y) = (sign * sin, *a, *b);
                *a = x.mul_add(*cos, -(y * sin));
                *b = x.mul_add(sin, y * cos);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_close, every_simd, uniform};

    #[test]
    fn pairs_are_rotated_and_back_again() {
        let (head_dim, heads, width) = (10, 3, 37);
        let frequency = |pair: usize| 10_000f64.powf(-(pair as f64) / 4.0);
        let mut table = RotaryTable::default();
        table.prepare(100, 4, frequency);
        let x = uniform(width, -1.0, 1.0, 1);
        for pairs in [RotaryPairs::Halves, RotaryPairs::Adjacent] {
            let [rotated, back] = every_simd(|simd| {
                let mut row = x.clone();
                let rotation = Rotation { pairs, head_dim, heads, is_reverse: false };
                rotate_row(simd, &table, rotation, 77, &mut row);
                let rotated = row.clone();
                rotate_row(simd, &table, Rotation { is_reverse: true, ..rotation }, 77, &mut row);
                [rotated, row]
            });
            let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for head in 0..heads {
                for pair in 0..4 {
                    let (a, b) = match pairs {
                        RotaryPairs::Halves => (pair, pair + 4),
                        RotaryPairs::Adjacent => (2 * pair, 2 * pair + 1),
                    };
                    let (a, b) = (head * head_dim + a, head * head_dim + b);
                    let (sin, cos) = (77.0 * frequency(pair)).sin_cos();
                    let (x, y) = (expected[a], expected[b]);
                    (expected[a], expected[b]) = (x * cos - y * sin, x * sin + y * cos);
                }
            }
            assert_close(&rotated, &expected, 2e-7);
            assert_eq!(rotated[30..], x[30..], "elements after the heads");
            assert_close(&back, &x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), 3e-7);
        }
    }

    #[test]
    fn tables_are_computed_once_for_the_same_frequencies() {
        let mut table = RotaryTable::default();
        table.prepare(8, 2, |pair| 1.0 / (pair + 1) as f64);
        let (memory, first) = (table.cos.as_ptr(), table.cos.clone());
        table.prepare(5, 2, |pair| 1.0 / (pair + 1) as f64);
        assert!(table.cos.as_ptr() == memory && table.cos == first);
        table.prepare(5, 2, |pair| 0.5 / (pair + 1) as f64);
        assert_ne!(table.cos[2..4], first[2..4]);
    }
}
