//! Tests that the reference of the keys states what the resolver does.

#[path = "../common/mod.rs"]
mod common;
mod document;
mod values;

use std::collections::BTreeSet;

use document::Document;
use millrace_params::reference::{self, DefaultValue, KeyReference, SectionReference};
use millrace_params::{MachineDocument, MachineSpec, ParamsProblemKind};
use serde_json::Value;
use values::{described, sample};

/// A key with its path, such as `optimizer.learning_rate.scheduler`.
struct Key {
    path: String,
    key: &'static KeyReference,
    section: &'static SectionReference,
}

impl Key {
    fn is_in_eval_input(&self) -> bool {
        self.path.starts_with("eval_input.")
    }

    fn default(&self) -> DefaultValue {
        self.key.eval_default().filter(|_| self.is_in_eval_input()).unwrap_or(self.key.default())
    }
}

/// Returns every key below the sections of the document.
fn keys() -> Vec<Key> {
    fn add(parent: &str, section: &'static SectionReference, keys: &mut Vec<Key>) {
        for key in section.keys {
            let path = format!("{parent}.{}", key.name);
            if let Some(nested) = key.section {
                add(&path, nested, keys);
            }
            keys.push(Key { path, key, section });
        }
    }
    let mut keys = Vec::new();
    for (name, section) in reference::sections() {
        add(name, section, &mut keys);
    }
    keys
}

/// Returns whether a key belongs to the items of a list, which other tests cover.
fn is_in_a_list(path: &str) -> bool {
    ["mixture.", "transforms.", "optimizer.params."].iter().any(|list| path.contains(list))
}

#[test]
fn documented_defaults_equal_those_of_the_resolver() {
    for key in keys().iter().filter(|key| key.key.has_effect() && key.key.alias_of().is_none()) {
        let path = key.path.as_str();
        if is_in_a_list(path) {
            continue;
        }
        let mut document = Document::with_place_for(path);
        if let Some((parent, "a" | "b")) = path.rsplit_once('.') {
            document = document.set(parent, "{name: uniform}");
        }
        if path == "eval_input.data_processor" {
            // A processor needs files.
            document = document.set("eval_input.data_files", "[c.txt]");
        }
        let omitted = document.clone().without(path);
        match key.default() {
            DefaultValue::Required => assert_eq!(omitted.problem(path), Some(ParamsProblemKind::Missing), "{path}"),
            DefaultValue::RequiredIf(_) => check_condition(path, &omitted),
            DefaultValue::Yaml(yaml) => {
                assert_eq!(document.set(path, yaml).job(), omitted.job(), "{path}: {yaml}");
            }
            DefaultValue::FromKey(source) => {
                let source_given = omitted.set(source, sample(source));
                let both_given = source_given.clone().set(path, sample(source));
                assert_eq!(both_given.job(), source_given.job(), "{path} is not {source}");
                assert_ne!(document.without(path).without(source).resolve().ok(), Some(both_given.job()), "{source}");
            }
            DefaultValue::Described(_) => {
                if path.ends_with(".milestones") || path.ends_with(".gamma") {
                    assert_eq!(omitted.problem(path), Some(ParamsProblemKind::Missing), "{path}");
                    continue;
                }
                let job = omitted.job();
                if let Some(yaml) = described(path) {
                    assert_eq!(document.set(path, yaml).job(), job, "{path}: {yaml}");
                }
            }
        }
    }
}

/// Checks a key that is required on a condition: `omitted` fulfils it.
fn check_condition(path: &str, omitted: &Document) {
    let (reported, omitted) = match path {
        "train_input.data_dir" => ("train_input.data_files", omitted.clone().without("train_input.data_files")),
        "runconfig.max_steps" => {
            assert!(omitted.clone().set("runconfig.max_epochs", "1").resolve().is_ok());
            assert!(omitted.clone().set("runconfig.mode", "eval").resolve().is_ok());
            (path, omitted.clone())
        }
        _ => (path, omitted.clone()),
    };
    assert_eq!(omitted.problem(reported), Some(ParamsProblemKind::Missing), "{path}");
}

#[test]
fn eval_input_is_required_by_modes_that_evaluate() {
    let document = Document::with_place_for("").without("eval_input");
    assert_eq!(document.problem("eval_input"), Some(ParamsProblemKind::Missing));
    assert!(document.set("runconfig.mode", "train").resolve().is_ok());
}

#[test]
fn documented_choices_equal_those_of_the_resolver() {
    for key in keys().into_iter().filter(|key| !is_in_a_list(&key.path)) {
        let path = key.path.as_str();
        let document = Document::with_place_for(path);
        // A problem with an initializer is reported at the mapping, not at its name.
        let reported = match path.strip_suffix(".name") {
            Some(initializer) if initializer.ends_with("initializer") => initializer,
            _ => path,
        };
        let problem = |yaml: &str| {
            let mut document = document.for_choice(path, yaml).set(path, yaml);
            if path == "eval_input.tokenizer" {
                // Both inputs have the same tokenizer.
                document = document.set("train_input.tokenizer", yaml);
            }
            if path == "eval_input.token_dtype" {
                // Both inputs read the same files.
                document = document.set("train_input.token_dtype", yaml);
            }
            if path == "eval_input.data_processor" {
                // Both inputs are for the same kind of model.
                document = document.set("train_input.data_processor", yaml);
            }
            document.problem(reported)
        };
        for choice in key.key.choices() {
            // A distribution without its bounds or a schedule without its lengths is a problem of another key.
            assert_eq!(problem(choice), None, "{path}: {choice}");
        }
        for choice in key.key.unsupported_choices() {
            assert_eq!(problem(choice), Some(ParamsProblemKind::NotSupported), "{path}: {choice}");
        }
        if !key.key.choices().is_empty() {
            let wrong = problem("no_such_choice").unwrap_or_else(|| panic!("{path} accepts any word"));
            assert!(matches!(wrong, ParamsProblemKind::Invalid | ParamsProblemKind::WrongType), "{path}: {wrong:?}");
        }
        if key.key.is_fixed() {
            let DefaultValue::Yaml(only) = key.default() else { panic!("{path} has no value") };
            let other = match only {
                "true" => "false",
                "false" => "true",
                _ => "7",
            };
            assert_eq!(problem(other), Some(ParamsProblemKind::NotSupported), "{path}: {other}");
        }
    }
}

