//! Models of generic operators only, as a tracing front end emits them.

use millrace_emulator::graph::{
    Axes, DType, Dimensions, Graph, GraphBuilder, Initializer, Shape, TensorId, TensorRole, ValueId,
};
use millrace_emulator::ops::{
    Add, Binary, BinaryFunction, Compare, Dropout, Embedding, Gather, Linear, Matmul, OpKind, Permute, Reduce,
    Reduction, Relation, Reshape, Select, Slice, Softmax, SumLoss, Unary, UnaryFunction,
};

/// Sizes of [`decoder`].
#[derive(Clone, Copy, Debug)]
pub struct DecoderSizes {
    pub vocabulary: usize,
    pub tokens: usize,
    pub blocks: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub dropout: f32,
    /// Whether norms, attention, gates and loss are those that macro-operators compute. Otherwise each differs a
    /// little, so that the compiler leaves it as it is.
    pub is_known: bool,
}

/// Builds a graph of unnamed values.
struct Net {
    builder: GraphBuilder,
    names: usize,
}

fn sizes(sizes: &[usize]) -> Dimensions {
    Dimensions::new(sizes).unwrap()
}

impl Net {
    fn node(&mut self, op: impl Into<OpKind>, inputs: &[ValueId], params: &[TensorId]) -> ValueId {
        self.names += 1;
        self.builder.node(op, format!("v{}", self.names), inputs, params).unwrap()
    }

    fn tensor(&mut self, name: String, shape: &[usize], role: TensorRole) -> TensorId {
        let init = match role {
            TensorRole::Norm => Initializer::Normal { mean: 1.0, std: 0.1 },
            _ => Initializer::Normal { mean: 0.0, std: 0.1 },
        };
        self.builder.tensor(name, shape, init, role)
    }

    fn number(&mut self, number: f32) -> ValueId {
        self.names += 1;
        self.builder.numbers(format!("c{}", self.names), &[], &[number])
    }

    fn binary(&mut self, function: BinaryFunction, a: ValueId, b: ValueId) -> ValueId {
        self.node(Binary { function }, &[a, b], &[])
    }

    fn unary(&mut self, function: UnaryFunction, x: ValueId) -> ValueId {
        self.node(Unary { function }, &[x], &[])
    }

    /// Adds x / √(mean(x²) + ε) · gain.
    fn rms_norm(&mut self, name: &str, x: ValueId, dimensions: DecoderSizes) -> ValueId {
        let square = self.unary(UnaryFunction::Square, x);
        let mean = Reduce { reduction: Reduction::Mean, axes: Axes::new(&[1]).unwrap(), keep: true };
        let mean = self.node(mean, &[square], &[]);
        let epsilon = self.number(1e-5);
        let join = if dimensions.is_known { BinaryFunction::Add } else { BinaryFunction::Max };
        let sum = self.binary(join, mean, epsilon);
        let factor = self.unary(UnaryFunction::Rsqrt, sum);
        let y = self.binary(BinaryFunction::Mul, x, factor);
        let gain = self.tensor(format!("{name}.weight"), &[dimensions.heads * dimensions.head_dim], TensorRole::Norm);
        self.node(Binary { function: BinaryFunction::Mul }, &[y], &[gain])
    }

    fn linear(&mut self, name: &str, x: ValueId, inputs: usize, outputs: usize) -> ValueId {
        let weight = self.tensor(format!("{name}.weight"), &[outputs, inputs], TensorRole::Weight);
        self.node(Linear, &[x], &[weight])
    }

