//! Matches the operators of a graph in order, and names the tensors that they use.

use std::collections::HashMap;

use millrace_emulator::graph::{Graph, OpNode, TensorId, ValueId};
use millrace_emulator::ops::{
    Activation, CrossEntropy, Dropout, Gate, LayerNorm, Nonlinearity, OpKind, RmsNorm, Rotary,
};

use super::refuse;
use crate::error::Result;

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hf) enum NormForm {
    Layer,
    BiaslessLayer,
    Rms,
}

/// Dropout rates at the three positions that most configurations have.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::hf) struct DropoutRates {
    pub embedding: f32,
    pub attention: f32,
    pub residual: f32,
}

/// Tensors of a graph and their shapes, by the names that `emulator/src/families` gives to tensors of this use.
#[derive(Clone, Debug, Default)]
pub(in crate::hf) struct NamedTensors(HashMap<String, (TensorId, Vec<usize>)>);

impl NamedTensors {
    /// Returns a tensor and its shape.
    pub fn get(&self, name: &str) -> Option<(TensorId, &[usize])> {
        self.0.get(name).map(|(id, shape)| (*id, shape.as_slice()))
    }

    /// Returns the number of rows and columns of a matrix.
    ///
    /// # Errors
    /// The graph has no such tensor, or it is not a matrix.
    pub fn matrix(&self, name: &str) -> Result<[usize; 2]> {
        let shape = self.get(name).and_then(|(_, shape)| shape.try_into().ok());
        shape.ok_or_else(|| refuse(format!("it has no matrix {name}")))
    }

    /// Returns whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Returns whether a layer has a bias, or a norm an offset.
    pub fn have_biases(&self) -> bool {
        self.0.keys().any(|name| name.ends_with(".bias"))
    }

    /// Returns whether both names are of one tensor.
    pub fn are_same(&self, one: &str, other: &str) -> bool {
        self.has(one) && self.get(one).map(|(id, _)| id) == self.get(other).map(|(id, _)| id)
    }
}

/// Matches operators in order.
pub(super) struct Walk<'a> {
    pub graph: &'a Graph,
    next: usize,
    pub tensors: NamedTensors,
    norm: Option<(NormForm, f32)>,
    pub rates: DropoutRates,
}

