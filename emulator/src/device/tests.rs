//! Compares loss and gradients of graphs of many operators, and of whole models, with the f64 reference. The graphs of
//! a single operator are in its file.

use millrace_params::{InitializerSpec, Initializers, ModelSpec, Nonlinearity};

use crate::common::{
    Elements, LARGE, SEED, Samples, device, evaluate, initial_weights, plan, recomputing, spec, step, to_f64,
    with_dropout,
};
use crate::compile::BatchSpec;
use crate::device::{Device, DeviceError, InputData, LossWeights};
use crate::families;
use crate::graph::{Axes, DType, Dimensions, Graph};
use crate::kernels::Simd;
use crate::ops::testing::{ROWS, TestGraph, VOCABULARY, WIDTH, check_graph, check_plan, reference_loss};
use crate::ops::{
    Activation, Cast, Compare, CrossEntropy, Distribution, Dropout, Gather, LayerNorm, Linear, LogitsCrossEntropy,
    Random, Reduce, Reduction, Relation, Select, SumLoss,
};
use crate::plan::Encoding;

const GELU: Activation = Activation { kind: Nonlinearity::Gelu };
const DROPOUT: Dropout = Dropout { rate: 0.3 };

/// Graphs in forms that no model family has.
fn odd_graphs() -> Vec<(&'static str, Graph)> {
    let built = |name, make: &dyn Fn(&mut TestGraph, usize) -> usize| (name, TestGraph::build(make));
    vec![
        built("one value, four uses in three layers", &|s, x| {
            let x = s.norm(x);
            let a = s.linear(x, WIDTH, true);
            s.end_layer();
            let (b, c) = (s.node(DROPOUT, &[x], &[]), s.node(GELU, &[x], &[]));
            let sum = s.add(b, c);
            s.end_layer();
            let sum = s.add(sum, a);
            s.add(sum, x)
        }),
        built("pointwise operators in a row", &|s, x| {
            let x = s.node(GELU, &[x], &[]);
            let y = s.node(DROPOUT, &[x], &[]);
            let z = s.node(Activation { kind: Nonlinearity::GeluTanh }, &[y], &[]);
            let z = s.add(z, y);
            s.node(DROPOUT, &[z], &[])
        }),
        built("tensors shared in a layer and between layers", &|s, x| {
            let (shared, bias) = (s.tensor(&[WIDTH, WIDTH]), s.tensor(&[WIDTH]));
            let x = s.node(Linear, &[x], &[shared]);
            let x = s.node(Linear, &[x], &[shared, bias]);
            s.end_layer();
            let y = s.norm(x);
            s.node(Linear, &[y], &[shared, bias])
        }),
        built("norms that share a gain", &|s, x| {
            let (gain, offsets) = (s.tensor(&[WIDTH]), [s.tensor(&[WIDTH]), s.tensor(&[WIDTH])]);
            let x = s.node(LayerNorm { epsilon: 1e-3 }, &[x], &[gain, offsets[0]]);
            s.node(LayerNorm { epsilon: 1e-3 }, &[x], &[gain, offsets[1]])
        }),
        built("a branch that leads nowhere", &|s, x| {
            let y = s.linear(x, WIDTH, true);
            s.norm(y);
            s.linear(x, WIDTH, false)
        }),
    ]
}

#[test]
fn gradients_of_odd_graphs_agree_with_the_reference() {
    for (name, graph) in odd_graphs() {
        check_graph(name, graph);
    }
}

#[test]
fn gradients_of_whole_models_agree_with_the_reference() {
    let base = || spec(2, 16, 2, 24, 10);
    let cases: [(&str, ModelSpec); 4] = [
        ("tied", base()),
        (
            "untied, no biases",
            ModelSpec {
                share_embedding_weights: false,
                use_projection_bias_in_attention: false,
                use_ffn_bias_in_attention: false,
                use_ffn_bias: false,
                nonlinearity: Nonlinearity::GeluTanh,
                ..base()
            },
        ),
        ("tied, dropout", with_dropout(base(), 0.2)),
        (
            "untied, dropout, bias in the head, no positions",
            ModelSpec {
                share_embedding_weights: false,
                use_bias_in_output: true,
                use_position_embedding: false,
                ..with_dropout(base(), 0.1)
            },
        ),
    ];
    for (name, mut spec) in cases {
        // Weights of a size at which every part affects the result.
        let normal = InitializerSpec::Normal { mean: 0.0, std: 0.3 };
        spec.initializers = Initializers {
            embedding: normal,
            hidden: normal,
            residual_output: normal,
            lm_head: normal,
            ..spec.initializers
        };
        let graph = families::decoder(&spec, 8).unwrap();
        let batch = BatchSpec { samples: 4, leaf_bound: 2 };
        check_plan(name, &plan(graph.clone(), batch, Encoding::F32, LARGE), 37);
        check_plan(name, &recomputing(graph, batch), 151);
    }
}

