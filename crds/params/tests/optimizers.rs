//! Resolves the keys of optimizers.

use millrace_params::optimizers::{Adadelta, Adafactor, Adam, Lamb, NAdam, RmsProp, Sgd};
use millrace_params::{MomentumCurve, MomentumSchedule, OptimizerKind};

mod common;

use common::{resolve, with};

/// Returns the small document with these lines in its optimizer.
fn document(lines: &str) -> String {
    with("optimizer", &format!("optimizer_type: {}", lines.replace('\n', "\n  ")))
}

fn kind(lines: &str) -> OptimizerKind {
    resolve(&document(lines)).unwrap().job.optimizer.kind
}

#[test]
fn adafactor_has_the_keys_and_defaults_of_transformers() {
    let default =
        Adafactor { eps: [1e-30, 1e-3], clip_threshold: 1.0, decay_rate: -0.8, beta1: None, scale_parameter: true };
    assert_eq!(kind("AdaFactor"), default.into());
    assert_eq!(kind("Adafactor\nbeta1: null\neps: 1e-20"), Adafactor { eps: [1e-20, 1e-3], ..default }.into());
    assert_eq!(
        kind("adafactor\nbeta1: 0.9\neps: [1e-20, 0.5]\nclip_threshold: 2\ndecay_rate: -0.5\nscale_parameter: false"),
        Adafactor {
            eps: [1e-20, 0.5],
            clip_threshold: 2.0,
            decay_rate: -0.5,
            beta1: Some(0.9),
            scale_parameter: false
        }
        .into()
    );
    assert_eq!(
        kind("Lamb\nbetas: [0.5, 0.75]\neps: 1e-3\ncorrect_bias: false\nadam: true"),
        Lamb { betas: [0.5, 0.75], eps: 1e-3, correct_bias: false, adam: true }.into()
    );
}

#[test]
fn relative_step_replaces_the_learning_rate() {
    let text = document("Adafactor\nrelative_step: true\nwarmup_init: true").replace("  learning_rate: 1e-3\n", "");
    let schedule = resolve(&text).unwrap().job.optimizer.schedule;
    assert!((schedule.at(0) - 1e-6).abs() < 1e-18 && (schedule.at(39_999) - 0.005).abs() < 1e-12);
}

#[test]
fn keys_of_adafactor_are_checked() {
    for (lines, message) in [
        ("AdamW\neps: [1e-8, 1e-3]", "optimizer.eps is a list, which only Adafactor has"),
        ("Adafactor\neps: [1e-8]", "optimizer.eps has 1 numbers instead of 2"),
        ("Adafactor\neps: [0, 1e-3]", "optimizer.eps is 0, which is out of range"),
        ("Adafactor\nbetas: [0.9, 0.99]", "optimizer.betas has no meaning for Adafactor"),
        ("Adafactor\nbeta1: 1", "optimizer.beta1 is 1, which is out of range"),
        ("Adafactor\ndecay_rate: 0.8", "optimizer.decay_rate is 0.8, which is out of range"),
        ("Adafactor\nrelative_step: true", "optimizer.relative_step is true, and learning_rate is given too"),
        ("Adafactor\nwarmup_init: true", "optimizer.warmup_init is true without relative_step"),
        ("LAMB\nclip_threshold: 1", "optimizer.clip_threshold has no meaning for LAMB"),
    ] {
        let report = resolve(&document(lines)).expect_err(lines).report();
        assert!(report.contains(message), "{lines}: {report}");
    }
}

#[test]
fn settings_of_pytorch_are_read() {
    assert_eq!(
        kind("SGD\nmomentum: 0.5\nnesterov: true"),
        Sgd { momentum: 0.5, dampening: 0.0, nesterov: true }.into()
    );
    assert_eq!(
        kind("SGD\nmomentum: 0.5\ndampening: 1\nuse_nesterov: false"),
        Sgd { momentum: 0.5, dampening: 1.0, nesterov: false }.into()
    );
    // Some tensors have no momentum.
    kind("SGD\nmomentum: 0.5\ndampening: 0.5\nparams: [{params: x, momentum_schedule: {steps: [0], values: [0]}}]");
    assert!(matches!(kind("Adam\namsgrad: true"), OptimizerKind::Adam(Adam { amsgrad: true, .. })));
    assert_eq!(kind("Adadelta\nrho: 0.5"), Adadelta { rho: 0.5, eps: 1e-6 }.into());
    assert!(matches!(
        kind("NAdam\ndecoupled_weight_decay: true"),
        OptimizerKind::NAdam(NAdam { decoupled_weight_decay: true, .. })
    ));
    assert!(matches!(
        kind("RMSprop\nmomentum: 0.5\ncentered: true"),
        OptimizerKind::RmsProp(RmsProp { centered: true, momentum: 0.5, .. })
    ));
    // Files of the model zoo write switches that are off for any optimizer.
    assert_eq!(kind("Adadelta\namsgrad: false\nnesterov: false\nuse_nesterov: false"), kind("Adadelta"));
    assert!(!resolve(&document("AdamW")).unwrap().job.optimizer.maximize);
    assert!(resolve(&document("AdamW\nmaximize: true")).unwrap().job.optimizer.maximize);
}

