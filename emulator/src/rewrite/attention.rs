//! Attention that is written as products and a softmax.

use super::mask::{self, MaskForm, Pairs};
use super::matcher::{Input, Matcher, NewNode, Replacement};
use crate::graph::{NodeId, OpNode, ValueId};
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
    if heads * head_dim != width {
        return None;
    }
    let (scores, dropout) = softmax(matcher, probabilities)?;
    let (scores, pairs) = unmasked(matcher, scores, rows)?;
    let scores = matcher.product(scores);
    let &[product_of_heads] = &scores.values[..] else { return None };
    let (q, k) = product(matcher, product_of_heads, true)?;
    let [q, k] = [q, k].map(|value| matcher.product(value));
    let scale = scores.number * q.number * k.number;
    let (&[q], &[k]) = (&q.values[..], &k.values[..]) else { return None };
    let sizes = [rows, heads, head_dim];
    let columns = packed(matcher, [q, k, v], sizes).or_else(|| separate(matcher, [q, k, v], sizes))?;
    let op: OpKind = match pairs {
        Pairs::Causal => CausalAttention::new(heads, scale, dropout).into(),
        Pairs::All => Attention { heads, scale, dropout }.into(),
    };
    let mut nodes = Vec::new();
    let input = match columns {
        Columns::Packed(qkv) => Input::Value(qkv),
        Columns::Separate(parts) => {
            let inputs = parts.map(Input::Value).to_vec();
            nodes.push(NewNode { op: Concatenate { axis: 1 }.into(), inputs, params: Vec::new() });
            Input::Made(0)
        }
    };
    nodes.push(NewNode { op, inputs: vec![input], params: Vec::new() });
    Some(Replacement { nodes })
}

/// Queries, keys and values as rows.
enum Columns {
    /// All as columns of one value.
    Packed(ValueId),
    Separate([ValueId; 3]),
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
        let of = |(scores, mask)| Some((scores, mask::pairs(matcher, mask, rows, MaskForm::Scores)?));
        [(a, b), (b, a)].into_iter().find_map(of)
    };
    by_select.or_else(|| matcher.attempt(by_sum)).or(Some((scores, Pairs::All)))
}

/// Recognizes queries, keys and values as columns of one value, divided into three parts and heads at once: parts 0, 1
/// and 2 of `qkv` as `[3, heads, rows, head_dim]`.
fn packed(matcher: &mut Matcher<'_>, values: [ValueId; 3], [rows, heads, head_dim]: [usize; 3]) -> Option<Columns> {
    matcher.attempt(|matcher| {
        let mut whole = None;
        for (at, value) in values.into_iter().enumerate() {
            let node = matcher.inner(value)?;
            let OpKind::Slice(Slice { axis: 0, start, drop: true, .. }) = node.op else { return None };
            if start != at || whole.is_some_and(|whole| whole != node.inputs[0]) {
                return None;
            }
            whole = Some(node.inputs[0]);
        }
        let split = permuted(matcher, whole?, &[1, 2, 0, 3])?;
        let (qkv, sizes) = reshaped(matcher.inner(split)?)?;
        (sizes == [rows, 3, heads, head_dim]).then_some(Columns::Packed(qkv))
    })
}

/// Recognizes queries, keys and values as values of their own, each divided into heads. If they are neighbouring
/// columns of one value, that is used instead.
fn separate(matcher: &mut Matcher<'_>, values: [ValueId; 3], [rows, heads, head_dim]: [usize; 3]) -> Option<Columns> {
    let width = heads * head_dim;
    let mut parts = [0; 3];
    for (part, value) in parts.iter_mut().zip(values) {
        let by_row = permuted(matcher, value, &[1, 0, 2])?;
        let (whole, sizes) = reshaped(matcher.inner(by_row)?)?;
        if sizes != [rows, heads, head_dim] || matcher.graph.values[whole].shape.dimensions() != [rows, width] {
            return None;
        }
        *part = whole;
    }
    let columns = matcher.attempt(|matcher| {
        let mut whole = None;
        for (at, part) in parts.into_iter().enumerate() {
            let node = matcher.inner(part)?;
            let OpKind::Slice(Slice { axis: 1, start, end, step: 1, drop: false }) = node.op else { return None };
            let is_next = start == at * width && end == start + width;
            if !is_next || whole.is_some_and(|whole| whole != node.inputs[0]) {
                return None;
            }
            whole = Some(node.inputs[0]);
        }
        let is_all = |whole: &ValueId| matcher.graph.values[*whole].shape.columns() == 3 * width;
        whole.filter(is_all).map(Columns::Packed)
    });
    Some(columns.unwrap_or(Columns::Separate(parts)))
}
