//! Adagrad: g ← g + decay·w, v ← v + g², w ← w - lr/(1 + (t-1)·lr_decay) · g / (√v + ε). v starts at
//! `initial_accumulator_value`.

use millrace_params::optimizers::Adagrad;

use super::Optimizer;

impl Optimizer for Adagrad {
    fn state(&self) -> &'static [&'static str] {
        &["v"]
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [v, ..], .. } = arrays;
        if step.step <= 1 {
            v.fill(self.initial_accumulator_value as f32);
        }
        let decay = 1.0 + step.step.saturating_sub(1) as f64 * self.lr_decay;
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            weight_decay: step.weight_decay as f32,
            epsilon: self.eps as f32,
            learning_rate: (step.learning_rate / decay) as f32,
        };
        run::pass(simd, scalars, weights, gradient, v);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use crate::kernels::isa::simd_fn;

    #[derive(Clone, Copy)]
    pub struct Scalars {
        pub gradient_scale: f32,
        pub weight_decay: f32,
        pub epsilon: f32,
        pub learning_rate: f32,
    }

    simd_fn! {
        pub fn pass(s: Scalars, w: &mut [f32], g: &[f32], v: &mut [f32]) {
            assert!(g.len() == w.len() && v.len() == w.len());
            for ((w, g), v) in w.iter_mut().zip(g).zip(v) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *v = g.mul_add(g, *v);
                *w = (g / (v.sqrt() + s.epsilon)).mul_add(-s.learning_rate, *w);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Adagrad;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for Adagrad {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let gradient = gradient + step.weight_decay * *weight;
            let before = if step.step == 1 { self.initial_accumulator_value } else { state[0] };
            state[0] = before + gradient * gradient;
            let rate = step.learning_rate / (1.0 + (step.step - 1) as f64 * self.lr_decay);
            *weight -= rate * gradient / (state[0].sqrt() + self.eps);
        }

        fn cases() -> Vec<Self> {
            let settings = [(0.0, 0.0), (0.1, 0.5)];
            settings
                .map(|(lr_decay, initial_accumulator_value)| Adagrad {
                    lr_decay,
                    initial_accumulator_value,
                    eps: 1e-10,
                })
                .into()
        }
    }
}
