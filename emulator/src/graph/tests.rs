use super::*;
use crate::ops::{Add, CrossEntropy, Embedding, Metric, Reduce, Reduction};
use crate::testing::TINY;

fn constant(value: ValueId, elements: usize) -> Constant {
    Constant { value, bits: vec![0; elements].into() }
}

/// Adds a metric of the stream for each of `names`, before the loss.
fn add_metrics(graph: &mut Graph, names: &[&str]) {
    let stream = graph.nodes.last().unwrap().inputs[0];
    for name in names {
        let loss = graph.nodes.len() - 1;
        graph.values.push(Value { name: (*name).to_owned(), shape: graph.values[stream].shape });
        let output = graph.values.len() - 1;
        graph.nodes.insert(loss, OpNode::new(Metric, vec![stream], Vec::new(), output));
        graph.layers.last_mut().unwrap().nodes.end += 1;
    }
}

#[test]
fn operators_of_metrics_can_be_left_out() {
    let graph = TINY.graph();
    let mut with_metrics = graph.clone();
    add_metrics(&mut with_metrics, &["first", "second"]);
    with_metrics.validate().unwrap();
    let found: Vec<_> = with_metrics.metrics().map(|metric| (metric.name, metric.sums, metric.weight)).collect();
    assert_eq!(found, [("first", 0..8192, None), ("second", 8192..16384, None)]);
    let without = with_metrics.without_metrics();
    assert_eq!((without.nodes, without.layers), (graph.nodes, graph.layers));
}

/// Makes a value the weight of the only loss.
fn weigh_loss(graph: &mut Graph, value: ValueId) {
    graph.nodes.last_mut().unwrap().inputs.push(value);
    graph.reduction = Some(LossReduction::Samples);
}

#[test]
fn weights_of_losses_are_a_graph_of_their_own() {
    let mut graph = TINY.graph();
    assert_eq!((graph.of_loss_weights(), graph.reported_sums()), (None, 0));
    let number = Shape::new(DType::F32, &[]).unwrap();
    graph.values.push(Value { name: "weight".into(), shape: number });
    graph.inputs.push(graph.values.len() - 1);
    let weight = graph.inputs[2];
    weigh_loss(&mut graph, weight);
    graph.validate().unwrap();
    let loss = graph.weighted_losses().next().unwrap();
    assert_eq!((loss.node, loss.input, loss.weight, loss.sums), (graph.nodes.len() - 1, 2, weight, 0..2));
    let weights = graph.of_loss_weights().unwrap();
    weights.validate().unwrap();
    assert_eq!((weights.nodes.len(), &weights.inputs, weights.reported_sums()), (1, &graph.inputs, 2));
}

