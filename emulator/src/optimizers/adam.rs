//! Adam and AdamW: m ← β₁m + (1-β₁)g, v ← β₂v + (1-β₂)g², w ← w - lr/(1-β₁ᵗ) · m / (√v/√(1-β₂ᵗ) + ε). Adam adds the
//! weight decay to the gradient; AdamW first shrinks the weight by learning rate times decay. With `epsilon_hat`, ε is
//! divided by √(1-β₂ᵗ), as in the formula of Kingma and Ba that computes lr·√(1-β₂ᵗ)/(1-β₁ᵗ) · m / (√v + ε). With
//! `amsgrad`, the largest v so far takes the place of v in the denominator.

use millrace_params::optimizers::{Adam, AdamW};

use super::Optimizer;

const fn state(amsgrad: bool) -> &'static [&'static str] {
    if amsgrad { &["m", "v", "v_max"] } else { &["m", "v"] }
}

impl Optimizer for Adam {
    fn state(&self) -> &'static [&'static str] {
        state(self.amsgrad)
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        run::update(self, step.weight_decay, 1.0, simd, step, arrays);
    }
}

impl Optimizer for AdamW {
    fn state(&self) -> &'static [&'static str] {
        state(self.amsgrad)
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let keep = 1.0 - step.learning_rate * step.weight_decay;
        let AdamW { betas, eps, correct_bias, epsilon_hat, amsgrad } = *self;
        run::update(&Adam { betas, eps, correct_bias, epsilon_hat, amsgrad }, 0.0, keep, simd, step, arrays);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Adam;
    use crate::kernels::Simd;
    use crate::kernels::isa::simd_fn;
    use crate::optimizers::{UpdateArrays, UpdateStep};

    /// The scalars of an update in the form that the loop needs.
    #[derive(Clone, Copy)]
    struct Scalars {
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

    /// Updates with the share `gradient_decay` of the weights added to the gradient, and weights multiplied by `keep`.
    pub fn update(
        adam: &Adam,
        gradient_decay: f64,
        keep: f64,
        simd: Simd,
        step: &UpdateStep<'_>,
        arrays: UpdateArrays<'_>,
    ) {
        let (beta1, beta2) = (step.momentum(adam.betas[0]), adam.betas[1]);
        let correction = |beta: f64| if adam.correct_bias { 1.0 - libm::pow(beta, step.step as f64) } else { 1.0 };
        let inv_root_correction2 = 1.0 / libm::sqrt(correction(beta2));
        let epsilon = if adam.epsilon_hat { adam.eps * inv_root_correction2 } else { adam.eps };
        let scalars = Scalars {
            gradient_scale: step.gradient_scale,
            gradient_decay: gradient_decay as f32,
            keep: keep as f32,
            beta1: beta1 as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            beta2_rest: (1.0 - beta2) as f32,
            step_size: (step.learning_rate / correction(beta1)) as f32,
            inv_root_correction2: inv_root_correction2 as f32,
            epsilon: epsilon as f32,
        };
        let UpdateArrays { weights, gradient, state: [m, v, v_max], .. } = arrays;
        if adam.amsgrad {
            amsgrad_pass(simd, scalars, weights, gradient, m, v, v_max);
        } else {
            pass(simd, scalars, weights, gradient, m, v);
        }
    }

    simd_fn! {
        fn pass(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
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

    simd_fn! {
        fn amsgrad_pass(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32], v_max: &mut [f32]) {
            assert!(g.len() == w.len() && m.len() == w.len() && v.len() == w.len() && v_max.len() == w.len());
            for ((((w, g), m), v), v_max) in w.iter_mut().zip(g).zip(m).zip(v).zip(v_max) {
                let g = s.gradient_decay.mul_add(*w, g * s.gradient_scale);
                *m = s.beta1.mul_add(*m, s.beta1_rest * g);
                *v = s.beta2.mul_add(*v, s.beta2_rest * g * g);
                *v_max = if *v_max > *v { *v_max } else { *v };
                let denominator = v_max.sqrt().mul_add(s.inv_root_correction2, s.epsilon);
                *w = w.mul_add(s.keep, -(s.step_size * (*m / denominator)));
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::{Adam, AdamW};
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for Adam {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let gradient = gradient + step.weight_decay * *weight;
            let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
            state[0] = beta1 * state[0] + (1.0 - beta1) * gradient;
            state[1] = beta2 * state[1] + (1.0 - beta2) * gradient * gradient;
            let correction = |beta: f64| if self.correct_bias { 1.0 - beta.powi(step.step as i32) } else { 1.0 };
            let second = match state {
                [_, v, v_max] => {
                    *v_max = v_max.max(*v);
                    *v_max
                }
                _ => state[1],
            };
            let root = correction(beta2).sqrt();
            let denominator = second.sqrt() / root + if self.epsilon_hat { self.eps / root } else { self.eps };
            *weight -= step.learning_rate / correction(beta1) * state[0] / denominator;
        }

        fn cases() -> Vec<Self> {
            let (betas, eps) = ([0.9, 0.95], 1e-8);
            let adam = Adam { betas, eps, correct_bias: true, epsilon_hat: false, amsgrad: false };
            // The epsilon is large enough to make a difference, and the second moment decays fast enough.
            let with_epsilon_hat = Adam { eps: 0.1, epsilon_hat: true, ..adam };
            let with_amsgrad = Adam { betas: [0.9, 0.5], amsgrad: true, ..adam };
            vec![adam, Adam { correct_bias: false, ..adam }, with_epsilon_hat, with_amsgrad]
        }
    }

    impl OptimizerTests for AdamW {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            *weight *= 1.0 - step.learning_rate * step.weight_decay;
            let AdamW { betas, eps, correct_bias, epsilon_hat, amsgrad } = *self;
            let without_decay = UpdateStep { weight_decay: 0.0, ..*step };
            Adam { betas, eps, correct_bias, epsilon_hat, amsgrad }.reference(&without_decay, weight, gradient, state);
        }

        fn cases() -> Vec<Self> {
            let adamw = AdamW { betas: [0.9, 0.95], eps: 1e-8, correct_bias: true, epsilon_hat: false, amsgrad: false };
            let with_epsilon_hat = AdamW { eps: 0.1, epsilon_hat: true, ..adamw };
            let with_amsgrad = AdamW { betas: [0.9, 0.5], amsgrad: true, ..adamw };
            vec![adamw, AdamW { correct_bias: false, ..adamw }, with_epsilon_hat, with_amsgrad]
        }
    }
}
