//! Checks that a device sums the metrics of a graph over the samples of an evaluation.

mod common;

use std::sync::Arc;

use common::*;
use millrace_emulator::compile::BatchSpec;
use millrace_emulator::device::{InputData, LeafLoss};
use millrace_emulator::families;
use millrace_emulator::graph::Graph;
use millrace_emulator::plan::{Encoding, StreamPlan};
use millrace_params::{EncoderOptions, EncoderTask, ModelSpec, Nonlinearity};
use serde_json::{Value, json};

const BATCH: BatchSpec = BatchSpec { samples: 12, leaf_bound: 2 };
const CLASSES: usize = 5;

fn token_classifier() -> Graph {
    let options = EncoderOptions {
        use_segment_embedding: true,
        pooler_nonlinearity: Nonlinearity::Tanh,
        task: EncoderTask::TokenClassifier { classes: CLASSES, dropout_rate: 0.1, counts_padding: false },
        norm_first: false,
        is_embedding_plain: false,
        mask_token: None,
        has_token_dropout: false,
    };
    let spec = ModelSpec { encoder: Some(options), compute_eval_metrics: true, ..spec(2, 48, 3, 64, 20) };
    families::graph(&spec, 20).unwrap()
}

fn evaluated(plan: &Arc<StreamPlan>, threads: usize) -> Vec<LeafLoss> {
    evaluate(&mut device(plan, threads), plan, &initial_weights(plan, 1), &Samples::random(plan, 2))
}

/// Tokens and correct predictions, which the loss counts, are the sums of the counts of classes.
#[test]
fn counts_of_classes_add_up_to_those_of_the_loss() {
    let plan = plan(token_classifier(), BATCH, Encoding::F32, LARGE);
    let leaves = evaluated(&plan, 1);
    assert_eq!(leaves.len(), 6);
    for LeafLoss { tokens, correct, metrics, .. } in &leaves {
        let [right, predicted, actual] = [0, 1, 2].map(|part| metrics[part * CLASSES..][..CLASSES].iter().sum::<f64>());
        assert_eq!([right, predicted, actual], [*correct as f64, *tokens as f64, *tokens as f64]);
    }
    assert!(leaves.iter().any(|leaf| leaf.correct > 0) && leaves.iter().all(|leaf| leaf.correct < leaf.tokens));
    assert_eq!(evaluated(&plan, 3), leaves);
    let (weights, samples) = (initial_weights(&plan, 1), Samples::random(&plan, 2));
    let (losses, _) = round(&mut device(&plan, 1), &plan, &weights, &samples, 0..6);
    for LeafLoss { tokens, metrics, .. } in &losses {
        let [predicted, actual] = [1, 2].map(|part| metrics[part * CLASSES..][..CLASSES].iter().sum::<f64>());
        assert_eq!([predicted, actual], [*tokens as f64, *tokens as f64], "training counts each token once");
    }
}

fn node(op: Value, inputs: &[usize], params: &[usize], output: Option<usize>) -> Value {
    json!({"op": op, "inputs": inputs, "params": params, "output": output})
}

/// A document with an input that is a metric, once with a weight and once without.
#[test]
fn metrics_are_sums_over_samples_of_values_and_weights() {
    let value = |name: &str, dtype: &str, shape: &[usize]| json!({"name": name, "dtype": dtype, "shape": shape});
    let metric = json!({"op": "metric"});
    let document = json!({
        "version": 2, "inputs": [0, 1], "tensors": [
            {"name": "scale", "shape": [3], "role": "norm", "init": {"kind": "constant", "value": 1.0}}],
        "values": [value("x", "f32", &[3]), value("weight", "f32", &[]), value("plain", "f32", &[3]),
                   value("weighted", "f32", &[3]), value("y", "f32", &[3])],
        "nodes": [node(metric.clone(), &[0], &[], Some(2)), node(metric, &[0, 1], &[], Some(3)),
                  node(json!({"op": "binary", "function": "mul"}), &[3], &[0], Some(4)),
                  node(json!({"op": "sum_loss", "factor": 1.0}), &[4], &[], None)],
        "layers": [{"name": "all", "nodes": {"start": 0, "end": 4}, "block": null}]
    });
    let graph = Graph::read(document.to_string().as_bytes()).unwrap();
    let plan = plan(graph, BATCH, Encoding::F32, LARGE);
    let samples = Samples::random(&plan, 2);
    let leaves = samples.leaves(plan.eval_leaves, 0..6);
    for (result, leaf) in evaluated(&plan, 2).iter().zip(leaves) {
        let InputData::F32(x) = leaf.inputs[0] else { panic!("integers") };
        let InputData::F32(weight) = leaf.inputs[1] else { panic!("integers") };
        let sum = |index: usize| x.chunks(3).map(|sample| f64::from(sample[index])).sum::<f64>();
        let sums = [0, 1, 2].map(sum);
        let weight = weight.iter().map(|weight| f64::from(*weight)).sum::<f64>();
        assert_eq!(result.metrics, [&sums[..], &sums, &[weight]].concat());
        assert!((result.loss - sums.iter().sum::<f64>()).abs() < 1e-5);
    }
}
