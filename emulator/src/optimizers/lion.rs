//! Lion: c ← β₁m + (1-β₁)g, w ← w·(1 - lr·decay) - lr·sign(c), m ← β₂m + (1-β₂)g.

use millrace_params::optimizers::Lion;

use super::Optimizer;

impl Optimizer for Lion {
    fn state(&self) -> &'static [&'static str] {
        &["m"]
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [m, ..], .. } = arrays;
        let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            keep: (1.0 - step.learning_rate * step.weight_decay) as f32,
            beta1: beta1 as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            beta2_rest: (1.0 - beta2) as f32,
            learning_rate: step.learning_rate as f32,
        };
        run::pass(simd, scalars, weights, gradient, m);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use crate::kernels::isa::simd_fn;

    #[derive(Clone, Copy)]
    pub struct Scalars {
        pub gradient_scale: f32,
        pub keep: f32,
        pub beta1: f32,
        pub beta1_rest: f32,
        pub beta2: f32,
        pub beta2_rest: f32,
        pub learning_rate: f32,
    }

    simd_fn! {
        pub fn pass(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32]) {
            assert!(g.len() == w.len() && m.len() == w.len());
            for ((w, g), m) in w.iter_mut().zip(g).zip(m) {
                let g = g * s.gradient_scale;
                let direction = s.beta1.mul_add(*m, s.beta1_rest * g);
                // A weight that never had a gradient keeps its value.
                let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
                *w = w.mul_add(s.keep, -(s.learning_rate * sign));
                *m = s.beta2.mul_add(*m, s.beta2_rest * g);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Lion;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for Lion {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
            let direction = beta1 * state[0] + (1.0 - beta1) * gradient;
            *weight *= 1.0 - step.learning_rate * step.weight_decay;
            *weight -= step.learning_rate * direction.signum();
            state[0] = beta2 * state[0] + (1.0 - beta2) * gradient;
        }

        fn cases() -> Vec<Self> {
            vec![Lion { betas: [0.9, 0.99] }]
        }
    }
}
