//! Both forms of each pattern have the same values and gradients.

use millrace_params::Nonlinearity;

use super::rewrite;
use crate::common::generic::{self, DecoderSizes};
use crate::common::{LARGE, Samples, device, initial_weights, step, to_f64};
use crate::compile::BatchSpec;
use crate::graph::{Axes, DType, Graph, Shape, ValueId};
use crate::ops::testing::{ROWS, TestGraph, WIDTH, reference_loss};
use crate::ops::{
    Activation, Binary, BinaryFunction, Compare, Gather, Linear, Matmul, OpKind, Permute, Reduce, Reduction, Relation,
    Scale, Select, Slice, Softmax, SumLoss, Unary, UnaryFunction,
};
use crate::plan::Encoding;

/// Checks that rewriting `graph` gives the operators `expected` beside those of every test graph, the same losses in
/// f64, and the same gradients.
fn check(graph: &Graph, expected: &[&str]) {
    let rewritten = rewrite(graph.clone());
    rewritten.validate().unwrap();
    let names: Vec<&str> = rewritten.nodes.iter().map(|node| node.op.name()).collect();
    let inner = names.len() - 1;
    assert_eq!(&names[1..inner], expected);
    assert_eq!(rewrite(rewritten.clone()), rewritten, "a rewritten graph stays as it is");
    let plans = [graph.clone(), rewritten].map(plan_as_it_is);
    let samples = Samples::random(&plans[0], 5);
    let weights = plans.each_ref().map(|plan| initial_weights(plan, 11));
    let tensors = to_f64(&plans[0], &weights[0]);
    let losses = plans.each_ref().map(|plan| reference_loss(&plan.graph, &tensors, &samples, false));
    assert!((losses[0] / losses[1] - 1.0).abs() < 1e-6, "{losses:?}");
    let gradients = [0, 1].map(|index| {
        to_f64(&plans[index], &step(&mut device(&plans[index], 1), &plans[index], &weights[index], &samples).1)
    });
    for (tensor, (of_generic, of_macro)) in gradients[0].iter().zip(&gradients[1]).enumerate() {
        let largest = of_generic.iter().fold(0.0f64, |max, g| max.max(g.abs()));
        let difference = of_generic.iter().zip(of_macro).fold(0.0f64, |max, (a, b)| max.max((a - b).abs()));
        assert!(difference <= 2e-5 * largest + 1e-6, "tensor {tensor}: {difference:e} of {largest:e}");
    }
}

/// Compiles a plan of a graph as it is.
fn plan_as_it_is(graph: Graph) -> std::sync::Arc<crate::plan::StreamPlan> {
    let mut plan = crate::common::plan(graph.clone(), BatchSpec { samples: 3, leaf_bound: 1 }, Encoding::F32, LARGE);
    if plan.graph != graph {
        // The layers, groups and chunks do not depend on operators without tensors.
        std::sync::Arc::get_mut(&mut plan).unwrap().graph = graph;
    }
    plan
}

impl TestGraph {
    fn unary(&mut self, function: UnaryFunction, x: ValueId) -> ValueId {
        self.node(Unary { function }, &[x], &[])
    }

    fn binary(&mut self, function: BinaryFunction, a: ValueId, b: ValueId) -> ValueId {
        self.node(Binary { function }, &[a, b], &[])
    }

    fn times(&mut self, x: ValueId, number: f32) -> ValueId {
        let number = self.number(number);
        self.mul(x, number)
    }

    fn plus(&mut self, x: ValueId, number: f32) -> ValueId {
        let number = self.number(number);
        self.binary(BinaryFunction::Add, x, number)
    }

    fn over(&mut self, x: ValueId, number: f32) -> ValueId {
        let number = self.number(number);
        self.binary(BinaryFunction::Div, x, number)
    }

