use std::collections::BTreeMap;

use millrace_params::Nonlinearity;

use super::*;
use crate::graph::{GraphBuilder, GraphError, Initializer, TensorRole};
use crate::ops::{Activation, Add, CrossEntropy, Embedding, OpError};
use crate::plan::{DownSlot, GroupId, Pass};
use crate::testing::{
    CS2, GPT_20B, GPT2_117M, GPT2_124M, GPT3_1_3B, GPT3_6_7B, GPT3_13B, LINK, Size, TINY, TINY_WAFER, leaf_bound,
};

/// The example models have the published number of parameters.
#[test]
fn examples_compile_to_known_sizes() {
    // Embeddings (V + T) H, blocks 12 H^2 + 13 H, final norm 2 H.
    let cases: &[(&Size, u64)] = &[
        (&GPT2_117M, 125_226_240), // 124,439,808 with T 1024
        (&GPT2_124M, 124_439_808),
        (&GPT3_1_3B, 1_315_723_264),
        (&GPT3_6_7B, 6_658_404_352),
        (&GPT3_13B, 12_853_386_240),
        (&GPT_20B, 20_256_221_184),
    ];
    for (size, parameters) in cases {
        let plan = size.plan(size.batch, leaf_bound(size), CS2).unwrap();
        assert_eq!(plan.parameters(), *parameters, "{}", size.name);
        assert_eq!(plan.graph.parameters(), *parameters, "{}", size.name);
        // Head, the tied table and the last layer: the parts of a block. In mixed precision each has its vectors in a
        // group of its own.
        let parts = if plan.layers.iter().any(|layer| layer.recompute) { 2 } else { 1 };
        let vectors = usize::from(plan.encoding == crate::plan::Encoding::Bf16);
        assert_eq!(plan.resident.len(), 2 + parts * (1 + vectors), "{}", size.name);
    }
}

#[test]
fn work_is_six_operations_a_parameter_and_token_plus_attention() {
    for size in [&GPT2_124M, &GPT3_1_3B, &GPT3_13B] {
        let plan = size.plan(8, 1, CS2).unwrap();
        let flops: u64 = plan.layers.iter().map(|layer| layer.forward_flops + layer.backward_flops).sum();
        let positions = size.sequence * size.hidden;
        let tokens = size.sequence as f64;
        let dense = 6.0 * (plan.parameters() - positions as u64) as f64 * tokens;
        // Scores and values, two operations per multiply-add, three passes, half of the square.
        let attention = 6.0 * size.layers as f64 * (size.hidden * size.sequence) as f64 * tokens;
        let ratio = flops as f64 / (dense + attention);
        assert!((ratio - 1.0).abs() < 0.005, "{}: {ratio}", size.name);
    }
}

/// Replays a round on a wafer that evicts what it may. Weights must be present at every use, and no chunk is sent
/// twice.
#[test]
fn orders_bring_every_use_its_weights_exactly_once() {
    let mut sizes = vec![TINY, Size { tied: false, ..TINY }];
    sizes.push(Size { layers: 1, ..TINY });
    for size in &sizes {
        for memory in [CS2, TINY_WAFER] {
            let plan = size.plan(8, 2, memory).unwrap();
            let chunks = |group: GroupId| plan.groups[group].chunks.clone();
            let mut loaded: Vec<bool> = vec![false; plan.chunks.len()];
            let mut slots = plan.down_train.iter().copied().peekable();
            let last = plan.layers.len() - 1;
            let passes = (0..=last).map(|layer| (Pass::Forward, layer));
            for (pass, layer) in passes.chain((0..=last).rev().map(|layer| (Pass::Backward, layer))) {
                while let Some(slot) = slots.next_if(|slot| (slot.pass, slot.layer) == (pass, layer)) {
                    assert!(!std::mem::replace(&mut loaded[slot.chunk], true), "{slot:?} is there already");
                }
                let layer = &plan.layers[layer];
                let used = if pass == Pass::Forward { &layer.groups } else { &layer.backward_groups };
                assert!(used.iter().flat_map(|&group| chunks(group)).all(|chunk| loaded[chunk]), "{pass:?} {layer:?}");
                // A group that is not resident is evicted with its layer.
                layer
                    .groups
                    .iter()
                    .filter(|&&group| !plan.is_resident(group))
                    .for_each(|&group| loaded[chunks(group)].fill(false));
            }
            assert_eq!(slots.next(), None);
            let forward: Vec<DownSlot> = plan.down_train.iter().copied().filter(|s| s.pass == Pass::Forward).collect();
            assert_eq!(plan.down_eval, forward);

            let mut ups = BTreeMap::new();
            plan.up.iter().for_each(|slot| *ups.entry((slot.layer, slot.chunk)).or_insert(0) += 1);
            let uses =
                plan.layers.iter().enumerate().flat_map(|(layer, plan)| plan.groups.iter().map(move |&g| (layer, g)));
            let expected: BTreeMap<_, _> =
                uses.flat_map(|(layer, g)| chunks(g).map(move |c| ((layer, c), 1))).collect();
            assert_eq!(ups, expected);
            assert!(plan.up.is_sorted_by_key(|slot| std::cmp::Reverse(slot.layer)));
        }
    }
}

