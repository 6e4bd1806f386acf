//! What every operator's tests share: the form of the f64 reference, small graphs around an operator, and the checks.
//!
//! The reference of a graph is the composition of its operators' references. Gradients are compared with differences of
//! that reference, which therefore needs no backward pass.

use std::sync::Arc;

use super::{
    Add, Binary, BinaryFunction, CrossEntropy, Embedding, LayerNorm, Linear, OpKind, Operator, Reshape, Signature,
    SumLoss,
};
use crate::common::{LARGE, Samples, device, initial_weights, plan, recomputing, round, step, to_f64, total};
use crate::compile::BatchSpec;
use crate::graph::{
    DType, Dimensions, Graph, GraphBuilder, Initializer, LossReduction, Shape, TensorId, TensorRole, ValueId,
};
use crate::numerics::random::{DropoutMask, key};
use crate::plan::{Encoding, StreamPlan};

/// Values for shape cases.
pub(crate) const X: Shape = Shape::matrix(8, 4);
pub(crate) const WIDE: Shape = Shape::matrix(8, 12);
pub(crate) const TOKENS: Shape = Shape::integers(8);

/// Rows of a sample of test graphs.
pub(crate) const ROWS: usize = 5;
/// Columns of the values of test graphs.
pub(crate) const WIDTH: usize = 12;
/// Tokens of test graphs are less than this.
pub(crate) const VOCABULARY: usize = 11;

/// What the tests of an operator need from its file.
pub(crate) trait OperatorTests: Operator {
    /// Computes the output of one sample in f64; that of a loss is one number.
    fn reference(&self, args: &ReferenceArgs<'_>) -> Vec<f64>;

    /// Returns signatures that the shape rule accepts and rejects.
    fn shape_cases() -> Vec<ShapeCase>
    where
        Self: Sized;

    /// Returns graphs that contain the operator. Their gradients are compared with those of the reference.
    fn graphs() -> Vec<Graph>
    where
        Self: Sized;
}

/// Operands of a reference: one sample.
pub(crate) struct ReferenceArgs<'a> {
    /// Shapes of inputs and tensors.
    pub io: Signature<'a>,
    /// Inputs, row by row. Tokens are numbers, too.
    pub inputs: Vec<&'a [f64]>,
    pub params: Vec<&'a [f64]>,
    /// The operator's dropout key of this sample.
    pub key: u64,
    pub training: bool,
}

impl ReferenceArgs<'_> {
    /// Returns the factor by which dropout multiplies `element`.
    pub fn dropout_factor(&self, rate: f32, key: u64, element: usize) -> f64 {
        let dropout = DropoutMask::new(f64::from(rate)).unwrap();
        if self.training { f64::from(dropout.factor(key, element as u32)) } else { 1.0 }
    }

    /// Returns the product of input 0 with the transposed tensor 0, plus tensor 1 if there is one.
    pub fn product(&self) -> Vec<f64> {
        let (inputs, weight, bias) = (self.io.inputs[0].columns(), self.params[0], self.params.get(1));
        let row = |x: &[f64]| -> Vec<f64> {
            let product = |w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
            weight.chunks(inputs).enumerate().map(|(o, w)| product(w) + bias.map_or(0.0, |bias| bias[o])).collect()
        };
        self.inputs[0].chunks(inputs).flat_map(row).collect()
    }
}

/// A signature, and what the shape rule returns for it: the output, or a part of the message.
pub(crate) struct ShapeCase {
    op: OpKind,
    inputs: Vec<Shape>,
    params: Vec<Vec<usize>>,
    expected: Result<Option<Shape>, &'static str>,
}

/// A signature that is accepted and has the output `output`, `None` for a loss.
pub(crate) fn accepts(
    op: impl Into<OpKind>,
    inputs: &[Shape],
    params: &[&[usize]],
    output: impl Into<Option<Shape>>,
) -> ShapeCase {
    let params = params.iter().map(|shape| shape.to_vec()).collect();
    ShapeCase { op: op.into(), inputs: inputs.to_vec(), params, expected: Ok(output.into()) }
}

/// A signature that is rejected with a message that contains `part`.
pub(crate) fn rejects(op: impl Into<OpKind>, inputs: &[Shape], params: &[&[usize]], part: &'static str) -> ShapeCase {
    ShapeCase { expected: Err(part), ..accepts(op, inputs, params, None) }
}

/// Returns an f32 shape.
pub(crate) fn f32_shape(dimensions: &[usize]) -> Shape {
    Shape::new(DType::F32, dimensions).unwrap()
}

