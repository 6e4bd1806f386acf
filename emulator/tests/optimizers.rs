//! Compares twenty steps of each optimizer with PyTorch's, recorded by `tests/parity/make_optimizers.py`.

use std::path::Path;

use millrace_emulator::kernels::Simd;
use millrace_emulator::optimizers::{UpdateArrays, UpdateStep, optimizer};
use millrace_params::OptimizerKind;

/// Sizes of the recorded runs.
const ELEMENTS: usize = 61;
const STEPS: u64 = 20;
const LEARNING_RATE: f64 = 0.01;

#[derive(serde::Deserialize)]
struct Case {
    optimizer: OptimizerKind,
    weight_decay: f64,
    /// After the last step.
    weights: Vec<f32>,
}

fn initial() -> Vec<f32> {
    (0..ELEMENTS as i32).map(|element| ((element * 53) % 31 - 15) as f32 / 16.0).collect()
}

fn gradient(step: u64) -> Vec<f32> {
    (0..ELEMENTS as i32).map(|element| ((step as i32 * 37 + element * 101) % 97 - 48) as f32 / 64.0).collect()
}

/// Trains in pieces, as a tensor is divided among shards.
fn train(case: &Case) -> Vec<f32> {
    let mut weights = initial();
    let mut state = [vec![0.0; ELEMENTS], vec![0.0; ELEMENTS]];
    let kept = optimizer(&case.optimizer).state().len();
    for step in 1..=STEPS {
        let gradient = gradient(step);
        for piece in [0..17, 17..ELEMENTS] {
            let [first, second] = &mut state;
            let state = [first, second].map(|state| &mut state[piece.clone()]);
            let arrays = UpdateArrays {
                weights: &mut weights[piece.clone()],
                gradient: &gradient[piece],
                state: keep(state, kept),
            };
            let step =
                UpdateStep { step, learning_rate: LEARNING_RATE, weight_decay: case.weight_decay, gradient_scale: 1.0 };
            optimizer(&case.optimizer).update(Simd::detect(), &step, arrays);
        }
    }
    weights
}

/// Empties the state tensors that an optimizer does not keep.
fn keep(state: [&mut [f32]; 2], kept: usize) -> [&mut [f32]; 2] {
    let mut position = 0;
    state.map(|tensor| {
        position += 1;
        if position <= kept { tensor } else { &mut [] }
    })
}

#[test]
fn twenty_steps_of_every_optimizer_agree_with_pytorch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/fixtures/optimizers.json");
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut names: Vec<&str> = cases.iter().map(|case| case.optimizer.name()).collect();
    names.dedup();
    assert_eq!(names, ["adamw", "adam", "sgd", "lion", "rmsprop", "adagrad", "nadam", "radam"]);
    for case in &cases {
        for (element, (ours, theirs)) in train(case).iter().zip(&case.weights).enumerate() {
            let apart = (ours - theirs).abs();
            assert!(
                apart <= 2e-6,
                "{:?} with weight decay {}: element {element} is {ours}, but {theirs} in PyTorch",
                case.optimizer,
                case.weight_decay
            );
        }
    }
}
