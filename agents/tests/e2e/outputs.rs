//! Tests of the files that a run writes, and of the output of the other commands.

use std::path::Path;

use super::harness::{PARAMS, TestDir};

#[test]
fn model_dir_has_every_file_and_the_lines_are_as_documented() {
    let place = TestDir::new();
    let ended = place.succeed("train_and_eval -p params.yaml -o m --num_csx 2 --num_act_servers 3");
    assert!(ended.stdout.contains("Without effect on this appliance: num_act_servers above 1"), "{}", ended.stdout);
    assert!(ended.stdout.contains("| Train Device=CSX, Step=6, Loss="), "{}", ended.stdout);
    assert!(ended.stdout.contains("| Eval Device=CSX, GlobalStep=6, Batch=2, Loss="), "{}", ended.stdout);
    assert!(!ended.stdout.contains("listening"), "{}", ended.stdout);
    let files = place.files();
    let mut expected: Vec<String> =
        ["metrics.jsonl", "performance.json", "params.yaml", "job.json"].map(Into::into).into();
    expected.extend(["journal/attempt-1.jsonl", "checkpoint_6/manifest.json"].map(Into::into));
    for agent in "coordinator-0 memoryx-0 memoryx-1 swarmx-0 activation-0 activation-1 cs2-0 cs2-1".split(' ') {
        expected.push(format!("logs/attempt-1/{agent}.log"));
    }
    let missing: Vec<_> = expected.iter().filter(|name| !files.contains(&Path::new("m").join(name))).collect();
    assert!(missing.is_empty(), "{missing:?} in {files:?}");
    assert!(files.iter().any(|path| path.to_string_lossy().contains("events.out.tfevents.")), "{files:?}");

    let metrics = std::fs::read_to_string(place.path("m/metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps = |mode: Option<&str>| -> Vec<u64> {
        lines.iter().filter(|line| line["mode"].as_str() == mode).map(|line| line["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(steps(None), [1, 2, 3, 4, 5, 6]);
    assert_eq!(steps(Some("eval")), [2, 4, 6]);
    for line in lines {
        let trains = line["mode"].is_null();
        assert!(
            line["loss"].as_f64().unwrap().is_finite() && line["tokens"] == if trains { 128 } else { 256 },
            "{line}"
        );
        assert!(line["seconds"].as_f64().unwrap() > 0.0);
        assert_eq!(line["learning_rate"].is_f64() && line["grad_norm"].is_f64(), trains, "{line}");
    }
}

#[test]
fn evaluating_adds_lines_and_changes_nothing_else() {
    let place = TestDir::new();
    place.params("params.yaml", &[("max_steps: 6", "max_steps: 6\n    checkpoint_steps: 3")]);
    place.succeed("train -p params.yaml -o m --num_csx 2");
    let before = (place.info("m/checkpoint_6"), place.train_lines("m"));
    let one = place.succeed("eval -p params.yaml -o m --num_csx 1 --checkpoint_path m/checkpoint_3");
    assert!(one.stdout.contains("GlobalStep=3"), "{}", one.stdout);
    let all = place.succeed("eval_all -p params.yaml -o m --num_csx 2");
    let of = |text: &str| all.stdout.matches(text).count();
    assert_eq!(
        (of("GlobalStep=3, Batch=2"), of("GlobalStep=6, Batch=2"), of("completed")),
        (1, 1, 1),
        "{}",
        all.stdout
    );
    let [one, three, six] = place.evaluations("m")[..] else { panic!("{}", all.stdout) };
    assert_eq!((one, three.0, six.0), (three, 3, 6));
    assert_ne!(three.1, six.1);
    place.succeed("eval_all -p params.yaml -o other --checkpoint_path m");
    assert_eq!(place.evaluations("other"), [three, six], "every one of another run");
    assert_eq!((place.info("m/checkpoint_6"), place.train_lines("m")), before);
}

#[test]
fn failed_validation_writes_nothing() {
    let place = TestDir::new();
    let before = place.files();
    let valid = place.succeed("train -p params.yaml -o m --validate_only");
    assert!(valid.stdout.contains("valid"), "{}", valid.stdout);
    let compiled = place.succeed("train -p params.yaml -o m --compile_only");
    assert!(compiled.stdout.contains("Projection"), "{}", compiled.stdout);
    assert_eq!(place.files(), before);
}

#[test]
fn unused_embedding_rows_are_not_sent() {
    const VOCABULARY: u64 = 4096;
    let place = TestDir::new();
    place.params("params.yaml", &[("vocab_size: 64", &format!("vocab_size: {VOCABULARY}"))]);
    let json = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let traffic = json(&place.succeed("plan -p params.yaml --num_csx 2 --json").stdout)["traffic"].take();
    let payload = ["weights_down", "gradients_up"].map(|way| traffic[way].as_u64().unwrap()).iter().sum::<u64>();
    place.succeed("train -p params.yaml -o m --num_csx 2");
    let performance = json(&std::fs::read_to_string(place.path("m/performance.json")).unwrap());
    let agents = performance["agents"].as_object().unwrap().values();
    let moved: u64 = agents.map(|agent| agent["bytes_out"].as_u64().unwrap()).sum::<u64>() / 6;
    // The gradient of the lookup has this size on three links: from two systems, and from the SwarmX node to MemoryX.
    // The other use of the table, in the loss, has a gradient in every row.
    let lookups = 3 * 4 * 32 * VOCABULARY;
    assert!((payload - lookups..payload - lookups / 10 * 8).contains(&moved), "{moved} of {payload}, {lookups}");
}

#[test]
fn samples_are_what_the_model_sees() {
    let place = TestDir::new();
    place.succeed("samples -p params.yaml --steps 3 -o samples.safetensors");
    let file = std::fs::read(place.path("samples.safetensors")).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    for name in ["input_ids", "labels"] {
        assert_eq!(header[name]["dtype"], "I32");
        assert_eq!(header[name]["shape"], serde_json::json!([3, 8, 16]));
    }
}

/// Converted data are those of the text, and damage to them is found.
#[test]
fn data_are_inspected_converted_and_verified() {
    let place = TestDir::new();
    let processor = "data_processor: SyntheticDataProcessor";
    place.write("params.yaml", &PARAMS.replacen(processor, &format!("{processor}\n    num_samples: 80"), 1));
    let inspected = place.succeed("data inspect -p params.yaml --samples 2").stdout;
    assert!(inspected.contains("Sample 1") && inspected.contains("16 of 16 count"), "{inspected}");
    place.succeed("data convert -p params.yaml hdf5 --samples_per_file 50");
    let hdf5 = "data_processor: GptHDF5DataProcessor\n    data_dir: hdf5";
    place.write("hdf5.yaml", &PARAMS.replacen(processor, hdf5, 1));
    let verified = place.succeed("data verify -p hdf5.yaml").stdout;
    assert!(verified.contains("All 80 samples") && verified.contains("1,280 of 1,280 labels count"), "{verified}");
    let last = place.path("hdf5/output_chunk_1.h5");
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() - 1]).unwrap();
    let ended = place.run("data verify -p hdf5.yaml");
    assert!(ended.code() == 2 && ended.stderr.contains("output_chunk_1.h5 is truncated"), "{}", ended.stderr);
    let ended = place.run("data convert -p params.yaml hdf5");
    assert!(ended.code() == 2 && ended.stderr.contains("hdf5 is not empty"), "{}", ended.stderr);
}

#[test]
fn every_example_has_a_plan() {
    let place = TestDir::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(&examples).unwrap() {
        let path = entry.unwrap().path();
        // Files with other names are not params of a model.
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("gpt")) {
            let ended = place.run(&format!("plan --json -p {}", path.display()));
            let plan: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
            assert_eq!(ended.code(), i32::from(plan["host"]["fits"] == false), "{}", ended.stderr);
            for key in ["plan", "parameters", "layers", "chunks", "leaves", "bytes", "projection"] {
                assert!(!plan[key].is_null(), "{} has no {key}", path.display());
            }
            seen += 1;
        }
    }
    assert!(seen >= 7, "{seen} examples");
}
