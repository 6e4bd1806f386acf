//! Text generation row by row: the same bits as in one call, and the loss of an evaluation.

mod common;

use std::convert::Infallible;
use std::sync::Arc;

use common::{Elements, LARGE, Samples, device, evaluate, initial_weights, plan, spec};
use millrace_emulator::compile::BatchSpec;
use millrace_emulator::families::decoder;
use millrace_emulator::graph::Graph;
use millrace_emulator::inference::{
    InferenceError, InferenceModel, InferenceOptions, InferenceStartError, NotADecoder,
};
use millrace_emulator::kernels::Simd;
use millrace_emulator::numerics::Precision;
use millrace_emulator::ops::SelectRow;
use millrace_emulator::plan::{Encoding, Group, StreamPlan};
use millrace_params::{DecoderOptions, ModelSpec, Norm, ParallelBlocks, Positions, RotaryPositions, RotaryScaling};

/// Longer than a block of queries of the attention, and than a call.
const SEQUENCE: usize = 130;

/// Models that together have every operator and attribute of a decoder.
fn specs() -> Vec<(&'static str, ModelSpec)> {
    let base = ModelSpec { use_bias_in_output: true, dropout_rate: 0.1, ..spec(2, 24, 4, 50, SEQUENCE) };
    let rotary =
        |is_adjacent, scaling| Positions::Rotary(RotaryPositions { dimensions: 4, base: 1e4, is_adjacent, scaling });
    let llama = DecoderOptions {
        positions: rotary(false, Some(RotaryScaling::Linear { factor: 2.0 })),
        norm: Norm::RmsNorm,
        num_key_heads: Some(2),
        attention_window: Some(9),
        is_gated: true,
        ..DecoderOptions::default()
    };
    let gptj = DecoderOptions {
        positions: rotary(true, None),
        parallel_blocks: Some(ParallelBlocks::OneNorm),
        ..DecoderOptions::default()
    };
    let bloom = DecoderOptions {
        positions: Positions::Alibi,
        is_embedding_normalized: true,
        embeddings_scale: 3.0,
        logits_scale: 0.5,
        ..DecoderOptions::default()
    };
    let with_decoder = |decoder| ModelSpec { decoder, share_embedding_weights: false, ..base.clone() };
    vec![
        ("gpt2", base.clone()),
        ("llama", with_decoder(llama)),
        ("gptj", with_decoder(gptj)),
        ("bloom", with_decoder(bloom)),
    ]
}

fn tokens() -> Vec<u32> {
    (0..SEQUENCE as u32).map(|index| index * index * 7 % 50).collect()
}

fn weights_of(plan: &StreamPlan) -> Vec<Vec<f32>> {
    let mut tensors = vec![Vec::new(); plan.graph.tensors.len()];
    for (group, values) in plan.groups.iter().zip(initial_weights(plan, 5)) {
        for (tensor, range) in &group.tensors {
            tensors[*tensor] = values[range.clone()].iter().map(|value| value * 5.0).collect();
        }
    }
    tensors
}

fn model(plan: &StreamPlan, threads: usize, precision: Precision) -> InferenceModel {
    let tensors = weights_of(plan);
    let options = InferenceOptions { threads, simd: Simd::detect(), precision, positions: SEQUENCE };
    InferenceModel::new(plan.graph.clone(), options, |tensor| Ok::<_, Infallible>(tensors[tensor].clone())).unwrap()
}

/// Logits after each of the calls that divide the tokens at `boundaries`.
fn logits(plan: &StreamPlan, threads: usize, precision: Precision, boundaries: &[usize]) -> Vec<Vec<f32>> {
    let (mut model, tokens) = (model(plan, threads, precision), tokens());
    boundaries.windows(2).map(|range| model.extend(&tokens[range[0]..range[1]]).unwrap().to_vec()).collect()
}

fn plan_of(spec: &ModelSpec, encoding: Encoding) -> Arc<StreamPlan> {
    plan(decoder(spec, SEQUENCE).unwrap(), BatchSpec { samples: 1, leaf_bound: 1 }, encoding, LARGE)
}

