use super::*;

use crate::compile::{compile, system_bytes};
use crate::testing::{CS2, GPT3_1_3B, GPT3_6_7B, GPT3_13B, GPT3_175B, LINK, Size};

/// The tolerance of the published results: speed of one model changes by 1.3 between two releases of the real machine's
/// software.
const TOLERANCE: f64 = 0.15;

fn errors(used_for: PublishedResultUse) -> Vec<&'static ProjectionError> {
    projection_errors().iter().filter(|error| error.used_for == used_for).collect()
}

/// Fit: GPT-2 117M, GPT-3 1.3B and GPT-J on two systems determine the utilization and nothing else.
#[test]
fn utilization_is_the_fit_to_published_results() {
    let fitted = errors(PublishedResultUse::Fit);
    assert_eq!(fitted.len(), 3);
    let mean = fitted.iter().map(|error| error.error.ln_1p()).sum::<f64>() / 3.0;
    assert!(mean.abs() < 0.005, "the utilisation should be lower by {:.1}%", 100.0 * mean);
    for ProjectionError { name, error, .. } in fitted {
        assert!(error.abs() < TOLERANCE, "{name}: {:+.1}%", 100.0 * error);
    }
}

/// Check: results that are not part of the fit.
#[test]
fn projection_matches_held_out_results() {
    let checked = errors(PublishedResultUse::Check);
    assert!(!checked.is_empty());
    for ProjectionError { name, error, .. } in checked {
        assert!(error.abs() < TOLERANCE, "{name}: {:+.1}%", 100.0 * error);
    }
    // Published for GPT-3 XL: n systems are n times as fast, up to 16.
    let plan = GPT3_1_3B.plan(GPT3_1_3B.batch, 1, CS2).unwrap();
    for systems in [2, 4, 8, 16] {
        let error = efficiency(&plan, systems) - 1.0;
        assert!(error.abs() < TOLERANCE, "GPT-3 XL on {systems}: {:+.1}%", 100.0 * error);
    }
}

#[test]
fn gpt_j_has_its_own_shape() {
    let graph = published_results::gpt_j().unwrap();
    assert_eq!(graph.parameters(), 6_050_882_784);
    let flops: u64 = (0..graph.layers.len()).map(|layer| crate::ops::layer_flops(&graph, layer).forward).sum();
    // 12 H^2 a block and the output layer, and attention over half of the square of positions.
    let (width, tokens) = (4096u64, 2048u64);
    let products = 2 * tokens * width * (28 * 12 * width + 50_400);
    assert_eq!(flops, products + 28 * 2 * tokens * (tokens + 1) * width);
}

/// The rate on `systems` systems divided by `systems` times the rate on one.
fn efficiency(plan: &StreamPlan, systems: u32) -> f64 {
    let appliance = MachineSpec::default();
    let rate = |systems| project_step(plan, &appliance, systems).unwrap().samples_per_second;
    rate(systems) / (rate(1) * f64::from(systems))
}

#[test]
fn sixteen_systems_reach_95_percent_from_1_3b_on() {
    for size in [GPT3_1_3B, GPT3_6_7B, GPT3_13B] {
        // A batch that divides evenly among the largest number of systems.
        let plan = size.plan(1024, 1, CS2).unwrap();
        for systems in [2, 4, 8, 16] {
            let efficiency = efficiency(&plan, systems);
            assert!((0.95..1.1).contains(&efficiency), "{} on {systems}: {efficiency}", size.name);
        }
    }
}

#[test]
fn gpt3_175b_scales_to_192_systems() {
    let plan = GPT3_175B.plan(GPT3_175B.batch, 1, CS2).unwrap();
    let wafer = |leaves| system_bytes(&plan, leaves, true, &LINK).wafer;
    assert!(wafer(plan.leaves_per_round).total() <= CS2);
    let max_leaves = (1..).take_while(|&leaves| wafer(leaves).activations <= CS2).last().unwrap();
    for (systems, least) in [(1, 1.0), (16, 0.9), (64, 0.75), (192, 0.75)] {
        let rounds = nominal_placement(&plan, &MachineSpec::default(), systems).unwrap().rounds.len() as f64;
        let min_batches = (GPT3_175B.batch as u32).div_ceil(max_leaves * systems);
        assert!(
            (rounds / f64::from(min_batches) - 1.0).abs() <= 0.1,
            "{rounds} rounds on {systems}, {min_batches} by activations"
        );
        let efficiency = efficiency(&plan, systems);
        assert!((least..1.1).contains(&efficiency), "{efficiency} on {systems}");
    }
}

/// Layers of 7.9 billion parameters, 15.7 GB on their way down, on a wafer of 40 GB.
#[test]
fn layer_may_exceed_wafer() {
    let wide_size = Size { name: "hidden 25600", layers: 4, hidden: 25_600, heads: 200, ..GPT3_175B };
    let trillion = Size { name: "1T", layers: 128, ..wide_size.clone() };
    for size in [wide_size, trillion] {
        let plan = size.plan(64, 1, CS2).unwrap();
        assert!(plan.check_streamable().is_ok(), "{}", size.name);
        let projection = project_step(&plan, &MachineSpec::default(), 1).unwrap();
        assert!(projection.step_seconds.is_finite() && projection.utilisation < 0.346, "{}", size.name);
    }
    let request = Size { layers: 2, hidden: 65_536, heads: 512, ..GPT3_175B }.request(4, 1, CS2);
    let plan = compile(request).unwrap();
    let block = plan.layers.iter().flat_map(|layer| &layer.groups).map(|&group| plan.groups[group].elements).max();
    assert!(block.unwrap() as u64 * 2 > CS2);
}

