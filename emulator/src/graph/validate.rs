//! Validates a graph. Every graph passes this check before it is compiled, whatever its source.

use std::collections::{HashMap, HashSet};

use super::metrics::MAX_METRIC_ELEMENTS;
use super::{Constant, DType, Graph, Layer, NodeId, OpNode, Shape, TensorId, Value, ValueId};
use crate::ops::{IndexBounds, OpError, Signature};

/// Maximum number of losses of a graph.
pub const MAX_LOSSES: usize = 4;

/// Maximum elements of a tensor, or of a value per sample. Keeps every product of sizes far below 2^64.
const MAX_ELEMENTS: u64 = 1 << 40;

/// Maximum number of inputs of a graph.
pub const MAX_GRAPH_INPUTS: usize = 64;

/// Maximum elements of a constant: 1 MiB.
pub const MAX_CONSTANT_ELEMENTS: usize = 1 << 18;

/// Reason why a graph is invalid.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// No operators, or no layers.
    #[error("the model has no {0}")]
    Empty(&'static str),
    /// Two tensors have the same name.
    #[error("two tensors are called {0:?}; names must be unique")]
    RepeatedName(String),
    /// A dimension is zero, or there are too many elements.
    #[error("{subject} has dimensions {dimensions:?}; each must be at least 1 and their product at most 2^40")]
    Dimensions {
        /// The tensor or value.
        subject: String,
        dimensions: Vec<usize>,
    },
    #[error("the model has {0} inputs; at most {MAX_GRAPH_INPUTS} are supported")]
    TooManyInputs(usize),
    /// Two inputs have the same name, or are the same value.
    #[error("two inputs are called {0:?}; names must be unique")]
    RepeatedInput(String),
    /// No data source delivers such an input.
    #[error("input {0:?} is of type bool; inputs must be of type f32 or i32")]
    InputType(String),
    #[error("two constants are the value {0:?}, or it is an input")]
    RepeatedConstant(String),
    /// A constant does not have the elements of its value.
    #[error("the constant {name:?} has {found} elements, not {expected}, or more than {MAX_CONSTANT_ELEMENTS}")]
    ConstantElements {
        name: String,
        /// Elements of its shape.
        expected: u64,
        found: usize,
    },
    /// A constant contains an integer that an operator can't index its table with.
    #[error(
        "{location} reads the constant {name:?}, which contains {found}, but must be less than {entries}, and at least \
         0"
    )]
    ConstantIndex {
        /// The operator.
        location: String,
        name: String,
        found: i32,
        /// Entries of the table.
        entries: usize,
    },
    /// A truth value is neither 0 nor 1.
    #[error("the constant {name:?} contains the truth value {found}; 0 and 1 are the only ones")]
    TruthValue { name: String, found: u32 },
    /// An index is out of range.
    #[error("{location} refers to {kind} {index}, but there are only {count}")]
    Index {
        /// What contains the index.
        location: String,
        /// What it refers to.
        kind: &'static str,
        index: usize,
        count: usize,
    },
    /// A value is read before it is computed, or never computed.
    #[error("{location} reads {value:?}, which no earlier operator produces")]
    ReadBeforeMade {
        /// The operator.
        location: String,
        value: String,
    },
    /// A value is computed twice, or an input is computed by an operator.
    #[error("{location} produces {value:?}, which exists already")]
    MadeTwice {
        /// The operator.
        location: String,
        value: String,
    },
    /// An operator rejects its inputs, tensors or attributes.
    #[error("{location} does not fit: {source}")]
    Op {
        /// The operator.
        location: String,
        source: OpError,
    },
    /// The declared output differs from the one the operator computes.
    #[error("{location} produces {computed}, but the graph declares {declared}")]
    Output {
        /// The operator.
        location: String,
        /// Shape that the operator computes.
        computed: String,
        /// Shape that the graph declares.
        declared: String,
    },
    /// The last operator is not a loss, or there are too many losses.
    #[error("the last operator of a model is a loss, and it has at most {MAX_LOSSES} losses; {0}")]
    Loss(String),
    /// The losses without a weight have no divisor that is known before a step.
    #[error("{0} has a weight; a model whose losses have weights states the reduction \"samples\"")]
    WeightsWithoutSamples(String),
    /// A weight is not known before a step.
    #[error("the weight {value:?} of {location} depends on a tensor; weights of losses depend on inputs and constants")]
    TrainedWeight {
        /// The loss.
        location: String,
        value: String,
    },
    /// Names of metrics are part of files and messages.
    #[error(
        "a metric is called {0:?}; names are unique, and consist of up to 100 letters, digits and the characters _-./"
    )]
    MetricName(String),
    #[error("the metrics have {0} elements together; at most {MAX_METRIC_ELEMENTS} are supported")]
    MetricElements(u64),
    /// Layers do not cover the operators in order.
    #[error("layer {layer:?} begins at operator {start}, but the one before ends at {expected}")]
    LayersNotContiguous {
        layer: String,
        /// Its first operator.
        start: NodeId,
        /// Where it has to begin.
        expected: NodeId,
    },
    #[error("the model has {layers} layers; at most {max} are supported")]
    TooManyLayers {
        /// Layers requested.
        layers: usize,
        /// Maximum number of layers.
        max: usize,
    },
    /// A layer has no operators.
    #[error("layer {0:?} has no operators")]
    EmptyLayer(String),
    /// A tensor is not used by any operator.
    #[error("no operator uses tensor {0:?}")]
    UnusedTensor(String),
}

