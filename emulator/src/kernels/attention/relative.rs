//! Trained biases of the scores, by the distance of key and query (T5).

use super::AttentionParams;
use crate::kernels::buffer::Buffer;

/// A table of biases: one for each bucket of distances and each head. Near distances have buckets of their own, those
/// beyond half of the buckets share buckets that grow in proportion to the distance, and all beyond `max_distance`
/// share the last. Source: Raffel et al., "Exploring the Limits of Transfer Learning" (2020), and its published code.
#[derive(Clone, Copy, Debug)]
pub struct RelativeBias<'a> {
    /// Buckets x heads.
    pub table: &'a [f32],
    /// Number of buckets.
    pub buckets: usize,
    /// Distance from which on all distances share a bucket.
    pub max_distance: usize,
    /// Whether keys after the query have buckets of their own, half of them.
    pub bidirectional: bool,
}

impl RelativeBias<'_> {
    /// Returns the bucket of a key that is `distance` tokens after the query.
    pub fn bucket(&self, distance: isize) -> usize {
        bucket(self.buckets, self.max_distance, self.bidirectional, distance)
    }

    /// Adds up gradients by distance, in ascending order, to those of the buckets.
    pub(super) fn sum_buckets(&self, attention: &AttentionParams<'_>, by_distance: &[f32], sums: &mut [f32]) {
        sums.fill(0.0);
        for (distance, gradient) in (1 - attention.tokens as isize..).zip(by_distance) {
            sums[self.bucket(distance)] += gradient;
        }
    }

    /// Sums the gradients of each bucket, for each head of each sample, over the samples in ascending order. Stores the
    /// sum to `gradient`, or adds it.
    pub fn sum_samples(&self, heads: usize, partial: &[f32], gradient: &mut [f32], adds: bool) {
        for (bucket, gradient) in gradient.chunks_exact_mut(heads).enumerate().take(self.buckets) {
            for (head, gradient) in gradient.iter_mut().enumerate() {
                let samples = partial.chunks_exact(heads * self.buckets);
                let sum: f32 = samples.map(|sample| sample[head * self.buckets + bucket]).sum();
                *gradient = if adds { *gradient + sum } else { sum };
            }
        }
    }
}

/// See [`RelativeBias`].
fn bucket(buckets: usize, max_distance: usize, bidirectional: bool, distance: isize) -> usize {
    let (first, buckets) = match bidirectional {
        true if distance > 0 => (buckets / 2, buckets / 2),
        true => (0, buckets / 2),
        false => (0, buckets),
    };
    let distance = if bidirectional { distance.unsigned_abs() } else { distance.min(0).unsigned_abs() };
    let exact = buckets / 2;
    if distance < exact || exact == 0 {
        return first + distance.min(buckets.saturating_sub(1));
    }
    // In f32, because the published code computes it so: a double may round to another bucket.
    let position = libm::logf(distance as f32 / exact as f32);
    let span = libm::log(max_distance as f64 / exact as f64) as f32;
    let offset = (position / span * (buckets - exact) as f32) as usize;
    first + (exact + offset).min(buckets - 1)
}

impl AttentionParams<'_> {
    /// Returns the biases of a pair by distance: that of the last query and the first key is the first.
    pub(super) fn biases_by_distance<'b>(&self, pair: usize, buffer: &'b mut Buffer) -> Option<&'b [f32]> {
        let relative = self.relative?;
        let (head, distances) = (pair % self.heads, self.tokens + self.key_tokens - 1);
        let biases = buffer.resize(distances);
        for (distance, bias) in (1 - self.tokens as isize..).zip(biases.iter_mut()) {
            *bias = relative.table[relative.bucket(distance) * self.heads + head];
        }
        Some(biases)
    }
}

#[cfg(test)]
mod tests {
    use super::bucket;

    /// Buckets that the published code returns.
    #[test]
    fn buckets_are_those_of_the_published_code() {
        let both: Vec<usize> = [-200, -128, -64, -20, -8, -7, -1, 0, 1, 7, 8, 20, 64, 128, 200]
            .map(|distance| bucket(32, 128, true, distance))
            .into();
        assert_eq!(both, [15, 15, 14, 10, 8, 7, 1, 0, 17, 23, 24, 26, 30, 31, 31]);
        let before: Vec<usize> =
            [-200, -128, -64, -20, -16, -15, -1, 0, 5].map(|distance| bucket(32, 128, false, distance)).into();
        assert_eq!(before, [31, 31, 26, 17, 16, 15, 1, 0, 0]);
    }
}
