//! Functions of one number that are made of others.

use millrace_params::Nonlinearity;

use super::matcher::{Matcher, Replacement, binary_operands, is_about};
use crate::graph::{NodeId, ValueId};
use crate::ops::{Activation, BinaryFunction, OpKind, Unary, UnaryFunction};

/// √(2/π).
const TANH_SCALE: f32 = 0.797_884_6;
const TANH_CUBIC: f32 = 0.044_715;
const QUICK_SLOPE: f32 = 1.702;

/// Recognizes 1 / (1 + e^-x).
pub(super) fn sigmoid(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let node = &matcher.graph.nodes[root];
    let below = match node.op {
        OpKind::Unary(Unary { function: UnaryFunction::Reciprocal }) => node.inputs[0],
        _ => {
            let [one, below] = binary_operands(node, BinaryFunction::Div)?;
            matcher.is_number(one, 1.0).then_some(below)?
        }
    };
    let x = one_plus_exp_of_negative(matcher, below)?;
    Some(Replacement::new(Activation { kind: Nonlinearity::Sigmoid }, &[x], &[]))
}

/// Recognizes SiLU and the forms of GELU.
pub(super) fn activation(matcher: &mut Matcher<'_>, root: NodeId) -> Option<Replacement> {
    let node = &matcher.graph.nodes[root];
    if let Some([x, below]) = binary_operands(node, BinaryFunction::Div) {
        let value = one_plus_exp_of_negative(matcher, below)?;
        return (value == x).then(|| Replacement::new(Activation { kind: Nonlinearity::Silu }, &[x], &[]));
    }
    let product = matcher.product_of(node)?;
    let &[a, b] = &product.values[..] else { return None };
    [(a, b), (b, a)].into_iter().find_map(|(x, weight)| {
        let kind = matcher.attempt(|matcher| match product.number {
            number if is_about(number, 1.0) => weighted_by_sigmoid(matcher, x, weight),
            number if is_about(number, 0.5) => weighted_by_probability(matcher, x, weight),
            _ => None,
        })?;
        Some(Replacement::new(Activation { kind }, &[x], &[]))
    })
}

/// Returns x if `value` is 1 + e^-x.
fn one_plus_exp_of_negative(matcher: &mut Matcher<'_>, value: ValueId) -> Option<ValueId> {
    let exponential = matcher.plus_number(value, 1.0)?;
    let negative = matcher.unary(exponential, UnaryFunction::Exp)?;
    matcher.unary(negative, UnaryFunction::Neg)
}

/// Returns x if `value` is the activation of x.
fn of_activation(matcher: &mut Matcher<'_>, value: ValueId, expected: Nonlinearity) -> Option<ValueId> {
    matcher.attempt(|matcher| {
        let node = matcher.inner(value)?;
        match node.op {
            OpKind::Activation(Activation { kind }) if kind == expected => Some(node.inputs[0]),
            _ => None,
        }
    })
}

/// Recognizes `weight` as σ(x) or σ(1.702 x).
fn weighted_by_sigmoid(matcher: &mut Matcher<'_>, x: ValueId, weight: ValueId) -> Option<Nonlinearity> {
    let inner = of_activation(matcher, weight, Nonlinearity::Sigmoid)?;
    if inner == x {
        return Some(Nonlinearity::Silu);
    }
    let product = matcher.product(inner);
    (product.values == [x] && product.is_about(QUICK_SLOPE)).then_some(Nonlinearity::QuickGelu)
}

/// Recognizes `weight` as 1 + erf(x/√2) or 1 + tanh(√(2/π)(x + 0.044715 x³)).
fn weighted_by_probability(matcher: &mut Matcher<'_>, x: ValueId, weight: ValueId) -> Option<Nonlinearity> {
    let inner = matcher.plus_number(weight, 1.0)?;
    let of_error = matcher.attempt(|matcher| {
        let scaled = matcher.unary(inner, UnaryFunction::Erf)?;
        let product = matcher.product(scaled);
        (product.values == [x] && product.is_about(std::f32::consts::FRAC_1_SQRT_2)).then_some(Nonlinearity::Gelu)
    });
    of_error.or_else(|| {
        let scaled = of_activation(matcher, inner, Nonlinearity::Tanh)?;
        let product = matcher.product(scaled);
        let &[sum] = &product.values[..] else { return None };
        let [a, b] = matcher.binary(sum, BinaryFunction::Add).filter(|_| product.is_about(TANH_SCALE))?;
        let cubic = if a == x { b } else { (b == x).then_some(a)? };
        let product = matcher.product(cubic);
        let is_cube =
            product.values == [x; 3] || matches!(product.values[..], [power] if is_power(matcher, power, x, 3.0));
        (is_cube && product.is_about(TANH_CUBIC)).then_some(Nonlinearity::GeluTanh)
    })
}

/// Returns whether `value` is x to the given power; the operator becomes inner.
pub(super) fn is_power(matcher: &mut Matcher<'_>, value: ValueId, x: ValueId, exponent: f32) -> bool {
    let operands = matcher.binary(value, BinaryFunction::Pow);
    operands.is_some_and(|[base, number]| base == x && matcher.is_number(number, exponent))
}