impl<'a> Walk<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        Self { graph, next: 0, tensors: NamedTensors::default(), norm: None, rates: DropoutRates::default() }
    }

    /// Returns the operator `ahead` of the next one.
    pub fn node(&self, ahead: usize) -> Option<&'a OpNode> {
        self.graph.nodes.get(self.next + ahead)
    }

    /// Returns the kind of the operator `ahead` of the next one.
    pub fn op(&self, ahead: usize) -> Option<OpKind> {
        self.node(ahead).map(|node| node.op)
    }

    /// Returns the operators that have not been matched.
    pub fn rest(&self) -> &'a [OpNode] {
        self.graph.nodes.get(self.next..).unwrap_or_default()
    }

    pub fn is_norm(&self, ahead: usize) -> bool {
        matches!(self.op(ahead), Some(OpKind::LayerNorm(_) | OpKind::RmsNorm(_)))
    }

    pub fn is_linear(&self, ahead: usize) -> bool {
        matches!(self.op(ahead), Some(OpKind::Linear(_)))
    }

    /// Returns the value of an input of the graph.
    ///
    /// # Errors
    /// The graph does not read it.
    pub fn input(&self, name: &str) -> Result<ValueId> {
        self.graph.input(name).ok_or_else(|| refuse(format!("it does not read {name}")))
    }

    /// Takes the next operator if `accept` accepts its kind and it reads exactly `inputs`, and records its tensors as
    /// `NAME.weight` and `NAME.bias`. Returns what `accept` returned, and the output.
    pub fn take_if<T>(
        &mut self,
        inputs: &[ValueId],
        name: &str,
        accept: impl Fn(&OpKind) -> Option<T>,
    ) -> Result<Option<(T, ValueId)>> {
        let Some(node) = self.node(0) else { return Ok(None) };
        let reads_inputs = node.inputs.len() == inputs.len() && inputs.iter().all(|input| node.inputs.contains(input));
        let (Some(kind), true, Some(output)) = (accept(&node.op), reads_inputs, node.output) else { return Ok(None) };
        self.record(&node.params, name)?;
        self.next += 1;
        Ok(Some((kind, output)))
    }

    /// Takes the next operator as [`take_if`](Self::take_if) does.
    ///
    /// # Errors
    /// It is another operator than `expected`.
    pub fn take<T>(
        &mut self,
        expected: &str,
        inputs: &[ValueId],
        name: &str,
        accept: impl Fn(&OpKind) -> Option<T>,
    ) -> Result<(T, ValueId)> {
        self.take_if(inputs, name, accept)?.ok_or_else(|| self.unexpected(expected))
    }

    /// Returns the error for a next operator that is not `expected`.
    pub fn unexpected(&self, expected: &str) -> crate::Error {
        let found = self.node(0).map_or("missing".into(), |node| format!("{:?}", node.op));
        refuse(format!("operator {} is {found}, where models of transformers have {expected}", self.next))
    }

    fn record(&mut self, params: &[TensorId], name: &str) -> Result<()> {
        for (&id, kind) in params.iter().zip(["weight", "bias"]) {
            let tensor = self.graph.tensors.get(id).ok_or_else(|| refuse(format!("tensor {id} does not exist")))?;
            self.tensors.0.insert(format!("{name}.{kind}"), (id, tensor.shape.clone()));
        }
        Ok(())
    }

    /// Matches a norm of the form and epsilon that all norms of the model have.
    pub fn norm(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        let kind = |op: &OpKind| match *op {
            OpKind::LayerNorm(LayerNorm { epsilon }) => Some((NormForm::Layer, epsilon)),
            OpKind::RmsNorm(RmsNorm { epsilon }) => Some((NormForm::Rms, epsilon)),
            _ => None,
        };
        let ((mut form, epsilon), out) = self.take("a norm", &[x], name, kind)?;
        if form == NormForm::Layer && !self.tensors.has(&format!("{name}.bias")) {
            form = NormForm::BiaslessLayer;
        }
        if *self.norm.get_or_insert((form, epsilon)) != (form, epsilon) {
            return Err(refuse("its norms differ from each other"));
        }
        Ok(out)
    }

    /// Returns form and epsilon of the norms.
    ///
    /// # Errors
    /// There are no norms.
    pub fn norm_form(&self) -> Result<(NormForm, f32)> {
        self.norm.ok_or_else(|| refuse("it has no norms"))
    }

    /// Returns the epsilon of layer norms with offsets.
    ///
    /// # Errors
    /// The norms are others.
    pub fn layer_norm_epsilon(&self) -> Result<f32> {
        match self.norm_form()? {
            (NormForm::Layer, epsilon) => Ok(epsilon),
            _ => Err(refuse("its norms are no layer norms with offsets")),
        }
    }

    /// Matches a dropout of `x`, if there is one; returns its output and its rate, or `x` and 0.
    pub fn dropout(&mut self, x: ValueId) -> Result<(ValueId, f32)> {
        let kind = |op: &OpKind| if let OpKind::Dropout(Dropout { rate }) = *op { Some(rate) } else { None };
        Ok(self.take_if(&[x], "", kind)?.map_or((x, 0.0), |(rate, out)| (out, rate)))
    }

    pub fn linear(&mut self, x: ValueId, name: &str) -> Result<ValueId> {
        Ok(self.take("a linear layer", &[x], name, |op| matches!(op, OpKind::Linear(_)).then_some(()))?.1)
    }

    pub fn embedding(&mut self, ids: ValueId, name: &str) -> Result<ValueId> {
        let is_embedding = |op: &OpKind| matches!(op, OpKind::Embedding(_)).then_some(());
        Ok(self.take("an embedding", &[ids], name, is_embedding)?.1)
    }

    /// Matches the addition of learned positions, if there is one.
    pub fn learned_positions(&mut self, x: ValueId) -> Result<ValueId> {
        let is_position = |op: &OpKind| matches!(op, OpKind::AddPosition(_)).then_some(());
        Ok(self.take_if(&[x], "wpe", is_position)?.map_or(x, |((), out)| out))
    }

    /// Matches the product with a number, if there is one; returns the output and the factor, or `x` and 1.
    pub fn scale(&mut self, x: ValueId) -> Result<(ValueId, f32)> {
        let factor = |op: &OpKind| if let OpKind::Scale(op) = *op { Some(op.factor) } else { None };
        Ok(self.take_if(&[x], "", factor)?.map_or((x, 1.0), |(factor, out)| (out, factor)))
    }

    /// Matches the rotation of queries and keys, if there is one.
    pub fn rotary(&mut self, qkv: ValueId) -> Result<(ValueId, Option<Rotary>)> {
        let rotary = |op: &OpKind| if let OpKind::Rotary(rotary) = *op { Some(rotary) } else { None };
        Ok(self.take_if(&[qkv], "", rotary)?.map_or((qkv, None), |(op, out)| (out, Some(op))))
    }

    /// Matches the selection of the first row, if there is one.
    pub fn first_row(&mut self, x: ValueId) -> Result<Option<ValueId>> {
        let is_first = |op: &OpKind| if let OpKind::SelectRow(op) = *op { (op.row == 0).then_some(()) } else { None };
        Ok(self.take_if(&[x], "", is_first)?.map(|((), out)| out))
    }

    pub fn activation(&mut self, x: ValueId) -> Result<(Nonlinearity, ValueId)> {
        let kind = |op: &OpKind| if let OpKind::Activation(Activation { kind }) = *op { Some(kind) } else { None };
        self.take("an activation", &[x], "", kind)
    }

    /// Matches the first layer of a feed-forward network and its activation, with the tensors `NAME.fc` and, if the
    /// activation is multiplied by a second layer, `NAME.gate`. Returns activation, whether there is a gate, and
    /// output.
    pub fn gated_activation(&mut self, x: ValueId, name: &str) -> Result<(Nonlinearity, bool, ValueId)> {
        if self.is_linear(1) {
            let gate = self.linear(x, &format!("{name}.gate"))?;
            let value = self.linear(x, &format!("{name}.fc"))?;
            let kind = |op: &OpKind| if let OpKind::Gate(Gate { kind }) = *op { Some(kind) } else { None };
            let (kind, out) = self.take("a gate", &[gate, value], "", kind)?;
            return Ok((kind, true, out));
        }
        let fc = self.linear(x, &format!("{name}.fc"))?;
        let (kind, out) = self.activation(fc)?;
        Ok((kind, false, out))
    }

    /// Matches the end of a residual branch: dropout and addition to `onto`.
    pub fn add(&mut self, branch: ValueId, onto: ValueId) -> Result<ValueId> {
        let (branch, rate) = self.dropout(branch)?;
        if rate != 0.0 {
            self.rates.residual = rate;
        }
        let is_add = |op: &OpKind| matches!(op, OpKind::Add(_)).then_some(());
        Ok(self.take("the residual addition", &[branch, onto], "", is_add)?.1)
    }

    /// Matches the loss of an output layer over `x`, and records its tensors. Returns the cap of its logits.
    pub fn output_layer(&mut self, x: ValueId, name: &str) -> Result<Option<f32>> {
        match self.node(0) {
            Some(OpNode { op: OpKind::CrossEntropy(CrossEntropy { softcap, .. }), inputs, params, .. })
                if inputs.first() == Some(&x) =>
            {
                self.record(params, name)?;
                self.next += 1;
                Ok(*softcap)
            }
            _ => Err(self.unexpected("an output layer")),
        }
    }

    /// Skips the next operator, which has no tensors and no output that matters.
    pub fn skip(&mut self) {
        self.next += 1;
    }

    /// Checks that all operators have been matched.
    pub fn finish(&self) -> Result<()> {
        if self.rest().is_empty() { Ok(()) } else { Err(self.unexpected("no further operator")) }
    }
}
