//! Tests of errors in the user's input: exit code 2, one sentence, a hint, and nothing is written.

use super::harness::TestDir;

/// Replacements in the params, each `(from, to)`.
type Changes = &'static [(&'static str, &'static str)];

const SYNTHETIC: &str = "data_processor: SyntheticDataProcessor";
/// Bytes of a text file instead of synthetic samples.
macro_rules! text {
    ($file:literal) => {
        (SYNTHETIC, concat!("data_processor: GptTextDataProcessor\n    tokenizer: bytes\n    data_files: ", $file))
    };
}
/// The vocabulary size that bytes need.
const BYTES: (&str, &str) = ("vocab_size: 64", "vocab_size: 256");

/// Replacements in the params, and the text that the error must contain.
const WRONG_PARAMS: &[(Changes, &str)] = &[
    (&[("hidden_size: 32", "hiden_size: 32")], "hiden_size"),
    (&[("hidden_size: 32", "hidden_size: wide")], "hidden_size"),
    (&[("hidden_size: 32", "hidden_size: 32\n    hidden_size: 64")], "hidden_size"),
    (&[("seed: 3", "seed: [")], "line"),
    (&[("batch_size: 8", "batch_size: 0")], "batch_size"),
    (&[("num_heads: 2", "num_heads: 5")], "num_heads"),
    (&[("max_position_embeddings: 16", "max_position_embeddings: 8")], "16"),
    (&[("max_steps: 6", "max_steps: 0")], "max_steps"),
    (&[(SYNTHETIC, "data_processor: GptHDF5DataProcessor\n    data_dir: text.txt")], "expected an HDF5 file"),
    (&[(SYNTHETIC, "data_processor: BertHDF5DataProcessor\n    data_dir: d")], "BertHDF5DataProcessor"),
    (&[BYTES, text!("gone.txt")], "gone.txt"),
    (&[BYTES, text!("'*.none'")], "*.none"),
    (&[BYTES, text!("empty.txt")], "empty"),
    (&[BYTES, text!("short.txt")], "17"),
    (&[text!("text.txt")], "vocab_size"),
    (&[(SYNTHETIC, "data_processor: GptTokenDataProcessor\n    data_files: large.bin")], "vocabulary of 64"),
];

/// Flags, and the text that the error must contain.
const WRONG_FLAGS: &[(&str, &str)] = &[
    ("--num_csx 9", "--num_csx is 9"),
    ("--num_csx 0", "--num_csx"),
    ("--num_csx two", "two"),
    ("--num_csy 2", "--num_csy"),
    ("--num_csx 3 --appliance two.yaml", "2"),
    ("--appliance small.yaml", "wafer"),
    ("--appliance wrong.yaml", "wafr"),
    ("--appliance gone.yaml", "gone.yaml"),
    ("--checkpoint_path gone", "gone"),
    ("--load_checkpoint_states everything", "everything"),
    ("--base_port 65530", "65530"),
    ("-o text.txt", "text.txt"),
];