#[test]
fn aliases_mean_the_same_as_their_keys() {
    for key in keys() {
        let Some(name) = key.key.alias_of() else { continue };
        assert!(key.section.key(name).is_some_and(|key| key.alias_of().is_none()), "{}: {name}", key.path);
        let canonical = format!("{}.{name}", key.path.rsplit_once('.').unwrap().0);
        let document = Document::with_place_for(&key.path).without(&canonical);
        let (alias, canonical) = match key.key.name {
            "beta1" => (document.clone().set(&key.path, "0.5"), document.set(&canonical, "[0.5, 0.999]")),
            "beta2" => (document.clone().set(&key.path, "0.5"), document.set(&canonical, "[0.9, 0.5]")),
            _ => {
                let yaml = sample(&canonical);
                (document.clone().set(&key.path, yaml), document.set(&canonical, yaml))
            }
        };
        assert_eq!(alias.job(), canonical.job(), "{}", key.path);
    }
}

#[test]
fn ignored_keys_do_not_change_the_job() {
    for key in keys().iter().filter(|key| !key.key.has_effect() && !is_in_a_list(&key.path)) {
        let yaml = match key.key.value_type {
            "true or false" => "true",
            "a string" | "a string or a list of strings" => "text",
            _ => "3",
        };
        let document = Document::with_place_for(&key.path);
        assert_eq!(document.clone().set(&key.path, yaml).job(), document.job(), "{}", key.path);
    }
}

#[test]
fn every_key_is_described_in_sentences() {
    let mut undescribed = BTreeSet::new();
    for key in keys() {
        let text = key.key.description();
        let starts = text.starts_with(|c: char| c.is_uppercase());
        if !(starts && text.ends_with('.') && !text.contains("by default")) {
            undescribed.insert(key.path);
        }
    }
    assert_eq!(undescribed, BTreeSet::new());
}

#[test]
fn documented_defaults_of_the_machine_are_those_of_its_spec() {
    let document = serde_json::to_value(MachineSpec::default().to_document()).unwrap();
    fn check(parent: &str, section: &SectionReference, document: &Value) {
        for key in section.keys {
            let (path, default) = (format!("{parent}{}", key.name), document.get(camel_case(key.name)));
            if let (Some(nested), Some(default)) = (key.section, default) {
                check(&format!("{path}."), nested, default);
            } else if let DefaultValue::Yaml(yaml) = key.default() {
                let path: Vec<String> = path.split('.').map(camel_case).collect();
                let nested = path.iter().rev().fold(yaml.to_owned(), |yaml, key| format!("{{{key}: {yaml}}}"));
                assert_eq!(MachineSpec::parse_yaml(&nested).unwrap(), MachineSpec::default(), "{nested}");
            } else {
                assert_eq!(default, None, "{path} has a default");
            }
        }
    }
    check("", MachineDocument::REFERENCE, &document);
}

fn camel_case(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |camel, word| format!("{camel}{}{}", word[..1].to_uppercase(), &word[1..]))
}

#[test]
fn explain_finds_keys_aliases_and_near_misses() {
    for (path, expected) in [
        ("", "runconfig"),
        ("model", "num_hidden_layers"),
        ("model.nonlinearity", "gelu, gelu_new, gelu_fast"),
        ("nonlinearity", "model.nonlinearity"),
        ("optimizer.weight_decay_rate", "another spelling of optimizer.weight_decay"),
        ("optimizer.learning_rate.0.scheduler", "CosineDecay"),
        ("eval_input.batch_size", "the value of train_input.batch_size"),
        ("runconfig.target_device", "none: the key is accepted"),
        ("model.pos_scaling_extra_args.low_freq_factor", "original_max_position_embeddings"),
        ("model.moe", "not supported yet: leave it out for a dense feed-forward network"),
        ("inference_input", "not supported yet"),
    ] {
        let text = reference::explain(path).unwrap_or_else(|error| panic!("{error}"));
        assert!(text.contains(expected), "{expected:?} in {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }
    for (path, suggestion) in [
        ("model.nonlinarity", Some("model.nonlinearity")),
        ("nonlinarity", Some("model.nonlinearity")),
        ("modle.num_heads", Some("model.num_heads")),
        ("runconfg", Some("runconfig")),
        ("model.nonlinearity.x", Some("model.nonlinearity")),
        ("flux_capacitor", None),
        (".", None),
    ] {
        let error = reference::explain(path).expect_err(path);
        assert_eq!((error.path.as_str(), error.suggestion.as_deref()), (path, suggestion));
    }
}

#[test]
fn every_key_can_be_explained() {
    for key in keys() {
        let text = reference::explain(&key.path).unwrap_or_else(|error| panic!("{error}"));
        let name = key.key.alias_of().unwrap_or(key.key.name);
        assert!(text.contains(name), "{text}");
    }
}
