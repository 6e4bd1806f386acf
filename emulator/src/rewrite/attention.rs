//! Attention that is written as products and a softmax.

use super::mask::{self, MaskForm, Pairs};
use super::matcher::{Input, Matcher, NewNode, Replacement};
use crate::graph::{Axes, Dimensions, NodeId, OpNode, ValueId};
use crate::numerics::GEMM_INNER_BLOCK;
use crate::ops::{
    Attention, BinaryFunction, CausalAttention, Concatenate, Dropout, Matmul, OpKind, Permute, Reshape, Slice, Softmax,
};

/// Recognizes softmax(mask(q kᵀ · scale)) v of heads, joined to rows, with or without dropout of the probabilities.
/// Queries, keys and values are three values, or columns of one.
pub(super) fn causal_attention(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let (by_row, joined) = reshaped(&matcher.graph.nodes[root])?;
    let &[rows, width] = joined else { return None };
    let by_head = permuted(matcher, by_row, &[1, 0, 2])?;
    let (probabilities, v) = product(matcher, by_head, false)?;
    let &[heads, _, head_dim] = matcher.graph.values[v].shape.dimensions() else { return None };
    if heads * head_dim != width || head_dim > GEMM_INNER_BLOCK {
        return None;
    }
    let (scores, dropout) = softmax(matcher, probabilities)?;
    let (scores, pairs) = unmasked(matcher, scores, rows)?;
    let scores = matcher.product(scores);
    let &[product_of_heads] = &scores.values[..] else { return None };
    let (q, k) = product(matcher, product_of_heads, true)?;
    let [(q_scale, q), (k_scale, k)] = [q, k].map(|value| scaled(matcher, value));
    let scale = scores.number * q_scale * k_scale;
    let sizes = [rows, heads, head_dim];
    let columns = packed(matcher, [q, k, v], sizes).unwrap_or_else(|| separate(matcher, [q, k, v], sizes));
    let op: OpKind = match pairs {
        Pairs::Causal => CausalAttention::new(heads, scale, dropout).into(),
        Pairs::All => Attention { heads, scale, dropout }.into(),
    };
    let mut nodes = Vec::new();
    let input = match columns {
        Columns::Packed(qkv) => Input::Value(qkv),
        Columns::Separate(parts) => {
            let inputs = parts.map(|part| part.by_row(&mut nodes, rows, width)).to_vec();
            add(&mut nodes, Concatenate { axis: 1 }, inputs)
        }
    };
    add(&mut nodes, op, vec![input]);
    Some(Replacement { nodes })
}

/// Adds an operator to a replacement.
fn add(nodes: &mut Vec<NewNode>, op: impl Into<OpKind>, inputs: Vec<Input>) -> Input {
    nodes.push(NewNode { op: op.into(), inputs, params: Vec::new() });
    Input::Made(nodes.len() - 1)
}

/// Queries, keys and values as rows.
enum Columns {
    /// All as columns of one value.
    Packed(ValueId),
    Separate([Part; 3]),
}

/// Queries, keys or values.
#[derive(Clone, Copy)]
enum Part {
    /// As rows.
    Rows(ValueId),
    /// By head: `[heads, rows, head_dim]`.
    Heads(ValueId),
}

impl Part {
    /// Returns the value as rows; adds the operators that this takes.
    fn by_row(self, nodes: &mut Vec<NewNode>, rows: usize, width: usize) -> Input {
        let (value, order, sizes) = match (self, Axes::new(&[1, 0, 2]), Dimensions::new(&[rows, width])) {
            (Self::Heads(value), Some(order), Some(sizes)) => (value, order, sizes),
            (Self::Rows(value) | Self::Heads(value), ..) => return Input::Value(value),
        };
        let permuted = add(nodes, Permute { order }, vec![Input::Value(value)]);
        add(nodes, Reshape { dimensions: sizes }, vec![permuted])
    }
}

/// Returns a number and a value whose product is `value`. The operators that multiply them become inner.
fn scaled(matcher: &mut Matcher<'_>, value: ValueId) -> (f32, ValueId) {
    let product = matcher.attempt(|matcher| {
        let product = matcher.product(value);
        let &[only] = &product.values[..] else { return None };
        Some((product.number, only))
    });
    product.unwrap_or((1.0, value))
}

/// Returns the input and the dimensions of a reshape.
fn reshaped(node: &OpNode) -> Option<(ValueId, &[usize])> {
    match &node.op {
        OpKind::Reshape(Reshape { dimensions }) => Some((node.inputs[0], dimensions)),
        _ => None,
    }
}

/// Returns the input if `value` is that input in another order of dimensions; the operator becomes inner.
fn permuted(matcher: &mut Matcher<'_>, value: ValueId, expected: &[usize]) -> Option<ValueId> {
    matcher.attempt(|matcher| {
        let node = matcher.inner(value)?;
        match node.op {
            OpKind::Permute(Permute { order }) if *order == *expected => Some(node.inputs[0]),
            _ => None,
        }
    })
}

/// Returns a and b if `value` is the product a b, or a bᵀ; the operators become inner.
fn product(matcher: &mut Matcher<'_>, value: ValueId, is_transposed: bool) -> Option<(ValueId, ValueId)> {
    let node = matcher.inner(value)?;
    let OpKind::Matmul(Matmul { transpose_a: false, transpose_b }) = node.op else { return None };
    let (a, b) = (node.inputs[0], node.inputs[1]);
    match (transpose_b, is_transposed) {
        (false, false) | (true, true) => Some((a, b)),
        (false, true) => Some((a, permuted(matcher, b, &[0, 2, 1])?)),
        (true, false) => None,
    }
}

