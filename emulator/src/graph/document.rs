//! The document of a graph: versioned JSON, part of plans and checkpoints.
//!
//! ```json
//! {"version": 2, "inputs": [0, 1], "tensors": [...],
//!  "values": [{"name": "input_ids", "dtype": "i32", "shape": [128]}, ...],
//!  "constants": [{"value": 7, "data": "AACAPw=="}, ...],
//!  "nodes": [{"op": {"op": "embedding"}, "inputs": [0], "params": [0], "output": 2}, ...], "layers": [...]}
//! ```
//!
//! Instead of `layers`, each operator may have the `path` of the module that it is part of, from which layers follow.
//!
//! The data of a constant are its elements, row by row, each four bytes in little-endian order, as base64 with padding:
//! an f32, an i32, or a truth value as the integer 0 or 1. `constants` is omitted if there are none.
//!
//! Version 1, of release 0.1.0, has no `version`. Its values are `rows x columns` of `float` or `token`, and its inputs
//! are `tokens` and `labels`. It is read, but no longer written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Constant, DType, Graph, INPUT_IDS, LABELS, Layer, LossReduction, OpNode, Shape, Tensor, Value, ValueId};

/// Version of the documents that are written.
const VERSION: u32 = 2;

#[derive(Serialize)]
struct DocumentRef<'a> {
    version: u32,
    inputs: &'a [ValueId],
    tensors: &'a [Tensor],
    values: &'a [Value],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    constants: &'a [Constant],
    nodes: &'a [OpNode],
    layers: &'a [Layer],
    #[serde(skip_serializing_if = "Option::is_none")]
    reduction: Option<LossReduction>,
}

/// Returns the JSON schema of documents of version 2.
#[cfg(feature = "schema")]
pub fn document_schema() -> serde_json::Value {
    #[derive(schemars::JsonSchema)]
    #[schemars(title = "A graph of Millrace")]
    #[allow(dead_code, reason = "only the types of the fields count")]
    struct GraphDocument {
        /// Version of the format.
        #[schemars(extend("const" = VERSION))]
        version: u32,
        /// Numbers of the values that a data source delivers, in the order in which samples contain them.
        inputs: Vec<ValueId>,
        /// Trained parameters.
        tensors: Vec<Tensor>,
        /// Values, from number 0 on.
        values: Vec<ValueDocument<String>>,
        /// Values with fixed content.
        #[serde(default)]
        constants: Vec<ConstantDocument<String>>,
        /// Operators, each after the operators whose outputs it reads. The last one is the main loss.
        nodes: Vec<NodeDocument>,
        /// Layers, which cover every operator in order. If they are missing, they follow from the operators' paths.
        layers: Option<Vec<Layer>>,
        /// What the sum of the losses that have no weight is divided by. If it is missing, the key `model.loss_scaling`
        /// of the params says it. A graph whose losses have weights states `samples`.
        reduction: Option<LossReduction>,
    }
    schemars::schema_for!(GraphDocument).into()
}

impl Serialize for Graph {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { tensors, values, nodes, layers, inputs, constants, reduction } = self;
        let reduction = *reduction;
        DocumentRef { version: VERSION, inputs, tensors, values, constants, nodes, layers, reduction }
            .serialize(serializer)
    }
}

/// A document of any version.
#[derive(Deserialize)]
struct Document {
    version: Option<u32>,
    inputs: Option<Vec<ValueId>>,
    /// Version 1 only.
    tokens: Option<ValueId>,
    /// Version 1 only.
    labels: Option<ValueId>,
    tensors: Vec<Tensor>,
    values: Vec<AnyValue>,
    #[serde(default)]
    constants: Vec<Constant>,
    nodes: Vec<NodeDocument>,
    /// Missing if each operator has the path of its module.
    layers: Option<Vec<Layer>>,
    reduction: Option<LossReduction>,
}

/// An operator, with the path of the module that it is part of.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct NodeDocument {
    #[serde(flatten)]
    node: OpNode,
    /// Path of the module that the operator is part of, such as `layers.3.mlp`. Required if there are no layers.
    path: Option<String>,
}