#[test]
fn bad_input_gives_one_sentence_and_a_hint_and_writes_nothing() {
    let place = TestDir::new();
    place.write("empty.txt", "");
    place.write("text.txt", "zebras ".repeat(100));
    place.write("short.txt", "a few words");
    place.write("large.bin", [65, 0].repeat(100));
    place.write("two.yaml", "systems: 2\n");
    place.write("small.yaml", "wafer: {memoryBytes: 4kB}\n");
    place.write("wrong.yaml", "wafr: {}\n");
    let by_params = WRONG_PARAMS.iter().map(|&(changes, says)| (changes, "", says));
    let by_flags = WRONG_FLAGS.iter().map(|&(flags, says)| (&[] as Changes, flags, says));
    for (changes, flags, says) in by_params.chain(by_flags) {
        place.params("bad.yaml", changes);
        let before = place.files();
        let model_dir = if flags.contains("-o ") { "" } else { "-o m" };
        let ended = place.run(&format!("train -p bad.yaml {model_dir} {flags}"));
        let of = format!("{changes:?} {flags}\n{}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.code(), 2, "{of}");
        let (error, hint) = ended.stderr.split_once('\n').unwrap_or_else(|| panic!("{of}"));
        assert!(error.starts_with("error: ") && error.contains(says), "{of}");
        assert!(hint.starts_with("hint: "), "{of}");
        assert!(ended.stdout.is_empty(), "{of}");
        assert_eq!(place.files(), before, "{of}");
    }
}

/// `--validate_only` rejects what the start would reject.
#[test]
fn validation_covers_checkpoint_and_model_dir() {
    let place = TestDir::new();
    place.write("afile", "not a directory");
    for (line, says) in [
        ("train -p params.yaml -o m --checkpoint_path gone", "gone"),
        ("eval -p params.yaml -o m", "m to evaluate"),
        ("eval_all -p params.yaml -o m", "m to evaluate"),
        ("train -p params.yaml -o afile", "model_dir afile is not a directory"),
        ("train -p params.yaml -o afile/m", "can't create model_dir afile/m: afile is not a directory"),
    ] {
        let before = place.files();
        for flag in ["--validate_only", ""] {
            let ended = place.run(&format!("{line} {flag}"));
            assert_eq!(ended.code(), 2, "{line} {flag}\n{}", ended.stderr);
            assert!(ended.stderr.contains(says) && ended.stderr.contains("\nhint: "), "{line}\n{}", ended.stderr);
        }
        assert_eq!(place.files(), before, "{line}");
    }
    place.succeed("train -p params.yaml -o new/m --validate_only");
    assert!(!place.path("new").exists());
}

#[test]
fn missing_things_are_named() {
    let place = TestDir::new();
    for (line, says) in [
        ("train -p gone.yaml", "gone.yaml"),
        ("train", "--params"),
        ("trian -p params.yaml", "trian"),
        ("eval -p params.yaml -o m", "m to evaluate"),
        ("eval_all -p params.yaml -o m", "m to evaluate"),
        ("checkpoint info gone", "gone"),
        ("checkpoint verify gone", "gone"),
        ("checkpoint export gone --to hf out", "gone"),
        ("checkpoint import gone -p params.yaml -o m", "can't import gone: it is not a directory"),
        ("samples -p gone.yaml --steps 1 -o out", "gone.yaml"),
        ("plan -p gone.yaml", "gone.yaml"),
        ("role cs2", "role"),
    ] {
        let before = place.files();
        let ended = place.run(line);
        assert_eq!(ended.code(), 2, "{line}\n{}", ended.stderr);
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(says), "{line}\n{}", ended.stderr);
        assert!(ended.stderr.contains("\nhint: "), "{line}\n{}", ended.stderr);
        assert_eq!(place.files(), before, "{line}");
    }
}

#[test]
fn all_params_errors_are_reported_together() {
    let place = TestDir::new();
    place.params("bad.yaml", &[("hidden_size: 32", "hiden_size: 32"), ("max_steps: 6", "maxsteps: 6")]);
    let ended = place.run("train -p bad.yaml -o m");
    let errors = ended.stderr.lines().filter(|line| line.starts_with("error: ")).count();
    assert!(
        errors >= 2 && ended.stderr.contains("hidden_size") && ended.stderr.contains("max_steps"),
        "{}",
        ended.stderr
    );
}

#[test]
fn explain_prints_a_key_or_suggests_one() {
    let place = TestDir::new();
    let printed = place.run("explain model.nonlinearity");
    assert_eq!(printed.code(), 0, "{}", printed.stderr);
    assert!(printed.stdout.contains("gelu, gelu_new, gelu_fast"), "{}", printed.stdout);
    let unknown = place.run("explain model.nonlinarity");
    assert_eq!(unknown.code(), 2, "{}", unknown.stderr);
    let expected = "error: model.nonlinarity is not a key of the params\nhint: did you mean model.nonlinearity?\n";
    assert_eq!(unknown.stderr, expected);
    assert!(unknown.stdout.is_empty(), "{}", unknown.stdout);
}