impl Graph {
    /// Checks that the graph is valid: indices are in range, every value is computed once and before it is read, shapes
    /// agree, layers cover the operators in order, and the last operator is one of at most [`MAX_LOSSES`] losses.
    ///
    /// A valid graph can be compiled without further checks of its structure.
    ///
    /// # Errors
    /// Returns the first violation found.
    pub fn validate(&self) -> Result<(), GraphError> {
        self.check_tensors()?;
        self.check_values()?;
        self.check_layers()?;
        self.check_nodes()
    }

    /// Formats the operator for messages: kind, position and layer.
    pub(super) fn node_name(&self, node: NodeId) -> String {
        let layer = self.layers.iter().find(|layer| layer.nodes.contains(&node)).map_or("?", |layer| &layer.name);
        let kind = self.nodes.get(node).map_or("operator", |node| node.op.name());
        format!("{kind} (operator {node}, layer {layer:?})")
    }

    fn check_tensors(&self) -> Result<(), GraphError> {
        let mut names = HashSet::new();
        for tensor in &self.tensors {
            if !names.insert(&tensor.name) {
                return Err(GraphError::RepeatedName(tensor.name.clone()));
            }
            check_dimensions(|| format!("tensor {:?}", tensor.name), &tensor.shape)?;
        }
        let used: HashSet<TensorId> = self.nodes.iter().flat_map(|node| node.params.iter().copied()).collect();
        match (0..self.tensors.len()).find(|tensor| !used.contains(tensor)) {
            Some(unused) => Err(GraphError::UnusedTensor(self.tensors[unused].name.clone())),
            None => Ok(()),
        }
    }

    fn check_values(&self) -> Result<(), GraphError> {
        for value in &self.values {
            check_dimensions(|| format!("value {:?}", value.name), value.shape.dimensions())?;
        }
        if self.inputs.is_empty() {
            return Err(GraphError::Empty("inputs"));
        }
        if self.inputs.len() > MAX_GRAPH_INPUTS {
            return Err(GraphError::TooManyInputs(self.inputs.len()));
        }
        let mut names = HashSet::new();
        for &input in &self.inputs {
            let value = self.value(input, || "the list of inputs".to_owned())?;
            if !names.insert(&value.name) {
                return Err(GraphError::RepeatedInput(value.name.clone()));
            }
            if value.shape.dtype() == DType::Bool {
                return Err(GraphError::InputType(value.name.clone()));
            }
        }
        let mut defined: HashSet<ValueId> = self.inputs.iter().copied().collect();
        for constant in &self.constants {
            let value = self.value(constant.value, || "the list of constants".to_owned())?;
            if !defined.insert(constant.value) {
                return Err(GraphError::RepeatedConstant(value.name.clone()));
            }
            check_constant(constant, value)?;
        }
        Ok(())
    }

    fn check_layers(&self) -> Result<(), GraphError> {
        if self.nodes.is_empty() {
            return Err(GraphError::Empty("operators"));
        }
        let mut expected = 0;
        for Layer { name, nodes, .. } in &self.layers {
            if nodes.start != expected {
                return Err(GraphError::LayersNotContiguous { layer: name.clone(), start: nodes.start, expected });
            }
            if nodes.is_empty() {
                return Err(GraphError::EmptyLayer(name.clone()));
            }
            expected = nodes.end;
        }
        match self.layers.last() {
            None => Err(GraphError::Empty("layers")),
            Some(_) if expected == self.nodes.len() => Ok(()),
            Some(last) => {
                let (location, index, count) = (format!("layer {:?}", last.name), expected, self.nodes.len());
                Err(GraphError::Index { location, kind: "an end at operator", index, count })
            }
        }
    }