/// Returns the coordinates of all elements of an array, row by row.
pub(crate) fn positions(sizes: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let position = |mut index: usize| {
        let mut coordinates: Vec<usize> = Vec::new();
        for size in sizes.iter().rev() {
            coordinates.push(index % size);
            index /= size;
        }
        coordinates.reverse();
        coordinates
    };
    (0..sizes.iter().product()).map(position)
}

/// Returns the elements of an array of `sizes`, broadcast to `to`.
pub(crate) fn at_broadcast(to: &[usize], sizes: &[usize], data: &[f64]) -> Vec<f64> {
    let element = |coordinates: Vec<usize>| {
        let trailing = &coordinates[to.len() - sizes.len()..];
        data[trailing
            .iter()
            .zip(sizes)
            .fold(0, |offset, (&coordinate, &size)| offset * size + if size == 1 { 0 } else { coordinate })]
    };
    positions(to).map(element).collect()
}

/// Builds a test graph and generates names.
pub(crate) struct TestGraph {
    builder: GraphBuilder,
    labels: ValueId,
    names: usize,
}

impl TestGraph {
    /// Returns the graph of embedded tokens, what `make` adds to them, and a loss without bias.
    pub fn build(make: impl FnOnce(&mut Self, ValueId) -> ValueId) -> Graph {
        Self::build_with_head(false, make)
    }

    /// Like [`TestGraph::build`], with a bias in the loss if `biased`.
    pub fn build_with_head(biased: bool, make: impl FnOnce(&mut Self, ValueId) -> ValueId) -> Graph {
        let mut builder = GraphBuilder::new();
        let [tokens, labels] = builder.token_inputs(ROWS);
        let mut graph = Self { builder, labels, names: 0 };
        let table = graph.tensor(&[VOCABULARY, WIDTH]);
        let x = graph.node(Embedding, &[tokens], &[table]);
        let x = make(&mut graph, x);
        let mut params = vec![graph.tensor(&[VOCABULARY, WIDTH])];
        if biased {
            params.push(graph.tensor(&[VOCABULARY]));
        }
        graph.builder.loss(CrossEntropy::new(), &[x, labels], &params).unwrap();
        graph.end_layer();
        graph.builder.finish().unwrap()
    }

    /// Adds an input of integers.
    pub fn integers(&mut self, shape: Shape) -> ValueId {
        self.names += 1;
        self.builder.input(format!("i{}", self.names), shape)
    }

    /// Adds an input of numbers.
    pub fn numbers(&mut self, dimensions: &[usize]) -> ValueId {
        self.names += 1;
        self.builder.input(format!("i{}", self.names), Shape::new(DType::F32, dimensions).unwrap())
    }

    /// Adds an input of an integer for each row of a value.
    pub fn labels_of(&mut self, x: ValueId) -> ValueId {
        self.integers(self.builder.shape(x).one_integer_per_row())
    }

    /// Adds a loss of the labels besides the last one.
    pub fn loss(&mut self, loss: CrossEntropy, x: ValueId, params: &[TensorId]) {
        self.loss_of(loss, &[x, self.labels], params);
    }

    /// Adds a loss of these inputs besides the last one.
    pub fn loss_of(&mut self, loss: impl Into<OpKind>, inputs: &[ValueId], params: &[TensorId]) {
        self.builder.loss(loss, inputs, params).unwrap();
    }

    pub fn tensor(&mut self, shape: &[usize]) -> TensorId {
        self.names += 1;
        let init = Initializer::Normal { mean: 0.1, std: 0.5 };
        self.builder.tensor(format!("t{}", self.names), shape, init, TensorRole::Weight)
    }

    pub fn node(&mut self, op: impl Into<OpKind>, inputs: &[ValueId], params: &[TensorId]) -> ValueId {
        self.names += 1;
        self.builder.node(op, format!("v{}", self.names), inputs, params).unwrap()
    }

    /// Adds an operator, if its shape rule accepts it and its output has at most `max_elements` elements.
    pub fn try_node(&mut self, op: OpKind, inputs: &[ValueId], max_elements: u64) -> Option<ValueId> {
        let io = Signature { inputs: inputs.iter().map(|&input| self.shape(input)).collect(), params: Vec::new() };
        let output = op.operator().output(&io).ok()??;
        (output.elements() <= max_elements).then(|| self.node(op, inputs, &[]))
    }

    pub fn linear(&mut self, x: ValueId, outputs: usize, biased: bool) -> ValueId {
        let mut params = vec![self.tensor(&[outputs, WIDTH])];
        if biased {
            params.push(self.tensor(&[outputs]));
        }
        self.node(Linear, &[x], &params)
    }

