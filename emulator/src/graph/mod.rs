//! The model as a typed graph of operators, cut into layers.
//!
//! Model families emit it, and importers of other formats can: nothing here is specific to GPT. A value has an element
//! type and up to six dimensions per sample (a sequence of T tokens with H features is `f32 [T, H]`); a leaf stacks its
//! samples. Inputs are values with a name that a data source delivers, constants are values that the document contains.
//! Tensors are the trained parameters. A layer is a contiguous run of operators whose weights are streamed together. A
//! value may be used in any later layer, a tensor in any number of layers.
//!
//! A model has one or more losses, which are operators without an output. What training minimizes is the sum of the
//! losses, each times its factor. The last operator is the main loss: its tokens and correct predictions are reported.
//! A loss may have a [divisor of its own](WeightedLoss).

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ops::OpKind;

mod builder;
mod cut;
mod dimensions;
mod document;
mod losses;
mod metrics;
mod packing;
mod read;
mod shape;
mod validate;

pub use crate::numerics::init::Initializer;
pub use builder::GraphBuilder;
pub use dimensions::{Axes, Dimensions, MAX_DIMENSIONS};
#[cfg(feature = "schema")]
pub use document::document_schema;
pub use losses::WeightedLoss;
pub use metrics::{GraphMetric, MAX_METRIC_ELEMENTS};
pub use packing::{ATTENTION_SPAN, POSITION_IDS};
pub use read::{DocumentError, MAX_DOCUMENT_BYTES};
pub use shape::{DType, Shape};
pub use validate::{GraphError, MAX_CONSTANT_ELEMENTS, MAX_GRAPH_INPUTS, MAX_LOSSES};

/// Name of the input of token ids.
pub const INPUT_IDS: &str = "input_ids";
/// Name of the input of labels. A negative label is ignored.
pub const LABELS: &str = "labels";
/// Name of the input of an image: channels, rows and columns of pixels.
pub const IMAGE: &str = "image";

/// Index into [`Graph::tensors`].
pub type TensorId = usize;
/// Index into [`Graph::values`].
pub type ValueId = usize;
/// Index into [`Graph::nodes`]; also the dropout key of that operator.
pub type NodeId = usize;
/// Index into [`Graph::layers`].
pub type LayerId = usize;

/// The use of a tensor. Decides about weight decay and the layout of exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TensorRole {
    /// A matrix; weight decay applies.
    Weight,
    /// An embedding table; weight decay applies.
    Embedding,
    /// Added to each feature; no weight decay.
    Bias,
    /// Gain or offset of a normalization; no weight decay.
    Norm,
}

impl TensorRole {
    /// Returns whether weight decay applies.
    pub const fn decays(self) -> bool {
        matches!(self, Self::Weight | Self::Embedding)
    }
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tensor {
    /// Dotted name, unique in the graph, such as `h.3.attn.qkv.weight`.
    pub name: String,
    /// Dimensions, outermost first; linear weights are `[out, in]`.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Initializer,
    /// Its use.
    pub role: TensorRole,
    /// Whether the optimizer changes it. A tensor that is not trained keeps its initial values, and its gradient does
    /// not count in the norm.
    #[serde(default = "is_trained", skip_serializing_if = "Clone::clone")]
    pub trained: bool,
}

const fn is_trained() -> bool {
    true
}

impl Tensor {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether the tensor is a vector: a bias, a gain or an offset. Vectors are always sent in f32: they are
    /// added and multiplied, not used in matrix products, and rounding them costs more accuracy than it saves
    /// bandwidth.
    pub fn is_vector(&self) -> bool {
        self.shape.len() < 2
    }
}

/// A value passed between operators.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name of an input; of other values only for messages.
    pub name: String,
    /// Element type, and dimensions per sample.
    pub shape: Shape,
}

/// A value with fixed content, the same in each sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// The value.
    pub value: ValueId,
    /// Its elements, row by row: the bits of each f32 or i32; of a truth value, 0 or 1.
    pub bits: Arc<[u32]>,
}

/// An operator with the values it reads and writes and the tensors it uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OpNode {
    /// The operator.
    pub op: OpKind,
    /// Values it reads.
    pub inputs: Vec<ValueId>,
    /// Tensors it uses, in the order of the operator's parameters.
    pub params: Vec<TensorId>,
    /// The value it computes; `None` for a loss.
    pub output: Option<ValueId>,
    /// The node whose random numbers it draws, if not its own: that of the graph of which this graph is a part.
    #[serde(skip)]
    pub draws_as: Option<NodeId>,
}

