//! Tests that the shipped examples resolve, and have the sizes that their names state.

mod common;

use common::resolved;
use millrace_params::{DataSource, ImageFormat, ImagePart, JobSpec};

fn example(name: &str) -> (String, JobSpec) {
    let path = format!("{}/../../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let resolved = resolved(&text);
    assert!(resolved.notes.is_empty() && resolved.ignored_keys.is_empty(), "{name}: {resolved:?}");
    (text, resolved.job)
}

/// Returns the number of weights in blocks and embeddings, without biases and norms.
fn weights(job: &JobSpec) -> usize {
    let m = &job.model;
    let block = 4 * m.hidden_size * m.hidden_size + 2 * m.hidden_size * m.filter_size;
    m.num_hidden_layers * block + (m.vocab_size + m.max_position_embeddings) * m.hidden_size
}

#[test]
fn sizes_are_as_named() {
    for (name, millions) in [
        ("gpt2-tiny", 0.1),
        ("gpt2-kjv", 0.85),
        ("gpt2-small", 124.0),
        ("gpt3-xl", 1_315.0),
        ("gpt3-6p7b", 6_657.0),
        ("gpt3-13b", 12_850.0),
        ("gpt3-20b", 20_253.0),
    ] {
        let found = weights(&example(name).1) as f64 / 1e6;
        assert!((found / millions - 1.0).abs() < 0.25, "{name} has {found} million weights");
    }
}

#[test]
fn main_example_has_eight_leaves_on_two_systems() {
    let (_, job) = example("gpt2-kjv");
    assert_eq!((job.train_input.leaves(), job.run.num_csx), (8, 2));
}

#[test]
fn examples_of_text_name_files_of_the_repository() {
    for name in ["gpt2-kjv", "llama-kjv", "bert-kjv", "t5-kjv"] {
        let (_, job) = example(name);
        let DataSource::Text { paths, .. } = &job.train_input.source else { panic!("{:?}", job.train_input.source) };
        for path in paths {
            assert!(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).is_file(), "{path}");
        }
        let eval = job.eval_input.as_ref().unwrap();
        assert_ne!((&eval.source, eval.split), (&job.train_input.source, job.train_input.split), "{name}");
    }
}

#[test]
fn examples_of_images_name_files_of_the_repository() {
    for name in ["mlp-digits", "vit-digits"] {
        let (_, job) = example(name);
        let eval = job.eval_input.as_ref().unwrap();
        for (input, expected) in [(&job.train_input, ImagePart::Train), (eval, ImagePart::Validation)] {
            let DataSource::Images { paths, images } = &input.source else { panic!("{:?}", input.source) };
            assert_eq!((images.part, images.format, images.classes), (expected, ImageFormat::Idx, 10));
            assert!(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(&paths[0]).is_dir());
        }
    }
}

/// Five changed lines lead from 1.3 to 6.7 billion parameters.
#[test]
fn xl_and_6p7b_differ_in_five_lines() {
    let (xl, larger) = (example("gpt3-xl").0, example("gpt3-6p7b").0);
    assert_eq!(xl.lines().count(), larger.lines().count());
    let keys: Vec<&str> = xl
        .lines()
        .zip(larger.lines())
        .filter(|(a, b)| a != b)
        .map(|(a, _)| a.trim().split(':').next().unwrap())
        .collect();
    assert_eq!(keys, ["hidden_size", "num_hidden_layers", "num_heads", "filter_size", "save_summary_steps"]);
}
