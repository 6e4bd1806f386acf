//! Adamax: g ← g + decay·w, m ← β₁m + (1-β₁)g, u ← max(β₂u, |g| + ε), w ← w - lr/(1-β₁ᵗ) · m/u.

use millrace_params::optimizers::Adamax;

use super::Optimizer;

impl Optimizer for Adamax {
    fn state(&self) -> &'static [&'static str] {
        &["m", "u"]
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [m, u, ..], .. } = arrays;
        let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            weight_decay: step.weight_decay as f32,
            beta1: beta1 as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            epsilon: self.eps as f32,
            rate: (step.learning_rate / (1.0 - libm::pow(beta1, step.step as f64))) as f32,
        };
        run::pass(simd, scalars, weights, gradient, m, u);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use crate::kernels::isa::simd_fn;

    #[derive(Clone, Copy)]
    pub struct Scalars {
        pub gradient_scale: f32,
        pub weight_decay: f32,
        pub beta1: f32,
        pub beta1_rest: f32,
        pub beta2: f32,
        pub epsilon: f32,
        pub rate: f32,
    }

    simd_fn! {
        pub fn pass(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32], u: &mut [f32]) {
            assert!(g.len() == w.len() && m.len() == w.len() && u.len() == w.len());
            for (((w, g), m), u) in w.iter_mut().zip(g).zip(m).zip(u) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *m = s.beta1.mul_add(*m, s.beta1_rest * g);
                let (kept, new) = (s.beta2 * *u, g.abs() + s.epsilon);
                *u = if kept > new { kept } else { new };
                *w = (*m / *u).mul_add(-s.rate, *w);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Adamax;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for Adamax {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let gradient = gradient + step.weight_decay * *weight;
            let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
            state[0] = beta1 * state[0] + (1.0 - beta1) * gradient;
            state[1] = (beta2 * state[1]).max(gradient.abs() + self.eps);
            *weight -= step.learning_rate / (1.0 - beta1.powi(step.step as i32)) * state[0] / state[1];
        }

        fn cases() -> Vec<Self> {
            vec![Adamax { betas: [0.9, 0.95], eps: 1e-8 }]
        }
    }
}
