//! The model as a typed graph of operators, cut into layers.
//!
//! Built-in families emit it; an importer of other graphs may, too: nothing here knows of GPT. Values are matrices of
//! `rows x columns` per sample (a token sequence of length T with H features is `T x H`); a leaf stacks its samples'
//! rows. Tensors are the trained parameters. A layer is a contiguous run of operators whose weights travel together;
//! a value made in one layer may be used in any later one, a tensor in any number of layers.

use std::ops::Range;

use serde::{Deserialize, Serialize};

mod builder;
mod validate;

pub use builder::GraphBuilder;
pub use validate::GraphError;

/// Index into [`Graph::tensors`].
pub type TensorId = usize;
/// Index into [`Graph::values`].
pub type ValueId = usize;
/// Index into [`Graph::nodes`]; also the dropout key of that operator.
pub type NodeId = usize;
/// Index into [`Graph::layers`].
pub type LayerId = usize;

/// How a tensor gets its first values: a pure function of (seed, tensor name, element index).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TensorInit {
    /// Every element the same.
    Constant {
        /// The value.
        value: f64,
    },
    /// Gaussian.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Gaussian conditioned on `[low, high]`.
    TruncatedNormal {
        /// Mean of the untruncated distribution.
        mean: f64,
        /// Standard deviation of the untruncated distribution.
        std: f64,
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// Uniform on `[low, high)`.
    Uniform {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
}

/// What a tensor is for; decides about weight decay and export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorRole {
    /// A matrix: decays.
    Weight,
    /// An embedding table: decays.
    Embedding,
    /// Added per feature: never decays.
    Bias,
    /// Gain or offset of a normalisation: never decays.
    Norm,
}

impl TensorRole {
    /// Whether weight decay applies.
    pub const fn decays(self) -> bool {
        matches!(self, Self::Weight | Self::Embedding)
    }
}

/// A trained parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Dotted name, unique in the graph, such as `h.3.attn.qkv.weight`.
    pub name: String,
    /// Dimensions, outermost first; linear weights are `[out, in]`.
    pub shape: Vec<usize>,
    /// First values.
    pub init: TensorInit,
    /// What it is for.
    pub role: TensorRole,
}

impl Tensor {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it is a vector: a bias, a gain or an offset. These never travel in less than f32: they are added and
    /// multiplied, not fed to a matrix product, and rounding them costs more than it saves.
    pub fn is_vector(&self) -> bool {
        self.shape.len() < 2
    }
}

/// Element type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueType {
    /// Token numbers, i32.
    Token,
    /// Activations.
    Float,
}

/// A value that flows between operators: `rows x columns` per sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// Name, for messages.
    pub name: String,
    /// Rows per sample.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Element type.
    pub kind: ValueType,
}

/// A pointwise non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActivationKind {
    /// `x Phi(x)` with the exact normal distribution function.
    Gelu,
    /// `x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2`.
    GeluTanh,
}

/// An operator. Inputs, outputs and parameters are positional, as each variant says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum OpKind {
    /// `(tokens [rows x 1]; table [V, H]) -> [rows x H]`: a row of the table per token.
    Embedding,
    /// `(x [rows x H]; table [R >= rows, H]) -> [rows x H]`: adds row `i` of the table to row `i` of each sample.
    AddPosition,
    /// `(x) -> x'`: zeroes elements with probability `rate`, scales the rest by `1 / (1 - rate)`; identity in
    /// evaluation.
    Dropout {
        /// Probability of zero, in `[0, 1)`.
        rate: f32,
    },
    /// `(a, b) -> a + b`, same shape.
    Add,
    /// `(x; gain [H], offset [H]) -> [rows x H]`, over columns.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// `(x [rows x I]; weight [O, I], bias [O]?) -> [rows x O]`: `x weight^T + bias`.
    Linear,
    /// `(x) -> f(x)`, pointwise.
    Activation {
        /// Which function.
        kind: ActivationKind,
    },
    /// `(qkv [rows x 3H]) -> [rows x H]`: causal multi-head attention; columns are queries, keys, values, each cut
    /// into heads. Scores and probabilities are never a whole `rows x rows` matrix.
    CausalAttention {
        /// Number of heads; divides H.
        heads: usize,
        /// Factor on query-key products.
        scale: f32,
        /// Dropout on probabilities.
        dropout: f32,
    },
    /// `(x [rows x H], labels [rows x 1]; weight [V, H], bias [V]?) -> loss`: the sum over rows with label >= 0 of
    /// the cross-entropy of `x weight^T + bias`, in blocks of the vocabulary. Ends the graph.
    CrossEntropy,
}

/// An operator with what it reads, uses and writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpNode {
    /// The operator.
    pub op: OpKind,
    /// Values read.
    pub inputs: Vec<ValueId>,
    /// Tensors used, in the operator's order.
    pub params: Vec<TensorId>,
    /// The value made; `None` for the loss.
    pub output: Option<ValueId>,
}

/// A contiguous run of operators whose weights travel together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Name, such as `embed`, `h.3.mlp`, `head`.
    pub name: String,
    /// Its operators.
    pub nodes: Range<NodeId>,
    /// The block it is a part of: neighbours of one block may be joined to a layer of this name.
    pub block: Option<String>,
}

/// A model. See the module text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// Trained parameters.
    pub tensors: Vec<Tensor>,
    /// Values.
    pub values: Vec<Value>,
    /// Operators, each after those it reads from.
    pub nodes: Vec<OpNode>,
    /// The cut into layers: covers every node, in order.
    pub layers: Vec<Layer>,
    /// The value holding a sample's tokens.
    pub tokens: ValueId,
    /// The value holding a sample's labels.
    pub labels: ValueId,
}

impl Graph {
    /// Number of trained scalars.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.elements() as u64).sum()
    }

    /// The graph with the parts of each block joined to one layer, and the joined layer of each former one.
    pub fn joined(&self) -> (Graph, Vec<LayerId>) {
        let mut layers: Vec<Layer> = Vec::with_capacity(self.layers.len());
        let mut places = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            match layers.last_mut().filter(|last| layer.block.is_some() && last.block == layer.block) {
                Some(last) => last.nodes.end = layer.nodes.end,
                None => {
                    layers.push(Layer { name: layer.block.as_ref().unwrap_or(&layer.name).clone(), ..layer.clone() })
                }
            }
            places.push(layers.len() - 1);
        }
        (Graph { layers, ..self.clone() }, places)
    }

    /// The tensors a layer uses, each once, in order of first use.
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