    fn check_nodes(&self) -> Result<(), GraphError> {
        let mut defined = vec![false; self.values.len()];
        self.inputs.iter().for_each(|&input| defined[input] = true);
        self.constants.iter().for_each(|constant| defined[constant.value] = true);
        let constants = self.constants.iter().map(|constant| (constant.value, constant)).collect();
        for (id, node) in self.nodes.iter().enumerate() {
            self.check_node(id, node, &mut defined)?;
            self.check_constant_indices(id, node, &constants)?;
        }
        let last = self.nodes.len() - 1;
        if self.nodes[last].output.is_some() {
            return Err(GraphError::Loss(format!("the last one produces a value: {}", self.node_name(last))));
        }
        match self.nodes.iter().filter(|node| node.output.is_none()).count() {
            0..=MAX_LOSSES => self.check_loss_weights().and_then(|()| self.check_metrics()),
            losses => Err(GraphError::Loss(format!("this one has {losses}"))),
        }
    }

    fn check_node(&self, id: NodeId, node: &OpNode, is_defined: &mut [bool]) -> Result<(), GraphError> {
        let location = || self.node_name(id);
        for &input in &node.inputs {
            let value = self.value(input, location)?;
            if !is_defined[input] {
                return Err(GraphError::ReadBeforeMade { location: location(), value: value.name.clone() });
            }
        }
        if let Some(&index) = node.params.iter().find(|&&tensor| tensor >= self.tensors.len()) {
            return Err(GraphError::Index { location: location(), kind: "tensor", index, count: self.tensors.len() });
        }
        let output = node
            .op
            .operator()
            .output(&Signature::of(self, node))
            .map_err(|source| GraphError::Op { location: location(), source })?;
        let declared = match node.output {
            None => None,
            Some(id) => {
                let value = self.value(id, location)?;
                if std::mem::replace(&mut is_defined[id], true) {
                    return Err(GraphError::MadeTwice { location: location(), value: value.name.clone() });
                }
                Some(value.shape)
            }
        };
        if output != declared {
            let describe = |shape: Option<Shape>| shape.map_or("a loss".to_owned(), |shape| shape.to_string());
            return Err(GraphError::Output {
                location: location(),
                computed: describe(output),
                declared: describe(declared),
            });
        }
        Ok(())
    }

    /// Checks the constants that an operator, which is valid otherwise, indexes a table with.
    fn check_constant_indices(
        &self,
        id: NodeId,
        node: &OpNode,
        constants: &HashMap<ValueId, &Constant>,
    ) -> Result<(), GraphError> {
        for (index, value) in node.inputs.iter().enumerate() {
            let Some(constant) = constants.get(value) else { continue };
            let bounds = IndexBounds::of_use(self, node, index);
            let outside =
                bounds.and_then(|bounds| bounds.first_outside(constant.bits.iter().map(|bits| bits.cast_signed())));
            if let Some((_, found, entries)) = outside {
                let (location, name) = (self.node_name(id), self.values[*value].name.clone());
                return Err(GraphError::ConstantIndex { location, name, found, entries });
            }
        }
        Ok(())
    }

    fn value(&self, index: ValueId, location: impl Fn() -> String) -> Result<&Value, GraphError> {
        let count = self.values.len();
        self.values.get(index).ok_or_else(|| GraphError::Index { location: location(), kind: "value", index, count })
    }
}

/// Checks that a constant has as many elements as its value, and not too many.
fn check_constant(constant: &Constant, value: &Value) -> Result<(), GraphError> {
    let (name, expected, found) = (|| value.name.clone(), value.shape.elements(), constant.bits.len());
    if expected != found as u64 || found > MAX_CONSTANT_ELEMENTS {
        return Err(GraphError::ConstantElements { name: name(), expected, found });
    }
    match constant.bits.iter().find(|&&bits| value.shape.dtype() == DType::Bool && bits > 1) {
        Some(&found) => Err(GraphError::TruthValue { name: name(), found }),
        None => Ok(()),
    }
}

fn check_dimensions(subject: impl Fn() -> String, dimensions: &[usize]) -> Result<(), GraphError> {
    let product = dimensions.iter().try_fold(1u64, |product, &d| product.checked_mul(d as u64));
    match product {
        Some(1..=MAX_ELEMENTS) => Ok(()),
        _ => Err(GraphError::Dimensions { subject: subject(), dimensions: dimensions.to_vec() }),
    }
}
