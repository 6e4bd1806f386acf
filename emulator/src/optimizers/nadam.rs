//! NAdam: g ← g + decay·w, or w ← w·(1 - lr·decay) if the decay is decoupled; moments as in [Adam](super::adam). With
//! μₜ = β₁(1 - ½·0.96^(t·ψ)), Πₜ = μ₁⋯μₜ: w ← w - lr·((1-μₜ)/(1-Πₜ)·g + μₜ₊₁/(1-Πₜ·μₜ₊₁)·m) / (√v/√(1-β₂ᵗ) + ε),
//! where ψ is `momentum_decay`. μₜ₊₁ has the β₁ of step t.

use millrace_params::optimizers::NAdam;

use super::Optimizer;

impl Optimizer for NAdam {
    fn state(&self) -> &'static [&'static str] {
        &["m", "v"]
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [m, v, ..], .. } = arrays;
        let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
        let product = run::momentum_product(self, step);
        let (momentum, next_momentum) =
            (run::momentum(self, beta1, step.step), run::momentum(self, beta1, step.step + 1));
        let [gradient_decay, keep] = step.decay(self.decoupled_weight_decay);
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            gradient_decay: gradient_decay as f32,
            keep: keep as f32,
            beta1: beta1 as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            beta2_rest: (1.0 - beta2) as f32,
            gradient_rate: (step.learning_rate * (1.0 - momentum) / (1.0 - product)) as f32,
            momentum_rate: (step.learning_rate * next_momentum / (1.0 - product * next_momentum)) as f32,
            inv_root_correction2: (1.0 / libm::sqrt(1.0 - libm::pow(beta2, step.step as f64))) as f32,
            epsilon: self.eps as f32,
        };
        run::pass(simd, scalars, weights, gradient, m, v);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::NAdam;
    use crate::kernels::isa::simd_fn;
    use crate::optimizers::UpdateStep;

    /// A product below this changes `1 - product` by less than half a unit in the last place of f64.
    const NEGLIGIBLE_PRODUCT: f64 = 1e-17;

    /// Returns μₜ, with this β₁.
    pub fn momentum(nadam: &NAdam, beta1: f64, step: u64) -> f64 {
        beta1 * (1.0 - 0.5 * libm::pow(0.96, step as f64 * nadam.momentum_decay))
    }

    /// Returns Πₜ, or a number that is as negligible beside 1. Takes some thousand steps at most, because every factor
    /// is at most β₁.
    pub fn momentum_product(nadam: &NAdam, step: &UpdateStep<'_>) -> f64 {
        let mut product = 1.0;
        for earlier in 1..=step.step {
            product *= momentum(nadam, step.momentum_at(earlier, nadam.betas[0]), earlier);
            if product < NEGLIGIBLE_PRODUCT {
                break;
            }
        }
        product
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
        pub gradient_rate: f32,
        pub momentum_rate: f32,
        pub inv_root_correction2: f32,
        pub epsilon: f32,
    }

    simd_fn! {
        pub fn pass(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
            assert!(g.len() == w.len() && m.len() == w.len() && v.len() == w.len());
            for (((w, g), m), v) in w.iter_mut().zip(g).zip(m).zip(v) {
                let g = s.gradient_decay.mul_add(*w, g * s.gradient_scale);
                *m = s.beta1.mul_add(*m, s.beta1_rest * g);
                *v = s.beta2.mul_add(*v, s.beta2_rest * g * g);
                let denominator = v.sqrt().mul_add(s.inv_root_correction2, s.epsilon);
                *w = w.mul_add(s.keep, -(s.gradient_rate.mul_add(g, s.momentum_rate * *m) / denominator));
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::NAdam;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for NAdam {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let [decay, keep] = step.decay(self.decoupled_weight_decay);
            let gradient = gradient + decay * *weight;
            *weight *= keep;
            let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
            state[0] = beta1 * state[0] + (1.0 - beta1) * gradient;
            state[1] = beta2 * state[1] + (1.0 - beta2) * gradient * gradient;
            let share = |step: u64| 1.0 - 0.5 * 0.96f64.powf(step as f64 * self.momentum_decay);
            let momentum = |number: u64| step.momentum_at(number, self.betas[0]) * share(number);
            let product: f64 = (1..=step.step).map(momentum).product();
            let next = beta1 * share(step.step + 1);
            let denominator = (state[1] / (1.0 - beta2.powi(step.step as i32))).sqrt() + self.eps;
            let rate = step.learning_rate / denominator;
            *weight -= rate * (1.0 - momentum(step.step)) / (1.0 - product) * gradient;
            *weight -= rate * next / (1.0 - product * next) * state[0];
        }

        fn cases() -> Vec<Self> {
            let nadam = NAdam { betas: [0.9, 0.95], eps: 1e-8, momentum_decay: 4e-3, decoupled_weight_decay: false };
            vec![nadam, NAdam { momentum_decay: 0.5, ..nadam }, NAdam { decoupled_weight_decay: true, ..nadam }]
        }
    }
}
