//! Stochastic gradient descent: g ← g + decay·w, m ← momentum·m + g (m ← g in the first step), w ← w - lr·m. Without
//! momentum w ← w - lr·g, and there is no state.

use millrace_params::optimizers::Sgd;

use super::Optimizer;

impl Optimizer for Sgd {
    fn state(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["m"] }
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep, arrays: super::UpdateArrays<'_>) {
        run::update(self, simd, step, arrays);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use super::Sgd;
    use crate::kernels::Simd;
    use crate::kernels::isa::simd_fn;
    use crate::optimizers::{UpdateArrays, UpdateStep};

    #[derive(Clone, Copy)]
    struct Scalars {
        gradient_scale: f32,
        weight_decay: f32,
        momentum: f32,
        learning_rate: f32,
    }

    pub fn update(sgd: &Sgd, simd: Simd, step: &UpdateStep, arrays: UpdateArrays<'_>) {
        let scalars = Scalars {
            gradient_scale: step.gradient_scale,
            weight_decay: step.weight_decay as f32,
            momentum: sgd.momentum as f32,
            learning_rate: step.learning_rate as f32,
        };
        let UpdateArrays { weights, gradient, state: [momentum, ..], .. } = arrays;
        if sgd.momentum == 0.0 {
            plain_pass(simd, scalars, weights, gradient);
        } else {
            if step.step <= 1 {
                momentum.fill(0.0);
            }
            momentum_pass(simd, scalars, weights, gradient, momentum);
        }
    }

    simd_fn! {
        fn plain_pass(s: Scalars, w: &mut [f32], g: &[f32]) {
            assert_eq!(g.len(), w.len());
            for (w, g) in w.iter_mut().zip(g) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *w = g.mul_add(-s.learning_rate, *w);
            }
        }
    }

    simd_fn! {
        fn momentum_pass(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32]) {
            assert!(g.len() == w.len() && m.len() == w.len());
            for ((w, g), m) in w.iter_mut().zip(g).zip(m) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *m = s.momentum.mul_add(*m, g);
                *w = m.mul_add(-s.learning_rate, *w);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Sgd;
    use crate::kernels::Simd;
    use crate::optimizers::testing::OptimizerTests;
    use crate::optimizers::{Optimizer, UpdateArrays, UpdateStep};

    impl OptimizerTests for Sgd {
        fn reference(&self, step: &UpdateStep, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let gradient = gradient + step.weight_decay * *weight;
            let direction = match state {
                [momentum] => {
                    *momentum = self.momentum * *momentum + gradient;
                    *momentum
                }
                _ => gradient,
            };
            *weight -= step.learning_rate * direction;
        }

        fn cases() -> Vec<Self> {
            [0.0, 0.9].map(|momentum| Sgd { momentum }).into()
        }
    }

    #[test]
    fn first_step_replaces_the_momentum() {
        let (mut weights, mut momentum) = ([1.0], [f32::NAN]);
        let step = UpdateStep { step: 1, learning_rate: 0.5, weight_decay: 0.0, gradient_scale: 1.0 };
        let arrays = UpdateArrays {
            weights: &mut weights,
            gradient: &[1.0],
            state: [&mut momentum, &mut [], &mut []],
            shape: &[1],
        };
        Sgd { momentum: 0.9 }.update(Simd::detect(), &step, arrays);
        assert_eq!((weights, momentum), ([0.5], [1.0]));
    }
}
