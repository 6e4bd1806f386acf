//! Compares twenty steps of each optimizer with PyTorch's, recorded by `tests/parity/make_optimizers.py`.

use std::path::Path;

use millrace_emulator::kernels::Simd;
use millrace_emulator::optimizers::{MAX_STATE_TENSORS, UpdateArrays, UpdateStep, optimizer};
use millrace_emulator::plan::StateShape;
use millrace_params::{MomentumSchedule, OptimizerKind};

/// Sizes of the recorded runs.
const STEPS: u64 = 20;
const LEARNING_RATE: f64 = 0.01;

#[derive(serde::Deserialize)]
struct Case {
    optimizer: OptimizerKind,
    weight_decay: f64,
    #[serde(default)]
    momentum_schedule: Option<MomentumSchedule>,
    #[serde(default)]
    maximize: bool,
    shape: Vec<usize>,
    /// After the last step.
    weights: Vec<f32>,
}

fn initial(elements: usize) -> Vec<f32> {
    (0..elements as i32).map(|element| ((element * 53) % 31 - 15) as f32 / 16.0).collect()
}

fn gradient(elements: usize, step: u64) -> Vec<f32> {
    (0..elements as i32).map(|element| ((step as i32 * 37 + element * 101) % 97 - 48) as f32 / 64.0).collect()
}

/// Trains in pieces, as a tensor is divided among shards, if the optimizer does not need whole tensors.
fn train(case: &Case) -> Vec<f32> {
    let elements = case.shape.iter().product();
    let mut weights = initial(elements);
    let optimizer = optimizer(&case.optimizer);
    let shapes = optimizer.whole_tensor_state();
    let size = |index| match shapes {
        None => elements * usize::from(index < optimizer.state().len()),
        Some(shapes) => shapes.get(index).map_or(0, |state: &StateShape| state.elements(&case.shape)),
    };
    let mut state: [Vec<f32>; MAX_STATE_TENSORS] = std::array::from_fn(|index| vec![0.0; size(index)]);
    let chunk_elements = if shapes.is_none() { 17 } else { elements };
    let pieces = [0..chunk_elements, chunk_elements..elements];
    for step in 1..=STEPS {
        let gradient = gradient(elements, step);
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            let state = state.each_mut().map(|state| match shapes {
                None if !state.is_empty() => &mut state[piece.clone()],
                _ => state.as_mut_slice(),
            });
            let (weights, gradient) = (&mut weights[piece.clone()], &gradient[piece.clone()]);
            let arrays = UpdateArrays { weights, gradient, state, shape: &case.shape };
            let step = UpdateStep {
                step,
                learning_rate: LEARNING_RATE,
                weight_decay: case.weight_decay,
                gradient_scale: if case.maximize { -1.0 } else { 1.0 },
                momentum_schedule: case.momentum_schedule.as_ref(),
            };
            optimizer.update(Simd::detect(), &step, arrays);
        }
    }
    weights
}

#[test]
fn twenty_steps_of_every_optimizer_agree_with_pytorch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixtures/optimizers.json");
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut names: Vec<&str> = cases.iter().map(|case| case.optimizer.name()).collect();
    names.dedup();
    let expected =
        ["adamw", "adam", "sgd", "lion", "rmsprop", "adagrad", "nadam", "radam", "adamax", "adadelta", "lamb"];
    assert_eq!(names, [&expected[..], &["adafactor"]].concat());
    for case in &cases {
        for (element, (weight, recorded)) in train(case).iter().zip(&case.weights).enumerate() {
            let difference = (weight - recorded).abs();
            assert!(
                difference <= 2e-6,
                "{:?} with weight decay {}: element {element} is {weight}, but {recorded} in PyTorch",
                case.optimizer,
                case.weight_decay
            );
        }
    }
}
