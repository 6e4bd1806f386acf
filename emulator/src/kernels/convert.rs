//! Converts between numbers and the little-endian bytes of a chunk, f32 or bf16.

use super::isa::{Simd, simd_fn};
use crate::numerics::bf16;

/// Elements converted at once: fit into the first-level cache together with their source.
const BLOCK: usize = 1024;

/// Passes the little-endian bytes of bf16, rounded to nearest, ties to even, to `put`. Converts through a small buffer,
/// so that the memory behind `put` is written once and never zeroed before.
pub fn put_bf16(simd: Simd, x: &[f32], mut put: impl FnMut(&[u8])) {
    let mut block = [0; 2 * BLOCK];
    for part in x.chunks(BLOCK) {
        let bytes = &mut block[..2 * part.len()];
        write_bf16(simd, part, bytes);
        put(bytes);
    }
}

simd_fn! {
    /// Reads f32 values from a payload.
    ///
    /// # Panics
    /// If there are not four bytes for each element.
    pub fn read_f32(bytes: &[u8], out: &mut [f32]) {
        let (words, rest) = bytes.as_chunks::<4>();
        assert!(words.len() == out.len() && rest.is_empty());
        for (out, word) in out.iter_mut().zip(words) {
            *out = f32::from_le_bytes(*word);
        }
    }
}

simd_fn! {
    /// Adds the f32 values of a payload to `out`.
    ///
    /// # Panics
    /// If there are not four bytes for each element.
    pub fn add_f32(bytes: &[u8], y: &mut [f32]) {
        let (words, rest) = bytes.as_chunks::<4>();
        assert!(words.len() == y.len() && rest.is_empty());
        for (y, word) in y.iter_mut().zip(words) {
            *y += f32::from_le_bytes(*word);
        }
    }
}

simd_fn! {
    /// Reads bf16 values, which is exact.
    ///
    /// # Panics
    /// If there are not two bytes for each element.
    pub fn read_bf16(bytes: &[u8], out: &mut [f32]) {
        let (words, rest) = bytes.as_chunks::<2>();
        assert!(words.len() == out.len() && rest.is_empty());
        for (out, word) in out.iter_mut().zip(words) {
            *out = bf16::to_f32(u16::from_le_bytes(*word));
        }
    }
}

simd_fn! {
    fn write_bf16(x: &[f32], bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<2>();
        assert!(words.len() == x.len() && rest.is_empty());
        for (word, x) in words.iter_mut().zip(x) {
            *word = bf16::from_f32(*x).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{every_simd, uniform};

    #[test]
    fn bytes_are_little_endian_wherever_they_begin() {
        const LEN: usize = 2 * BLOCK + 100;
        let x = uniform(LEN, -1.0, 1.0, 1);
        let mut f32s: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut bf16s = every_simd(|simd| {
            let mut bf16s = Vec::new();
            put_bf16(simd, &x, |bytes| bf16s.extend_from_slice(bytes));
            bf16s
        });
        assert!(bf16s.iter().copied().eq(x.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())));
        // One byte further: unaligned.
        f32s.insert(0, 0);
        bf16s.insert(0, 0);
        let [sum, rounded] = every_simd(|simd| {
            let [mut sum, mut rounded] = [vec![0.0; LEN], vec![0.0; LEN]];
            read_f32(simd, &f32s[1..], &mut sum);
            add_f32(simd, &f32s[1..], &mut sum);
            read_bf16(simd, &bf16s[1..], &mut rounded);
            [sum, rounded]
        });
        assert!(sum.iter().copied().eq(x.iter().map(|x| x + x)));
        assert!(rounded.iter().copied().eq(x.iter().map(|x| bf16::round(*x))));
    }
}
