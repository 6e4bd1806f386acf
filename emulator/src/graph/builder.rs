//! Building a graph operator by operator, shapes inferred.

use super::{
    Graph, GraphError, Layer, OpKind, OpNode, Tensor, TensorId, TensorInit, TensorRole, Value, ValueId, ValueType,
};
use crate::ops::{Signature, operator};

/// A graph under construction. Operators are added in the order in which they compute; [`GraphBuilder::end_layer`]
/// cuts after the last one.
#[derive(Debug)]
pub struct GraphBuilder {
    graph: Graph,
}

impl GraphBuilder {
    /// A graph whose samples are `sequence` tokens and as many labels.
    pub fn new(sequence: usize) -> Self {
        let value = |name: &str| Value { name: name.to_owned(), rows: sequence, columns: 1, kind: ValueType::Token };
        let graph = Graph {
            tensors: Vec::new(),
            values: vec![value("tokens"), value("labels")],
            nodes: Vec::new(),
            layers: Vec::new(),
            tokens: 0,
            labels: 1,
        };
        Self { graph }
    }

    /// The value that holds a sample's tokens.
    pub const fn tokens(&self) -> ValueId {
        self.graph.tokens
    }

    /// The value that holds a sample's labels.
    pub const fn labels(&self) -> ValueId {
        self.graph.labels
    }

    /// Adds a trained parameter.
    pub fn tensor(&mut self, name: impl Into<String>, shape: &[usize], init: TensorInit, role: TensorRole) -> TensorId {
        self.graph.tensors.push(Tensor { name: name.into(), shape: shape.to_vec(), init, role });
        self.graph.tensors.len() - 1
    }

    /// Adds an operator and the value it makes, called `name`.
    ///
    /// # Errors
    /// When the operator refuses what it is given, or makes no value.
    pub fn node(
        &mut self,
        op: OpKind,
        name: impl Into<String>,
        inputs: &[ValueId],
        params: &[TensorId],
    ) -> Result<ValueId, GraphError> {
        let (name, node) = (name.into(), self.checked(op, inputs, params)?);
        let at = || format!("{} {name:?}", operator(&op).name());
        let shape = operator(&op)
            .output(&Signature::of(&self.graph, &node))
            .map_err(|source| GraphError::Op { at: at(), source })?
            .ok_or_else(|| GraphError::Loss(format!("{} makes none", at())))?;
        let output = self.graph.values.len();
        self.graph.values.push(Value { name, rows: shape.rows, columns: shape.columns, kind: shape.kind });
        self.graph.nodes.push(OpNode { output: Some(output), ..node });
        Ok(output)
    }

    /// Adds the operator that makes the loss.
    ///
    /// # Errors
    /// When an index points nowhere; the rest is checked by [`GraphBuilder::finish`].
    pub fn loss(&mut self, op: OpKind, inputs: &[ValueId], params: &[TensorId]) -> Result<(), GraphError> {
        let node = self.checked(op, inputs, params)?;
        self.graph.nodes.push(node);
        Ok(())
    }

    /// Ends a layer after the last operator.
    pub fn end_layer(&mut self, name: impl Into<String>) {
        self.end(name.into(), None);
    }

    /// Ends a layer that is a part of `block`.
    pub fn end_block_layer(&mut self, block: &str, name: impl Into<String>) {
        self.end(name.into(), Some(block.to_owned()));
    }

    fn end(&mut self, name: String, block: Option<String>) {
        let start = self.graph.layers.last().map_or(0, |layer| layer.nodes.end);
        self.graph.layers.push(Layer { name, nodes: start..self.graph.nodes.len(), block });
    }

    /// The graph, validated.
    ///
    /// # Errors
    /// See [`Graph::validate`].
    pub fn finish(self) -> Result<Graph, GraphError> {
        self.graph.validate()?;
        Ok(self.graph)
    }

    fn checked(&self, op: OpKind, inputs: &[ValueId], params: &[TensorId]) -> Result<OpNode, GraphError> {
        let index = |what, count: usize, indices: &[usize]| match indices.iter().find(|&&index| index >= count) {
            Some(&index) => Err(GraphError::Index { at: operator(&op).name().to_owned(), what, index, count }),
            None => Ok(()),
        };
        index("value", self.graph.values.len(), inputs)?;
        index("tensor", self.graph.tensors.len(), params)?;
        Ok(OpNode { op, inputs: inputs.to_vec(), params: params.to_vec(), output: None })
    }
}