    /// 1 + e^-x.
    fn logistic_denominator(&mut self, x: ValueId) -> ValueId {
        let negative = self.unary(UnaryFunction::Neg, x);
        let exponential = self.unary(UnaryFunction::Exp, negative);
        self.plus(exponential, 1.0)
    }

    fn activation(&mut self, kind: Nonlinearity, x: ValueId) -> ValueId {
        self.node(Activation { kind }, &[x], &[])
    }

    fn permute(&mut self, x: ValueId, order: &[usize]) -> ValueId {
        self.node(Permute { order: Axes::new(order).unwrap() }, &[x], &[])
    }
}

#[test]
fn activations() {
    type Make = fn(&mut TestGraph, ValueId) -> ValueId;
    let forms: [Make; 9] = [
        |s, x| {
            let below = s.logistic_denominator(x);
            s.unary(UnaryFunction::Reciprocal, below)
        },
        |s, x| {
            let (below, one) = (s.logistic_denominator(x), s.number(1.0));
            s.binary(BinaryFunction::Div, one, below)
        },
        |s, x| {
            let below = s.logistic_denominator(x);
            s.binary(BinaryFunction::Div, x, below)
        },
        |s, x| {
            let y = s.activation(Nonlinearity::Sigmoid, x);
            s.mul(y, x)
        },
        |s, x| {
            let y = s.times(x, 1.702);
            let y = s.activation(Nonlinearity::Sigmoid, y);
            s.mul(x, y)
        },
        |s, x| {
            let y = s.over(x, std::f32::consts::SQRT_2);
            let y = s.unary(UnaryFunction::Erf, y);
            let (y, half) = (s.plus(y, 1.0), s.times(x, 0.5));
            s.mul(half, y)
        },
        |s, x| {
            let y = s.times(x, std::f32::consts::FRAC_1_SQRT_2);
            let y = s.unary(UnaryFunction::Erf, y);
            let y = s.plus(y, 1.0);
            let y = s.mul(x, y);
            s.node(Scale { factor: 0.5 }, &[y], &[])
        },
        |s, x| {
            let three = s.number(3.0);
            let cube = s.binary(BinaryFunction::Pow, x, three);
            let cube = s.times(cube, 0.044_715);
            let y = s.binary(BinaryFunction::Add, x, cube);
            let y = s.times(y, 0.797_884_6);
            let y = s.activation(Nonlinearity::Tanh, y);
            let (y, half) = (s.plus(y, 1.0), s.times(x, 0.5));
            s.mul(half, y)
        },
        |s, x| {
            let square = s.mul(x, x);
            let cube = s.mul(square, x);
            let cube = s.times(cube, 0.044_715);
            let y = s.binary(BinaryFunction::Add, cube, x);
            let y = s.times(y, 0.797_884_6);
            let y = s.activation(Nonlinearity::Tanh, y);
            let y = s.plus(y, 1.0);
            let y = s.mul(x, y);
            s.times(y, 0.5)
        },
    ];
    let kinds = [
        Nonlinearity::Sigmoid,
        Nonlinearity::Sigmoid,
        Nonlinearity::Silu,
        Nonlinearity::Silu,
        Nonlinearity::QuickGelu,
        Nonlinearity::Gelu,
        Nonlinearity::Gelu,
        Nonlinearity::GeluTanh,
        Nonlinearity::GeluTanh,
    ];
    for (index, (make, kind)) in forms.into_iter().zip(kinds).enumerate() {
        let graph = TestGraph::build(|s, x| {
            // Powers need positive numbers.
            let x = s.at_least_one(x);
            make(s, x)
        });
        check(&graph, &["Binary", "Binary", "Activation"]);
        let found = rewrite(graph).nodes.into_iter().find_map(|node| match node.op {
            OpKind::Activation(Activation { kind }) => Some(kind),
            _ => None,
        });
        assert_eq!(found, Some(kind), "form {index}");
    }
}