/// Returns the scores if `value` is their softmax, and the rate of its dropout; the operators become inner.
fn softmax(matcher: &mut Matcher<'_>, value: ValueId) -> Option<(ValueId, f32)> {
    let node = matcher.inner(value)?;
    match node.op {
        OpKind::Softmax(Softmax { log: false }) => Some((node.inputs[0], 0.0)),
        OpKind::Dropout(Dropout { rate }) => {
            let softmax = matcher.inner(node.inputs[0])?;
            matches!(softmax.op, OpKind::Softmax(Softmax { log: false })).then(|| (softmax.inputs[0], rate))
        }
        _ => None,
    }
}

/// Returns the scores without their mask, and the pairs of rows that it keeps; the operators become inner.
fn unmasked(matcher: &mut Matcher<'_>, scores: ValueId, rows: usize) -> Option<(ValueId, Pairs)> {
    let by_select = matcher.attempt(|matcher| {
        let node = matcher.inner(scores)?;
        let (OpKind::Select(_), &[mask, a, b]) = (node.op, &node.inputs[..]) else { return None };
        let is_masked = |value| matcher.number(value).is_some_and(mask::is_masked);
        match [a, b].map(is_masked) {
            [false, true] => Some((a, mask::pairs(matcher, mask, rows, MaskForm::Kept)?)),
            [true, false] => Some((b, mask::pairs(matcher, mask, rows, MaskForm::Masked)?)),
            _ => None,
        }
    });
    let by_sum = |matcher: &mut Matcher<'_>| {
        let [a, b] = matcher.binary(scores, BinaryFunction::Add)?;
        let with_pairs = |(scores, mask)| Some((scores, mask::pairs(matcher, mask, rows, MaskForm::Scores)?));
        [(a, b), (b, a)].into_iter().find_map(with_pairs)
    };
    by_select.or_else(|| matcher.attempt(by_sum)).or(Some((scores, Pairs::All)))
}

/// Recognizes queries, keys and values as columns of one value, divided into three parts and heads at once: parts 0, 1
/// and 2 of `qkv` as `[3, heads, rows, head_dim]`.
fn packed(matcher: &mut Matcher<'_>, values: [ValueId; 3], [rows, heads, head_dim]: [usize; 3]) -> Option<Columns> {
    matcher.attempt(|matcher| {
        let mut source = None;
        for (index, value) in values.into_iter().enumerate() {
            let node = matcher.inner(value)?;
            let OpKind::Slice(Slice { axis: 0, start, drop: true, .. }) = node.op else { return None };
            if start != index || source.is_some_and(|source| source != node.inputs[0]) {
                return None;
            }
            source = Some(node.inputs[0]);
        }
        let split = permuted(matcher, source?, &[1, 2, 0, 3])?;
        let (qkv, sizes) = reshaped(matcher.inner(split)?)?;
        (sizes == [rows, 3, heads, head_dim]).then_some(Columns::Packed(qkv))
    })
}

/// Recognizes queries, keys and values as values of their own, each divided into heads or not. If they are neighbouring
/// columns of one value, that is used instead.
fn separate(matcher: &mut Matcher<'_>, values: [ValueId; 3], sizes: [usize; 3]) -> Columns {
    let parts = values.map(|value| {
        let rows = matcher.attempt(|matcher| divided_rows(matcher, value, sizes));
        rows.map_or(Part::Heads(value), Part::Rows)
    });
    let columns = matcher.attempt(|matcher| neighbouring_columns(matcher, parts, sizes));
    columns.map_or(Columns::Separate(parts), Columns::Packed)
}

/// Returns the rows if `value` is these rows divided into heads; the operators become inner.
fn divided_rows(matcher: &mut Matcher<'_>, value: ValueId, [rows, heads, head_dim]: [usize; 3]) -> Option<ValueId> {
    let by_row = permuted(matcher, value, &[1, 0, 2])?;
    let (source, sizes) = reshaped(matcher.inner(by_row)?)?;
    let is_whole = matcher.graph.values[source].shape.dimensions() == [rows, heads * head_dim];
    (is_whole && sizes == [rows, heads, head_dim]).then_some(source)
}

/// Returns the value whose columns are queries, keys and values, in this order; the operators become inner.
fn neighbouring_columns(
    matcher: &mut Matcher<'_>,
    parts: [Part; 3],
    [_, heads, head_dim]: [usize; 3],
) -> Option<ValueId> {
    let width = heads * head_dim;
    let mut source = None;
    for (index, part) in parts.into_iter().enumerate() {
        let Part::Rows(part) = part else { return None };
        let node = matcher.inner(part)?;
        let OpKind::Slice(Slice { axis: 1, start, end, step: 1, drop: false }) = node.op else { return None };
        let is_next = start == index * width && end == start + width;
        if !is_next || source.is_some_and(|source| source != node.inputs[0]) {
            return None;
        }
        source = Some(node.inputs[0]);
    }
    source.filter(|source| matcher.graph.values[*source].shape.columns() == 3 * width)
}
