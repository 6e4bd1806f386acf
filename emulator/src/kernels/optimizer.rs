//! One-pass parameter updates, the formulas of `torch.optim`.
//!
//! Each call reads gradient, weights and moments once and writes weights and moments once: updates are bound by memory
//! bandwidth. `gradient_scale` multiplies the gradient first (loss scaling and clipping by the global norm). Steps
//! count from one. Arithmetic is f32; the scalars are computed in f64, once per call.

use super::isa::simd_fn;

/// Constants of Adam and AdamW for one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Weight decay: see [`DecayTarget`].
    pub weight_decay: f64,
    /// What weight decay acts on.
    pub decay: DecayTarget,
    /// Whether moments are divided by 1 - betaᵗ.
    pub correct_bias: bool,
    /// Number of this step, from 1.
    pub step: u64,
}

/// What weight decay acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayTarget {
    /// It is added to the gradient (Adam).
    Gradient,
    /// It shrinks the weight by learning rate times decay before the update (AdamW).
    Decoupled,
}

/// The scalars of an Adam update in the form that the loop needs.
#[derive(Clone, Copy)]
struct AdamScalars {
    gradient_scale: f32,
    gradient_decay: f32,
    keep: f32,
    beta1: f32,
    beta1_rest: f32,
    beta2: f32,
    beta2_rest: f32,
    step_size: f32,
    inv_root_correction2: f32,
    epsilon: f32,
}

impl AdamStep {
    fn scalars(&self, gradient_scale: f32) -> AdamScalars {
        let correction = |beta: f64| if self.correct_bias { 1.0 - libm::pow(beta, self.step as f64) } else { 1.0 };
        let (gradient_decay, keep) = match self.decay {
            DecayTarget::Gradient => (self.weight_decay, 1.0),
            DecayTarget::Decoupled => (0.0, 1.0 - self.learning_rate * self.weight_decay),
        };
        AdamScalars {
            gradient_scale,
            gradient_decay: gradient_decay as f32,
            keep: keep as f32,
            beta1: self.beta1 as f32,
            beta1_rest: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            beta2_rest: (1.0 - self.beta2) as f32,
            step_size: (self.learning_rate / correction(self.beta1)) as f32,
            inv_root_correction2: (1.0 / libm::sqrt(correction(self.beta2))) as f32,
            epsilon: self.epsilon as f32,
        }
    }
}

/// m ← β₁m + (1-β₁)g, v ← β₂v + (1-β₂)g², w ← w - lr/(1-β₁ᵗ) · m / (√v/√(1-β₂ᵗ) + ε), with the decay of
/// [`AdamStep::decay`].
///
/// # Panics
/// If the lengths differ.
pub fn adam(
    simd: super::Simd,
    adam: &AdamStep,
    gradient_scale: f32,
    w: &mut [f32],
    g: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    adam_pass(simd, adam.scalars(gradient_scale), w, g, m, v);
}

simd_fn! {
    fn adam_pass(s: AdamScalars, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
        assert!(g.len() == w.len() && m.len() == w.len() && v.len() == w.len());
        for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
            let g = s.gradient_decay.mul_add(*w, g * s.gradient_scale);
            *m = s.beta1.mul_add(*m, s.beta1_rest * g);
            *v = s.beta2.mul_add(*v, s.beta2_rest * g * g);
            let denominator = v.sqrt().mul_add(s.inv_root_correction2, s.epsilon);
            *w = w.mul_add(s.keep, -(s.step_size * (*m / denominator)));
        }
    }
}

/// Constants of stochastic gradient descent for one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdStep {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the momentum; 0 for none, which needs no buffer.
    pub momentum: f64,
    /// Share of the gradient that is not added to the momentum (dampening).
    pub dampening: f64,
    /// Weight decay, added to the gradient.
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
    /// Number of this step, from 1: the first one fills the momentum with the gradient, without dampening.
    pub step: u64,
}

#[derive(Clone, Copy)]
struct SgdScalars {
    gradient_scale: f32,
    weight_decay: f32,
    momentum: f32,
    fresh: f32,
    learning_rate: f32,
    nesterov: bool,
}

/// g ← g + decay·w, m ← momentum·m + (1 - dampening)·g (m ← g in the first step), w ← w - lr·m, or with Nesterov
/// w ← w - lr·(g + momentum·m). `m` is not used without momentum and may then be empty.
///
/// # Panics
/// If the lengths differ.
pub fn sgd(simd: super::Simd, sgd: &SgdStep, gradient_scale: f32, w: &mut [f32], g: &[f32], m: &mut [f32]) {
    let first = sgd.step <= 1;
    let scalars = SgdScalars {
        gradient_scale,
        weight_decay: sgd.weight_decay as f32,
        momentum: sgd.momentum as f32,
        fresh: if first { 1.0 } else { (1.0 - sgd.dampening) as f32 },
        learning_rate: sgd.learning_rate as f32,
        nesterov: sgd.nesterov,
    };
    if sgd.momentum == 0.0 {
        plain_pass(simd, scalars, w, g);
    } else {
        if first {
            m.fill(0.0);
        }
        momentum_pass(simd, scalars, w, g, m);
    }
}