#[test]
fn momentum_of_each_step_is_read() {
    let text = document("AdamW\nmomentum_schedule: {steps: [0, 5], values: [0.5, 0.75], interpolation: cos}");
    assert_eq!(
        resolve(&text).unwrap().job.optimizer.momentum_schedule,
        Some(MomentumSchedule { steps: vec![0, 5], values: vec![0.5, 0.75], curve: MomentumCurve::Cosine })
    );
}

#[test]
fn keys_of_momentum_are_checked() {
    let many = format!(
        "AdamW\nmomentum_schedule: {{steps: {:?}, values: {:?}}}",
        (0..5000).collect::<Vec<_>>(),
        vec![0.5; 5000]
    );
    for (lines, message) in [
        ("SGD\nmomentum: -0.5", "optimizer.momentum is -0.5, which is out of range"),
        ("SGD\nmomentum: 0.9\ndampening: -0.1", "optimizer.dampening is -0.1, which is out of range"),
        ("SGD\nmomentum: 0.9\ndampening: .nan", "optimizer.dampening must be a finite number, not .nan"),
        ("SGD\nnesterov: true", "optimizer.nesterov is true without a momentum"),
        ("SGD\nuse_nesterov: true", "optimizer.use_nesterov is true without a momentum"),
        ("SGD\nmomentum: 0.9\nnesterov: true\ndampening: 0.1", "optimizer.dampening is not 0, and Nesterov's"),
        ("SGD\nmomentum_schedule: {steps: [0], values: [0.5]}", "optimizer.momentum is 0, and there is a"),
        (
            "SGD\nmomentum: 0.5\ndampening: 0.5\nmomentum_schedule: {steps: [0, 1], values: [0, 0.5]}",
            "optimizer.dampening is not 0, and a momentum_schedule begins with 0",
        ),
        ("RMSprop\nparams: [{params: x, momentum_schedule: {steps: [0], values: [0.5]}}]", "optimizer.momentum is 0"),
        ("Adagrad\nmomentum_schedule: {steps: [0], values: [0.5]}", "momentum_schedule has no meaning for Adagrad"),
        (
            "Adagrad\nparams: [{params: x, momentum_schedule: {steps: [0], values: [0.5]}}]",
            "optimizer.params[0].momentum_schedule has no meaning for adagrad",
        ),
        ("AdamW\nmomentum_schedule: {steps: [0]}", "optimizer.momentum_schedule.values is missing"),
        ("AdamW\nmomentum_schedule: {steps: [0], values: [1]}", "momentum_schedule.values.0 is 1, which is out of"),
        ("AdamW\nmomentum_schedule: {steps: [0, 1], values: [0.5, .nan]}", "must be a finite number, not .nan"),
        ("AdamW\nmomentum_schedule: {steps: [0, 1], values: [0.5]}", "values has 1 numbers for 2 steps"),
        ("AdamW\nmomentum_schedule: {steps: [], values: []}", "momentum_schedule.steps are not ascending from 0"),
        ("AdamW\nmomentum_schedule: {steps: [1], values: [0.5]}", "momentum_schedule.steps are not ascending from 0"),
        ("AdamW\nmomentum_schedule: {steps: [0, 2, 2], values: [0.5, 0.6, 0.7]}", "steps are not ascending from 0"),
        ("Adadelta\nrho: 1", "optimizer.rho is 1, which is out of range"),
        ("Adadelta\namsgrad: true", "optimizer.amsgrad has no meaning for Adadelta"),
        (many.as_str(), "optimizer.momentum_schedule.steps has 5000 numbers"),
    ] {
        let report = resolve(&document(lines)).expect_err(lines).report();
        assert!(report.contains(message), "{lines}: {report}");
    }
}
