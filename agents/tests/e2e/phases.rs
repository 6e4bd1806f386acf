//! Tests of params with several phases.

use rustix::process::Signal;

use super::harness::TestDir;

/// Two phases with other lengths of samples and batches, after 6 and `LAST_STEP` steps.
const PHASES: &str = r"
trainer:
- trainer:
    init: &init
      model_dir: ./m
      seed: 3
      model: {name: gpt2, vocab_size: 256, hidden_size: 32, num_hidden_layers: 2, num_heads: 2, filter_size: 64,
        max_position_embeddings: 64, dropout_rate: 0.1}
      optimizer: {AdamW: {weight_decay: 0.1}}
      schedulers: [LinearLR: {initial_learning_rate: 1e-3, end_learning_rate: 1e-4, total_iters: 20}]
      loop: {max_steps: 6, eval_steps: 1}
      checkpoint: {steps: 3}
    fit:
      train_dataloader: &data {data_processor: GptTextDataProcessor, data_files: text.txt, tokenizer: bytes,
        batch_size: 4, max_sequence_length: 16, shuffle: true}
      val_dataloader: *data
- trainer:
    init:
      <<: *init
      loop: {max_steps: 600}
      checkpoint: {steps: 100}
    fit:
      train_dataloader: {<<: *data, batch_size: 2, max_sequence_length: 64}
      ckpt_path: ./m/checkpoint_6
";
const LAST_STEP: u64 = 600;

fn place() -> TestDir {
    let place = TestDir::new();
    place.write("phases.yaml", PHASES);
    place.write("text.txt", "Many are called, but few are chosen. ".repeat(200));
    place
}

#[test]
fn phases_have_the_bits_of_two_runs_also_after_interruptions() {
    let place = place();
    let whole = place.succeed("train -p phases.yaml -o whole");
    let begins: Vec<_> = whole.stdout.lines().filter(|line| line.starts_with("Phase ")).collect();
    assert_eq!(begins, ["Phase 1 of 2", "Phase 2 of 2"]);
    assert_eq!(place.evaluations("whole").len(), 1, "only the first phase evaluates");

    // The first phase is interrupted by its last step on the command line, the second one by a signal.
    let first = place.succeed("train -p phases.yaml -o m --max_steps 4");
    assert!(!first.stdout.contains("Phase "), "the second phase would begin later: {}", first.stdout);
    let mut second = place.start("train -p phases.yaml -o m --num_csx 2");
    second.wait_for("Phase 2 of 2");
    second.wait_for("Step=");
    second.signal(Signal::INT);
    assert_eq!(second.end().code(), 130);
    let third = place.succeed("train -p phases.yaml -o m");
    assert!(!third.stdout.contains("Phase 1 of 2"), "it is complete: {}", third.stdout);
    assert_eq!(place.result("m", LAST_STEP), place.result("whole", LAST_STEP));
}

#[test]
fn unusable_phases_are_rejected_before_the_first_begins() {
    let place = place();
    for (part, replacement, message) in [
        ("max_steps: 600", "max_steps: 6", "init.loop.max_steps is 6, but the phase before trains to step 6 already"),
        ("batch_size: 2, max_sequence_length: 64", "batch_size: 2, max_sequence_length: 65", "max_sequence_length"),
        ("ckpt_path: ./m/checkpoint_6", "ckpt_path: other", "not the last checkpoint of the phase before"),
    ] {
        assert!(PHASES.contains(part), "{part}");
        place.write("bad.yaml", PHASES.replace(part, replacement));
        let before = place.files();
        let refused = place.run("train -p bad.yaml -o bad");
        assert_eq!(refused.code(), 2, "{}", refused.stderr);
        assert!(refused.stderr.contains(message), "{message}: {}", refused.stderr);
        assert_eq!(place.files(), before, "{message}");
    }
    let plans: serde_json::Value = serde_json::from_str(&place.succeed("plan -p phases.yaml --json").stdout).unwrap();
    assert_eq!(plans["phases"].as_array().unwrap().len(), 2);
    assert!(place.succeed("data inspect -p phases.yaml --phase 2").stdout.contains("64"));
    assert!(place.run("data inspect -p phases.yaml --phase 3").stderr.contains("has 2 phase(s), and no phase 3"));
}
