//! Adadelta: g ← g + decay·w, v ← ρv + (1-ρ)g², d ← g·√(a + ε)/√(v + ε), a ← ρa + (1-ρ)d², w ← w - lr·d.

use millrace_params::optimizers::Adadelta;

use super::Optimizer;

impl Optimizer for Adadelta {
    fn state(&self) -> &'static [&'static str] {
        &["v", "a"]
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [v, a, ..], .. } = arrays;
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            weight_decay: step.weight_decay as f32,
            rho: self.rho as f32,
            rho_rest: (1.0 - self.rho) as f32,
            epsilon: self.eps as f32,
            learning_rate: step.learning_rate as f32,
        };
        run::pass(simd, scalars, weights, gradient, v, a);
    }
}

#[cfg(feature = "kernels")]
mod run {
    use crate::kernels::isa::simd_fn;

    #[derive(Clone, Copy)]
    pub struct Scalars {
        pub gradient_scale: f32,
        pub weight_decay: f32,
        pub rho: f32,
        pub rho_rest: f32,
        pub epsilon: f32,
        pub learning_rate: f32,
    }

    simd_fn! {
        pub fn pass(s: Scalars, w: &mut [f32], g: &[f32], v: &mut [f32], a: &mut [f32]) {
            assert!(g.len() == w.len() && v.len() == w.len() && a.len() == w.len());
            for (((w, g), v), a) in w.iter_mut().zip(g).zip(v).zip(a) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *v = s.rho.mul_add(*v, s.rho_rest * g * g);
                let direction = (*a + s.epsilon).sqrt() / (*v + s.epsilon).sqrt() * g;
                *a = s.rho.mul_add(*a, s.rho_rest * direction * direction);
                *w = direction.mul_add(-s.learning_rate, *w);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::Adadelta;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for Adadelta {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let gradient = gradient + step.weight_decay * *weight;
            let [squares, updates] = state else { panic!("two means") };
            *squares = self.rho * *squares + (1.0 - self.rho) * gradient * gradient;
            let direction = (*updates + self.eps).sqrt() / (*squares + self.eps).sqrt() * gradient;
            *updates = self.rho * *updates + (1.0 - self.rho) * direction * direction;
            *weight -= step.learning_rate * direction;
        }

        fn cases() -> Vec<Self> {
            [0.0, 0.9].map(|rho| Adadelta { rho, eps: 1e-3 }).into()
        }
    }
}
