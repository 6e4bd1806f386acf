//! Resolves the keys of optimizers that need statistics of whole tensors.

use millrace_params::OptimizerKind;
use millrace_params::optimizers::{Adafactor, Lamb};

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
