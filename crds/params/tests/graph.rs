//! Tests the params of a model with a graph document.

mod common;

use common::{resolve, resolved};
use millrace_params::{DataSource, LossScaling, ModelFamily, Precision};

const GRAPH: &str = "\
train_input: {data_processor: ArrayDataProcessor, data_dir: [a, b], batch_size: 32}
eval_input: {data_dir: c}
model: {graph: net.json, mixed_precision: True, use_bfloat16: True, loss_scaling: batch_size}
optimizer: {optimizer_type: AdamW, learning_rate: 0.1}
runconfig: {max_steps: 3}
";

#[test]
fn graph_replaces_the_keys_of_families() {
    let job = resolved(GRAPH).job;
    let model = &job.model;
    assert_eq!((model.family, model.graph.as_deref()), (ModelFamily::Graph, Some("net.json")));
    assert_eq!((model.precision, model.loss_scaling), (Precision::Bf16, LossScaling::BatchSize));
    let arrays = |paths: &[&str]| DataSource::Arrays { paths: paths.iter().map(|&path| path.to_owned()).collect() };
    assert_eq!(job.train_input.source, arrays(&["a", "b"]));
    assert_eq!(job.eval_input.unwrap().source, arrays(&["c"]));
    let python = GRAPH.replace("ArrayDataProcessor, data_dir: [a, b]", "PythonDataProcessor, data_dir: a");
    assert_eq!(resolved(&python).job.train_input.source, DataSource::Python { paths: vec!["a".to_owned()] });
    let text = GRAPH.replace("ArrayDataProcessor", "GptTextDataProcessor, tokenizer: bytes");
    assert!(matches!(resolved(&text).job.train_input.source, DataSource::Text { .. }));
}

#[test]
fn keys_and_data_of_families_are_rejected_beside_a_graph() {
    for (from, to, part) in [
        ("graph: net.json", "graph: net.json, hidden_size: 4", "model.hidden_size has no meaning"),
        ("graph: net.json", "graph: net.json, name: gpt2", "model.name has no meaning"),
        ("graph: net.json", "graph: ''", "name the file of the graph document"),
        ("ArrayDataProcessor", "PythonDataProcessor", "train_input.data_dir names 2 directories"),
        ("ArrayDataProcessor", "MNISTDataProcessor", "is MNISTDataProcessor, which only models of a family read"),
        ("data_dir: [a, b], ", "", "train_input.data_files is missing"),
        (
            "graph: net.json",
            "vocab_size: 9, hidden_size: 8, num_hidden_layers: 1, num_heads: 1",
            "is ArrayDataProcessor, but the model has no graph document",
        ),
    ] {
        let error = resolve(&GRAPH.replace(from, to)).unwrap_err().report();
        assert!(error.contains(part), "{error} does not contain {part:?}");
    }
}
