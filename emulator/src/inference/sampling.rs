//! Chooses a token by its logit: the highest, or a random one.
//!
//! The choice is a pure function of options, logits and position; sums are in f64 and in a fixed order.

use crate::numerics::random;

/// How to choose tokens. The default is the token with the highest logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Divisor of the logits, at least 0. At 0, the token with the highest logit is chosen.
    pub temperature: f64,
    /// Number of tokens with the highest logits to choose from, at least 1; `None` for all.
    pub top_k: Option<usize>,
    /// The most probable tokens are chosen from, as many as have this probability together; in (0, 1].
    pub top_p: f64,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 }
    }
}

/// Options that are out of range, or logits to which there is no answer.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    #[error("the temperature is {0}, but must be at least 0 and finite")]
    Temperature(f64),
    #[error("top_k is 0, but must be at least 1")]
    TopK,
    #[error("top_p is {0}, but must be more than 0 and at most 1")]
    TopP(f64),
    /// The model diverged in training.
    #[error("the model computes logits that are not finite: its training has diverged")]
    NotFinite,
}

/// Chooses tokens. See [`SamplingOptions`].
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplingOptions,
    /// Token and weight of the candidates, kept to avoid allocations.
    candidates: Vec<(u32, f64)>,
}

impl Sampler {
    /// Checks the options.
    ///
    /// # Errors
    /// One is out of range.
    pub fn new(options: SamplingOptions) -> Result<Self, SamplingError> {
        let SamplingOptions { temperature, top_k, top_p, .. } = options;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(SamplingError::Temperature(temperature));
        }
        if top_k == Some(0) {
            return Err(SamplingError::TopK);
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplingError::TopP(top_p));
        }
        Ok(Self { options, candidates: Vec::new() })
    }

    /// Returns the token at `position` of the text.
    ///
    /// # Errors
    /// A logit is not finite, or there are none.
    pub fn choose(&mut self, logits: &[f32], position: u64) -> Result<u32, SamplingError> {
        let SamplingOptions { temperature, top_k, top_p, seed } = self.options;
        if logits.is_empty() || logits.iter().any(|logit| !logit.is_finite()) {
            return Err(SamplingError::NotFinite);
        }
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend((0..).zip(logits.iter().map(|logit| f64::from(*logit))));
        // The highest first; of equal logits the token with the lower number.
        let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if temperature == 0.0 {
            return candidates
                .iter()
                .min_by(|a, b| order(a, b))
                .map(|(token, _)| *token)
                .ok_or(SamplingError::NotFinite);
        }
        candidates.sort_unstable_by(order);
        candidates.truncate(top_k.unwrap_or(usize::MAX));
        let highest = candidates[0].1;
        for (_, weight) in candidates.iter_mut() {
            *weight = libm::exp((*weight - highest) / temperature);
        }
        let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        let last = candidates.iter().position(|(_, weight)| {
            sum += weight;
            sum >= top_p * total
        });
        candidates.truncate(last.map_or(usize::MAX, |last| last + 1));
        let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
        let mut remaining = total * random::to_open_unit(random::hash64(random::key(seed, 0, 0), position));
        let chosen = candidates.iter().find(|(_, weight)| {
            remaining -= weight;
            remaining < 0.0
        });
        // By rounding, the weights may be less than their sum.
        chosen.or(candidates.last()).map(|(token, _)| *token).ok_or(SamplingError::NotFinite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(options: SamplingOptions, logits: &[f32]) -> Vec<f64> {
        let mut sampler = Sampler::new(options).unwrap();
        let mut counts = vec![0.0; logits.len()];
        const DRAWS: u64 = 20_000;
        for position in 0..DRAWS {
            counts[sampler.choose(logits, position).unwrap() as usize] += 1.0 / DRAWS as f64;
        }
        counts
    }

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        // Probabilities 0.1, 0.4, 0.3, 0.2.
        let logits = [0.1f32, 0.4, 0.3, 0.2].map(libm::logf);
        let random = SamplingOptions { temperature: 1.0, seed: 3, ..SamplingOptions::default() };
        for (name, options, expected) in [
            ("greedy", SamplingOptions::default(), [0.0, 1.0, 0.0, 0.0]),
            ("all", random, [0.1, 0.4, 0.3, 0.2]),
            ("top_k", SamplingOptions { top_k: Some(2), ..random }, [0.0, 4.0 / 7.0, 3.0 / 7.0, 0.0]),
            ("top_p", SamplingOptions { top_p: 0.75, ..random }, [0.0, 4.0 / 9.0, 3.0 / 9.0, 2.0 / 9.0]),
            ("cold", SamplingOptions { temperature: 0.5, ..random }, [1.0 / 30.0, 16.0 / 30.0, 9.0 / 30.0, 4.0 / 30.0]),
        ] {
            for (found, expected) in shares(options, &logits).into_iter().zip(expected) {
                assert!((found - expected).abs() < 0.015, "{name}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn seed_and_position_determine_the_draw() {
        let draw = |seed, position| {
            let options = SamplingOptions { temperature: 1.0, seed, ..SamplingOptions::default() };
            Sampler::new(options).unwrap().choose(&[0.0; 1000], position).unwrap()
        };
        assert_eq!(draw(1, 7), draw(1, 7));
        assert_ne!(draw(1, 7), draw(2, 7));
        assert_ne!(draw(1, 7), draw(1, 8));
    }

    #[test]
    fn options_and_logits_are_checked() {
        let options = SamplingOptions { temperature: 1.0, ..SamplingOptions::default() };
        let error = |options| Sampler::new(options).unwrap_err().to_string();
        assert!(error(SamplingOptions { temperature: f64::NAN, ..options }).contains("temperature is NaN"));
        assert!(error(SamplingOptions { top_k: Some(0), ..options }).contains("top_k is 0"));
        assert!(error(SamplingOptions { top_p: 0.0, ..options }).contains("top_p is 0"));
        assert!(error(SamplingOptions { top_p: 1.5, ..options }).contains("top_p is 1.5"));
        let mut sampler = Sampler::new(options).unwrap();
        assert_eq!(sampler.choose(&[0.0, f32::NAN], 0), Err(SamplingError::NotFinite));
        assert_eq!(sampler.choose(&[], 0), Err(SamplingError::NotFinite));
    }
}
