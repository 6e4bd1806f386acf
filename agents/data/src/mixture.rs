//! The order in which the sources of a mixture alternate.
//!
//! The order repeats after as many samples as the weights have in total. Within a period the samples of each source are
//! spread evenly: sample k of a source of weight w is due at (k + 1/2) / w of the period. So the source of sample n,
//! and its number there, are found without the samples before it.

/// Where the samples of a mixture come from.
#[derive(Debug, Clone)]
pub(crate) struct MixtureOrder {
    weights: Vec<u64>,
    /// Source of each sample of a period, and its number among the samples of that source in the period.
    period: Vec<(usize, u64)>,
}

impl MixtureOrder {
    /// Creates the order for weights of at least 1.
    pub(crate) fn new(weights: &[u32]) -> Self {
        let weights: Vec<u64> = weights.iter().map(|weight| u64::from(*weight).max(1)).collect();
        let divisor = weights.iter().copied().reduce(greatest_common_divisor).unwrap_or(1);
        let weights: Vec<u64> = weights.iter().map(|weight| weight / divisor).collect();
        let sources = weights.iter().enumerate();
        let mut period: Vec<(usize, u64)> =
            sources.flat_map(|(source, weight)| (0..*weight).map(move |number| (source, number))).collect();
        // Compares (2k + 1) / w of two samples without rounding. The sort is stable: ties keep the sources' order.
        period.sort_by(|a, b| ((2 * a.1 + 1) * weights[b.0]).cmp(&((2 * b.1 + 1) * weights[a.0])));
        Self { weights, period }
    }

    /// Returns the source of sample `n`, and its number there.
    pub(crate) fn locate(&self, n: u64) -> (usize, u64) {
        let length = self.period.len() as u64;
        let (source, number) = self.period[(n % length) as usize];
        (source, (n / length).saturating_mul(self.weights[source]).saturating_add(number))
    }

    /// Returns the number of samples until a source of these sizes would have to be read a second time.
    pub(crate) fn samples_in_one_pass(&self, sizes: &[u64]) -> u64 {
        let periods = sizes.iter().zip(&self.weights).map(|(size, weight)| size / weight).min().unwrap_or(0);
        let first = periods.saturating_mul(self.period.len() as u64);
        let exists = |n: &u64| {
            let (source, number) = self.locate(*n);
            number < sizes[source]
        };
        (first..).take_while(exists).count() as u64 + first
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(order: &MixtureOrder, samples: u64) -> Vec<usize> {
        (0..samples).map(|n| order.locate(n).0).collect()
    }

    #[test]
    fn samples_of_a_source_are_spread_evenly() {
        assert_eq!(sources(&MixtureOrder::new(&[5000, 5000]), 4), [0, 1, 0, 1]);
        assert_eq!(sources(&MixtureOrder::new(&[7000, 3000]), 10), [0, 1, 0, 0, 0, 1, 0, 0, 1, 0]);
        assert_eq!(sources(&MixtureOrder::new(&[1]), 3), [0, 0, 0]);
        let order = MixtureOrder::new(&[6001, 2999, 1000]);
        for begin in [0, 3_000, 1 << 40] {
            let count = |source| (begin..begin + 1000).filter(|n| order.locate(*n).0 == source).count();
            assert!(count(0).abs_diff(600) <= 1 && count(1).abs_diff(300) <= 1 && count(2).abs_diff(100) <= 1);
        }
    }

    #[test]
    fn numbers_of_each_source_are_consecutive() {
        let order = MixtureOrder::new(&[3, 4, 1]);
        let mut next = [0; 3];
        for n in 0..100 {
            let (source, number) = order.locate(n);
            assert_eq!(number, next[source]);
            next[source] += 1;
        }
    }

    #[test]
    fn pass_ends_before_a_source_repeats() {
        let order = MixtureOrder::new(&[7, 3]);
        for sizes in [[70, 30], [71, 30], [5, 100], [1, 1], [100, 0]] {
            let samples = order.samples_in_one_pass(&sizes);
            let is_new = |n| {
                let (source, number) = order.locate(n);
                number < sizes[source]
            };
            assert!((0..samples).all(is_new) && !is_new(samples), "{sizes:?}: {samples}");
        }
    }
}