/// 1e14 parameters: the plan takes no more memory than one of 1e12, but can't be streamed here.
#[test]
fn hundred_trillion_parameters_are_planned() {
    let size = Size { name: "100T", layers: 311, hidden: 163_840, heads: 1280, sequence: 256, ..GPT3_175B };
    let plan = size.plan(1024, 1, CS2).unwrap();
    assert!((99..105).contains(&(plan.parameters() / 1_000_000_000_000)), "{}", plan.parameters());
    assert!(plan.chunks.len() < 1_100_000, "{}", plan.chunks.len());
    assert!(plan.check_streamable().is_err());
    for systems in [1, 192, 1000] {
        assert!(project_step(&plan, &MachineSpec::default(), systems).unwrap().step_seconds.is_finite());
    }
}

#[test]
fn parts_add_up_and_slower_links_show() {
    let mut appliance = MachineSpec::default();
    let plan = GPT3_1_3B.plan(16, 1, CS2).unwrap();
    let fast = project_step(&plan, &appliance, 2).unwrap();
    let sum = fast.compute_seconds + fast.waits.total() + fast.boundary_seconds;
    assert!((fast.step_seconds - sum).abs() < 1e-12);
    appliance.wafer.link_bytes_per_s /= 100.0;
    let slow = project_step(&plan, &appliance, 2).unwrap();
    assert_eq!(slow.compute_seconds, fast.compute_seconds);
    // bf16 weights down, then f32 gradients up while weights are sent again: 1.5 GB/s bound the step from below.
    assert!(slow.step_seconds > plan.parameters() as f64 * (2.0 + 4.0) / 1.5e9, "{slow:?}");
    assert!(project_step(&plan, &appliance, 17).is_err() && project_step(&plan, &appliance, 0).is_err());
}

/// The model uses every rate of the appliance that it has a field for.
#[test]
fn every_rate_of_the_appliance_takes_part() {
    let plan = GPT3_1_3B.plan(64, 1, CS2).unwrap();
    let step = |appliance: &MachineSpec| project_step(&plan, appliance, 2).unwrap().step_seconds;
    let fast = step(&MachineSpec::default());
    let slower: [fn(&mut MachineSpec); 8] = [
        |appliance| appliance.wafer.memory_bandwidth /= 1000.0,
        |appliance| appliance.wafer.fabric_bandwidth /= 100.0,
        |appliance| appliance.wafer.cores /= 100,
        |appliance| appliance.wafer.clock_hz /= 100.0,
        |appliance| appliance.wafer.peak_flops /= 100.0,
        |appliance| appliance.wafer.utilisation /= 100.0,
        |appliance| appliance.wafer.link_bytes_per_s /= 100.0,
        |appliance| appliance.memoryx.memory_bandwidth /= 100.0,
    ];
    for (index, change) in slower.into_iter().enumerate() {
        let mut appliance = MachineSpec::default();
        change(&mut appliance);
        assert!(step(&appliance) > 1.02 * fast, "number {index} takes no part: {} for {fast}", step(&appliance));
    }
}

/// The projection names the slowest part as the bottleneck.
#[test]
fn bound_is_named_with_its_share() {
    let (saving, recomputing) = (GPT3_1_3B.plan(4, 1, CS2).unwrap(), GPT3_1_3B.plan(512, 1, CS2).unwrap());
    let recomputes = |plan: &StreamPlan| plan.layers.iter().any(|layer| layer.recompute);
    assert!(!recomputes(&saving) && recomputes(&recomputing));
    let bottleneck_with = |plan: &StreamPlan, change: fn(&mut MachineSpec)| {
        let mut appliance = MachineSpec::default();
        change(&mut appliance);
        let projection = project_step(plan, &appliance, 4).unwrap();
        assert!(projection.bound().1 > 0.5 && projection.bound().1 <= 1.0, "{projection:?}");
        projection.bound().0
    };
    let slow_links = |appliance: &mut MachineSpec| appliance.wafer.link_bytes_per_s /= 1000.0;
    assert_eq!(bottleneck_with(&recomputing, |_| ()), Bottleneck::Compute);
    assert_eq!(bottleneck_with(&crate::testing::TINY.plan(16, 2, CS2).unwrap(), |_| ()), Bottleneck::Latency);
    // Weights of recomputed layers are sent three times; gradients are sent once and are twice as wide.
    assert_eq!(bottleneck_with(&recomputing, slow_links), Bottleneck::WeightsDown);
    assert_eq!(bottleneck_with(&saving, slow_links), Bottleneck::GradientsUp);
    assert_eq!(
        bottleneck_with(&recomputing, |appliance| appliance.memoryx.memory_bandwidth /= 1000.0),
        Bottleneck::MemoryX
    );
    // A sample's values between layers are larger than the layers.
    let tiled = Size { name: "long", sequence: 1 << 17, ..GPT3_6_7B }.plan(4, 1, CS2).unwrap();
    assert_eq!(bottleneck_with(&tiled, |_| ()), Bottleneck::Compute);
    assert_eq!(bottleneck_with(&tiled, slow_links), Bottleneck::Activations);
}
