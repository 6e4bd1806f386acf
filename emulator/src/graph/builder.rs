//! Builds a graph operator by operator and infers shapes.

use std::sync::Arc;

use super::{
    Constant, DType, Graph, GraphError, INPUT_IDS, Initializer, LABELS, Layer, LossReduction, OpNode, Shape, Tensor,
    TensorId, TensorRole, Value, ValueId,
};
use crate::ops::{OpKind, Signature};

/// A graph under construction. Operators are added in computation order; [`GraphBuilder::end_layer`] ends a layer after
/// the last one.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// Creates an empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an input.
    pub fn input(&mut self, name: impl Into<String>, shape: Shape) -> ValueId {
        let input = self.value(name.into(), shape);
        self.graph.inputs.push(input);
        input
    }

    /// Adds the inputs of a language model with samples of `sequence` tokens: token ids, and as many labels.
    pub fn token_inputs(&mut self, sequence: usize) -> [ValueId; 2] {
        [INPUT_IDS, LABELS].map(|name| self.input(name, Shape::integers(sequence)))
    }

    /// Adds a constant of these elements. [`GraphBuilder::finish`] checks that there are as many as the shape has.
    pub fn constant(&mut self, name: impl Into<String>, shape: Shape, bits: impl Into<Arc<[u32]>>) -> ValueId {
        let value = self.value(name.into(), shape);
        self.graph.constants.push(Constant { value, bits: bits.into() });
        value
    }

    /// Adds a constant of numbers.
    ///
    /// # Panics
    /// If there are more dimensions than a value has.
    #[allow(clippy::expect_used, reason = "documented")]
    pub fn numbers(&mut self, name: impl Into<String>, dimensions: &[usize], numbers: &[f32]) -> ValueId {
        let shape = Shape::new(DType::F32, dimensions).expect("at most six dimensions");
        let bits: Vec<u32> = numbers.iter().map(|number| number.to_bits()).collect();
        self.constant(name, shape, bits)
    }

    /// Returns the shape of a value of this graph.
    ///
    /// # Panics
    /// If there is no such value.
    pub fn shape(&self, value: ValueId) -> Shape {
        self.graph.values[value].shape
    }

    fn value(&mut self, name: String, shape: Shape) -> ValueId {
        self.graph.values.push(Value { name, shape });
        self.graph.values.len() - 1
    }

    /// Adds a trained parameter.
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[usize],
        init: Initializer,
        role: TensorRole,
    ) -> TensorId {
        self.graph.tensors.push(Tensor { name: name.into(), shape: shape.to_vec(), init, role, trained: true });
        self.graph.tensors.len() - 1
    }

    /// Adds an operator and the value it computes, called `name`.
    ///
    /// # Errors
    /// The operator rejects its inputs, tensors or attributes, or it has no output.
    pub fn node(
        &mut self,
        op: impl Into<OpKind>,
        name: impl Into<String>,
        inputs: &[ValueId],
        params: &[TensorId],
    ) -> Result<ValueId, GraphError> {
        let (op, name) = (op.into(), name.into());
        let node = self.checked(op, inputs, params)?;
        let location = || format!("{} {name:?}", op.name());
        let shape = op
            .operator()
            .output(&Signature::of(&self.graph, &node))
            .map_err(|source| GraphError::Op { location: location(), source })?
            .ok_or_else(|| GraphError::Loss(format!("{} has no output", location())))?;
        let output = self.value(name, shape);
        self.graph.nodes.push(OpNode { output: Some(output), ..node });
        Ok(output)
    }

    /// Adds a loss. The last operator of a graph is its main loss.
    ///
    /// # Errors
    /// An index is out of range. [`GraphBuilder::finish`] checks the rest.
    pub fn loss(&mut self, op: impl Into<OpKind>, inputs: &[ValueId], params: &[TensorId]) -> Result<(), GraphError> {
        let node = self.checked(op.into(), inputs, params)?;
        self.graph.nodes.push(node);
        Ok(())
    }

    /// States what the sum of the losses that have no weight is divided by.
    pub const fn reduce_losses(&mut self, reduction: LossReduction) {
        self.graph.reduction = Some(reduction);
    }

    /// Ends a layer after the last operator.
    pub fn end_layer(&mut self, name: impl Into<String>) {
        self.end(name.into(), None);
    }

    /// Ends a layer that is part of `block`.
    pub fn end_block_layer(&mut self, block: &str, name: impl Into<String>) {
        self.end(name.into(), Some(block.to_owned()));
    }

    fn end(&mut self, name: String, block: Option<String>) {
        let start = self.graph.layers.last().map_or(0, |layer| layer.nodes.end);
        self.graph.layers.push(Layer { name, nodes: start..self.graph.nodes.len(), block });
    }

    /// Validates and returns the graph.
    ///
    /// # Errors
    /// See [`Graph::validate`].
    pub fn finish(self) -> Result<Graph, GraphError> {
        self.graph.validate()?;
        Ok(self.graph)
    }

    fn checked(&self, op: OpKind, inputs: &[ValueId], params: &[TensorId]) -> Result<OpNode, GraphError> {
        let index = |kind, count: usize, indices: &[usize]| match indices.iter().find(|&&index| index >= count) {
            Some(&index) => Err(GraphError::Index { location: op.name().to_owned(), kind, index, count }),
            None => Ok(()),
        };
        index("value", self.graph.values.len(), inputs)?;
        index("tensor", self.graph.tensors.len(), params)?;
        Ok(OpNode::new(op, inputs.to_vec(), params.to_vec(), None))
    }
}
