use super::*;
use crate::graph::{GraphBuilder, Initializer, TensorRole, ValueId};
use crate::ops::{Add, CausalAttention, CrossEntropy, Dropout, Embedding, Linear, OpKind};
use crate::testing::TINY;

/// A stream that skips layers, is added to itself and has dropout, with sizes in an order that provokes bad layouts.
fn skip_connection_graph() -> Graph {
    let mut builder = GraphBuilder::new();
    let [tokens, labels] = builder.token_inputs(16);
    let mut names = 0;
    let mut node = |builder: &mut GraphBuilder, op: OpKind, inputs: &[ValueId], shape: Option<[usize; 2]>| {
        names += 1;
        let init = Initializer::Constant { value: 0.0 };
        let params: Vec<_> =
            shape.iter().map(|shape| builder.tensor(format!("t{names}"), shape, init, TensorRole::Weight)).collect();
        builder.node(op, format!("v{names}"), inputs, &params).unwrap()
    };
    let b = &mut builder;
    let x = node(b, Embedding.into(), &[tokens], Some([10, 16]));
    let widened = node(b, Linear.into(), &[x], Some([96, 16]));
    b.end_layer("a");
    let y = node(b, Linear.into(), &[widened], Some([16, 96]));
    let y = node(b, Dropout { rate: 0.5 }.into(), &[y], None);
    let y = node(b, Add.into(), &[y, x], None);
    b.end_layer("b");
    let z = node(b, Add.into(), &[y, y], None);
    // An output that nothing reads.
    node(b, CausalAttention::new(1, 1.0, 0.0).into(), &[widened], None);
    b.end_layer("c");
    let narrow = node(b, Linear.into(), &[z], Some([32, 16]));
    let head = builder.tensor("head", &[10, 32], Initializer::Constant { value: 0.0 }, TensorRole::Weight);
    builder.loss(CrossEntropy::new(), &[narrow, labels], &[head]).unwrap();
    builder.end_layer("d");
    builder.finish().unwrap()
}

fn schedules() -> Vec<PassSchedule> {
    let (valid, skipping) = (TINY.graph(), skip_connection_graph());
    let (joined, _) = valid.joined();
    let training = |graph: &Graph, recompute| PassSchedule::training(graph, &vec![recompute; graph.layers.len()]);
    // Only joined layers, and layers of a graph without blocks, are recomputed.
    let trained = [(&valid, false), (&joined, false), (&joined, true), (&skipping, false), (&skipping, true)];
    let trained = trained.map(|(graph, recompute)| training(graph, recompute));
    trained.into_iter().chain([&valid, &joined, &skipping].map(PassSchedule::evaluation)).collect()
}

#[test]
fn memory_alive_at_one_time_never_overlaps_and_little_is_lost() {
    for schedule in schedules() {
        for (leaves, block) in [(1, 1), (2, 1), (7, 1), (7, 4), (2, 4)] {
            let layout = ArenaLayout::new(&schedule, 2, leaves, block);
            let block = block.min(leaves);
            let ends = |piece: usize| {
                let extent = layout.extents[piece];
                let last = if extent.every_leaf { leaves } else { block };
                extent.start..extent.of_leaves(0..last, 0).end
            };
            for (a, one) in schedule.storage.iter().enumerate() {
                for (b, other) in schedule.storage.iter().enumerate().skip(a + 1) {
                    let passes = one.passes.0.max(other.passes.0)..=one.passes.1.min(other.passes.1);
                    let both_working = !one.every_leaf() && !other.every_leaf();
                    let steps = one.steps.0.max(other.steps.0)..=one.steps.1.min(other.steps.1);
                    if passes.is_empty() || (both_working && steps.is_empty()) {
                        continue;
                    }
                    let (a, b) = (ends(a), ends(b));
                    assert!(a.end <= b.start || b.end <= a.start, "{one:?} at {a:?} meets {other:?} at {b:?}");
                }
            }
            let demand = schedule.demand(|piece| piece.elements);
            let needed =
                demand.iter().map(|pass| pass.retained * leaves as u64 + pass.working * block as u64).max().unwrap()
                    * 2;
            let lost = layout.len as f64 / needed as f64 - 1.0;
            assert!((0.0..0.01).contains(&lost), "{} for {needed}, {leaves} leaves", layout.len);
        }
    }
}

#[test]
fn block_copies_no_gradient() {
    let schedule = PassSchedule::training(&TINY.graph().joined().0, &[false; 4]);
    let moved = |step: &&Step| matches!(step, Step::Copy { .. } | Step::Add { .. });
    assert_eq!(schedule.backward.iter().flatten().filter(moved).count(), 0);
    // One slot holds the gradient of the stream from the loss to the embedding.
    let first = schedule.backward_pass(3);
    let carried = |piece: &&StorageSlot| piece.passes == (first, schedule.backward_pass(0));
    assert_eq!(schedule.storage.iter().filter(carried).count(), 1);
    assert_eq!(schedule.storage.iter().filter(|piece| piece.every_leaf() && piece.passes.0 >= first).count(), 1);
}

#[test]
fn only_the_loss_keeps_numbers_of_a_recomputed_layer() {
    let schedule = PassSchedule::training(&TINY.graph().joined().0, &[true; 4]);
    let shared = schedule.storage.iter().filter(|piece| piece.kind == StorageKind::Scratch && piece.every_leaf());
    assert_eq!(shared.map(|piece| piece.elements).collect::<Vec<_>>(), [TINY.sequence as u64]);
}
