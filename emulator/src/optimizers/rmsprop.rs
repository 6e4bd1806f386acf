//! RMSprop: g ← g + decay·w, v ← αv + (1-α)g², d ← g / (√v + ε), w ← w - lr·d. With momentum b ← momentum·b + d and
//! w ← w - lr·b; at a step at which a schedule has the momentum 0, b does not change. Centered: a ← αa + (1-α)g, and
//! √(v - a²) in place of √v.

use millrace_params::optimizers::RmsProp;

use super::Optimizer;

impl Optimizer for RmsProp {
    fn state(&self) -> &'static [&'static str] {
        match (self.centered, self.momentum > 0.0) {
            (true, true) => &["v", "a", "b"],
            (true, false) => &["v", "a"],
            (false, true) => &["v", "b"],
            (false, false) => &["v"],
        }
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
        let super::UpdateArrays { weights, gradient, state: [v, second, third], .. } = arrays;
        // Without momentum, there is no state for it.
        let momentum = if self.momentum == 0.0 { 0.0 } else { step.momentum(self.momentum) };
        let scalars = run::Scalars {
            gradient_scale: step.gradient_scale,
            weight_decay: step.weight_decay as f32,
            alpha: self.alpha as f32,
            alpha_rest: (1.0 - self.alpha) as f32,
            epsilon: self.eps as f32,
            momentum: momentum as f32,
            learning_rate: step.learning_rate as f32,
        };
        match (self.centered, momentum > 0.0) {
            (true, true) => run::centered_with_momentum(simd, scalars, weights, gradient, v, second, third),
            (true, false) => run::centered(simd, scalars, weights, gradient, v, second),
            (false, true) => run::with_momentum(simd, scalars, weights, gradient, v, second),
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
                *w = (g / (variance(*v, *a).sqrt() + s.epsilon)).mul_add(-s.learning_rate, *w);
            }
        }
    }

    simd_fn! {
        pub fn centered_with_momentum(
            s: Scalars, w: &mut [f32], g: &[f32], v: &mut [f32], a: &mut [f32], b: &mut [f32]
        ) {
            assert!(g.len() == w.len() && v.len() == w.len() && a.len() == w.len() && b.len() == w.len());
            for ((((w, g), v), a), b) in w.iter_mut().zip(g).zip(v).zip(a).zip(b) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *v = s.alpha.mul_add(*v, s.alpha_rest * g * g);
                *a = s.alpha.mul_add(*a, s.alpha_rest * g);
                *b = s.momentum.mul_add(*b, g / (variance(*v, *a).sqrt() + s.epsilon));
                *w = b.mul_add(-s.learning_rate, *w);
            }
        }
    }

    /// Returns the variance from the means of squares and of values. Rounding can make that of constant values slightly
    /// negative.
    #[inline(always)]
    fn variance(squares: f32, mean: f32) -> f32 {
        let variance = mean.mul_add(-mean, squares);
        if variance > 0.0 { variance } else { 0.0 }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::RmsProp;
    use crate::optimizers::UpdateStep;
    use crate::optimizers::testing::OptimizerTests;

    impl OptimizerTests for RmsProp {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let gradient = gradient + step.weight_decay * *weight;
            state[0] = self.alpha * state[0] + (1.0 - self.alpha) * gradient * gradient;
            let mut variance = state[0];
            if self.centered {
                state[1] = self.alpha * state[1] + (1.0 - self.alpha) * gradient;
                variance -= state[1] * state[1];
            }
            let mut direction = gradient / (variance.sqrt() + self.eps);
            if self.momentum > 0.0
                && let Some(buffer) = state.last_mut()
            {
                *buffer = step.momentum(self.momentum) * *buffer + direction;
                direction = *buffer;
            }
            *weight -= step.learning_rate * direction;
        }

        fn has_momentum(&self) -> bool {
            self.momentum > 0.0
        }

        fn cases() -> Vec<Self> {
            let settings = [(0.0, false), (0.9, false), (0.0, true), (0.9, true)];
            settings.map(|(momentum, centered)| RmsProp { alpha: 0.9, eps: 1e-8, momentum, centered }).into()
        }
    }
}
