//! Tests training on HDF5 files in the formats of the public model zoo.

use std::path::Path;

use super::harness::{RunResult, TestDir};

const SYNTHETIC: &str = "data_processor: SyntheticDataProcessor";

/// Returns a directory whose `data` has the fixtures that agents/data/tests/fixtures/write.py wrote.
fn place_with_fixtures() -> TestDir {
    let place = TestDir::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tests/fixtures");
    std::os::unix::fs::symlink(fixtures, place.path("data")).unwrap();
    place
}

/// Token `index` of the stream in the fixtures.
fn token(index: usize) -> u16 {
    ((index * 7 + index * index % 13 + index / 64) % 64) as u16
}

fn train(place: &TestDir, params: &str, flags: &str, model_dir: &str) -> RunResult {
    place.succeed(&format!("train_and_eval -p {params} -o {model_dir} {flags}"));
    place.result(model_dir, 6)
}

#[test]
fn both_formats_train_as_token_files_on_any_number_of_systems() {
    let place = place_with_fixtures();
    place.write("stream.bin", (0..1000).flat_map(|index| token(index).to_le_bytes()).collect::<Vec<u8>>());
    let source = |processor: &str, dir: &str| format!("data_processor: {processor}\n    data_dir: {dir}");
    place.params("tokens.yaml", &[(SYNTHETIC, &source("GptTokenDataProcessor", "stream.bin"))]);
    place.params("samples.yaml", &[(SYNTHETIC, &source("GptHDF5MapDataProcessor", "data/samples"))]);
    place.params("corpus.yaml", &[(SYNTHETIC, &source("GptHDF5DataProcessor", "[data/corpus]"))]);
    let baseline = train(&place, "tokens.yaml", "", "tokens");
    assert_eq!(train(&place, "samples.yaml", "", "samples"), baseline);
    assert_eq!(train(&place, "corpus.yaml", "--num_csx 3 --num_act_servers 2", "corpus"), baseline);
    // Resumed by other agents.
    place.succeed("train_and_eval -p samples.yaml -o resumed --max_steps 2 --num_csx 2");
    assert_eq!(train(&place, "samples.yaml", "--num_csx 4 --num_act_servers 2", "resumed"), baseline);
}

#[test]
fn packed_samples_train_on_any_number_of_systems() {
    let place = place_with_fixtures();
    let hdf5 = "data_processor: GptHDF5DataProcessor\n    data_dir: data/packed.h5\n    use_vsl: True";
    place.params("packed.yaml", &[(SYNTHETIC, hdf5)]);
    let plain = hdf5.replace("    use_vsl: True", "").replace("packed.h5", "masked.h5");
    place.params("plain.yaml", &[(SYNTHETIC, &plain)]);
    let baseline = train(&place, "packed.yaml", "", "packed");
    assert_eq!(train(&place, "packed.yaml", "--num_csx 3 --num_act_servers 2", "three"), baseline);
    assert_ne!(train(&place, "plain.yaml", "", "plain").steps, baseline.steps);
    // A model of packed samples is exported, and continues a text, as any other.
    place.succeed("checkpoint export packed/checkpoint_6 --to hf exported");
    let text = place.succeed("generate -c packed/checkpoint_6 --prompt_tokens 1,2,3 --max_tokens 4 --temperature 0");
    assert!(!text.stdout.is_empty(), "{}", text.stderr);
}

#[test]
fn length_is_that_of_the_files_unless_given() {
    let place = place_with_fixtures();
    let hdf5 = "data_processor: GptHDF5DataProcessor\n    data_dir: data/samples";
    let positions = |number| ("max_position_embeddings: 16", number);
    place.params(
        "short.yaml",
        &[(SYNTHETIC, hdf5), ("    max_sequence_length: 16\n", ""), positions("max_position_embeddings: 32")],
    );
    let samples = place.succeed("samples -p short.yaml --steps 1 -o out.safetensors");
    assert!(samples.stdout.contains("Wrote"), "{}", samples.stdout);
    place.params(
        "long.yaml",
        &[(SYNTHETIC, hdf5), ("    max_sequence_length: 16\n", ""), positions("max_position_embeddings: 8")],
    );
    let refused = place.run("train -p long.yaml -o m");
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr.contains("longer than model.max_position_embeddings 8"), "{}", refused.stderr);
    place.params("other.yaml", &[(SYNTHETIC, hdf5), ("max_sequence_length: 16", "max_sequence_length: 12")]);
    let refused = place.run("train -p other.yaml -o m");
    assert_eq!(refused.code(), 2);
    assert!(refused.stderr.contains("has samples of 16 tokens, but max_sequence_length is 12"), "{}", refused.stderr);
}

#[test]
fn plan_needs_no_data() {
    let place = TestDir::new();
    place.params("gone.yaml", &[(SYNTHETIC, "data_processor: GptHDF5DataProcessor\n    data_dir: gone/data")]);
    let planned = place.succeed("plan -p gone.yaml");
    assert_eq!(planned.stdout.matches("gone/data").count(), 1, "{}", planned.stdout);
    for command in ["train -p gone.yaml -o m", "train -p gone.yaml -o m --validate_only"] {
        let refused = place.run(command);
        assert_eq!(refused.code(), 2);
        assert!(refused.stderr.contains("gone/data does not exist"), "{}", refused.stderr);
    }
}

#[test]
fn bad_sample_ends_training_with_file_and_number() {
    let place = place_with_fixtures();
    let hdf5 = "data_processor: GptHDF5DataProcessor\n    data_dir: data/bad/token.h5";
    place.params("bad.yaml", &[(SYNTHETIC, hdf5), ("eval_input:\n    batch_size: 8\n    micro_batch_size: 1\n", "")]);
    let ended = place.run("train -p bad.yaml -o m --num_csx 2");
    assert_eq!(ended.code(), 1, "{}\n{}", ended.stdout, ended.stderr);
    let says = "sample 4 of data/bad/token.h5: token 64 is outside the vocabulary of 64";
    assert!(ended.stderr.contains(says), "{}\n{}", ended.stdout, ended.stderr);
    // Another attempt would read the same sample.
    let entries = std::fs::read_dir(place.path("m/journal")).unwrap();
    let journal: String = entries.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    assert!(journal.contains("\"BadData\""), "{journal}");
}