#[test]
fn gates() {
    let graph = TestGraph::build(|s, x| {
        let (gate, up) = (s.linear(x, WIDTH, false), s.linear(x, WIDTH, false));
        let below = s.logistic_denominator(gate);
        let silu = s.binary(BinaryFunction::Div, gate, below);
        s.mul(silu, up)
    });
    check(&graph, &["Linear", "Linear", "Gate"]);
}

#[test]
fn rms_norms() {
    type Make = fn(&mut TestGraph, ValueId, ValueId) -> ValueId;
    let forms: [Make; 3] = [
        |s, x, sum| {
            let factor = s.unary(UnaryFunction::Rsqrt, sum);
            s.mul(x, factor)
        },
        |s, x, sum| {
            let root = s.unary(UnaryFunction::Sqrt, sum);
            let factor = s.unary(UnaryFunction::Reciprocal, root);
            s.mul(factor, x)
        },
        |s, x, sum| {
            let root = s.unary(UnaryFunction::Sqrt, sum);
            s.binary(BinaryFunction::Div, x, root)
        },
    ];
    let norm = |make: Make, axis: usize, square: UnaryFunction| {
        TestGraph::build(|s, x| {
            let square = if square == UnaryFunction::Square { s.unary(square, x) } else { s.mul(x, x) };
            let axes = Axes::new(&[axis]).unwrap();
            let mean = s.node(Reduce { reduction: Reduction::Mean, axes, keep: true }, &[square], &[]);
            let sum = s.plus(mean, 1e-5);
            let y = make(s, x, sum);
            let gain = s.tensor(&[WIDTH]);
            s.mul_tensor(y, gain)
        })
    };
    for make in forms {
        for square in [UnaryFunction::Square, UnaryFunction::Neg] {
            check(&norm(make, 1, square), &["RmsNorm"]);
        }
    }
    let of_columns = norm(forms[0], 0, UnaryFunction::Square);
    assert_eq!(rewrite(of_columns.clone()), of_columns, "a mean over rows is another norm");
}

#[test]
fn layer_norms() {
    let norm = |has_offset: bool, divides: bool| {
        TestGraph::build(|s, x| {
            let mean = |s: &mut TestGraph, x| {
                let axes = Axes::new(&[1]).unwrap();
                s.node(Reduce { reduction: Reduction::Mean, axes, keep: true }, &[x], &[])
            };
            let of_rows = mean(s, x);
            let centered = s.binary(BinaryFunction::Sub, x, of_rows);
            let square = s.mul(centered, centered);
            let variance = mean(s, square);
            let sum = s.plus(variance, 1e-5);
            let y = if divides {
                let root = s.unary(UnaryFunction::Sqrt, sum);
                s.binary(BinaryFunction::Div, centered, root)
            } else {
                let factor = s.unary(UnaryFunction::Rsqrt, sum);
                s.mul(centered, factor)
            };
            let (gain, offset) = (s.tensor(&[WIDTH]), s.tensor(&[WIDTH]));
            let y = s.mul_tensor(y, gain);
            let add = Binary { function: BinaryFunction::Add };
            // Without an offset, another operator uses its tensor.
            let y = if has_offset { y } else { s.unary(UnaryFunction::Sin, y) };
            s.node(add, &[y], &[offset])
        })
    };
    for divides in [false, true] {
        check(&norm(true, divides), &["LayerNorm"]);
        check(&norm(false, divides), &["LayerNorm", "Unary", "Binary"]);
    }
}

/// How queries, keys and values are made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Projections {
    Packed,
    Columns,
    Separate,
    /// Queries are changed by head, as rotary positions change them.
    ByHead,
}

/// The masks of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Masked {
    No,
    Relation,
    Constant,
    Scores,
    /// Each row does not attend to itself.
    Strict,
}

