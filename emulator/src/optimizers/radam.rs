//! RAdam: g ← g + decay·w, or w ← w·(1 - lr·decay) if the decay is decoupled; moments as in [Adam](super::adam). With
//! ρ∞ = 2/(1-β₂) - 1 and ρₜ = ρ∞ - 2t·β₂ᵗ/(1-β₂ᵗ): if ρₜ > 5, w ← w - lr·r/(1-β₁ᵗ) · m / ((√v + ε)/√(1-β₂ᵗ)) with
//! r² = (ρₜ-4)(ρₜ-2)ρ∞ / ((ρ∞-4)(ρ∞-2)ρₜ); otherwise w ← w - lr/(1-β₁ᵗ) · m.

use millrace_params::optimizers::RAdam;

use super::Optimizer;

impl Optimizer for RAdam {
    fn state(&self) -> &'static [&'static str] {
        &["m", "v"]
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [m, v, ..], .. } = arrays;
        let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
        let count = step.step as f64;
        let rate = step.learning_rate / (1.0 - libm::pow(beta1, count));
        let rectification = run::rectification(beta2, count);
        let [gradient_decay, keep] = step.decay(self.decoupled_weight_decay);
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            gradient_decay: gradient_decay as f32,
            keep: keep as f32,
            beta1: beta1 as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            beta2_rest: (1.0 - beta2) as f32,
            rate: (rate * rectification.unwrap_or(1.0)) as f32,
            epsilon: self.eps as f32,
        };
        if rectification.is_some() {
            run::adaptive(simd, scalars, weights, gradient, m, v);
        } else {
            run::momentum_only(simd, scalars, weights, gradient, m, v);
        }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use crate::kernels::isa::simd_fn;

    /// Returns `r √(1-β₂ᵗ)`; `None` if the variance of the step is not tractable yet.
    pub fn rectification(beta2: f64, step: f64) -> Option<f64> {
        let power = libm::pow(beta2, step);
        let limit = 2.0 / (1.0 - beta2) - 1.0;
        let length = limit - 2.0 * step * power / (1.0 - power);
        let square = (length - 4.0) * (length - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * length);
        (length > 5.0).then(|| libm::sqrt(square * (1.0 - power)))
    }

    #[derive(Clone, Copy)]
    pub struct Scalars {
        pub gradient_scale: f32,
        pub gradient_decay: f32,
        pub keep: f32,
        pub beta1: f32,
        pub beta1_rest: f32,
        pub beta2: f32,
        pub beta2_rest: f32,
        pub rate: f32,
        pub epsilon: f32,
    }

    simd_fn! {
        pub fn adaptive(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
            assert!(g.len() == w.len() && m.len() == w.len() && v.len() == w.len());
            for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
                let g = s.gradient_decay.mul_add(*w, g * s.gradient_scale);
                *m = s.beta1.mul_add(*m, s.beta1_rest * g);
                *v = s.beta2.mul_add(*v, s.beta2_rest * g * g);
                *w = (*m / (v.sqrt() + s.epsilon)).mul_add(-s.rate, *w * s.keep);
            }
        }
    }

    simd_fn! {
        pub fn momentum_only(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
            assert!(g.len() == w.len() && m.len() == w.len() && v.len() == w.len());
            for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
                let g = s.gradient_decay.mul_add(*w, g * s.gradient_scale);
                *m = s.beta1.mul_add(*m, s.beta1_rest * g);
                *v = s.beta2.mul_add(*v, s.beta2_rest * g * g);
                *w = m.mul_add(-s.rate, *w * s.keep);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::RAdam;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for RAdam {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let [decay, keep] = step.decay(self.decoupled_weight_decay);
            let gradient = gradient + decay * *weight;
            *weight *= keep;
            let (beta1, beta2, count) = (step.momentum(self.betas[0]), self.betas[1], step.step as f64);
            state[0] = beta1 * state[0] + (1.0 - beta1) * gradient;
            state[1] = beta2 * state[1] + (1.0 - beta2) * gradient * gradient;
            let momentum = state[0] / (1.0 - beta1.powf(count));
            let correction2 = 1.0 - beta2.powf(count);
            let limit = 2.0 / (1.0 - beta2) - 1.0;
            let length = limit - 2.0 * count * beta2.powf(count) / correction2;
            let factor = if length > 5.0 {
                let above = (length - 4.0) * (length - 2.0) * limit;
                let below = (limit - 4.0) * (limit - 2.0) * length;
                (above / below).sqrt() * correction2.sqrt() / (state[1].sqrt() + self.eps)
            } else {
                1.0
            };
            *weight -= step.learning_rate * momentum * factor;
        }

        /// With 0.95, the first five steps have one formula and the others the other one; with 0.5, all have the first.
        fn cases() -> Vec<Self> {
            let settings = [(0.95, false), (0.5, false), (0.95, true)];
            settings
                .map(|(beta2, decoupled_weight_decay)| RAdam { betas: [0.9, beta2], eps: 1e-8, decoupled_weight_decay })
                .into()
        }
    }
}
