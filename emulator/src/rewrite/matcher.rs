//! Recognizes parts of patterns, and records the operators that belong to them.

use super::mask::MaskCache;
use crate::graph::{Constant, DType, Graph, NodeId, OpNode, TensorId, ValueId};
use crate::ops::{Binary, BinaryFunction, OpKind, Unary, UnaryFunction};
use crate::schedule::Liveness;

/// Maximum factors of a product.
const MAX_FACTORS: usize = 8;

/// Operators in place of a pattern; the last one computes the value that the pattern computed, or is a loss.
#[derive(Debug)]
pub(super) struct Replacement {
    pub nodes: Vec<NewNode>,
}

/// An operator of a replacement.
#[derive(Debug)]
pub(super) struct NewNode {
    pub op: OpKind,
    pub inputs: Vec<Input>,
    pub params: Vec<TensorId>,
}

/// An input of an operator of a replacement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Input {
    /// A value of the graph.
    Value(ValueId),
    /// The output of an earlier operator of the replacement.
    Made(usize),
}

impl Replacement {
    /// Returns a replacement by one operator.
    pub fn new(op: impl Into<OpKind>, inputs: &[ValueId], params: &[TensorId]) -> Self {
        let inputs = inputs.iter().copied().map(Input::Value).collect();
        Self { nodes: vec![NewNode { op: op.into(), inputs, params: params.to_vec() }] }
    }
}

/// A product of numbers and values.
#[derive(Debug)]
pub(super) struct Product {
    /// The product of all constants of one number.
    pub number: f32,
    /// The other factors.
    pub values: Vec<ValueId>,
}

impl Product {
    /// Returns whether the number is close to `expected`: a constant that was rounded or computed in another order.
    pub fn is_about(&self, expected: f32) -> bool {
        is_about(self.number, expected)
    }
}

/// Returns whether a number is within 1e-5 of `expected`, relative to it.
pub(super) fn is_about(number: f32, expected: f32) -> bool {
    (number - expected).abs() <= 1e-5 * expected.abs()
}

/// Looks at a graph from a root backwards. Operators that a pattern looks at by the methods that say so become *inner*
/// operators, which are removed with it.
pub(super) struct Matcher<'a> {
    pub graph: &'a Graph,
    liveness: Liveness,
    constants: Vec<Option<&'a Constant>>,
    inner: Vec<NodeId>,
    pub masks: MaskCache,
}