    pub fn norm(&mut self, x: ValueId) -> ValueId {
        let params = [self.tensor(&[WIDTH]), self.tensor(&[WIDTH])];
        self.node(LayerNorm { epsilon: 1e-5 }, &[x], &params)
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.node(Add, &[a, b], &[])
    }

    /// Multiplies two values of any shapes.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.node(Binary { function: BinaryFunction::Mul }, &[a, b], &[])
    }

    /// Multiplies a value by a tensor.
    pub fn mul_tensor(&mut self, a: ValueId, b: TensorId) -> ValueId {
        self.node(Binary { function: BinaryFunction::Mul }, &[a], &[b])
    }

    pub fn reshape(&mut self, x: ValueId, dimensions: &[usize]) -> ValueId {
        self.node(Reshape { dimensions: Dimensions::new(dimensions).unwrap() }, &[x], &[])
    }

    /// Returns a value of numbers that are at least 1, and depend on those of `x`.
    pub fn at_least_one(&mut self, x: ValueId) -> ValueId {
        let (square, one) = (self.mul(x, x), self.number(1.0));
        self.node(Binary { function: BinaryFunction::Add }, &[square, one], &[])
    }

    /// Adds a constant of random numbers.
    pub fn constant(&mut self, dimensions: &[usize]) -> ValueId {
        self.names += 1;
        let mut numbers = vec![0.0; dimensions.iter().product()];
        Initializer::Uniform { low: -1.0, high: 1.0 }.fill(self.names as u64, 0, &mut numbers);
        self.builder.numbers(format!("c{}", self.names), dimensions, &numbers)
    }

    /// Adds a constant of one number.
    pub fn number(&mut self, number: f32) -> ValueId {
        self.names += 1;
        self.builder.numbers(format!("c{}", self.names), &[], &[number])
    }

    /// Adds a constant of one integer.
    pub fn integer_constant(&mut self, integer: u32) -> ValueId {
        self.names += 1;
        self.builder.constant(format!("c{}", self.names), Shape::new(DType::I32, &[]).unwrap(), vec![integer])
    }

    /// Adds a constant of these bits.
    pub fn bits(&mut self, shape: Shape, bits: Vec<u32>) -> ValueId {
        self.names += 1;
        self.builder.constant(format!("c{}", self.names), shape, bits)
    }

    /// Adds a loss of a value of any shape: the sum of its elements, each times a weight.
    pub fn weighted_loss(&mut self, x: ValueId) {
        let weight = self.tensor(self.builder.shape(x).dimensions().to_vec().as_slice());
        let y = self.mul_tensor(x, weight);
        self.loss_of(SumLoss { factor: 0.5 }, &[y], &[]);
    }

    /// Adds a loss of these inputs, and of a weight.
    pub fn loss_with_weight(
        &mut self,
        loss: impl Into<OpKind>,
        inputs: &[ValueId],
        weight: ValueId,
        params: &[TensorId],
    ) {
        self.builder.reduce_losses(LossReduction::Samples);
        self.loss_of(loss, &[inputs, &[weight]].concat(), params);
    }

    /// Returns the labels of the last loss.
    pub const fn labels(&self) -> ValueId {
        self.labels
    }

    pub fn shape(&self, x: ValueId) -> Shape {
        self.builder.shape(x)
    }

    pub fn end_layer(&mut self) {
        self.names += 1;
        self.builder.end_layer(format!("l{}", self.names));
    }
}

/// Checks the shape rule of an operator against its cases.
pub(crate) fn check_shape_rule<T: OperatorTests>() {
    let cases = T::shape_cases();
    assert!(cases.iter().any(|case| case.expected.is_ok()), "no signature that is accepted");
    assert!(cases.iter().any(|case| case.expected.is_err()), "no signature that is rejected");
    for ShapeCase { op, inputs, params, expected } in cases {
        let io = Signature { inputs, params: params.iter().map(Vec::as_slice).collect() };
        match (op.operator().output(&io), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{op:?}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{op:?}: {error}"),
            (found, expected) => panic!("{op:?} with {io:?}: {found:?} is not {expected:?}"),
        }
    }
}

/// Checks the gradients of an operator's graphs.
pub(crate) fn check_gradients<T: OperatorTests>(name: &str) {
    let graphs = T::graphs();
    assert!(!graphs.is_empty(), "no graph");
    for graph in graphs {
        assert!(graph.nodes.iter().any(|node| node.op.name() == name), "a graph does not contain {name}");
        check_graph(name, graph);
    }
}