fn attention(s: &mut TestGraph, x: ValueId, projections: Projections, masked: Masked) -> ValueId {
    const HEADS: usize = 3;
    const HEAD_DIM: usize = WIDTH / HEADS;
    let split = |s: &mut TestGraph, x| {
        let y = s.reshape(x, &[ROWS, HEADS, HEAD_DIM]);
        s.permute(y, &[1, 0, 2])
    };
    let part = |axis, start, end, drop| Slice { axis, start, end, step: 1, drop };
    let [q, k, v] = match projections {
        Projections::Packed => {
            let qkv = s.linear(x, 3 * WIDTH, true);
            let y = s.reshape(qkv, &[ROWS, 3, HEADS, HEAD_DIM]);
            let y = s.permute(y, &[1, 2, 0, 3]);
            [0, 1, 2].map(|index| s.node(part(0, index, index + 1, true), &[y], &[]))
        }
        Projections::Columns => {
            let qkv = s.linear(x, 3 * WIDTH, true);
            [0, 1, 2].map(|index| {
                let y = s.node(part(1, index * WIDTH, (index + 1) * WIDTH, false), &[qkv], &[]);
                split(s, y)
            })
        }
        Projections::Separate => [(); 3].map(|()| {
            let y = s.linear(x, WIDTH, true);
            split(s, y)
        }),
        Projections::ByHead => {
            let [q, k, v] = [(); 3].map(|()| {
                let y = s.linear(x, WIDTH, true);
                split(s, y)
            });
            let positions = s.constant(&[ROWS, HEAD_DIM]);
            let rotated = s.mul(q, positions);
            [s.add(q, rotated), k, v]
        }
    };
    let scores = if projections == Projections::Separate {
        let transposed = s.permute(k, &[0, 2, 1]);
        let q = s.times(q, 0.5);
        s.node(Matmul { transpose_a: false, transpose_b: false }, &[q, transposed], &[])
    } else {
        let scores = s.node(Matmul { transpose_a: false, transpose_b: true }, &[q, k], &[]);
        s.over(scores, 2.0)
    };
    let scores = mask(s, scores, masked);
    let y = s.node(Softmax { log: false }, &[scores], &[]);
    let y = s.node(Matmul { transpose_a: false, transpose_b: false }, &[y, v], &[]);
    let y = s.permute(y, &[1, 0, 2]);
    s.reshape(y, &[ROWS, WIDTH])
}

fn mask(s: &mut TestGraph, scores: ValueId, masked: Masked) -> ValueId {
    let pairs = || (0..ROWS).flat_map(|row| (0..ROWS).map(move |column| (row, column)));
    match masked {
        Masked::No => scores,
        Masked::Relation | Masked::Strict => {
            let positions: Vec<u32> = (0..ROWS as u32).collect();
            let [rows, columns] =
                [[ROWS, 1], [1, ROWS]].map(|sizes| s.bits(Shape::new(DType::I32, &sizes).unwrap(), positions.clone()));
            let relation = if masked == Masked::Strict { Relation::Gt } else { Relation::Ge };
            let keeps = s.node(Compare { relation }, &[rows, columns], &[]);
            let lowest = s.number(-1e9);
            s.node(Select, &[keeps, scores, lowest], &[])
        }
        Masked::Constant => {
            let later = pairs().map(|(row, column)| u32::from(column > row)).collect();
            let later = s.bits(Shape::new(DType::Bool, &[1, ROWS, ROWS]).unwrap(), later);
            let lowest = s.number(f32::NEG_INFINITY);
            s.node(Select, &[later, lowest, scores], &[])
        }
        Masked::Scores => {
            let added = pairs().map(|(row, column)| if column > row { f32::NEG_INFINITY } else { 0.0f32 }.to_bits());
            let added = s.bits(Shape::new(DType::F32, &[ROWS, ROWS]).unwrap(), added.collect());
            s.binary(BinaryFunction::Add, added, scores)
        }
    }
}

