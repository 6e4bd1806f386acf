//! Stochastic gradient descent: g ← g + decay·w, m ← momentum·m + (1-dampening)·g (m ← g in the first step),
//! w ← w - lr·m. Nesterov's momentum: w ← w - lr·(g + momentum·m). Without momentum w ← w - lr·g, and there is no
//! state; at a step at which a schedule has the momentum 0, the state does not change.

use millrace_params::optimizers::Sgd;

use super::Optimizer;

impl Optimizer for Sgd {
    fn state(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["m"] }
    }

    #[cfg(feature = "kernels")]
    fn update(&self, simd: crate::kernels::Simd, step: &super::UpdateStep<'_>, arrays: super::UpdateArrays<'_>) {
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
        /// Share of the gradient in the momentum.
        undampened: f32,
        learning_rate: f32,
    }

    pub fn update(sgd: &Sgd, simd: Simd, step: &UpdateStep<'_>, arrays: UpdateArrays<'_>) {
        // Without momentum, there is no state.
        let momentum = if sgd.momentum == 0.0 { 0.0 } else { step.momentum(sgd.momentum) };
        let is_first = step.step <= 1;
        let scalars = Scalars {
            gradient_scale: step.gradient_scale,
            weight_decay: step.weight_decay as f32,
            momentum: momentum as f32,
            undampened: if is_first { 1.0 } else { (1.0 - sgd.dampening) as f32 },
            learning_rate: step.learning_rate as f32,
        };
        let UpdateArrays { weights, gradient, state: [state, ..], .. } = arrays;
        if is_first {
            state.fill(0.0);
        }
        match (momentum == 0.0, sgd.nesterov) {
            (true, _) => plain_pass(simd, scalars, weights, gradient),
            (false, false) => momentum_pass(simd, scalars, weights, gradient, state),
            (false, true) => nesterov_pass(simd, scalars, weights, gradient, state),
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
                *m = s.momentum.mul_add(*m, s.undampened * g);
                *w = m.mul_add(-s.learning_rate, *w);
            }
        }
    }

    simd_fn! {
        fn nesterov_pass(s: Scalars, w: &mut [f32], g: &[f32], m: &mut [f32]) {
            assert!(g.len() == w.len() && m.len() == w.len());
            for ((w, g), m) in w.iter_mut().zip(g).zip(m) {
                let g = s.weight_decay.mul_add(*w, g * s.gradient_scale);
                *m = s.momentum.mul_add(*m, g);
                *w = s.momentum.mul_add(*m, g).mul_add(-s.learning_rate, *w);
            }
        }
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use millrace_params::MomentumCurve::Constant;
    use millrace_params::MomentumSchedule;

    use super::Sgd;
    use crate::kernels::Simd;
    use crate::optimizers::testing::OptimizerTests;
    use crate::optimizers::{Optimizer, UpdateArrays, UpdateStep};

    impl OptimizerTests for Sgd {
        fn reference(&self, step: &UpdateStep<'_>, weight: &mut f64, gradient: f64, state: &mut [f64]) {
            let gradient = gradient + step.weight_decay * *weight;
            let momentum = step.momentum(self.momentum);
            let direction = match state {
                [state] => {
                    let share = if step.step == 1 { 1.0 } else { 1.0 - self.dampening };
                    *state = momentum * *state + share * gradient;
                    if self.nesterov { gradient + momentum * *state } else { *state }
                }
                _ => gradient,
            };
            *weight -= step.learning_rate * direction;
        }

        fn has_momentum(&self) -> bool {
            self.momentum > 0.0
        }

        fn cases() -> Vec<Self> {
            let settings = [(0.0, 0.0, false), (0.9, 0.0, false), (0.9, 0.25, false), (0.9, 0.0, true)];
            settings.map(|(momentum, dampening, nesterov)| Sgd { momentum, dampening, nesterov }).into()
        }
    }

    #[test]
    fn first_step_replaces_the_momentum() {
        let (mut weights, mut momentum) = ([1.0], [f32::NAN]);
        update(1, None, &mut weights, &mut momentum);
        assert_eq!((weights, momentum), ([0.5], [1.0]));
    }

    /// As in PyTorch, which then has no momentum to add.
    #[test]
    fn step_without_momentum_keeps_the_state() {
        let (mut weights, mut momentum) = ([1.0], [8.0]);
        let schedule = MomentumSchedule { steps: vec![0, 4, 5], values: vec![0.5, 0.0, 0.5], curve: Constant };
        update(5, Some(&schedule), &mut weights, &mut momentum);
        assert_eq!((weights, momentum), ([0.5], [8.0]));
        update(6, Some(&schedule), &mut weights, &mut momentum);
        assert_eq!((weights, momentum), ([-2.0], [5.0]));
    }

    fn update(step: u64, momentum_schedule: Option<&MomentumSchedule>, weights: &mut [f32], momentum: &mut [f32]) {
        let step = UpdateStep { step, learning_rate: 0.5, weight_decay: 0.0, gradient_scale: 1.0, momentum_schedule };
        let arrays = UpdateArrays { weights, gradient: &[1.0], state: [momentum, &mut [], &mut []], shape: &[1] };
        Sgd { momentum: 0.9, dampening: 0.0, nesterov: false }.update(Simd::detect(), &step, arrays);
    }
}
