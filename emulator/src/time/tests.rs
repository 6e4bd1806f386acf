use super::*;

use crate::testing::{CS2, GPT3_1_3B, GPT3_6_7B, GPT3_13B};

#[test]
fn every_public_figure_is_met_within_a_factor_of_two() {
    let errors = anchor_errors();
    assert_eq!(errors.len(), ANCHORS.len());
    for AnchorError { name, measured, projected, error } in errors {
        println!("{name}: {projected:.1} samples/s projected, {measured:.1} measured, {:+.0}%", error * 100.0);
        assert!((0.5..2.0).contains(&(projected / measured)), "{name}");
    }
}

#[test]
fn sixteen_systems_reach_95_percent_from_1_3b_on() {
    let appliance = ApplianceSpec::default();
    for size in [GPT3_1_3B, GPT3_6_7B, GPT3_13B] {
        // A batch that the largest number of systems shares evenly.
        let plan = size.plan(1024, 1, CS2).unwrap();
        let rate = |systems| project(&plan, &appliance, systems).unwrap().samples_per_second;
        let one = rate(1);
        for systems in [2, 4, 8, 16] {
            let efficiency = rate(systems) / (one * f64::from(systems));
            println!("{} on {systems}: {:.1}%", size.name, efficiency * 100.0);
            assert!((0.95..1.2).contains(&efficiency), "{} on {systems}: {efficiency}", size.name);
        }
    }
}

#[test]
fn parts_add_up_and_slower_links_show() {
    let mut appliance = ApplianceSpec::default();
    let plan = GPT3_1_3B.plan(16, 1, CS2).unwrap();
    let fast = project(&plan, &appliance, 2).unwrap();
    let sum = fast.compute_seconds + fast.link_seconds + fast.boundary_seconds;
    assert!((fast.step_seconds - sum).abs() < 1e-12);
    appliance.wafer.link_bytes_per_s /= 100.0;
    let slow = project(&plan, &appliance, 2).unwrap();
    assert_eq!(slow.compute_seconds, fast.compute_seconds);
    // bf16 weights down, then f32 gradients up while weights come down again: 1.5 GB/s bound the step from below.
    assert!(slow.step_seconds > plan.parameters() as f64 * (2.0 + 4.0) / 1.5e9, "{slow:?}");
    assert!(project(&plan, &appliance, 17).is_err() && project(&plan, &appliance, 0).is_err());
}