simd_fn! {
    fn plain_pass(s: SgdScalars, w: &mut [f32], g: &[f32]) {
        assert_eq!(g.len(), w.len());
        for (w, g) in w.iter_mut().zip(g) {
            let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
            *w = g.mul_add(-s.learning_rate, *w);
        }
    }
}

simd_fn! {
    fn momentum_pass(s: SgdScalars, w: &mut [f32], g: &[f32], m: &mut [f32]) {
        assert!(g.len() == w.len() && m.len() == w.len());
        for ((w, g), m) in w.iter_mut().zip(g).zip(m) {
            let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
            *m = s.momentum.mul_add(*m, s.fresh * g);
            let direction = if s.nesterov { s.momentum.mul_add(*m, g) } else { *m };
            *w = direction.mul_add(-s.learning_rate, *w);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{assert_close, every_simd, uniform};

    const LEN: usize = 53;

    #[test]
    fn adam_follows_the_formula_in_f64() {
        for (decay, weight_decay, correct_bias) in [
            (DecayTarget::Gradient, 0.1, true),
            (DecayTarget::Decoupled, 0.1, true),
            (DecayTarget::Decoupled, 0.0, false),
        ] {
            let at = |step| AdamStep {
                learning_rate: 1e-2,
                beta1: 0.9,
                beta2: 0.95,
                epsilon: 1e-8,
                weight_decay,
                decay,
                correct_bias,
                step,
            };
            let w = every_simd(|simd| {
                let [mut w, mut m, mut v] = [uniform(LEN, -1.0, 1.0, 1), vec![0.0; LEN], vec![0.0; LEN]];
                for step in 1..=5 {
                    adam(simd, &at(step), 0.5, &mut w, &uniform(LEN, -1.0, 1.0, 10 + step), &mut m, &mut v);
                }
                w
            });
            let mut expected: Vec<f64> = uniform(LEN, -1.0, 1.0, 1).into_iter().map(f64::from).collect();
            let (mut m, mut v) = (vec![0.0; LEN], vec![0.0; LEN]);
            for step in 1..=5u64 {
                let c = |beta: f64| -> f64 { if correct_bias { 1.0 - beta.powi(step as i32) } else { 1.0 } };
                for (i, g) in uniform(LEN, -1.0, 1.0, 10 + step).into_iter().enumerate() {
                    let mut g = 0.5 * f64::from(g);
                    match decay {
                        DecayTarget::Gradient => g += weight_decay * expected[i],
                        DecayTarget::Decoupled => expected[i] *= 1.0 - 1e-2 * weight_decay,
                    }
                    m[i] = 0.9 * m[i] + 0.1 * g;
                    v[i] = 0.95 * v[i] + 0.05 * g * g;
                    expected[i] -= 1e-2 / c(0.9) * m[i] / ((v[i] / c(0.95)).sqrt() + 1e-8);
                }
            }
            assert_close(&w, &expected, 1e-6);
        }
    }

    #[test]
    fn sgd_follows_the_formula_in_f64() {
        for (momentum, dampening, nesterov) in [(0.0, 0.0, false), (0.9, 0.1, false), (0.9, 0.0, true)] {
            let at = |step| SgdStep { learning_rate: 0.1, momentum, dampening, weight_decay: 0.01, nesterov, step };
            let w = every_simd(|simd| {
                let [mut w, mut m] = [uniform(LEN, -1.0, 1.0, 1), vec![f32::NAN; LEN]];
                for step in 1..=4 {
                    sgd(simd, &at(step), 2.0, &mut w, &uniform(LEN, -1.0, 1.0, 10 + step), &mut m);
                }
                w
            });
            let mut expected: Vec<f64> = uniform(LEN, -1.0, 1.0, 1).into_iter().map(f64::from).collect();
            let mut m = vec![0.0; LEN];
            for step in 1..=4u64 {
                for (i, g) in uniform(LEN, -1.0, 1.0, 10 + step).into_iter().enumerate() {
                    let g = 2.0 * f64::from(g) + 0.01 * expected[i];
                    m[i] = if step == 1 { g } else { momentum * m[i] + (1.0 - dampening) * g };
                    let direction = if momentum == 0.0 {
                        g
                    } else if nesterov {
                        g + momentum * m[i]
                    } else {
                        m[i]
                    };
                    expected[i] -= 0.1 * direction;
                }
            }
            assert_close(&w, &expected, 1e-6);
        }
    }
}