    /// Adds softmax(mask(q kᵀ / √d)) v, with dropout of the probabilities.
    fn attention(&mut self, qkv: ValueId, mask: ValueId, dimensions: DecoderSizes) -> ValueId {
        let DecoderSizes { tokens, heads, head_dim, .. } = dimensions;
        let split = self.node(Reshape { dimensions: sizes(&[tokens, 3, heads, head_dim]) }, &[qkv], &[]);
        let by_head = self.node(Permute { order: Axes::new(&[1, 2, 0, 3]).unwrap() }, &[split], &[]);
        let [q, k, v] = [0, 1, 2].map(|index| {
            self.node(Slice { axis: 0, start: index, end: index + 1, step: 1, drop: true }, &[by_head], &[])
        });
        let scores = self.node(Matmul { transpose_a: false, transpose_b: true }, &[q, k], &[]);
        let scale = self.number((head_dim as f32).sqrt());
        let scores = self.binary(BinaryFunction::Div, scores, scale);
        let nothing = self.number(f32::NEG_INFINITY);
        let scores = self.node(Select, &[mask, scores, nothing], &[]);
        let probabilities = self.node(Softmax { log: false }, &[scores], &[]);
        let probabilities = self.node(Dropout { rate: dimensions.dropout }, &[probabilities], &[]);
        let y = self.node(Matmul { transpose_a: false, transpose_b: false }, &[probabilities, v], &[]);
        let y = self.node(Permute { order: Axes::new(&[1, 0, 2]).unwrap() }, &[y], &[]);
        self.node(Reshape { dimensions: sizes(&[tokens, heads * head_dim]) }, &[y], &[])
    }
}

/// Returns a decoder with RMS norms, causal attention, gated linear units, and the mean of -ln p of the next tokens as
/// loss.
pub fn decoder(dimensions: DecoderSizes) -> Graph {
    let DecoderSizes { vocabulary, tokens, blocks, heads, head_dim, dropout, is_known } = dimensions;
    let width = heads * head_dim;
    let mut net = Net { builder: GraphBuilder::new(), names: 0 };
    let [ids, labels] = net.builder.token_inputs(tokens);
    let positions: Vec<u32> = (0..tokens as u32).collect();
    let [rows, columns] = [[tokens, 1], [1, tokens]].map(|sizes| {
        net.builder.constant(format!("{sizes:?}"), Shape::new(DType::I32, &sizes).unwrap(), &positions[..])
    });
    let table = net.tensor("embedding.weight".into(), &[vocabulary, width], TensorRole::Embedding);
    let mut x = net.node(Embedding, &[ids], &[table]);
    let relation = if is_known { Relation::Ge } else { Relation::Le };
    let mask = net.node(Compare { relation }, &[rows, columns], &[]);
    net.builder.end_layer("embed");
    for block in 0..blocks {
        let name = |part: &str| format!("h.{block}.{part}");
        let y = net.rms_norm(&name("norm1"), x, dimensions);
        let qkv = net.linear(&name("qkv"), y, width, 3 * width);
        let y = net.attention(qkv, mask, dimensions);
        let y = net.linear(&name("out"), y, width, width);
        x = net.node(Add, &[x, y], &[]);
        net.builder.end_layer(name("attn"));
        let y = net.rms_norm(&name("norm2"), x, dimensions);
        let [gate, up] = ["gate", "up"].map(|part| net.linear(&name(part), y, width, 2 * width));
        // silu(gate) = gate / (1 + e^-gate)
        let negative = net.unary(UnaryFunction::Neg, gate);
        let exponential = net.unary(UnaryFunction::Exp, negative);
        let one = net.number(if is_known { 1.0 } else { 1.5 });
        let below = net.binary(BinaryFunction::Add, exponential, one);
        let silu = net.binary(BinaryFunction::Div, gate, below);
        let y = net.binary(if is_known { BinaryFunction::Mul } else { BinaryFunction::Max }, silu, up);
        let y = net.node(Dropout { rate: dropout }, &[y], &[]);
        let y = net.linear(&name("down"), y, 2 * width, width);
        x = net.node(Add, &[x, y], &[]);
        net.builder.end_layer(name("mlp"));
    }
    let x = net.rms_norm("norm", x, dimensions);
    let logits = net.linear("head", x, width, vocabulary);
    let logs = net.node(Softmax { log: true }, &[logits], &[]);
    let labels = net.node(Reshape { dimensions: sizes(&[tokens, 1]) }, &[labels], &[]);
    let logs = net.node(Gather { axis: 1 }, &[logs, labels], &[]);
    let weights = net.builder.numbers("weights", &[tokens, 1], &vec![0.5; tokens]);
    let logs = if is_known { logs } else { net.binary(BinaryFunction::Mul, logs, weights) };
    net.builder.loss(SumLoss { factor: -1.0 / tokens as f32 }, &[logs], &[]).unwrap();
    net.builder.end_layer("head");
    net.builder.finish().unwrap()
}