impl<'de> Deserialize<'de> for Graph {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let document = Document::deserialize(deserializer)?;
        let mut values: Vec<Value> = document.values.into_iter().map(Value::from).collect();
        let inputs = match (document.version, document.inputs, document.tokens, document.labels) {
            (Some(VERSION), Some(inputs), None, None) => inputs,
            (None, None, Some(tokens), Some(labels)) => {
                for (id, name) in [(tokens, INPUT_IDS), (labels, LABELS)] {
                    if let Some(value) = values.get_mut(id) {
                        name.clone_into(&mut value.name);
                    }
                }
                vec![tokens, labels]
            }
            (None | Some(VERSION), ..) => {
                return Err(D::Error::custom(
                    "a graph has version 2 and inputs, or no version, tokens and labels (release 0.1.0)",
                ));
            }
            (Some(version), ..) => {
                return Err(D::Error::custom(format!(
                    "the graph document has version {version}; this release reads versions 1 and {VERSION}"
                )));
            }
        };
        let Document { tensors, nodes, layers, constants, reduction, .. } = document;
        let (nodes, paths): (Vec<OpNode>, Vec<Option<String>>) =
            nodes.into_iter().map(|NodeDocument { node, path }| (node, path)).unzip();
        let layers = match (layers, paths.into_iter().collect::<Option<Vec<String>>>()) {
            (Some(layers), _) => layers,
            (None, Some(paths)) => super::cut::cut(&nodes, &tensors, &paths),
            (None, None) => {
                return Err(D::Error::custom("a graph has layers, or each of its operators has the path of a module"));
            }
        };
        Ok(Self { tensors, values, nodes, layers, inputs, constants, reduction })
    }
}

/// A constant of version 2.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct ConstantDocument<D> {
    /// Number of the value.
    value: ValueId,
    /// The elements, row by row, each four bytes in little-endian order, as base64 with padding.
    data: D,
}

impl Serialize for Constant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        ConstantDocument { value: self.value, data: BASE64.encode(bytes) }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Constant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ConstantDocument { value, data } = ConstantDocument::<String>::deserialize(deserializer)?;
        let bytes = BASE64
            .decode(data)
            .map_err(|error| D::Error::custom(format!("the data of the constant {value} is not base64: {error}")))?;
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            let found = bytes.len();
            return Err(D::Error::custom(format!(
                "the constant {value} has {found} bytes; each of its elements has four"
            )));
        }
        Ok(Self { value, bits: words.iter().map(|word| u32::from_le_bytes(*word)).collect() })
    }
}

/// A value of version 2.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct ValueDocument<N> {
    /// Name of an input; of other values only for messages.
    name: N,
    /// Element type.
    dtype: DType,
    /// Dimensions of one sample, outermost first, at most six.
    shape: Vec<usize>,
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { name, shape } = self;
        ValueDocument { name, dtype: shape.dtype(), shape: shape.dimensions().to_vec() }.serialize(serializer)
    }
}

/// A value of any version.
#[derive(Deserialize)]
#[serde(untagged)]
enum AnyValue {
    Second(#[serde(deserialize_with = "second")] Value),
    First { name: String, rows: usize, columns: usize, kind: FirstType },
}

/// Element type of version 1.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum FirstType {
    Float,
    Token,
}

fn second<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let ValueDocument { name, dtype, shape } = ValueDocument::deserialize(deserializer)?;
    let shape = Shape::new(dtype, &shape).ok_or_else(|| D::Error::custom("a value has more than 6 dimensions"))?;
    Ok(Value { name, shape })
}

