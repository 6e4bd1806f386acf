//! Checks that sequences in one sample do not see each other.

mod common;

use std::sync::Arc;

use common::*;
use millrace_emulator::compile::BatchSpec;
use millrace_emulator::families;
use millrace_emulator::graph::Graph;
use millrace_emulator::plan::{Encoding, StreamPlan};
use millrace_params::{DecoderOptions, ModelSpec, Norm, Positions, RotaryPositions};

const LENGTH: usize = 20;
/// Tokens of the first sequence of a packed sample.
const FIRST: usize = 7;
const BATCH: BatchSpec = BatchSpec { samples: 2, leaf_bound: 1 };

fn graph(positions: Positions, is_packed: bool) -> Graph {
    let norm = if positions == Positions::Learned { Norm::LayerNorm } else { Norm::RmsNorm };
    let decoder = DecoderOptions { positions, norm, is_packed, ..DecoderOptions::default() };
    families::decoder(&ModelSpec { decoder, ..spec(2, 48, 3, 64, LENGTH) }, LENGTH).unwrap()
}

fn loss_and_gradient(plan: &Arc<StreamPlan>, inputs: Vec<Vec<i32>>) -> (f64, Vec<Vec<f32>>) {
    let samples = Samples { inputs: inputs.into_iter().map(Elements::I32).collect(), first: 0 };
    step(&mut device(plan, 1), plan, &initial_weights(plan, 1), &samples)
}

/// A batch of a packed sample and one of a single sequence has the loss and the gradient of a batch of three samples in
/// which each sequence has its own, up to rounding.
#[test]
fn packed_sequences_are_computed_as_samples_of_their_own() {
    let rotary = RotaryPositions { dimensions: 8, base: 100.0, is_adjacent: false, scaling: None };
    let tokens: Vec<i32> = (0..2 * LENGTH as i32).map(|index| (index * 7 + index * index) % 64).collect();
    let labels: Vec<i32> = tokens.iter().map(|token| (token * 5 + 3) % 64).collect();
    for positions in [Positions::Learned, Positions::Rotary(rotary), Positions::Alibi] {
        let packed = plan(graph(positions, true), BATCH, Encoding::F32, LARGE);
        let lengths = [FIRST, LENGTH - FIRST, LENGTH];
        let spans = lengths.iter().flat_map(|length| (0..*length as i32).rev()).collect();
        let position_ids = lengths.iter().flat_map(|length| 0..*length as i32).collect();
        let packed_result = loss_and_gradient(&packed, vec![tokens.clone(), labels.clone(), spans, position_ids]);

        let single = plan(graph(positions, false), BatchSpec { samples: 3, ..BATCH }, Encoding::F32, LARGE);
        let mut inputs = vec![Vec::new(), Vec::new()];
        let mut from = 0;
        for length in lengths {
            for (input, (all, padding)) in inputs.iter_mut().zip([(&tokens, 0), (&labels, -1)]) {
                input.extend(&all[from..from + length]);
                input.resize(input.len() + LENGTH - length, padding);
            }
            from += length;
        }
        let single_results = loss_and_gradient(&single, inputs);
        assert!(
            (packed_result.0 / single_results.0 - 1.0).abs() < 1e-6,
            "{positions:?}: {} and {}",
            packed_result.0,
            single_results.0
        );
        let pairs = packed_result.1.iter().flatten().zip(single_results.1.iter().flatten());
        let largest = single_results.1.iter().flatten().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let largest_difference = pairs.map(|(a, b)| (a - b).abs() / largest).fold(0.0f32, f32::max);
        assert!(largest_difference < 1e-5, "{positions:?}: {largest_difference}");
    }
}

#[test]
fn graph_without_packing_is_that_of_single_sequences() {
    let rotary = RotaryPositions { dimensions: 8, base: 100.0, is_adjacent: false, scaling: None };
    for positions in [Positions::Learned, Positions::Rotary(rotary), Positions::Alibi] {
        let unpacked = graph(positions, true).without_packing();
        unpacked.validate().unwrap();
        let single = graph(positions, false);
        assert_eq!((unpacked.tensors, unpacked.layers), (single.tensors.clone(), single.layers.clone()));
        let kinds = |graph: &[millrace_emulator::graph::OpNode]| graph.iter().map(|node| node.op).collect::<Vec<_>>();
        assert_eq!(kinds(&unpacked.nodes), kinds(&single.nodes));
        assert_eq!(single.without_packing(), single);
    }
}