#[test]
fn groups_hold_what_travels_together() {
    let names = |size: &Size| {
        let plan = size.plan(8, 2, CS2).unwrap();
        let resident: Vec<_> = plan.resident.iter().map(|&group| plan.groups[group].name.clone()).collect();
        (plan.groups.iter().map(|group| group.name.clone()).collect::<Vec<_>>(), resident)
    };
    let tied = names(&Size { layers: 3, ..TINY });
    assert_eq!(
        tied.0,
        ["wte.weight", "embed", "h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "h.2.attn", "h.2.mlp", "head"]
    );
    assert_eq!(tied.1, ["wte.weight", "h.2.mlp", "head"]);
    let untied = names(&Size { layers: 3, tied: false, ..TINY });
    assert_eq!(untied.0, ["embed", "h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "h.2.attn", "h.2.mlp", "head"]);
    assert_eq!(untied.1, ["h.2.mlp", "head"]);

    let plan = TINY.plan(8, 2, CS2).unwrap();
    for group in &plan.groups {
        let pieces: Vec<_> = group.chunks.clone().flat_map(|chunk| plan.chunk_pieces(chunk)).collect();
        let elements: usize = pieces.iter().map(|(_, _, range)| range.len()).sum();
        assert_eq!(elements, group.elements);
        assert_eq!(group.tensors.last().unwrap().1.end, group.elements);
    }
}

/// Decreasing wafer sizes lead to: everything saved, recomputation, rounds, smaller leaves, rejection; never the
/// reverse.
#[test]
fn smaller_wafer_forces_recomputation_then_rounds_then_error() {
    let size = Size { layers: 6, ..TINY };
    let (batch, bound) = (16, 2);
    let mut stages = Vec::new();
    let mut memory = 64 << 20;
    let error = loop {
        match size.plan(batch, bound, memory) {
            Ok(plan) => {
                let recompute = plan.layers.iter().any(|layer| layer.recompute);
                let rounds = plan.leaves_per_round < plan.leaves.count;
                stages.push((recompute, rounds, plan.leaves.samples < bound as u32));
                let needed =
                    system_bytes(&plan, plan.leaves_per_round.min(plan.leaves.count), true, &LINK).wafer.total();
                assert!(needed <= memory, "{needed} of {memory}");
            }
            Err(error) => break error,
        }
        memory -= memory / 20;
    };
    stages.dedup();
    assert!(stages.is_sorted(), "{stages:?}");
    assert_eq!(stages, [(false, false, false), (true, false, false), (true, true, false), (true, true, true)]);
    let CompileError::DoesNotFit { needed, available, weights, .. } = &error else { panic!("{error}") };
    assert!(needed > available && weights < needed);
    assert!(error.to_string().contains("layer \"") && error.hint().is_some(), "{error}");
}

#[test]
fn embed_and_other_layers_that_save_nothing_are_not_recomputed() {
    let plan = TINY.plan(16, 2, TINY_WAFER).unwrap();
    let flags: Vec<bool> = plan.layers.iter().map(|layer| layer.recompute).collect();
    assert_eq!(flags, [false, true, true, true]);
    assert!(plan.layers[0].backward_groups.is_empty());
    let saving = TINY.plan(16, 2, CS2).unwrap();
    let saved = |plan: &StreamPlan| plan.layers.iter().map(|layer| layer.saved.host).collect::<Vec<_>>();
    let row = TINY.hidden as u64 * 4;
    // A recomputed block keeps its input. The two parts of a saved block also keep two normalized rows and sums;
    // queries, keys and values (3); the output of attention; the stream between the parts; the inner layer before and
    // after its activation (4 + 4); 4 statistics; and a log-sum-exp for each of 2 heads.
    let rows = TINY.sequence as u64;
    assert_eq!(saved(&plan)[1], rows * row);
    assert_eq!(saved(&saving)[1..=2].iter().sum::<u64>(), rows * (row * (1 + 1 + 3 + 1 + 1 + 1 + 8) + 4 * (4 + 2)));
}

#[test]
fn evaluation_leaves_are_cut_from_the_evaluation_batch() {
    let request = |eval| CompileRequest { eval, ..TINY.request(16, 2, CS2) };
    let plan = compile(request(Some(BatchSpec { samples: 9, leaf_bound: 4 }))).unwrap();
    assert_eq!((plan.eval_leaves.count, plan.eval_leaves.samples), (3, 3));
    assert!(plan.leaves_per_round >= plan.leaves.count.max(plan.eval_leaves.count));
    let error = compile(request(Some(BatchSpec { samples: 0, leaf_bound: 4 }))).unwrap_err();
    assert!(error.to_string().contains("eval_input"), "{error}");
}

/// A job that only evaluates is rejected only if its evaluation does not fit.
#[test]
fn evaluation_needs_no_training_memory() {
    let eval = Some(BatchSpec { samples: 16, leaf_bound: 2 });
    let request = |memory, trains| CompileRequest { eval, trains, ..TINY.request(16, 2, memory) };
    let min_memory =
        |trains| (1..).map(|kib| kib << 10).find(|&memory| compile(request(memory, trains)).is_ok()).unwrap();
    let (training, evaluation) = (min_memory(true), min_memory(false));
    assert!(evaluation < training, "{evaluation} and {training}");
    let plan = compile(request(training - 1024, false)).unwrap();
    assert!(plan.layers.iter().all(|layer| !layer.recompute));
    let needed = system_bytes(&plan, plan.leaves_per_round.min(plan.eval_leaves.count), false, &LINK).wafer.total();
    assert!(needed < training, "{needed} of {training}");
    let error = compile(request(evaluation - 1024, false)).unwrap_err();
    assert!(matches!(error, CompileError::DoesNotFit { needed, .. } if needed <= evaluation), "{error}");
}

#[test]
fn faults_of_model_are_named() {
    let error = crate::families::decoder(&TINY.spec(), TINY.sequence + 1).unwrap_err();
    assert!(matches!(&error, GraphError::Op { source: OpError::TooFewPositions { .. }, .. }), "{error}");
    assert!(CompileError::from(error).hint().unwrap().contains("max_sequence_length"));
}

#[test]
fn recomputation_repeats_only_what_the_backward_pass_needs() {
    let (graph, _) = TINY.graph().joined();
    let repeated = recomputed_nodes(&graph);
    let names = |layer: usize| -> Vec<&str> {
        let name = |&node: &usize| graph.values[graph.nodes[node].output.unwrap()].name.as_str();
        repeated[layer].iter().map(name).collect()
    };
    assert_eq!(names(0), [""; 0]);
    assert_eq!(
        names(1),
        [
            "h.0.ln_1",
            "h.0.attn.qkv",
            "h.0.attn",
            "h.0.attn.proj",
            "h.0.attn.sum",
            "h.0.ln_2",
            "h.0.mlp.fc",
            "h.0.mlp.act"
        ]
    );
    assert_eq!(names(3), ["ln_f"]);
    let plan = TINY.plan(16, 2, TINY_WAFER).unwrap();
    let (rows, width) = (TINY.sequence as u64, TINY.hidden as u64);
    // qkv 3, proj 1 and fc 4 squares of the width; attention over half of the square of rows.
    let expected = 2 * rows * width * width * 8 + 4 * width * rows * (rows + 1) / 2;
    assert_eq!(plan.layers[1].recompute_flops, expected);
    assert_eq!(TINY.plan(16, 2, CS2).unwrap().layers[1].recompute_flops, 0);
}

/// A value that skips layers is held once, from its computation to the last backward pass that reads it.
#[test]
fn long_skip_is_held_until_last_use() {
    let (rows, width) = (8u64, 64u64);
    let mut builder = GraphBuilder::new();
    let [tokens, labels] = builder.token_inputs(rows as usize);
    let init = Initializer::Constant { value: 0.0 };
    let table = builder.tensor("table", &[16, width as usize], init, TensorRole::Embedding);
    let x = builder.node(Embedding, "x", &[tokens], &[table]).unwrap();
    builder.end_layer("first");
    let y = builder.node(Activation { kind: Nonlinearity::Gelu }, "y", &[x], &[]).unwrap();
    builder.end_layer("second");
    let z = builder.node(Activation { kind: Nonlinearity::Gelu }, "z", &[y], &[]).unwrap();
    builder.end_layer("third");
    let sum = builder.node(Add, "sum", &[z, x], &[]).unwrap();
    builder.loss(CrossEntropy::new(), &[sum, labels], &[table]).unwrap();
    builder.end_layer("last");
    let graph = builder.finish().unwrap();

    let [memory] = activation_memory::MemoryAnalysis::new(&graph, [4]).training(&[false; 4]).layers;
    let (value, number) = (rows * width * 4, rows * 4);
    let saved: Vec<u64> = memory.iter().map(|layer| layer.saved).collect();
    // Tokens; x; y; the sum that the loss reads, with its log-sum-exps and labels. No backward pass needs z.
    assert_eq!(saved, [number, value, value, value + 2 * number]);
    // Samples are held all the time. During "last": x, y, the sum, and either z or a gradient. During the backward pass
    // of "third": x, y and the gradients of y and of the skipping x; of "second": x and both gradients; of "first": the
    // gradient of x alone.
    let retained: Vec<u64> = memory.iter().map(|layer| layer.retained).collect();
    assert_eq!(retained, [value, 3 * value, 4 * value, 4 * value + number].map(|values| values + 2 * number));
    // Evaluation: x all the time, and the values between layers.
    let eval: Vec<u64> = memory.iter().map(|layer| layer.retained_eval).collect();
    assert_eq!(eval, [value, 2 * value, 3 * value, 2 * value].map(|values| values + 2 * number));
}

#[test]
fn model_larger_than_memoryx_is_rejected() {
    let request = CompileRequest { memoryx_memory: 16 * TINY.graph().parameters() - 1, ..TINY.request(16, 2, CS2) };
    let error = compile(request).unwrap_err();
    assert!(matches!(error, CompileError::MemoryXTooSmall { .. }), "{error}");
}

/// A sample of 2^17 tokens is divided into tiles: its values between layers do not fit on the wafer.
#[test]
fn long_samples_are_divided_into_tiles() {
    let size = Size { name: "long", sequence: 1 << 17, batch: 2, ..GPT3_6_7B };
    let plan = size.plan(2, 2, CS2).unwrap();
    assert!(plan.tiles > 1 && plan.tiles <= 512, "{}", plan.tiles);
    assert_eq!((plan.leaves.samples, plan.leaves_per_round), (1, 1));
    assert!(system_bytes(&plan, 1, true, &LINK).wafer.total() <= CS2);
    let between: u64 = plan.layers.iter().map(|layer| layer.saved.wafer).sum();
    assert!(between > CS2 / 2, "{between}");
    // Half of the wafer holds whole layers, but not the rows that attention reads: more tiles do not help.
    let larger = Size { hidden: 16_384, ..size.clone() };
    let error = larger.plan(2, 2, CS2 / 2).unwrap_err();
    assert!(matches!(error, CompileError::DoesNotFit { tiles: 512, .. }), "{error}");
    assert!(error.hint().unwrap().contains("max_sequence_length"), "{error}");
    // The hash of other plans does not depend on tiles.
    let text = serde_json::to_string(&TINY.plan(16, 2, CS2).unwrap()).unwrap();
    assert!(!text.contains("tiles"));
}
