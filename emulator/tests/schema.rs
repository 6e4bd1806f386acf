//! The documents that families and generic models write conform to the published schema.

mod common;

use common::generic::{self, DecoderSizes};
use common::*;
use millrace_emulator::families;
use millrace_emulator::graph::Graph;
use serde_json::{Value, json};

const SIZES: DecoderSizes =
    DecoderSizes { vocabulary: 9, tokens: 4, blocks: 1, heads: 2, head_dim: 4, dropout: 0.1, is_known: false };

fn schema() -> jsonschema::Validator {
    let text = include_str!("../../docs/reference/graph.schema.json");
    jsonschema::validator_for(&serde_json::from_str(text).unwrap()).unwrap()
}

#[test]
fn written_documents_conform() {
    let gpt = families::decoder(&spec(2, 48, 3, 64, 20), 20).unwrap();
    for graph in [gpt, generic::decoder(SIZES)] {
        let document = serde_json::to_value(graph).unwrap();
        let errors: Vec<String> = schema().iter_errors(&document).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

#[test]
fn other_documents_do_not() {
    let document = serde_json::to_value(generic::decoder(SIZES)).unwrap();
    let changes: [fn(&mut Value); 6] = [
        |graph| graph["version"] = json!(3),
        |graph| graph["inputs"] = json!("all"),
        |graph| graph["values"][0]["dtype"] = json!("f64"),
        |graph| graph["nodes"][0]["op"] = json!({"op": "unknown"}),
        |graph| graph["nodes"][1]["op"] = json!({"op": "reduce", "reduction": "median", "axes": [0]}),
        |graph| graph["constants"][0]["data"] = json!([1, 2]),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut changed = document.clone();
        change(&mut changed);
        assert!(!schema().is_valid(&changed), "change {index}");
    }
}

/// The example of the reference is a valid graph.
#[test]
fn example_of_the_reference_is_valid() {
    let page = include_str!("../../docs/reference/graph.md");
    let example = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let graph: Graph = serde_json::from_str(example).unwrap();
    assert_eq!(graph.validate(), Ok(()));
    assert!(schema().is_valid(&serde_json::from_str(example).unwrap()));
}
