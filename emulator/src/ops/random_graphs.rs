//! Random graphs of generic operators, compared with the f64 reference: combinations that no other test has.

use std::collections::BTreeSet;

use millrace_params::Nonlinearity;

use super::testing::{ROWS, TestGraph, WIDTH, check_graph};
use super::{
    Activation, Binary, BinaryFunction, Concatenate, CumulativeSum, Dropout, Expand, Matmul, OpKind, Pad, Permute,
    Reduce, Reduction, Reshape, Slice, Softmax, Unary, UnaryFunction,
};
use crate::graph::{Axes, Dimensions, Graph, ValueId};
use crate::numerics::random::key;

/// Maximum elements of a value.
const MAX_ELEMENTS: u64 = 400;

/// Operators of a graph.
const OPERATORS: usize = 12;

/// Random choices, a function of the seed.
struct Choices {
    seed: u64,
    node_count: u64,
}

impl Choices {
    /// Returns a number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.node_count += 1;
        (key(self.seed, self.node_count, 0) % bound as u64) as usize
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// Returns the dimensions with one of them divided in two, and perhaps the first two joined.
fn reshaped(choices: &mut Choices, sizes: &[usize]) -> Option<Dimensions> {
    let index = choices.below(sizes.len().max(1));
    let size = *sizes.get(index)?;
    let divisors: Vec<usize> = (1..=size).filter(|divisor| size.is_multiple_of(*divisor)).collect();
    let divisor = choices.of(&divisors);
    let mut to = sizes.to_vec();
    to.splice(index..=index, [divisor, size / divisor]);
    if choices.below(2) == 0 && to.len() > 2 {
        let joined = to[0] * to[1];
        to.splice(0..2, [joined]);
    }
    Dimensions::new(&to)
}

/// Returns a random operator for a first input of these dimensions, and the number of its inputs.
fn operator(choices: &mut Choices, a: &[usize]) -> Option<(OpKind, usize)> {
    let axis = choices.below(a.len().max(1));
    let size = a.get(axis).copied().unwrap_or(1);
    let one = |op: OpKind| Some((op, 1));
    match choices.below(14) {
        0 => {
            let functions = [UnaryFunction::Neg, UnaryFunction::Sin, UnaryFunction::Cos, UnaryFunction::Erf];
            one(Unary { function: choices.of(&functions) }.into())
        }
        1 => one(Activation { kind: Nonlinearity::Tanh }.into()),
        2 | 3 => {
            let functions = [BinaryFunction::Add, BinaryFunction::Sub, BinaryFunction::Mul];
            Some((Binary { function: choices.of(&functions) }.into(), 2))
        }
        4 => one(Reshape { dimensions: reshaped(choices, a)? }.into()),
        5 => {
            let start = choices.below(a.len().max(1));
            let order: Vec<usize> = (0..a.len()).map(|axis| (axis + start) % a.len()).collect();
            one(Permute { order: Axes::new(&order)? }.into())
        }
        6 => {
            let reduction = choices.of(&[Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min]);
            one(Reduce { reduction, axes: Axes::new(&[axis])?, keep: choices.below(2) == 0 }.into())
        }
        7 => {
            let (start, step) = (choices.below(size), 1 + choices.below(3));
            let end = start + 1 + choices.below(size - start);
            one(Slice { axis, start, end, step, drop: end == start + 1 }.into())
        }
        8 => one(Pad { axis, before: choices.below(3), after: choices.below(3) }.into()),
        9 => Some((Concatenate { axis }.into(), 2)),
        10 => {
            let widened: Vec<usize> = [2].iter().chain(a).copied().collect();
            one(Expand { dimensions: Dimensions::new(&widened)? }.into())
        }
        11 => one(Softmax { log: choices.below(2) == 0 }.into()),
        12 => {
            let op = Matmul { transpose_a: choices.below(2) == 0, transpose_b: choices.below(2) == 0 };
            Some((op.into(), 2))
        }
        _ => one(choices.of(&[CumulativeSum { axis }.into(), Dropout { rate: 0.2 }.into()])),
    }
}

/// Returns a graph of random operators, with a loss of each value that no operator reads.
fn graph(seed: u64) -> Graph {
    let mut choices = Choices { seed, node_count: 0 };
    TestGraph::build(|s, x| {
        let mut values: Vec<ValueId> = vec![x, s.constant(&[WIDTH]), s.numbers(&[ROWS, 1])];
        let mut is_read = vec![true; values.len()];
        while values.len() < OPERATORS {
            let [a, b] = [(); 2].map(|()| choices.below(values.len()));
            let first = s.shape(values[a]);
            let Some((op, count)) = operator(&mut choices, first.dimensions()) else { continue };
            let Some(y) = s.try_node(op, &[values[a], values[b]][..count], MAX_ELEMENTS) else { continue };
            [a, b][..count].iter().for_each(|&value| is_read[value] = true);
            values.push(y);
            is_read.push(false);
            if choices.below(4) == 0 {
                s.end_layer();
            }
        }
        for (value, _) in values.iter().zip(&is_read).filter(|(_, is_read)| !**is_read).take(3) {
            s.weighted_loss(*value);
        }
        x
    })
}

#[test]
fn random_graphs_agree_with_the_reference() {
    let mut kinds: BTreeSet<&str> = BTreeSet::new();
    for seed in 0..40 {
        let graph = graph(seed);
        let names: Vec<&str> = graph.nodes.iter().map(|node| node.op.name()).collect();
        kinds.extend(graph.nodes.iter().map(|node| node.op.name()));
        check_graph(&format!("graph {seed}: {names:?}"), graph);
    }
    let generic = [
        "Unary",
        "Activation",
        "Binary",
        "Reshape",
        "Permute",
        "Reduce",
        "Slice",
        "Pad",
        "Concatenate",
        "Expand",
        "Softmax",
        "Matmul",
        "CumulativeSum",
        "Dropout",
    ];
    assert!(generic.iter().all(|name| kinds.contains(name)), "{kinds:?}");
}