/// A graph with three losses that have weights, in two layers: the mean of what a mask selects, cross-entropies with a
/// weight for each class, and the mean over labels that are not negative.
fn graph_of_weighted_losses() -> Graph {
    TestGraph::build(|s, x| {
        let mask = s.numbers(&[ROWS, 1]);
        let (square, y) = (s.mul(mask, mask), s.linear(x, WIDTH, true));
        let masked = s.mul(y, square);
        let weight = s.node(sum(&[0, 1]), &[square], &[]);
        s.loss_with_weight(SumLoss { factor: 0.5 }, &[masked], weight, &[]);
        s.end_layer();
        let (labels, zero) = (s.labels(), s.integer_constant(0));
        let counts = s.node(Compare { relation: Relation::Ge }, &[labels, zero], &[]);
        let index = s.node(Select, &[counts, labels, zero], &[]);
        let of_classes = s.constant(&[VOCABULARY]);
        let of_labels = s.node(Gather { axis: 0 }, &[of_classes, index], &[]);
        let no_weight = s.number(0.0);
        let of_labels = s.node(Select, &[counts, of_labels, no_weight], &[]);
        let (logits, weight) = (s.linear(y, VOCABULARY, false), s.node(sum(&[0]), &[of_labels], &[]));
        s.loss_with_weight(LogitsCrossEntropy { factor: 2.0 }, &[logits, labels], weight, &[]);
        let counts = s.node(Cast { to: DType::F32 }, &[counts], &[]);
        let (count, params) = (s.node(sum(&[0]), &[counts], &[]), [s.tensor(&[VOCABULARY, WIDTH])]);
        s.loss_with_weight(CrossEntropy::with_factor(0.25), &[y, labels], count, &params);
        y
    })
}

fn sum(axes: &[usize]) -> Reduce {
    Reduce { reduction: Reduction::Sum, axes: Axes::new(axes).unwrap(), keep: false }
}

#[test]
fn losses_with_weights_are_scaled_by_the_factors_of_the_step() {
    let graph = graph_of_weighted_losses();
    check_graph("weighted losses", graph.clone());
    let (batch, factors) = (BatchSpec { samples: 6, leaf_bound: 2 }, [0.5, 3.0, 0.0]);
    let mut scaled = graph.clone();
    let losses: Vec<usize> = graph.weighted_losses().map(|loss| loss.node).collect();
    losses.iter().zip(factors).for_each(|(&node, factor)| scaled.nodes[node].op = graph.nodes[node].op.times(factor));
    let plans = [graph, scaled].map(|graph| plan(graph, batch, Encoding::F32, LARGE));
    let (weights, samples) = (initial_weights(&plans[0], 11), Samples::random(&plans[0], 5));
    let mut device = device(&plans[0], 1);
    let unscaled = evaluate(&mut device, &plans[0], &weights, &samples);
    device.scale_losses(&factors).unwrap();
    let expected = step(&mut crate::common::device(&plans[1], 1), &plans[1], &weights, &samples);
    assert_eq!(step(&mut device, &plans[0], &weights, &samples), expected);
    assert_eq!(evaluate(&mut device, &plans[0], &weights, &samples), unscaled, "factors are those of training");
    assert_eq!(device.scale_losses(&[1.0]), Err(DeviceError::LossFactors { expected: 3, found: 1 }));
}

