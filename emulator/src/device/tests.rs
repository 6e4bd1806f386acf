//! Compares loss and gradients of graphs of many operators, and of whole models, with the f64 reference. The graphs of
//! a single operator are in its file.

use millrace_params::{InitializerSpec, Initializers, ModelSpec, Nonlinearity};

use crate::common::{
    Elements, LARGE, Samples, device, evaluate, initial_weights, plan, recomputing, spec, to_f64, with_dropout,
};
use crate::compile::BatchSpec;
use crate::families;
use crate::graph::Graph;
use crate::ops::testing::{TestGraph, WIDTH, check_graph, check_plan, reference_loss};
use crate::ops::{Activation, Dropout, LayerNorm, Linear};
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
