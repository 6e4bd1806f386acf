//! Between numbers and the little-endian bytes of a chunk, f32 or bf16.

use super::isa::simd_fn;
use crate::numerics::bf16;

simd_fn! {
    /// Reads f32: a payload becomes a gradient.
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
    /// Adds f32: a payload joins a partial sum.
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
    /// Writes f32.
    ///
    /// # Panics
    /// If there are not four bytes for each element.
    pub fn write_f32(x: &[f32], bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<4>();
        assert!(words.len() == x.len() && rest.is_empty());
        for (word, x) in words.iter_mut().zip(x) {
            *word = x.to_le_bytes();
        }
    }
}

simd_fn! {
    /// Reads bf16, which is exact.
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
    /// Writes bf16, rounded to nearest, ties to even.
    ///
    /// # Panics
    /// If there are not two bytes for each element.
    pub fn write_bf16(x: &[f32], bytes: &mut [u8]) {
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
        let x = uniform(100, -1.0, 1.0, 1);
        let (f32s, bf16s) = every_simd(|simd| {
            // One byte further: unaligned.
            let (mut f32s, mut bf16s) = (vec![0; 401], vec![0; 201]);
            write_f32(simd, &x, &mut f32s[1..]);
            write_bf16(simd, &x, &mut bf16s[1..]);
            (f32s, bf16s)
        });
        assert!(f32s[1..].iter().copied().eq(x.iter().flat_map(|x| x.to_le_bytes())));
        assert!(bf16s[1..].iter().copied().eq(x.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes())));
        let [sum, rounded] = every_simd(|simd| {
            let [mut sum, mut rounded] = [vec![0.0; 100], vec![0.0; 100]];
            read_f32(simd, &f32s[1..], &mut sum);
            add_f32(simd, &f32s[1..], &mut sum);
            read_bf16(simd, &bf16s[1..], &mut rounded);
            [sum, rounded]
        });
        assert!(sum.iter().copied().eq(x.iter().map(|x| x + x)));
        assert!(rounded.iter().copied().eq(x.iter().map(|x| bf16::round(*x))));
    }
}
