//! What every optimizer's tests share: the form of the f64 reference, and the check.

use millrace_params::{MomentumCurve, MomentumSchedule, OptimizerKind};

use super::{MAX_STATE_TENSORS, Optimizer, UpdateArrays, UpdateStep};
use crate::kernels::testing::{assert_close, every_simd, uniform};

/// So many that RAdam uses both of its formulas.
const STEPS: u64 = 8;

/// A tensor and its state in f64.
pub(super) struct TensorF64 {
    pub shape: Vec<usize>,
    pub weights: Vec<f64>,
    /// In the order of [`Optimizer::state`].
    pub state: Vec<Vec<f64>>,
}

/// What the tests of an optimizer need from its file: one of the two references.
pub(super) trait OptimizerTests: Optimizer + Sized + Into<OptimizerKind> {
    /// Updates one weight in f64. `gradient` is scaled; `state` has the values of [`Optimizer::state`].
    fn reference(&self, _: &UpdateStep<'_>, _: &mut f64, _: f64, _: &mut [f64]) {
        panic!("{self:?} needs a reference");
    }

    /// Updates a tensor in f64.
    fn reference_tensor(&self, step: &UpdateStep<'_>, tensor: &mut TensorF64, gradient: &[f64]) {
        for (index, (weight, gradient)) in tensor.weights.iter_mut().zip(gradient).enumerate() {
            let mut state: Vec<f64> = tensor.state.iter().map(|state| state[index]).collect();
            self.reference(step, weight, *gradient, &mut state);
            tensor.state.iter_mut().zip(state).for_each(|(element, new)| element[index] = new);
        }
    }

    /// Returns whether a schedule of the momentum changes the updates.
    fn has_momentum(&self) -> bool
    where
        Self: Copy,
    {
        (*self).into().has_momentum()
    }

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
        // No multiples of a vector.
        let has_whole_tensor_state = optimizer.whole_tensor_state().is_some();
        let shapes: &[&[usize]] = if has_whole_tensor_state { &[&[53], &[7, 19], &[2, 3, 17]] } else { &[&[53]] };
        for shape in shapes {
            check_steps(&optimizer, shape, 0.0, None);
            let constant = check_steps(&optimizer, shape, 0.1, None);
            let changing = check_steps(&optimizer, shape, 0.1, Some(&momentum_schedule()));
            assert_eq!(changing != constant, optimizer.has_momentum(), "{optimizer:?} with a schedule");
        }
    }
}

/// Returns a momentum that differs at each step.
fn momentum_schedule() -> MomentumSchedule {
    MomentumSchedule { steps: vec![0, 3, STEPS], values: vec![0.5, 0.95, 0.8], curve: MomentumCurve::Linear }
}

fn state_sizes(optimizer: &impl Optimizer, shape: &[usize]) -> Vec<usize> {
    let names = optimizer.state();
    let Some(shapes) = optimizer.whole_tensor_state() else {
        return vec![shape.iter().product(); names.len()];
    };
    assert_eq!(shapes.len(), names.len(), "a shape for each name");
    shapes.iter().map(|state| state.elements(shape)).collect()
}

/// Returns the weights after the last step.
fn check_steps(
    optimizer: &impl OptimizerTests,
    shape: &[usize],
    weight_decay: f64,
    momentum_schedule: Option<&MomentumSchedule>,
) -> Vec<f32> {
    let elements = shape.iter().product();
    let step_at = |step| UpdateStep { step, learning_rate: 1e-2, weight_decay, gradient_scale: 0.5, momentum_schedule };
    let initial = uniform(elements, -1.0, 1.0, 1);
    let gradient = |step| uniform(elements, -1.0, 1.0, 10 + step);
    let sizes = state_sizes(optimizer, shape);
    let weights = every_simd(|simd| {
        let mut weights = initial.clone();
        let mut state: [Vec<f32>; MAX_STATE_TENSORS] =
            std::array::from_fn(|index| vec![0.0; sizes.get(index).copied().unwrap_or(0)]);
        for step in 1..=STEPS {
            let state = state.each_mut().map(Vec::as_mut_slice);
            let arrays = UpdateArrays { weights: &mut weights, gradient: &gradient(step), state, shape };
            optimizer.update(simd, &step_at(step), arrays);
        }
        weights
    });
    let mut expected = TensorF64 {
        shape: shape.to_vec(),
        weights: initial.iter().copied().map(f64::from).collect(),
        state: sizes.iter().map(|size| vec![0.0; *size]).collect(),
    };
    for step in 1..=STEPS {
        let gradient: Vec<f64> = gradient(step).into_iter().map(|g| 0.5 * f64::from(g)).collect();
        optimizer.reference_tensor(&step_at(step), &mut expected, &gradient);
    }
    assert_close(&weights, &expected.weights, 1e-6);
    weights
}

/// Checks the names of state tensors, which become names of files.
fn check_names(names: &[&str]) {
    assert!(names.len() <= MAX_STATE_TENSORS, "an update gets {MAX_STATE_TENSORS} state tensors");
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    for (index, name) in names.iter().enumerate() {
        assert!(!name.is_empty() && name.chars().all(is_plain) && !names[..index].contains(name), "{name:?}");
    }
}
