//! Tests that a run that can't succeed is rejected before anything is started (missing data, a model too large for the
//! host), and that durations and epochs are reported.

use serde_json::Value;

use crate::harness::{CommandOutput, TestDir};

fn json(ended: &CommandOutput) -> Value {
    serde_json::from_str(&ended.stdout).unwrap()
}

const TEXT: (&str, &str) = (
    "data_processor: SyntheticDataProcessor",
    "data_processor: GptTextDataProcessor\n    tokenizer: bytes\n    vocab_size: 256\n    data_files: own.txt",
);
const VOCABULARY: (&str, &str) = ("    vocab_size: 64\n", "    vocab_size: 256\n");

#[test]
fn data_paths_are_checked_beside_params_before_start() {
    let place = TestDir::new();
    std::fs::create_dir(place.path("project")).unwrap();
    place.params("project/params.yaml", &[TEXT, VOCABULARY]);
    for line in ["train --validate_only -p", "train -o out -p"] {
        let refused = place.run(&format!("{line} project/params.yaml"));
        assert_eq!(refused.code(), 2, "{line}: {}", refused.stderr);
        assert!(refused.stderr.contains("own.txt does not exist"), "{}", refused.stderr);
        assert!(refused.stderr.contains("from the params file's directory"), "{}", refused.stderr);
    }
    // A plan needs no data, and reports that a run would.
    let planned = place.succeed("plan -p project/params.yaml").stdout;
    assert!(planned.contains("  data            can't be used: data file own.txt does not exist"), "{planned}");
    place.write("project/own.txt", b"\x89HDF\r\n\x1a\n and so on, long enough for a sample or two".as_slice());
    let planned = json(&place.succeed("plan --json -p project/params.yaml"));
    assert!(planned["data_problem"].as_str().unwrap().contains("is an HDF5 file"), "{planned}");

    place.write("project/own.txt", "In the beginning was the word. ".repeat(40));
    let planned = json(&place.succeed("plan --json -p project/params.yaml"));
    // 1240 tokens, each of which except the first is a label once, in samples of 16.
    assert_eq!((&planned["epoch"]["samples"], &planned["epoch"]["tokens"]), (&77.into(), &1232.into()));
    assert_eq!(planned["epoch"]["steps"], 77.0 / 8.0);
    assert_eq!(planned["host"]["fits"], true);
    assert!(planned["host"]["step"]["seconds"].as_f64() > Some(0.0), "{}", planned["host"]);
    let trained = place.succeed("train -o out -p project/params.yaml");
    let epoch = "One epoch of the training data is 77 samples, 1,232 tokens, 9.6 steps.";
    assert!(trained.stdout.contains(epoch), "{}", trained.stdout);
    // 154 samples are 19 complete batches of 8.
    let epochs = [TEXT, VOCABULARY, ("max_steps: 6", "max_epochs: 2\n    log_steps: 19"), ("    log_steps: 1\n", "")];
    place.params("project/epochs.yaml", &epochs);
    let trained = place.succeed("train -o epochs -p project/epochs.yaml");
    assert!(trained.stdout.contains("Training ends at step 19"), "{}", trained.stdout);
    assert!(place.path("epochs/checkpoint_19").is_dir());
}

#[test]
fn model_too_large_for_host_is_rejected_at_once() {
    let place = TestDir::new();
    let large = [
        ("hidden_size: 32", "hidden_size: 16384"),
        ("filter_size: 64", "filter_size: 65536"),
        ("num_hidden_layers: 3", "num_hidden_layers: 24"),
    ];
    place.params("large.yaml", &large);
    for line in ["train -o out -p large.yaml", "train --validate_only -p large.yaml"] {
        let refused = place.run(line);
        assert_eq!(refused.code(), 2, "{}", refused.stderr);
        for part in ["the run does not fit on this host: its processes need", "this host has", "are available"] {
            assert!(refused.stderr.contains(part), "{}", refused.stderr);
        }
    }
    assert!(!place.path("out").exists());
    let planned = place.run("plan -p large.yaml");
    assert_eq!(planned.code(), 1, "{}", planned.stderr);
    assert!(planned.stdout.contains("no on this host: "), "{}", planned.stdout);
    assert!(planned.stdout.contains("estimated from the speed"), "{}", planned.stdout);
}

/// Fine-tuning begins at step 0 with the weights of a later step. Without the necessary flag, the error names it.
#[test]
fn checkpoint_beyond_max_steps_suggests_fine_tuning() {
    let place = TestDir::new();
    place.succeed("train -p params.yaml -o first --max_steps 4");
    let again = place.succeed("train -p params.yaml -o first --max_steps 4");
    assert!(again.stdout.contains("No steps are left to train: step 4 is the last one"), "{}", again.stdout);
    for flags in [
        "-o second --checkpoint_path first/checkpoint_4",
        "-o second --checkpoint_path first/checkpoint_4 --validate_only",
        "-o first --validate_only",
    ] {
        let refused = place.run(&format!("train -p params.yaml --max_steps 2 {flags}"));
        assert_eq!(refused.code(), 2, "{flags}: {}", refused.stderr);
        assert!(refused.stderr.contains("--load_checkpoint_states model"), "{flags}: {}", refused.stderr);
    }
    place.succeed(
        "train -p params.yaml -o second --max_steps 2 --checkpoint_path first/checkpoint_4 --load_checkpoint_states model",
    );
}

/// With params that do not mention leaves, the number of systems can change at any time, with identical results.
#[test]
fn scaling_from_one_to_eight_systems_needs_one_flag() {
    let place = TestDir::new();
    place.params("auto.yaml", &[("    micro_batch_size: 1\n", ""), ("    micro_batch_size: 1\n", "")]);
    place.succeed("train -p auto.yaml -o one");
    place.succeed("train -p auto.yaml -o many --max_steps 3");
    place.succeed("train -p auto.yaml -o many --num_csx 8");
    let digest = |dir: &str| {
        let info = json(&place.succeed(&format!("checkpoint info --json {dir}/checkpoint_6")));
        info["parameters_blake3"].as_str().unwrap().to_owned()
    };
    assert_eq!(digest("one"), digest("many"));
}
