//! Compares the backward pass of every operator, and of whole models, with differences of an f64 reference.

mod common;

use common::reference::{self, slope};
use common::*;
use millrace_emulator::compile::BatchSpec;
use millrace_emulator::families;
use millrace_emulator::graph::{
    ActivationKind, Graph, GraphBuilder, OpKind, TensorId, TensorInit, TensorRole, ValueId,
};
use millrace_emulator::plan::{Encoding, StreamPlan};
use millrace_params::{ModelSpec, Nonlinearity};

const ROWS: usize = 5;
const WIDTH: usize = 12;
const VOCABULARY: usize = 11;

/// Builds a graph and generates names.
struct TestGraphBuilder {
    builder: GraphBuilder,
    names: usize,
}

impl TestGraphBuilder {
    fn new() -> Self {
        Self { builder: GraphBuilder::new(ROWS), names: 0 }
    }

    fn tensor(&mut self, shape: &[usize]) -> TensorId {
        self.names += 1;
        let init = TensorInit::Normal { mean: 0.1, std: 0.5 };
        self.builder.tensor(format!("t{}", self.names), shape, init, TensorRole::Weight)
    }

    fn node(&mut self, op: OpKind, inputs: &[ValueId], params: &[TensorId]) -> ValueId {
        self.names += 1;
        self.builder.node(op, format!("v{}", self.names), inputs, params).unwrap()
    }

    /// Embedded tokens, `WIDTH` columns.
    fn tokens(&mut self) -> ValueId {
        let table = self.tensor(&[VOCABULARY, WIDTH]);
        let tokens = self.builder.tokens();
        self.node(OpKind::Embedding, &[tokens], &[table])
    }

    fn linear(&mut self, x: ValueId, inputs: usize, outputs: usize, biased: bool) -> ValueId {
        let mut params = vec![self.tensor(&[outputs, inputs])];
        if biased {
            params.push(self.tensor(&[outputs]));
        }
        self.node(OpKind::Linear, &[x], &params)
    }

    fn norm(&mut self, x: ValueId) -> ValueId {
        let params = [self.tensor(&[WIDTH]), self.tensor(&[WIDTH])];
        self.node(OpKind::LayerNorm { epsilon: 1e-5 }, &[x], &params)
    }

    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.node(OpKind::Add, &[a, b], &[])
    }

    fn cut(&mut self) {
        self.names += 1;
        self.builder.end_layer(format!("l{}", self.names));
    }

    fn finish(mut self, x: ValueId, biased: bool) -> Graph {
        let mut params = vec![self.tensor(&[VOCABULARY, WIDTH])];
        if biased {
            params.push(self.tensor(&[VOCABULARY]));
        }
        let labels = self.builder.labels();
        self.builder.loss(OpKind::CrossEntropy, &[x, labels], &params).unwrap();
        self.cut();
        self.builder.finish().unwrap()
    }
}

/// One graph for every operator, including forms that no current model family uses.
fn graphs() -> Vec<(&'static str, Graph)> {
    let with = |name, make: &dyn Fn(&mut TestGraphBuilder, ValueId) -> ValueId| {
        let mut sketch = TestGraphBuilder::new();
        let x = sketch.tokens();
        let x = make(&mut sketch, x);
        (name, sketch.finish(x, name == "bias in the head"))
    };
    let gelu = OpKind::Activation { kind: ActivationKind::Gelu };
    let gelu_tanh = OpKind::Activation { kind: ActivationKind::GeluTanh };
    let drop = OpKind::Dropout { rate: 0.3 };
    let attention = OpKind::CausalAttention { heads: 3, scale: 0.6, dropout: 0.2 };
    vec![
        with("embedding and loss", &|_, x| x),
        with("bias in the head", &|_, x| x),
        with("positions", &|s, x| {
            let table = s.tensor(&[ROWS + 2, WIDTH]);
            s.node(OpKind::AddPosition, &[x], &[table])
        }),
        with("layer norm", &|s, x| s.norm(x)),
        with("linear", &|s, x| s.linear(x, WIDTH, WIDTH, true)),
        with("gelu", &|s, x| s.node(gelu, &[x], &[])),
        with("gelu by tanh", &|s, x| s.node(gelu_tanh, &[x], &[])),
        with("dropout", &|s, x| s.node(drop, &[x], &[])),
        with("attention", &|s, x| {
            let qkv = s.linear(x, WIDTH, 3 * WIDTH, true);
            s.node(attention, &[qkv], &[])
        }),
        with("a value added to itself", &|s, x| {
            let x = s.linear(x, WIDTH, WIDTH, false);
            s.add(x, x)
        }),
        with("one value, four uses in three layers", &|s, x| {
            let x = s.norm(x);
            let a = s.linear(x, WIDTH, WIDTH, true);
            s.cut();
            let (b, c) = (s.node(drop, &[x], &[]), s.node(gelu, &[x], &[]));
            let sum = s.add(b, c);
            s.cut();
            let sum = s.add(sum, a);
            s.add(sum, x)
        }),
        with("pointwise operators in a row", &|s, x| {
            let x = s.node(gelu, &[x], &[]);
            let y = s.node(drop, &[x], &[]);
            let z = s.node(gelu_tanh, &[y], &[]);
            let z = s.add(z, y);
            s.node(drop, &[z], &[])
        }),
        with("tensors shared in a layer and between layers", &|s, x| {
            let (shared, bias) = (s.tensor(&[WIDTH, WIDTH]), s.tensor(&[WIDTH]));
            let x = s.node(OpKind::Linear, &[x], &[shared]);
            let x = s.node(OpKind::Linear, &[x], &[shared, bias]);
            s.cut();
            let y = s.norm(x);
            s.node(OpKind::Linear, &[y], &[shared, bias])
        }),
        with("norms that share a gain", &|s, x| {
            let (gain, offsets) = (s.tensor(&[WIDTH]), [s.tensor(&[WIDTH]), s.tensor(&[WIDTH])]);
            let x = s.node(OpKind::LayerNorm { epsilon: 1e-3 }, &[x], &[gain, offsets[0]]);
            s.node(OpKind::LayerNorm { epsilon: 1e-3 }, &[x], &[gain, offsets[1]])
        }),
        with("a branch that leads nowhere", &|s, x| {
            let y = s.linear(x, WIDTH, WIDTH, true);
            s.norm(y);
            s.linear(x, WIDTH, WIDTH, false)
        }),
    ]
}