#[test]
fn attentions() {
    let graph = |projections, masked| TestGraph::build(|s, x| attention(s, x, projections, masked));
    for masked in [Masked::Relation, Masked::Constant, Masked::Scores] {
        check(&graph(Projections::Packed, masked), &["Linear", "CausalAttention"]);
    }
    check(&graph(Projections::Packed, Masked::No), &["Linear", "Attention"]);
    check(&graph(Projections::Columns, Masked::Relation), &["Linear", "CausalAttention"]);
    let separate = ["Linear", "Linear", "Linear", "Concatenate", "CausalAttention"];
    check(&graph(Projections::Separate, Masked::Constant), &separate);
    let by_head = [
        "Linear",
        "Reshape",
        "Permute",
        "Linear",
        "Linear",
        "Binary",
        "Add",
        "Permute",
        "Reshape",
        "Concatenate",
        "CausalAttention",
    ];
    check(&graph(Projections::ByHead, Masked::Scores), &by_head);
    let strict = graph(Projections::Packed, Masked::Strict);
    assert_eq!(rewrite(strict.clone()), strict, "another mask");
}

#[test]
fn cross_entropies() {
    let loss = |is_mean: bool| {
        TestGraph::build(|s, x| {
            let (weight, bias) = (s.tensor(&[7, WIDTH]), s.tensor(&[7]));
            let logits = s.node(Linear, &[x], &[weight, bias]);
            let logs = s.node(Softmax { log: true }, &[logits], &[]);
            let labels = s.labels_of(x);
            let index = s.reshape(labels, &[ROWS, 1]);
            let logs = s.node(Gather { axis: 1 }, &[logs, index], &[]);
            let logs = s.reshape(logs, &[ROWS]);
            let negative = s.unary(UnaryFunction::Neg, logs);
            let (loss, factor) = if is_mean {
                let axes = Axes::new(&[0]).unwrap();
                (s.node(Reduce { reduction: Reduction::Mean, axes, keep: false }, &[negative], &[]), 2.5)
            } else {
                (negative, 0.5)
            };
            s.loss_of(SumLoss { factor }, &[loss], &[]);
            x
        })
    };
    for is_mean in [false, true] {
        let graph = loss(is_mean);
        check(&graph, &["CrossEntropy"]);
        let found = rewrite(graph).nodes.into_iter().find_map(|node| match node.op {
            OpKind::CrossEntropy(loss) => Some(loss.factor),
            _ => None,
        });
        assert_eq!(found, Some(0.5));
    }
}

#[test]
fn values_that_others_need_stay() {
    let silu = |others: &dyn Fn(&mut TestGraph, ValueId, ValueId)| {
        TestGraph::build(|s, x| {
            let below = s.logistic_denominator(x);
            others(s, x, below);
            s.binary(BinaryFunction::Div, x, below)
        })
    };
    let read_elsewhere = silu(&|s, _, below| s.weighted_loss(below));
    let in_two_layers = silu(&|s, _, _| s.end_layer());
    for graph in [read_elsewhere, in_two_layers] {
        assert_eq!(rewrite(graph.clone()), graph);
    }
}

#[test]
fn decoder_of_generic_operators_becomes_one_of_macro_operators() {
    let known =
        DecoderSizes { vocabulary: 50, tokens: 20, blocks: 1, heads: 3, head_dim: 16, dropout: 0.1, is_known: true };
    let other = generic::decoder(DecoderSizes { is_known: false, ..known });
    assert_eq!(rewrite(other.clone()), other);
    let rewritten = rewrite(generic::decoder(known));
    let names: Vec<&str> = rewritten.nodes.iter().map(|node| node.op.name()).collect();
    let block = ["RmsNorm", "Linear", "CausalAttention", "Linear", "Add", "RmsNorm", "Linear", "Linear", "Gate"];
    let rest = ["Dropout", "Linear", "Add", "RmsNorm", "CrossEntropy"];
    assert_eq!(names, [&["Embedding"][..], &block, &rest].concat());
    assert!(rewritten.constants.is_empty());
    assert_eq!(rewritten.validate(), Ok(()));
}
