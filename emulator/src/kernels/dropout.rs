//! Dropout by a keyed hash: the mask is a pure function of (key, element), never stored.
//!
//! The backward pass applies the same factors to the gradient, so [`apply`] serves both. `first` is the index of the
//! slice's first element among the elements of the key: a slice may be cut anywhere.

use super::isa::simd_fn;
use crate::numerics::random::DropoutMask;

simd_fn! {
    /// x = x·factor, in place: the forward pass on values, the backward pass on gradients.
    pub fn apply(dropout: DropoutMask, key: u64, first: u32, x: &mut [f32]) {
        for (i, x) in (0u32..).zip(x) {
            *x *= dropout.factor(key, first.wrapping_add(i));
        }
    }
}

simd_fn! {
    /// y = x·factor.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn forward(dropout: DropoutMask, key: u64, first: u32, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len());
        for (i, (y, x)) in (0u32..).zip(y.iter_mut().zip(x)) {
            *y = x * dropout.factor(key, first.wrapping_add(i));
        }
    }
}

simd_fn! {
    /// out = residual + x·factor, rounded once.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_residual(dropout: DropoutMask, key: u64, first: u32, x: &[f32], residual: &[f32], out: &mut [f32]) {
        assert!(x.len() == out.len() && residual.len() == out.len());
        for (i, ((out, x), residual)) in (0u32..).zip(out.iter_mut().zip(x).zip(residual)) {
            *out = x.mul_add(dropout.factor(key, first.wrapping_add(i)), *residual);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{every_simd, uniform};

    #[test]
    fn keyed_factors_are_independent_of_slices() {
        let (len, key, first) = (100, 0x1234_5678_9abc_def0, u32::MAX - 50);
        let (x, residual) = (uniform(len, 1.0, 2.0, 1), uniform(len, -1.0, 1.0, 2));
        for rate in [0.0, 0.1, 0.5] {
            let dropout = DropoutMask::new(rate).unwrap();
            let [applied, stored, added] = every_simd(|simd| {
                let [mut applied, mut stored, mut added] = [x.clone(), vec![0.0; len], vec![0.0; len]];
                let (head, tail) = applied.split_at_mut(33);
                apply(simd, dropout, key, first, head);
                apply(simd, dropout, key, first.wrapping_add(33), tail);
                forward(simd, dropout, key, first, &x, &mut stored);
                add_residual(simd, dropout, key, first, &x, &residual, &mut added);
                [applied, stored, added]
            });
            for i in 0..len {
                let factor = dropout.factor(key, first.wrapping_add(i as u32));
                assert_eq!((applied[i], stored[i]), (x[i] * factor, x[i] * factor));
                assert_eq!(added[i], x[i].mul_add(factor, residual[i]));
            }
            assert_eq!(applied == x, rate == 0.0);
        }
    }
}
