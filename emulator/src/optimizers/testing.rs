//! What every optimizer's tests share: the form of the f64 reference, and the check.

use millrace_params::OptimizerKind;

use super::{MAX_STATE_TENSORS, Optimizer, UpdateArrays, UpdateStep};
use crate::kernels::testing::{assert_close, every_simd, uniform};

/// Elements of the updated piece: no multiple of a vector.
const ELEMENTS: usize = 53;
/// So many that RAdam uses both of its formulas.
const STEPS: u64 = 8;

/// What the tests of an optimizer need from its file.
pub(super) trait OptimizerTests: Optimizer + Sized + Into<OptimizerKind> {
    /// Updates one weight in f64. `gradient` is scaled; `state` has the values of [`Optimizer::state`].
    fn reference(&self, step: &UpdateStep, weight: &mut f64, gradient: f64, state: &mut [f64]);

    /// Returns settings to test, among them every choice.
    fn cases() -> Vec<Self>;
}

/// Compares several steps of each case with the reference, with and without weight decay.
pub(super) fn check_updates<T: OptimizerTests + Copy>() {
    let cases = T::cases();
    assert!(!cases.is_empty(), "no settings to test");
    for optimizer in cases {
        check_names(optimizer.state());
        // What the table registers for this kind, and not a type that has the same name.
        assert_eq!(format!("{:?}", super::optimizer(&optimizer.into())), format!("{optimizer:?}"));
        for weight_decay in [0.0, 0.1] {
            check_steps(&optimizer, weight_decay);
        }
    }
}

fn check_steps(optimizer: &impl OptimizerTests, weight_decay: f64) {
    let at = |step| UpdateStep { step, learning_rate: 1e-2, weight_decay, gradient_scale: 0.5 };
    let initial = uniform(ELEMENTS, -1.0, 1.0, 1);
    let gradient = |step| uniform(ELEMENTS, -1.0, 1.0, 10 + step);
    let names = optimizer.state().len();
    let weights = every_simd(|simd| {
        let mut weights = initial.clone();
        let mut state: [Vec<f32>; MAX_STATE_TENSORS] =
            std::array::from_fn(|at| vec![0.0; if at < names { ELEMENTS } else { 0 }]);
        for step in 1..=STEPS {
            let state = state.each_mut().map(Vec::as_mut_slice);
            let arrays = UpdateArrays { weights: &mut weights, gradient: &gradient(step), state };
            optimizer.update(simd, &at(step), arrays);
        }
        weights
    });
    let mut expected: Vec<f64> = initial.iter().copied().map(f64::from).collect();
    let mut states = vec![vec![0.0; names]; ELEMENTS];
    for step in 1..=STEPS {
        for ((weight, gradient), state) in expected.iter_mut().zip(gradient(step)).zip(&mut states) {
            optimizer.reference(&at(step), weight, 0.5 * f64::from(gradient), state);
        }
    }
    assert_close(&weights, &expected, 1e-6);
}

/// Checks the names of state tensors, which become names of files.
fn check_names(names: &[&str]) {
    assert!(names.len() <= MAX_STATE_TENSORS, "MemoryX is planned for {MAX_STATE_TENSORS} state tensors");
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    for (at, name) in names.iter().enumerate() {
        assert!(!name.is_empty() && name.chars().all(is_plain) && !names[..at].contains(name), "{name:?}");
    }
}
