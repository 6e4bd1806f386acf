//! Tests learning-rate schedules: their rates against PyTorch's, and what is rejected.

mod common;

use common::{resolve, resolved, with};
use millrace_params::{Schedule, ScheduleSegment, ScheduleSegmentKind};
use serde_json::Value;

fn schedule(yaml: &str) -> Schedule {
    resolved(&with("optimizer", &format!("learning_rate: {yaml}"))).job.optimizer.schedule
}

/// `learning_rates.py` writes the rates.
#[test]
fn rates_equal_those_of_pytorch() {
    let fixture: Value = serde_json::from_str(include_str!("fixtures/learning_rates.json")).unwrap();
    let steps: Vec<u64> = serde_json::from_value(fixture["steps"].clone()).unwrap();
    let cases = fixture["cases"].as_array().unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let yaml = case["learning_rate"].to_string();
        let schedule = schedule(&yaml);
        let json = serde_json::to_string(&schedule).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule, "{json}");
        for (step, expected) in steps.iter().zip(case["rates"].as_array().unwrap()) {
            let (found, expected) = (schedule.at(*step), expected.as_f64().unwrap());
            let difference = (found - expected).abs();
            assert!(difference <= 1e-12 * expected.abs().max(1e-3), "step {step}: {found} is not {expected}: {yaml}");
        }
    }
}

#[test]
fn schedules_of_list_count_from_their_own_first_step() {
    let list = "[{scheduler: Linear, initial_learning_rate: 0, end_learning_rate: 1, steps: 4},
                 {scheduler: Step, initial_learning_rate: 1, gamma: 0.5, step_size: 3, total_iters: 6},
                 {scheduler: CosineDecay, initial_learning_rate: 0.25, total_iters: 100}]";
    let reset = schedule(list);
    assert_eq!([3, 4, 6, 7, 9, 10].map(|step| reset.at(step)), [0.75, 1.0, 1.0, 0.5, 0.5, 0.25]);
    let counted_on = schedule(&format!("{list}\n  disable_lr_steps_reset: True"));
    assert_eq!([3, 4, 6, 9].map(|step| counted_on.at(step)), [0.75, 0.5, 0.25, 0.125]);
    assert_eq!(counted_on.segments[2].offset_steps, 10);
    assert!((counted_on.at(60) - 0.125 * (1.0 + libm::cos(0.6 * std::f64::consts::PI))).abs() < 1e-15);
}

#[test]
fn nested_schedules_keep_their_lengths() {
    let list = "[{scheduler: PiecewiseConstant, milestones: [2], learning_rates: [1, 2], total_iters: 5},
                 {scheduler: Sequential, schedulers: [{scheduler: Constant, val: 3, total_iters: 2},
                                                      {scheduler: Constant, val: 4, total_iters: 1}], steps: 4},
                 {scheduler: Constant, val: 5}]";
    let found = schedule(list);
    let rates: Vec<f64> = (0..11).map(|step| found.at(step)).collect();
    assert_eq!(rates, [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]);
    let single = schedule("{scheduler: Sequential, schedulers: [{scheduler: Constant, val: 3}]}");
    assert_eq!(single, Schedule::constant(3.0), "the only schedule is not nested");
}

#[test]
fn largest_step_is_finite_and_quick() {
    let yaml = "{scheduler: CosineAnnealingWarmRestarts, initial_learning_rate: 1, T_0: 1, T_mult: 2}";
    assert!((0.0..=1.0).contains(&schedule(yaml).at(u64::MAX)));
    let cyclic = "{scheduler: Cyclic, base_lr: 1, max_lr: 2, step_size_up: 9007199254740992}";
    assert!((1.0..=2.0).contains(&schedule(cyclic).at(u64::MAX)));
    let piece = ScheduleSegmentKind::Chained { pieces: Vec::new() };
    assert_eq!(Schedule { segments: vec![ScheduleSegment::endless(piece)] }.at(1), 0.0);
}

#[test]
fn impossible_schedules_are_rejected() {
    let begin = "initial_learning_rate: 1";
    for (yaml, key, message) in [
        ("{scheduler: Lambda, initial_learning_rate: 1}", "scheduler", "Python code"),
        ("{scheduler: ScalePerParamLR}", "scheduler", "share one learning rate"),
        (&format!("{{scheduler: Step, {begin}, gamma: 0.5}}"), "step_size", "is missing"),
        (&format!("{{scheduler: Step, {begin}, gamma: -0.5, step_size: 3}}"), "gamma", "out of range"),
        (&format!("{{scheduler: Step, {begin}, gamma: 0.5, step_size: 3, T_max: 3}}"), "T_max", "no meaning for Step"),
        (&format!("{{scheduler: MultiStep, {begin}, gamma: 0.5, milestones: [3, 2]}}"), "milestones", "not ascending"),
        ("{scheduler: PiecewiseConstant, milestones: [2], learning_rates: [1]}", "learning_rates", "for 1 milestones"),
        (&format!("{{scheduler: Linear, {begin}, total_iters: 5, power: 2}}"), "power", "use Polynomial"),
        (&format!("{{scheduler: Polynomial, {begin}, total_iters: 5, power: 99}}"), "power", "at most 64"),
        (&format!("{{scheduler: OneCycle, {begin}, max_lr: 2, total_steps: 4}}"), "pct_start", "leaves no step"),
        (&format!("{{scheduler: Multiplicative, {begin}, coefficient: 1e99}}"), "", "is inf at step 100"),
        ("{scheduler: Sequential, schedulers: []}", "schedulers", "empty list"),
        (
            "{scheduler: Sequential, milestones: [1, 2], schedulers: [{scheduler: Constant, val: 1}]}",
            "milestones",
            "2 numbers for 1 schedulers",
        ),
        (
            "{scheduler: Chained, schedulers: [{scheduler: Constant, val: 1}, {scheduler: Constant, val: 0}]}",
            "schedulers.1",
            "no initial rate",
        ),
        (
            "[{scheduler: CosineAnnealing, initial_learning_rate: 1, T_max: 3}, {scheduler: Constant, val: 1}]",
            "0.total_iters",
            "is missing",
        ),
    ] {
        let error = resolve(&with("optimizer", &format!("learning_rate: {yaml}"))).expect_err(yaml);
        let expected = ["optimizer.learning_rate", key].join(".");
        assert_eq!((error.key(), error.problems().count()), (expected.trim_end_matches('.'), 1), "{}", error.report());
        assert!(error.report().contains(message), "{message} in {}", error.report());
    }
}