impl From<AnyValue> for Value {
    fn from(value: AnyValue) -> Self {
        match value {
            AnyValue::Second(value) => value,
            AnyValue::First { name, rows, columns, kind } => {
                let shape = match kind {
                    FirstType::Float => Shape::matrix(rows, columns),
                    FirstType::Token => Shape::integers(rows.saturating_mul(columns)),
                };
                Self { name, shape }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::TINY;

    #[test]
    fn documents_of_both_versions_are_read() {
        let graph = TINY.graph();
        let mut document = serde_json::to_value(&graph).unwrap();
        assert_eq!(document["version"], 2);
        assert_eq!(document["values"][0], json!({"name": "input_ids", "dtype": "i32", "shape": [128]}));
        assert_eq!(serde_json::from_value::<Graph>(document.clone()).unwrap(), graph);

        let first: Vec<_> = graph
            .values
            .iter()
            .map(|Value { name, shape }| match shape.dtype() {
                DType::F32 => json!({"name": name, "rows": shape.rows(), "columns": shape.columns(), "kind": "float"}),
                _ => json!({"name": name, "rows": shape.columns(), "columns": 1, "kind": "token"}),
            })
            .collect();
        let object = document.as_object_mut().unwrap();
        object.remove("version");
        object.remove("inputs");
        object.extend([("tokens".to_owned(), json!(0)), ("labels".to_owned(), json!(1))]);
        object.insert("values".to_owned(), first.into());
        object["values"][0]["name"] = json!("tokens");
        assert_eq!(serde_json::from_value::<Graph>(document).unwrap(), graph);
    }

    #[test]
    fn layers_follow_from_paths() {
        let mut graph = TINY.graph();
        let mut document = serde_json::to_value(&graph).unwrap();
        document.as_object_mut().unwrap().remove("layers");
        let error = serde_json::from_value::<Graph>(document.clone()).unwrap_err().to_string();
        assert!(error.contains("a graph has layers, or each"), "{error}");
        for (layer, nodes) in graph.layers.iter().map(|layer| (&layer.name, layer.nodes.clone())) {
            document["nodes"].as_array_mut().unwrap()[nodes].iter_mut().for_each(|node| node["path"] = json!(layer));
        }
        let read = serde_json::from_value::<Graph>(document).unwrap();
        graph.layers.iter_mut().for_each(|layer| layer.block.clone_from(&read.layers[0].block));
        let blocks: Vec<Option<&str>> = read.layers.iter().map(|layer| layer.block.as_deref()).collect();
        assert_eq!(blocks, [None, Some("h.0"), Some("h.0"), Some("h.1"), Some("h.1"), None]);
        assert!(
            read.layers
                .iter()
                .zip(&graph.layers)
                .all(|(read, layer)| (&read.name, &read.nodes) == (&layer.name, &layer.nodes))
        );
    }

    #[test]
    fn constants_are_bytes_in_base64() {
        let bits: Vec<u32> = [1.0f32, f32::NEG_INFINITY, -0.0].map(f32::to_bits).into();
        let constant = Constant { value: 7, bits: bits.into() };
        let document = serde_json::to_value(&constant).unwrap();
        assert_eq!(document, json!({"value": 7, "data": "AACAPwAAgP8AAACA"}));
        assert_eq!(serde_json::from_value::<Constant>(document).unwrap(), constant);
        for (document, part) in [
            (json!({"value": 7, "data": "AACAP"}), "constant 7 is not base64"),
            (json!({"value": 7, "data": "AAA="}), "has 2 bytes"),
            (json!({"value": 7, "data": "", "fill": 1}), "unknown field"),
        ] {
            let error = serde_json::from_value::<Constant>(document).unwrap_err().to_string();
            assert!(error.contains(part), "{error} does not contain {part:?}");
        }
    }

    #[test]
    fn unreadable_documents_are_rejected() {
        let document = serde_json::to_value(TINY.graph()).unwrap();
        let rejected = |change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>), part: &str| {
            let mut document = document.clone();
            change(document.as_object_mut().unwrap());
            let error = serde_json::from_value::<Graph>(document).unwrap_err().to_string();
            assert!(error.contains(part), "{error} does not contain {part:?}");
        };
        rejected(&|graph| graph["version"] = json!(3), "has version 3");
        rejected(&|graph| drop(graph.remove("version")), "a graph has version 2");
        rejected(&|graph| drop(graph.insert("tokens".into(), json!(0))), "a graph has version 2");
        rejected(&|graph| graph["values"][2]["shape"] = json!([1, 1, 1, 1, 1, 1, 1]), "AnyValue");
        rejected(&|graph| graph["values"][2]["dtype"] = json!("f64"), "AnyValue");
    }
}