/// Random samples, in leaves of one sample: all leaves' gradients are joined.
fn check(name: &str, plan: &std::sync::Arc<StreamPlan>, words: usize, stride: usize) {
    let weights = initial_weights(plan, 11);
    let samples = Samples::random(plan, words, 5);
    let (loss, gradients) = step(&mut device(plan, 1), plan, &weights, &samples);
    // Each leaf separately, its sums joined outside: the same bits.
    let mut device = device(plan, 2);
    let apart = (0..plan.leaves.count).flat_map(|leaf| round(&mut device, plan, &weights, &samples, leaf..leaf + 1).1);
    assert_eq!(total(plan, apart.collect()), gradients, "{name}");
    let (gradients, mut tensors) = (to_f64(plan, &gradients), to_f64(plan, &weights));
    let batch = reference::Batch {
        input_ids: &samples.input_ids,
        labels: &samples.labels,
        first: samples.first,
        seed: 7,
        training: true,
    };
    let expected = reference::loss(&plan.graph, &tensors, &batch);
    assert!((loss / expected - 1.0).abs() < 2e-6, "{name}: loss {loss} for {expected}");
    let size = gradients.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
    for tensor in 0..tensors.len() {
        let largest = gradients[tensor].iter().fold(0.0f64, |most, g| most.max(g.abs()));
        for element in (0..tensors[tensor].len()).step_by(stride) {
            let expected = slope(&plan.graph, &mut tensors, &batch, tensor, element);
            let apart = (gradients[tensor][element] - expected).abs();
            let about = &plan.graph.tensors[tensor].name;
            assert!(
                apart < 2e-5 * largest + 1e-6 * size,
                "{name}: {about}[{element}] is {} for {expected}",
                gradients[tensor][element]
            );
        }
    }
}

#[test]
fn every_operator_and_odd_graphs() {
    for (name, graph) in graphs() {
        let saving = plan(graph.clone(), BatchSpec { samples: 3, leaf_bound: 1 }, Encoding::F32, LARGE);
        check(name, &saving, VOCABULARY, 3);
        check(name, &recomputing(graph, BatchSpec { samples: 3, leaf_bound: 1 }), VOCABULARY, 13);
    }
}

#[test]
fn whole_models() {
    let base = || spec(2, 16, 2, 24, 10);
    let cases: [(&str, ModelSpec); 4] = [
        ("tied", base()),
        (
            "untied, no biases",
            ModelSpec {
                share_embedding_weights: false,
                use_projection_bias_in_attention: false,
                use_ffn_bias_in_attention: false,
                use_ffn_bias: false,
                nonlinearity: Nonlinearity::GeluTanh,
                ..base()
            },
        ),
        ("tied, dropout", with_dropout(base(), 0.2)),
        (
            "untied, dropout, bias in the head, no positions",
            ModelSpec {
                share_embedding_weights: false,
                use_bias_in_output: true,
                use_position_embedding: false,
                ..with_dropout(base(), 0.1)
            },
        ),
    ];
    for (name, mut spec) in cases {
        // Weights of a size at which every part affects the result.
        let normal = millrace_params::InitializerSpec::Normal { mean: 0.0, std: 0.3 };
        spec.initializers = millrace_params::Initializers {
            embedding: normal,
            hidden: normal,
            residual_output: normal,
            lm_head: normal,
        };
        let graph = families::gpt(&spec, 8).unwrap();
        let batch = BatchSpec { samples: 4, leaf_bound: 2 };
        check(name, &plan(graph.clone(), batch, Encoding::F32, LARGE), 24, 37);
        check(name, &recomputing(graph, batch), 24, 151);
    }
}
