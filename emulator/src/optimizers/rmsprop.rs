//! RMSprop: g ← g + decay·w, v ← αv + (1-α)g², d ← g / (√v + ε), w ← w - lr·d. With momentum b ← momentum·b + d and
//! w ← w - lr·b. Centered: a ← αa + (1-α)g, and √(v - a²) in place of √v.

use millrace_params::optimizers::RmsProp;

use super::Optimizer;

impl Optimizer for RmsProp {
    fn state(&self) -> &'static [&'static str] {
        match (self.centered, self.momentum > 0.0) {
            (true, _) => &["v", "a"],
            (false, true) => &["v", "b"],
            (false, false) => &["v"],
        }
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [v, other, ..], .. } = arrays;
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            weight_decay: step.weight_decay as f32,
            alpha: self.alpha as f32,
            alpha_rest: (1.0 - self.alpha) as f32,
            epsilon: self.eps as f32,
            momentum: self.momentum as f32,
            learning_rate: step.learning_rate as f32,
        };
        match (self.centered, self.momentum > 0.0) {
            (true, _) => run::centered(simd, scalars, weights, gradient, v, other),
            (false, true) => run::with_momentum(simd, scalars, weights, gradient, v, other),
            (false, false) => run::plain(simd, scalars, weights, gradient, v),
        }
    }
}

#[cfg(feature = "kernels")]
mod run {
    use crate::kernels::isa::simd_fn;

    #[derive(Clone, Copy)]
    pub struct Scalars {
        pub gradient_scale: f32,
        pub weight_decay: f32,
        pub alpha: f32,
        pub alpha_rest: f32,
        pub epsilon: f32,
        pub momentum: f32,
        pub learning_rate: f32,
    }

    simd_fn! {
        pub fn plain(s: Scalars, w: &mut [f32], g: &[f32], v: &mut [f32]) {
            assert!(g.len() == w.len() && v.len() == w.len());
            for ((w, g), v) in w.iter_mut().zip(g).zip(v) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *v = s.alpha.mul_add(*v, s.alpha_rest * g * g);
                *w = (g / (v.sqrt() + s.epsilon)).mul_add(-s.learning_rate, *w);
            }
        }
    }

    simd_fn! {
        pub fn with_momentum(s: Scalars, w: &mut [f32], g: &[f32], v: &mut [f32], b: &mut [f32]) {
            assert!(g.len() == w.len() && v.len() == w.len() && b.len() == w.len());
            for (((w, g), v), b) in w.iter_mut().zip(g).zip(v).zip(b) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *v = s.alpha.mul_add(*v, s.alpha_rest * g * g);
                *b = s.momentum.mul_add(*b, g / (v.sqrt() + s.epsilon));
                *w = b.mul_add(-s.learning_rate, *w);
            }
        }
    }

    simd_fn! {
        pub fn centered(s: Scalars, w: &mut [f32], g: &[f32], v: &mut [f32], a: &mut [f32]) {
            assert!(g.len() == w.len() && v.len() == w.len() && a.len() == w.len());
            for (((w, g), v), a) in w.iter_mut().zip(g).zip(v).zip(a) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *v = s.alpha.mul_add(*v, s.alpha_rest * g * g);
                *a = s.alpha.mul_add(*a, s.alpha_rest * g);
                // Rounding can make the variance of a constant gradient slightly negative.
                let variance = a.mul_add(-*a, *v);
                let variance = if variance > 0.0 { variance } else { 0.0 };
                *w = (g / (variance.sqrt() + s.epsilon)).mul_add(-s.learning_rate, *w);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::RmsProp;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for RmsProp {
        fn reference(&self, step: &UpdateStep, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let gradient = gradient + step.weight_decay * *weight;
            state[0] = self.alpha * state[0] + (1.0 - self.alpha) * gradient * gradient;
            let mut variance = state[0];
            if self.centered {
                state[1] = self.alpha * state[1] + (1.0 - self.alpha) * gradient;
                variance -= state[1] * state[1];
            }
            let mut direction = gradient / (variance.sqrt() + self.eps);
            if self.momentum > 0.0 {
                state[1] = self.momentum * state[1] + direction;
                direction = state[1];
            }
            *weight -= step.learning_rate * direction;
        }

        fn cases() -> Vec<Self> {
            let settings = [(0.0, false), (0.9, false), (0.0, true)];
            settings.map(|(momentum, centered)| RmsProp { alpha: 0.9, eps: 1e-8, momentum, centered }).into()
        }
    }
}