impl<'a> Matcher<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        let mut constants = vec![None; graph.values.len()];
        graph.constants.iter().for_each(|constant| constants[constant.value] = Some(constant));
        Self { graph, liveness: Liveness::new(graph), constants, inner: Vec::new(), masks: MaskCache::default() }
    }

    /// Starts with another root: no operator is inner.
    pub fn begin(&mut self) {
        self.inner.clear();
    }

    /// Returns the inner operators, each once.
    pub fn inner_nodes(&self) -> Vec<NodeId> {
        let mut inner = self.inner.clone();
        inner.sort_unstable();
        inner.dedup();
        inner
    }

    /// Returns whether only the pattern reads what its inner operators compute, and it is in one layer.
    pub fn is_closed(&self, root: NodeId) -> bool {
        let is_ours = |node: &NodeId| *node == root || self.inner.contains(node);
        self.inner.iter().all(|&node| {
            let output = self.graph.nodes[node].output;
            self.liveness.layer_of(node) == self.liveness.layer_of(root)
                && output.is_some_and(|output| self.liveness.readers(output).iter().all(is_ours))
        })
    }

    /// Calls `f`, and discards the inner operators that it found if it returns `None`.
    pub fn attempt<T>(&mut self, f: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let count = self.inner.len();
        let found = f(self);
        if found.is_none() {
            self.inner.truncate(count);
        }
        found
    }

    /// Returns the operator that computes `value`, without making it inner.
    pub fn producer(&self, value: ValueId) -> Option<&'a OpNode> {
        self.liveness.producer(value).map(|node| &self.graph.nodes[node])
    }

    /// Returns the operator that computes `value`, which becomes inner.
    pub fn inner(&mut self, value: ValueId) -> Option<&'a OpNode> {
        let node = self.liveness.producer(value)?;
        self.inner.push(node);
        Some(&self.graph.nodes[node])
    }

    /// Returns the constant that `value` is.
    pub fn constant(&self, value: ValueId) -> Option<&'a Constant> {
        self.constants[value]
    }

    /// Returns the number that `value` is: a constant with one element.
    pub fn number(&self, value: ValueId) -> Option<f32> {
        let constant = self.constants[value].filter(|_| self.graph.values[value].shape.dtype() == DType::F32)?;
        match constant.bits[..] {
            [bits] => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    /// Returns whether `value` is a number close to `expected`.
    pub fn is_number(&self, value: ValueId, expected: f32) -> bool {
        self.number(value).is_some_and(|number| is_about(number, expected))
    }

    /// Returns x if `value` is the function of x; the operator becomes inner.
    pub fn unary(&mut self, value: ValueId, expected: UnaryFunction) -> Option<ValueId> {
        self.attempt(|matcher| match matcher.inner(value)? {
            OpNode { op: OpKind::Unary(Unary { function }), inputs, .. } if *function == expected => Some(inputs[0]),
            _ => None,
        })
    }

    /// Returns a and b if `value` is the function of two values a and b; the operator becomes inner.
    pub fn binary(&mut self, value: ValueId, expected: BinaryFunction) -> Option<[ValueId; 2]> {
        self.attempt(|matcher| binary_operands(matcher.inner(value)?, expected))
    }

    /// Returns x if `value` is x plus a number close to `expected`, in any order; the operator becomes inner.
    pub fn plus_number(&mut self, value: ValueId, expected: f32) -> Option<ValueId> {
        let [a, b] = self.binary(value, BinaryFunction::Add)?;
        match [a, b].map(|operand| self.is_number(operand, expected)) {
            [false, true] => Some(a),
            [true, false] => Some(b),
            _ => None,
        }
    }

    /// Returns `value` as a product. The operators that multiply its factors become inner.
    pub fn product(&mut self, value: ValueId) -> Product {
        self.multiply(1.0, vec![value])
    }

    /// Returns what an operator computes as a product, if it multiplies. The operators that multiply its factors become
    /// inner.
    pub fn product_of(&mut self, node: &OpNode) -> Option<Product> {
        let (number, factors) = self.factors(node)?;
        Some(self.multiply(number, factors))
    }

    /// Returns the product of a number and values, each divided into its own factors if only one operator reads it.
    fn multiply(&mut self, number: f32, factors: Vec<ValueId>) -> Product {
        let mut product = Product { number, values: Vec::new() };
        let mut open = factors;
        open.reverse();
        while let Some(value) = open.pop() {
            if let Some(number) = self.number(value) {
                product.number *= number;
                continue;
            }
            let is_divided = self.liveness.readers(value).len() == 1 && product.values.len() + open.len() < MAX_FACTORS;
            let factors = self.attempt(|matcher| {
                let node = matcher.inner(value).filter(|_| is_divided)?;
                matcher.factors(node)
            });
            match factors {
                Some((number, factors)) => {
                    product.number *= number;
                    open.extend(factors.into_iter().rev());
                }
                None => product.values.push(value),
            }
        }
        product
    }

    /// Returns a number and values whose product an operator computes.
    fn factors(&self, node: &OpNode) -> Option<(f32, Vec<ValueId>)> {
        match (node.op, &node.inputs[..]) {
            (OpKind::Binary(Binary { function: BinaryFunction::Mul }), &[a, b]) => Some((1.0, vec![a, b])),
            (OpKind::Binary(Binary { function: BinaryFunction::Div }), &[a, b]) => {
                Some((1.0 / self.number(b)?, vec![a]))
            }
            (OpKind::Unary(Unary { function: UnaryFunction::Neg }), &[a]) => Some((-1.0, vec![a])),
            (OpKind::Scale(scale), &[a]) => Some((scale.factor, vec![a])),
            _ => None,
        }
    }
}

/// Returns the operands if the operator is the function of two values.
pub(super) fn binary_operands(node: &OpNode, expected: BinaryFunction) -> Option<[ValueId; 2]> {
    match (node.op, &node.inputs[..]) {
        (OpKind::Binary(Binary { function }), &[a, b]) if function == expected => Some([a, b]),
        _ => None,
    }
}