/// Every way to break a graph, with the resulting message.
#[test]
fn faults_of_graph_are_named() {
    type Break = fn(&mut Graph);
    let cases: &[(Break, &str)] = &[
        (|g| g.nodes.clear(), "no operator uses"),
        (|g| g.layers.clear(), "no layers"),
        (|g| g.tensors[1].name = g.tensors[0].name.clone(), "two tensors are called \"wte.weight\""),
        (|g| g.tensors[0].shape = vec![0, 64], "\"wte.weight\" has dimensions"),
        (|g| g.tensors[0].shape = vec![1 << 40, 2], "at most 2^40"),
        (|g| g.values[3].shape = Shape::matrix(0, 64), "has dimensions [0, 64]"),
        (|g| g.inputs.clear(), "no inputs"),
        (|g| g.inputs = vec![0; 65], "the model has 65 inputs; at most 64"),
        (|g| g.inputs[0] = 99, "the list of inputs refers to value 99"),
        (|g| g.inputs[1] = 0, "two inputs are called \"input_ids\""),
        (|g| g.values[1].name = "input_ids".into(), "two inputs are called \"input_ids\""),
        (|g| g.inputs.push(2), "which exists already"),
        (|g| g.values[1].shape = Shape::new(DType::Bool, &[128]).unwrap(), "\"labels\" is of type bool"),
        (|g| g.values[1].shape = Shape::integers(64), "input 1 must be i32 [128], not i32 [64]"),
        (|g| g.constants.push(constant(99, 1)), "the list of constants refers to value 99"),
        (|g| g.constants.push(constant(0, 128)), "two constants are the value \"input_ids\", or it is an input"),
        (|g| g.constants.push(constant(3, 1)), "has 1 elements, not 8192"),
        (|g| g.constants.push(constant(3, 128 * 64)), "which exists already"),
        (
            |g| {
                let shape = Shape::new(DType::Bool, &[1]).unwrap();
                g.values.push(Value { name: "mask".into(), shape });
                g.constants.push(Constant { value: g.values.len() - 1, bits: [2].into() });
            },
            "\"mask\" contains the truth value 2",
        ),
        (
            |g| {
                g.values.push(Value { name: "positions".into(), shape: Shape::integers(128) });
                let bits: Vec<u32> = (0..128).map(|index| if index == 9 { u32::MAX } else { 1 }).collect();
                g.constants.push(Constant { value: g.values.len() - 1, bits: bits.into() });
                g.nodes[0].inputs[0] = g.values.len() - 1;
            },
            "reads the constant \"positions\", which contains -1, but must be less than",
        ),
        (|g| g.nodes[0].inputs = vec![77], "value 77"),
        (|g| g.nodes[0].params = vec![99, 0], "tensor 99"),
        (|g| g.nodes[3].inputs = vec![12], "no earlier operator produces"),
        (|g| g.nodes[3].output = Some(2), "exists already"),
        (|g| g.nodes[3].output = Some(99), "value 99"),
        (|g| g.values[5].shape = Shape::matrix(128, 7), "but the graph declares"),
        (|g| g.nodes[2].output = None, "produces f32 [128, 64], but the graph declares a loss"),
        (|g| drop(g.nodes.pop()), "an end at operator"),
        (|g| drop((g.nodes.pop(), g.layers.last_mut().unwrap().nodes.end -= 1)), "the last one produces a value"),
        (|g| add_metrics(g, &["a metric"]), "a metric is called \"a metric\""),
        (|g| add_metrics(g, &["same", "same"]), "a metric is called \"same\""),
        (|g| add_metrics(g, &["a", "b", "c", "d", "e", "f", "g", "h"]), "the metrics have 65544 elements"),
        (|g| weigh_loss(g, 99), "value 99"),
        (|g| weigh_loss(g, 0), "input 2 must be f32 [], not i32 [128]"),
        (
            |g| {
                let (sum, loss) = (Reduction::Sum, g.nodes.len() - 1);
                add_metrics(g, &["sum"]);
                let value = g.values.len() - 1;
                g.values[value].shape = Shape::new(DType::F32, &[]).unwrap();
                g.nodes[loss].op = Reduce { reduction: sum, axes: Axes::new(&[0, 1]).unwrap(), keep: false }.into();
                weigh_loss(g, value);
            },
            "the weight \"sum\" of CrossEntropy (operator 24, layer \"head\") depends on a tensor",
        ),
        (
            |g| {
                weigh_loss(g, 0);
                g.values[0].shape = Shape::new(DType::F32, &[]).unwrap();
                g.nodes[0].inputs[0] = 1;
                g.reduction = None;
            },
            "states the reduction \"samples\"",
        ),
        (|g| g.layers[1].nodes.start += 1, "begins at operator 3"),
        (|g| g.layers.last_mut().unwrap().nodes.end += 1, "an end at operator"),
        (|g| g.layers.insert(1, Layer { name: "void".into(), nodes: 2..2, block: None }), "\"void\" has no operators"),
        (
            |g| g.tensors.push(Tensor { name: "spare".into(), ..g.tensors[0].clone() }),
            "no operator uses tensor \"spare\"",
        ),
    ];
    for (index, (damage, part)) in cases.iter().enumerate() {
        let mut graph = TINY.graph();
        assert_eq!(graph.validate(), Ok(()));
        damage(&mut graph);
        match graph.validate() {
            Ok(()) => panic!("case {index} ({part}) was accepted"),
            Err(error) => assert!(error.to_string().contains(part), "case {index}: {error} does not say {part:?}"),
        }
    }
}

#[test]
fn graph_ends_with_a_loss() {
    let mut builder = GraphBuilder::new();
    let [tokens, labels] = builder.token_inputs(4);
    let init = Initializer::Constant { value: 0.0 };
    let table = builder.tensor("table", &[9, 2], init, TensorRole::Embedding);
    let x = builder.node(Embedding, "x", &[tokens], &[table]).unwrap();
    assert!(builder.node(CrossEntropy::new(), "loss", &[x, labels], &[table]).is_err());
    assert!(builder.node(Add, "sum", &[x, 99], &[]).is_err());
    for _ in 0..MAX_LOSSES {
        builder.loss(CrossEntropy::new(), &[x, labels], &[table]).unwrap();
    }
    builder.end_layer("all");
    let mut graph = builder.finish().unwrap();
    graph.nodes.push(graph.nodes[1].clone());
    graph.layers[0].nodes.end += 1;
    let error = graph.validate().unwrap_err().to_string();
    assert!(error.ends_with("this one has 5"), "{error}");
}