/// Systems report the weights that are computed from the samples alone.
#[test]
fn weights_are_functions_of_the_samples() {
    let plan = plan(graph_of_weighted_losses(), BatchSpec { samples: 6, leaf_bound: 2 }, Encoding::Bf16, LARGE);
    let (weights, samples) = (initial_weights(&plan, 11), Samples::random(&plan, 5));
    let losses = evaluate(&mut device(&plan, 2), &plan, &weights, &samples);
    let mut of_samples = LossWeights::new(&plan.graph, 2, Simd::detect(), 3).unwrap().unwrap();
    for (leaf, loss) in samples.leaves(plan.leaves, 0..3).iter().zip(&losses) {
        let [_, mask, _, selected, _, labels] = loss.metrics[..] else { panic!("{:?}", loss.metrics) };
        assert_eq!(of_samples.of_leaf(leaf.first_sample, &leaf.inputs).unwrap(), [mask, selected, labels]);
        // Also the labels of the main loss, which has no weight.
        assert_eq!(labels, loss.tokens as f64);
        let numbers = samples.inputs[2].to_f64(leaf.leaf as usize * 2 * ROWS..(leaf.leaf as usize + 1) * 2 * ROWS);
        let expected: f64 = numbers.iter().map(|mask| mask * mask).sum();
        assert!((mask / expected - 1.0).abs() < 1e-6, "{mask} for {expected}");
        assert!(loss.metrics[0] + loss.metrics[2] + loss.metrics[4] < loss.loss);
    }
    let mut bad = samples.leaves(plan.leaves, 0..1).remove(0);
    let labels = vec![VOCABULARY as i32; 2 * ROWS];
    bad.inputs[1] = InputData::I32(&labels);
    let error = of_samples.of_leaf(0, &bad.inputs).unwrap_err().to_string();
    assert!(error.contains("is 11 at position 0, but must be less than 11"), "{error}");
    assert!(LossWeights::new(&TestGraph::build(|_, x| x), 2, Simd::detect(), 3).unwrap().is_none());
}

#[test]
fn weights_may_depend_on_random_numbers() {
    let graph = TestGraph::build(|s, x| {
        let y = s.linear(x, WIDTH, true);
        let dimensions = Dimensions::new(&[ROWS, 1]).unwrap();
        let noise = s.node(Random { distribution: Distribution::Uniform, dimensions }, &[], &[]);
        let noise = s.node(Dropout { rate: 0.5 }, &[noise], &[]);
        let (masked, weight) = (s.mul(y, noise), s.node(sum(&[0, 1]), &[noise], &[]));
        s.loss_with_weight(SumLoss { factor: 1.0 }, &[masked], weight, &[]);
        y
    });
    let plan = plan(graph, BatchSpec { samples: 6, leaf_bound: 2 }, Encoding::F32, LARGE);
    let (weights, samples) = (initial_weights(&plan, 11), Samples::random(&plan, 5));
    let mut device = device(&plan, 1);
    step(&mut device, &plan, &weights, &samples);
    let mut of_samples = LossWeights::new(&plan.graph, 2, Simd::detect(), SEED).unwrap().unwrap();
    let mut all = Vec::new();
    for (leaf, loss) in samples.leaves(plan.leaves, 0..3).iter().zip(device.losses()) {
        let weights = of_samples.of_leaf(leaf.first_sample, &leaf.inputs).unwrap();
        assert_eq!(weights, loss.metrics[1..]);
        all.extend(weights);
    }
    assert!(all.iter().all(|weight| *weight > 0.0) && all[0] != all[1], "{all:?}");
}

#[test]
fn evaluation_drops_nothing_and_counts_right_answers() {
    const WORDS: usize = 64;
    let graph = families::decoder(&with_dropout(spec(3, 48, 3, WORDS, 20), 0.1), 20).unwrap();
    let plan = plan(graph, BatchSpec { samples: 12, leaf_bound: 2 }, Encoding::F32, LARGE);
    let (weights, samples) = (initial_weights(&plan, 1), Samples::random(&plan, 2));
    let losses = evaluate(&mut device(&plan, 2), &plan, &weights, &samples);
    let expected = reference_loss(&plan.graph, &to_f64(&plan, &weights), &samples, false);
    let loss: f64 = losses.iter().map(|leaf| leaf.loss).sum();
    assert!((loss / expected - 1.0).abs() < 1e-6, "{loss} for {expected}");
    assert_eq!(
        losses.iter().map(|leaf| leaf.tokens).sum::<u64>(),
        samples.inputs[1].integers().iter().filter(|l| **l >= 0).count() as u64
    );
    // Labels that are the most likely words: try every word for one token; exactly one is correct.
    let right = (0..WORDS as i32).map(|word| {
        let mut labels = vec![-1; samples.inputs[1].len()];
        labels[17] = word;
        let one = Samples { inputs: vec![samples.inputs[0].clone(), Elements::I32(labels)], first: samples.first };
        evaluate(&mut device(&plan, 1), &plan, &weights, &one).iter().map(|leaf| leaf.correct).sum::<u64>()
    });
    assert_eq!(right.sum::<u64>(), 1);
}
