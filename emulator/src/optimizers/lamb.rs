//! LAMB: m and v as in [Adam](super::adam), u = m/(1-β₁ᵗ) / (√v/√(1-β₂ᵗ) + ε) + decay·w, w ← w - lr · ‖w‖/‖u‖ · u. The
//! trust ratio ‖w‖/‖u‖ is 1 if one of the norms is 0.
//!
//! A tensor is read twice: the moments and both norms first, then the weights.

use millrace_params::optimizers::Lamb;

use super::Optimizer;
use crate::plan::StateShape;

impl Optimizer for Lamb {
    fn state(&self) -> &'static [&'static str] {
        &["m", "v"]
    }

    fn whole_tensor_state(&self) -> Option<&'static [StateShape]> {
        Some(&[StateShape::Full, StateShape::Full])
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [m, v, ..], .. } = arrays;
        let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
        let correction = |beta: f64| if self.correct_bias { 1.0 - libm::pow(beta, step.step as f64) } else { 1.0 };
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            weight_decay: step.weight_decay as f32,
            beta1: beta1 as f32,
            beta1_rest: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            beta2_rest: (1.0 - beta2) as f32,
            inv_correction1: (1.0 / correction(beta1)) as f32,
            inv_root_correction2: (1.0 / libm::sqrt(correction(beta2))) as f32,
            epsilon: self.eps as f32,
        };
        let [of_weights, of_update] = run::moments(simd, scalars, weights, gradient, m, v).map(libm::sqrt);
        let has_ratio = !self.adam && of_weights > 0.0 && of_update > 0.0;
        let ratio = if has_ratio { of_weights / of_update } else { 1.0 };
        run::weights(simd, scalars, (step.learning_rate * ratio) as f32, weights, m, v);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use crate::kernels::isa::{REDUCTION_LANES, simd_fn};
    use crate::optimizers::sum_of_lanes;

    #[derive(Clone, Copy)]
    pub struct Scalars {
        pub gradient_scale: f32,
        pub weight_decay: f32,
        pub beta1: f32,
        pub beta1_rest: f32,
        pub beta2: f32,
        pub beta2_rest: f32,
        pub inv_correction1: f32,
        pub inv_root_correction2: f32,
        pub epsilon: f32,
    }

    impl Scalars {
        /// The direction of the update of one element.
        #[inline(always)]
        fn direction(&self, w: f32, m: f32, v: f32) -> f32 {
            let denominator = v.sqrt().mul_add(self.inv_root_correction2, self.epsilon);
            self.weight_decay.mul_add(w, m * self.inv_correction1 / denominator)
        }
    }

    simd_fn! {
        /// Updates the moments; returns the squared norms of the weights and of the update. See `squared_norm` for the
        /// order of the sums.
        pub fn moments(s: Scalars, w: &[f32], g: &[f32], m: &mut [f32], v: &mut [f32]) -> [f64; 2] {
            assert!(g.len() == w.len() && m.len() == w.len() && v.len() == w.len());
            let (mut weights, mut updates) = ([0.0f64; REDUCTION_LANES], [0.0f64; REDUCTION_LANES]);
            let blocks = w.chunks(REDUCTION_LANES).zip(g.chunks(REDUCTION_LANES));
            let moments = m.chunks_mut(REDUCTION_LANES).zip(v.chunks_mut(REDUCTION_LANES));
            for ((w, g), (m, v)) in blocks.zip(moments) {
                let sums = weights.iter_mut().zip(&mut updates);
                for ((((w, g), m), v), (weights, updates)) in w.iter().zip(g).zip(m).zip(v).zip(sums) {
                    let g = g * s.gradient_scale;
                    *m = s.beta1.mul_add(*m, s.beta1_rest * g);
                    *v = s.beta2.mul_add(*v, s.beta2_rest * g * g);
                    let (w, u) = (f64::from(*w), f64::from(s.direction(*w, *m, *v)));
                    *weights += w * w;
                    *updates += u * u;
                }
            }
            [sum_of_lanes(weights), sum_of_lanes(updates)]
        }
    }

    simd_fn! {
        pub fn weights(s: Scalars, rate: f32, w: &mut [f32], m: &[f32], v: &[f32]) {
            assert!(m.len() == w.len() && v.len() == w.len());
            for ((w, m), v) in w.iter_mut().zip(m).zip(v) {
                *w = s.direction(*w, *m, *v).mul_add(-rate, *w);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Lamb;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::{OptimizerTests, TensorF64};

    impl OptimizerTests for Lamb {
        fn reference_tensor(&self, step: &UpdateStep<'_>, tensor: &mut TensorF64, gradient: &[f64]) {
            let (beta1, beta2) = (step.momentum(self.betas[0]), self.betas[1]);
            let correction = |beta: f64| if self.correct_bias { 1.0 - beta.powi(step.step as i32) } else { 1.0 };
            let [m, v, ..] = tensor.state.as_mut_slice() else { panic!("two moments") };
            let mut update = Vec::new();
            for (index, gradient) in gradient.iter().enumerate() {
                m[index] = beta1 * m[index] + (1.0 - beta1) * gradient;
                v[index] = beta2 * v[index] + (1.0 - beta2) * gradient * gradient;
                let denominator = (v[index] / correction(beta2)).sqrt() + self.eps;
                update.push(m[index] / correction(beta1) / denominator + step.weight_decay * tensor.weights[index]);
            }
            let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
            let (of_weights, of_update) = (norm(&tensor.weights), norm(&update));
            let is_one = self.adam || of_weights == 0.0 || of_update == 0.0;
            let ratio = if is_one { 1.0 } else { of_weights / of_update };
            for (weight, update) in tensor.weights.iter_mut().zip(update) {
                *weight -= step.learning_rate * ratio * update;
            }
        }

        fn cases() -> Vec<Self> {
            [(true, false), (false, false), (true, true)]
                .map(|(correct_bias, adam)| Lamb { betas: [0.9, 0.95], eps: 1e-6, correct_bias, adam })
                .into()
        }
    }
}