/// Checks the gradients of a graph with and without recomputation.
pub(crate) fn check_graph(name: &str, graph: Graph) {
    let batch = BatchSpec { samples: 3, leaf_bound: 1 };
    check_plan(name, &plan(graph.clone(), batch, Encoding::F32, LARGE), 3);
    check_plan(name, &recomputing(graph, batch), 13);
}

/// Compares loss and gradients of a step with the reference; of each tensor every `stride`-th element.
pub(crate) fn check_plan(name: &str, plan: &Arc<StreamPlan>, stride: usize) {
    let weights = initial_weights(plan, 11);
    let samples = Samples::random(plan, 5);
    let (loss, gradients) = step(&mut device(plan, 1), plan, &weights, &samples);
    // Each leaf separately, its sums joined outside: the same bits.
    let mut device = device(plan, 2);
    let separate =
        (0..plan.leaves.count).flat_map(|leaf| round(&mut device, plan, &weights, &samples, leaf..leaf + 1).1);
    assert_eq!(total(plan, separate.collect()), gradients, "{name}");
    let (gradients, mut tensors) = (to_f64(plan, &gradients), to_f64(plan, &weights));
    let expected = reference_loss(&plan.graph, &tensors, &samples, true);
    assert!((loss / expected - 1.0).abs() < 2e-6, "{name}: loss {loss} for {expected}");
    let size = gradients.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
    for tensor in 0..tensors.len() {
        let largest = gradients[tensor].iter().fold(0.0f64, |max, g| max.max(g.abs()));
        for element in (0..tensors[tensor].len()).step_by(stride) {
            let expected = slope(&plan.graph, &mut tensors, &samples, tensor, element);
            let difference = (gradients[tensor][element] - expected).abs();
            let tensor_name = &plan.graph.tensors[tensor].name;
            assert!(
                difference < 2e-5 * largest + 1e-6 * size,
                "{name}: {tensor_name}[{element}] is {} for {expected}",
                gradients[tensor][element]
            );
        }
    }
}

/// Returns the sum of all losses of all samples, for tensors in f64. With `training`, dropout is applied.
pub(crate) fn reference_loss(graph: &Graph, tensors: &[Vec<f64>], samples: &Samples, training: bool) -> f64 {
    let count = samples.inputs[0].len() / graph.values[graph.inputs[0]].shape.elements() as usize;
    (0..count).map(|sample| sample_loss(graph, tensors, samples, sample, training)).sum()
}

fn sample_loss(graph: &Graph, tensors: &[Vec<f64>], samples: &Samples, sample: usize, training: bool) -> f64 {
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); graph.values.len()];
    for (&input, data) in graph.inputs.iter().zip(&samples.inputs) {
        let width = graph.values[input].shape.elements() as usize;
        values[input] = data.to_f64(sample * width..(sample + 1) * width);
    }
    for constant in &graph.constants {
        let number = |&bits: &u32| match graph.values[constant.value].shape.dtype() {
            DType::F32 => f64::from(f32::from_bits(bits)),
            DType::I32 | DType::Bool => f64::from(bits.cast_signed()),
        };
        values[constant.value] = constant.bits.iter().map(number).collect();
    }
    let mut loss = 0.0;
    for (id, node) in graph.nodes.iter().enumerate() {
        let output = node.op.reference().reference(&ReferenceArgs {
            io: Signature::of(graph, node),
            inputs: node.inputs.iter().map(|&input| values[input].as_slice()).collect(),
            params: node.params.iter().map(|&tensor| tensors[tensor].as_slice()).collect(),
            key: key(crate::common::SEED, samples.first + sample as u64, id as u64),
            training,
        });
        match node.output {
            Some(value) => values[value] = output,
            None => loss += output[0],
        }
    }
    loss
}

/// Returns the derivative of the loss by element `element` of tensor `tensor`: central differences with two steps,
/// extrapolated.
fn slope(graph: &Graph, tensors: &mut [Vec<f64>], samples: &Samples, tensor: usize, element: usize) -> f64 {
    let original = tensors[tensor][element];
    let mut loss_at = |offset: f64| {
        tensors[tensor][element] = original + offset;
        let loss = reference_loss(graph, tensors, samples, true);
        tensors[tensor][element] = original;
        loss
    };
    let mut central = |step: f64| (loss_at(step) - loss_at(-step)) / (2.0 * step);
    (4.0 * central(1e-4) - central(2e-4)) / 3.0
}