#[test]
fn logits_are_the_same_bits_in_any_number_of_calls() {
    let every_token: Vec<usize> = (0..=SEQUENCE).collect();
    for (name, spec) in specs() {
        let plan = plan_of(&spec, Encoding::F32);
        let expected = logits(&plan, 1, Precision::F32, &every_token);
        for (threads, boundaries) in [(1, vec![0, SEQUENCE]), (3, vec![0, 1, 17, 100, 101, SEQUENCE])] {
            let found = logits(&plan, threads, Precision::F32, &boundaries);
            for (found, end) in found.iter().zip(&boundaries[1..]) {
                assert_eq!(found, &expected[end - 1], "{name}: {end} tokens of {boundaries:?}");
            }
        }
    }
}

#[test]
fn logits_give_the_loss_of_an_evaluation() {
    let every_token: Vec<usize> = (0..=SEQUENCE).collect();
    for (name, spec) in specs() {
        for (encoding, precision) in [(Encoding::F32, Precision::F32), (Encoding::Bf16, Precision::Bf16)] {
            let plan = plan_of(&spec, encoding);
            let tensors = weights_of(&plan);
            let group = |group: &Group| group.tensors.iter().flat_map(|(tensor, _)| tensors[*tensor].clone()).collect();
            let groups: Vec<Vec<f32>> = plan.groups.iter().map(group).collect();
            let ids: Vec<i32> = tokens().iter().map(|token| *token as i32).collect();
            let labels: Vec<i32> = ids.iter().map(|id| (id + 3) % 50).collect();
            let samples = Samples { inputs: [ids, labels.clone()].map(Elements::I32).to_vec(), first: 0 };
            let expected = evaluate(&mut device(&plan, 1), &plan, &groups, &samples)[0].loss;
            let loss = |(logits, label): (&Vec<f32>, &i32)| {
                let max = logits.iter().copied().fold(f32::MIN, f32::max);
                let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
                f64::from(max - logits[*label as usize]) + sum.ln()
            };
            let found: f64 = logits(&plan, 1, precision, &every_token).iter().zip(&labels).map(loss).sum();
            assert!((found / expected - 1.0).abs() < 1e-6, "{name} {precision}: {found} for {expected}");
        }
    }
}

#[test]
fn tokens_out_of_range_are_rejected_and_not_added() {
    let plan = plan_of(&spec(1, 8, 2, 50, SEQUENCE), Encoding::F32);
    let mut model = model(&plan, 1, Precision::F32);
    assert_eq!((model.vocabulary(), model.positions()), (50, SEQUENCE));
    assert_eq!(model.extend(&[]), Err(InferenceError::Empty));
    assert_eq!(model.extend(&[3, 50]), Err(InferenceError::Vocabulary { token: 50, vocabulary: 50 }));
    let positions = SEQUENCE;
    let too_many = InferenceError::Positions { tokens: positions + 1, positions };
    assert_eq!(model.extend(&vec![0; positions + 1]), Err(too_many));
    assert_eq!(model.tokens(), 0);
    model.extend(&vec![0; positions]).unwrap();
    assert_eq!(model.extend(&[0]), Err(too_many));
}

#[test]
fn graphs_that_are_no_decoders_are_rejected() {
    let options = InferenceOptions { threads: 1, simd: Simd::detect(), precision: Precision::F32, positions: 4 };
    let error = |graph: Graph| {
        let model = InferenceModel::new(graph, options, |_| Ok::<_, Infallible>(Vec::new()));
        let Err(InferenceStartError::Graph(error)) = model else { panic!("the graph must be rejected") };
        error
    };
    let mut graph = decoder(&spec(1, 8, 2, 50, 4), 4).unwrap();
    graph.nodes[3].op = SelectRow { row: 0 }.into();
    let found = error(graph.clone());
    assert!(matches!(found, NotADecoder::LaterRows { id: 3, name: "SelectRow" }), "{found}");
    graph.nodes.pop();
    let found = error(graph);
    assert!(matches!(found, NotADecoder::NotALanguageModel), "{found}");
}