impl OpNode {
    /// Creates a node that draws its own random numbers.
    pub fn new(
        op: impl Into<OpKind>,
        inputs: Vec<ValueId>,
        params: Vec<TensorId>,
        output: impl Into<Option<ValueId>>,
    ) -> Self {
        Self { op: op.into(), inputs, params, output: output.into(), draws_as: None }
    }
}

/// A contiguous run of operators whose weights are streamed together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Layer {
    /// Name, such as `embed`, `h.3.mlp`, `head`.
    pub name: String,
    /// Its operators.
    pub nodes: Range<NodeId>,
    /// The block it is part of. Adjacent layers of one block may be joined to a layer of this name.
    pub block: Option<String>,
}

/// A model; see the module documentation. The default has no operators, and is therefore not valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Trained parameters.
    pub tensors: Vec<Tensor>,
    /// Values.
    pub values: Vec<Value>,
    /// Operators, each after the operators whose outputs it reads.
    pub nodes: Vec<OpNode>,
    /// Layers, which cover every node in order.
    pub layers: Vec<Layer>,
    /// The values that a data source delivers, in the order in which samples contain them.
    pub inputs: Vec<ValueId>,
    /// Values with fixed content.
    pub constants: Vec<Constant>,
    /// What the sum of the losses that have no weight is divided by; `None` if the params say it.
    pub reduction: Option<LossReduction>,
}

/// What the sum of the losses of a batch is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LossReduction {
    /// The number of labels that are not negative, of the main loss.
    Labels,
    /// The number of samples.
    Samples,
    /// Nothing: the sum is minimized.
    Sum,
}

impl Graph {
    /// Returns the number of trained scalars.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.elements() as u64).sum()
    }

    /// Returns the input called `name`.
    pub fn input(&self, name: &str) -> Option<ValueId> {
        self.inputs.iter().copied().find(|&input| self.values[input].name == name)
    }

    /// Returns the number of token ids of a sample: the unit of rates. 1 if the model reads no token ids.
    pub fn sequence(&self) -> usize {
        self.input(INPUT_IDS).map_or(1, |input| self.values[input].shape.elements() as usize)
    }

    /// Returns the bytes of all inputs of a sample.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|&input| self.values[input].shape.elements().saturating_mul(4)).sum()
    }

    /// Returns the bytes of all constants.
    pub fn constant_bytes(&self) -> u64 {
        self.constants.iter().map(|constant| 4 * constant.bits.len() as u64).sum()
    }

    /// Returns the graph with only the operators for which `is_kept` is true, and the layers that have some.
    fn with_nodes(&self, is_kept: &[bool]) -> Self {
        let mut graph = Self { nodes: Vec::new(), layers: Vec::new(), ..self.clone() };
        for layer in &self.layers {
            let start = graph.nodes.len();
            let nodes = self.nodes.iter().zip(is_kept).take(layer.nodes.end).skip(layer.nodes.start);
            graph.nodes.extend(nodes.filter(|(_, is_kept)| **is_kept).map(|(node, _)| node.clone()));
            if graph.nodes.len() > start {
                graph.layers.push(Layer { nodes: start..graph.nodes.len(), ..layer.clone() });
            }
        }
        graph
    }

    /// Returns the graph with the parts of each block joined to one layer, and the joined layer of each original layer.
    pub fn joined(&self) -> (Graph, Vec<LayerId>) {
        let mut layers: Vec<Layer> = Vec::with_capacity(self.layers.len());
        let mut new_layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            match layers.last_mut().filter(|last| layer.block.is_some() && last.block == layer.block) {
                Some(last) => last.nodes.end = layer.nodes.end,
                None => {
                    layers.push(Layer { name: layer.block.as_ref().unwrap_or(&layer.name).clone(), ..layer.clone() })
                }
            }
            new_layers.push(layers.len() - 1);
        }
        (Graph { layers, ..self.clone() }, new_layers)
    }

    /// Returns the tensors a layer uses, each once, in order of first use.
    pub fn layer_tensors(&self, layer: LayerId) -> Vec<TensorId> {
        let mut tensors = Vec::new();
        for node in &self.nodes[self.layers[layer].nodes.clone()] {
            for &tensor in &node.params {
                if !tensors.contains(&tensor) {
                    tensors.push(tensor);
                }
            }
        }
        tensors
    }
}

#[cfg(test)]
mod tests;
