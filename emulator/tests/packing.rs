//! Checks that sequences in one sample do not see each other.

mod common;

use std::sync::Arc;

use common::*;
use millrace_emulator::compile::BatchSpec;
use millrace_emulator::families;
use millrace_emulator::graph::Graph;
use millrace_emulator::plan::{Encoding, StreamPlan};
use millrace_params::{
    DecoderOptions, EncoderOptions, EncoderTask, ModelSpec, Nonlinearity, Norm, Positions, RotaryPositions,
};

const LENGTH: usize = 20;
/// Tokens of the first sequence of a packed sample.
const FIRST: usize = 7;
const BATCH: BatchSpec = BatchSpec { samples: 2, leaf_bound: 1 };
const ROTARY: RotaryPositions = RotaryPositions { dimensions: 8, base: 100.0, is_adjacent: false, scaling: None };

fn graph(positions: Positions, is_packed: bool) -> Graph {
    let norm = if positions == Positions::Learned { Norm::LayerNorm } else { Norm::RmsNorm };
    let decoder = DecoderOptions { positions, norm, is_packed, ..DecoderOptions::default() };
    families::decoder(&ModelSpec { decoder, ..spec(2, 48, 3, 64, LENGTH) }, LENGTH).unwrap()
}

fn encoder_graph(positions: Positions, is_packed: bool) -> Graph {
    let options = EncoderOptions {
        use_segment_embedding: false,
        pooler_nonlinearity: Nonlinearity::Tanh,
        task: EncoderTask::Pretraining {
            max_predictions: None,
            masked_token_weight: 1.0,
            nonlinearity: Nonlinearity::Gelu,
            predicts_next_sentence: false,
        },
        norm_first: true,
        is_embedding_plain: true,
        mask_token: None,
        has_token_dropout: false,
    };
    let decoder = DecoderOptions { positions, is_packed, ..DecoderOptions::default() };
    families::graph(&ModelSpec { decoder, encoder: Some(options), ..spec(2, 48, 3, 64, LENGTH) }, LENGTH).unwrap()
}

fn loss_and_gradient(plan: &Arc<StreamPlan>, inputs: Vec<Vec<i32>>) -> (f64, Vec<Vec<f32>>) {
    let samples = Samples { inputs: inputs.into_iter().map(Elements::I32).collect(), first: 0 };
    step(&mut device(plan, 1), plan, &initial_weights(plan, 1), &samples)
}

/// A batch of a packed sample and one of a single sequence has the loss and the gradient of a batch of three samples in
/// which each sequence has its own, up to rounding.
fn check_packed(name: &str, packed: Graph, single: Graph) {
    let tokens: Vec<i32> = (0..2 * LENGTH as i32).map(|index| (index * 7 + index * index) % 64).collect();
    let lengths = [FIRST, LENGTH - FIRST, LENGTH];
    // The values of an input, and those of padding.
    let input = |name: &str| match name {
        "input_ids" => (tokens.clone(), 0),
        "labels" => (tokens.iter().map(|token| (token * 5 + 3) % 64).collect(), -1),
        "attention_mask" => (vec![1; tokens.len()], 0),
        "attention_span" => (lengths.iter().flat_map(|length| (0..*length as i32).rev()).collect(), 0),
        "position_ids" => (lengths.iter().flat_map(|length| 0..*length as i32).collect(), 0),
        _ => panic!("{name}"),
    };
    let inputs = |graph: &Graph| -> Vec<(Vec<i32>, i32)> {
        graph.inputs.iter().map(|value| input(&graph.values[*value].name)).collect()
    };
    let packed_inputs = inputs(&packed).into_iter().map(|(all, _)| all).collect();
    let single_inputs = inputs(&single).into_iter().map(|(all, padding)| separate(&all, &lengths, padding)).collect();
    let packed = plan(packed, BATCH, Encoding::F32, LARGE);
    let packed_result = loss_and_gradient(&packed, packed_inputs);
    let single = plan(single, BatchSpec { samples: 3, ..BATCH }, Encoding::F32, LARGE);
    let single_results = loss_and_gradient(&single, single_inputs);
    let (loss, single_loss) = (packed_result.0, single_results.0);
    assert!((loss / single_loss - 1.0).abs() < 1e-6, "{name}: {loss} and {single_loss}");
    let pairs = packed_result.1.iter().flatten().zip(single_results.1.iter().flatten());
    let largest = single_results.1.iter().flatten().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let largest_difference = pairs.map(|(a, b)| (a - b).abs() / largest).fold(0.0f32, f32::max);
    assert!(largest_difference < 1e-5, "{name}: {largest_difference}");
}

/// Returns the sequences of these lengths, each padded to a sample of its own.
fn separate(all: &[i32], lengths: &[usize], padding: i32) -> Vec<i32> {
    let mut rest = all;
    let mut samples = Vec::new();
    for length in lengths {
        let (sequence, later) = rest.split_at(*length);
        samples.extend(sequence);
        samples.resize(samples.len() + LENGTH - length, padding);
        rest = later;
    }
    samples
}

#[test]
fn packed_sequences_are_computed_as_samples_of_their_own() {
    for positions in [Positions::Learned, Positions::Rotary(ROTARY), Positions::Alibi] {
        check_packed("decoder", graph(positions, true), graph(positions, false));
    }
    for positions in [Positions::Learned, Positions::Rotary(ROTARY)] {
        check_packed("encoder", encoder_graph(positions, true), encoder_graph(positions, false));
    }
}

#[test]
fn graph_without_packing_is_that_of_single_sequences() {
    let decoders = [Positions::Learned, Positions::Rotary(ROTARY), Positions::Alibi];
    let decoders = decoders.map(|positions| [true, false].map(|is_packed| graph(positions, is_packed)));
    let encoders = [Positions::Learned, Positions::Rotary(ROTARY)];
    let encoders = encoders.map(|positions| [true, false].map(|is_packed| encoder_graph(positions, is_packed)));
    for [packed, single] in decoders.into_iter().chain(encoders) {
        let unpacked = packed.without_packing();
        unpacked.validate().unwrap();
        assert_eq!((unpacked.tensors, unpacked.layers), (single.tensors.clone(), single.layers.clone()));
        let kinds = |graph: &[millrace_emulator::graph::OpNode]| graph.iter().map(|node| node.op).collect::<Vec<_>>();
        assert_eq!(kinds(&unpacked.nodes), kinds(&single.nodes));
        assert_eq!(single.without_packing(), single);
    }
}
