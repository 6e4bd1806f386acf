use super::*;
use crate::plan::Pass;
use crate::testing::{Size, TINY, TINY_WAFER};

#[test]
fn plan_is_independent_of_systems() {
    let appliance = MachineSpec::default();
    let plan = TINY.plan(16, 2, TINY_WAFER).unwrap();
    let reports: Vec<_> = (1..=4).map(|systems| PlanReport::new(&plan, &appliance, systems).unwrap()).collect();
    assert!(reports.iter().all(|report| report.plan == reports[0].plan && report.layers == reports[0].layers));
    assert!(reports[0].placement.rounds > 1);
    assert!(reports.is_sorted_by(|few, many| few.placement.rounds >= many.placement.rounds));
    assert_eq!(reports[0].largest_num_csx, 8);
    assert!(PlanReport::new(&plan, &appliance, 9).is_err());
}

#[test]
fn memoryx_memory_is_16_bytes_a_parameter_and_4_a_sum() {
    let appliance = MachineSpec::default();
    let one_round = TINY.plan(16, 2, 1 << 30).unwrap();
    let report = PlanReport::new(&one_round, &appliance, 2).unwrap();
    assert_eq!(report.placement.rounds, 1);
    assert_eq!(report.bytes.memoryx, 16 * one_round.parameters());
    assert_eq!(report.bytes.memoryx, report.bytes.memoryx_shards.iter().sum::<u64>());

    let smaller = (0..).map_while(|n| TINY.plan(16, 2, TINY_WAFER - n * (64 << 10)).ok());
    let rounds = smaller.into_iter().find(|plan| plan.leaves_per_round == 1).unwrap();
    let report = PlanReport::new(&rounds, &appliance, 1).unwrap();
    let shared = rounds.graph.tensors[0].elements() as u64;
    let placement = crate::time::nominal_placement(&rounds, &appliance, 1).unwrap();
    let ends = placement.rounds[..placement.rounds.len() - 1].iter().map(|round| round.leaves.end);
    let depth = ends.map(|end| rounds.leaves.tree().cover(0..end).len()).max().unwrap() as u64;
    assert!(depth > 1);
    // Every group has `depth` open sums, the tied table for each of its two uses; one of them is the gradient.
    let extra = 4 * (depth - 1) * rounds.parameters() + 4 * depth * shared;
    assert_eq!(report.bytes.memoryx, 16 * rounds.parameters() + extra);
}

/// The bytes of a system without activations do not depend on the number of layers.
#[test]
fn weight_memory_is_independent_of_depth() {
    let appliance = MachineSpec::default();
    let weights = |layers| {
        let plan = Size { layers, ..TINY }.plan(16, 2, 1 << 30).unwrap();
        PlanReport::new(&plan, &appliance, 2).unwrap().bytes.cs2.host.weights
    };
    assert_eq!(weights(6), weights(24));
}

#[test]
fn traffic_counts_every_use_over_every_link_and_round() {
    let appliance = MachineSpec::default();
    let plan = TINY.plan(16, 2, 1 << 30).unwrap();
    let elements: u64 = plan.parameters();
    let streamed_twice: u64 = plan
        .down_train
        .iter()
        .filter(|slot| slot.pass == Pass::Backward)
        .map(|slot| plan.chunks[slot.chunk].elements as u64)
        .sum();
    let table = plan.graph.tensors[0].elements() as u64;
    // One SwarmX node and two systems: three links. Each half of the leaves is one node of the tree.
    let two = PlanReport::new(&plan, &appliance, 2).unwrap().traffic;
    assert_eq!(two.links, 3);
    assert_eq!(two.weights_down, 3 * 4 * (elements + streamed_twice));
    assert_eq!(two.gradients_up, 3 * 4 * (elements + table));
    assert_eq!(two.samples, 16 * 2 * TINY.sequence as u64 * 4);
    assert_eq!(two.max_partial_sums, 1);
    // Three systems share 8 leaves as 2, 3, 3: covers of 1, 2 and 2 nodes, and one sum up to MemoryX.
    let three = PlanReport::new(&plan, &appliance, 3).unwrap().traffic;
    assert_eq!(three.gradients_up, (1 + 2 + 2 + 1) * 4 * (elements + table));
    assert_eq!(three.max_partial_sums, 2);
}

#[test]
fn report_text_is_complete_and_json_round_trips() {
    let appliance = MachineSpec::default();
    let plan = Size { layers: 4, ..TINY }.plan(16, 2, 1 << 30).unwrap();
    let report = PlanReport::new(&plan, &appliance, 2).unwrap();
    let text = report.to_string();
    println!("{text}");
    for part in [
        &*report.plan,
        "8 leaves of 2",
        "wte.weight, h.3.mlp, head",
        "and 6 more identical layers",
        "Projection",
        "bound by",
        "fitted to       GPT-2 117M",
        "checked by      GPT-J 6B on 1",
    ] {
        assert!(text.contains(part), "{part:?} is missing:\n{text}");
    }
    let json = serde_json::to_string(&report).unwrap();
    let read: PlanReport = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), json);
    // Text and JSON show the same number: leaves that systems hold, not leaves that fit on the wafer.
    assert_eq!(report.leaves_per_round, 4);
    assert!(plan.leaves_per_round > 4 && text.contains("at most 4 of 8 leaves"), "{text}");
    assert!(json.contains("\"leaves_per_round\":4,"), "{json}");
}

#[test]
fn host_memory_is_sum_of_processes() {
    let appliance = MachineSpec::default();
    let plan = TINY.plan(16, 2, 1 << 30).unwrap();
    let report = PlanReport::new(&plan, &appliance, 2).unwrap();
    let (bytes, placement) = (&report.bytes, &report.placement);
    // Two systems with an activation server each, the coordinator, shards and SwarmX nodes.
    let processes = 5 + placement.memoryx as u64 + placement.swarmx as u64;
    let data = bytes.memoryx + bytes.swarmx * placement.swarmx as u64 + 2 * (bytes.cs2.host.total() + bytes.activation);
    assert_eq!(report.host_bytes, processes * PROCESS_OVERHEAD_BYTES + data);
    assert_eq!(report.host_work.flops, report.step_flops + report.recompute_flops);
    assert!(report.to_string().contains("for all processes together"));
}
