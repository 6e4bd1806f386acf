//! Tests the JSON schemas: those of the document types, and the one for editors.

use std::path::{Path, PathBuf};

use millrace_params::reference::{self, editor_schema, to_markdown};
use millrace_params::{MachineDocument, Params};
use serde_json::Value;

/// Adds the path of every property without a description.
fn undescribed(path: &str, schema: &Value, found: &mut Vec<String>) {
    let Value::Object(map) = schema else { return };
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    if property.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
                        found.push(format!("{path}.{name}"));
                    }
                    undescribed(&format!("{path}.{name}"), property, found);
                }
            }
            (_, Value::Object(_)) => undescribed(&format!("{path}/{key}"), value, found),
            _ => {}
        }
    }
}

#[test]
fn every_key_is_described() {
    for schema in [schemars::schema_for!(Params), schemars::schema_for!(MachineDocument)] {
        let schema = schema.to_value();
        let mut found = Vec::new();
        undescribed("", &schema, &mut found);
        assert_eq!(found, Vec::<String>::new());
    }
    let schema = schemars::schema_for!(Params).to_value();
    for (_, section) in reference::sections() {
        let properties = schema["$defs"][section.type_name]["properties"].as_object().unwrap();
        assert_eq!(properties.len(), section.keys.len(), "{}", section.type_name);
        for key in section.keys {
            assert_eq!(properties[key.name]["description"], key.summary(), "{}.{}", section.type_name, key.name);
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn reference_is_up_to_date() {
    for (name, text) in [("params.md", to_markdown()), ("params.schema.json", format!("{:#}\n", editor_schema()))] {
        let path = root().join("docs/reference").join(name);
        let command = "cargo xtask generate";
        assert!(std::fs::read_to_string(path).unwrap_or_default() == text, "{name} is stale: {command}");
    }
}

#[test]
fn reference_has_short_lines() {
    for line in to_markdown().lines() {
        assert!(line.chars().count() <= 120, "{line}");
    }
}

/// Returns the params files of the repository.
fn params_files() -> Vec<PathBuf> {
    let mut files = vec![root().join("tests/api/params.yaml")];
    for folder in ["examples", "crds/params/tests/fixtures"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.retain(|path| path.extension().is_some_and(|e| e == "yaml") && !path.ends_with("trainjob.yaml"));
    assert!(files.len() > 8, "{files:?}");
    files
}

#[test]
fn editor_schema_accepts_params_of_the_repository() {
    let validator = jsonschema::draft202012::new(&editor_schema()).unwrap();
    for path in params_files() {
        let document: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let errors: Vec<String> = validator.iter_errors(&document).map(|error| error.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new(), "{}", path.display());
    }
    // What release 0.1.0 stored: its document is that of a TrainJob.
    let golden = std::fs::read_to_string(root().join("tests/golden/0.1.0/process-trainjob.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let params = &golden["spec"]["params"];
    assert!(params["model"].is_object(), "{golden}");
    let errors: Vec<String> = validator.iter_errors(params).map(|error| error.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn editor_schema_rejects_mistakes() {
    let validator = jsonschema::draft202012::new(&editor_schema()).unwrap();
    let text = std::fs::read_to_string(root().join("examples/gpt2-tiny.yaml")).unwrap();
    let document: Value = serde_saphyr::from_str(&text).unwrap();
    let accepts = |section: &str, key: &str, value: Value| {
        let mut document = document.clone();
        document[section][key] = value;
        validator.is_valid(&document)
    };
    assert!(accepts("model", "nonlinearity", "gelu_new".into()));
    assert!(accepts("model", "nonlinearity", "GELU".into()), "keywords are read without regard to case");
    assert!(accepts("model", "num_experts", Value::Null), "unsupported keys may be null");
    assert!(accepts("optimizer", "learning_rate", serde_json::json!([{"scheduler": "Linear"}])));
    assert!(accepts("runconfig", "num_wgt_servers", 2.into()));
    assert!(accepts("train_input", "mixture", serde_json::json!([{"data_dir": ["a", "b"], "weight": 0.5}])));
    for (section, key, value) in [
        ("model", "hiden_size", Value::from(64)),
        ("model", "nonlinearity", "gulu".into()),
        ("model", "nonlinearity", "leaky_relu".into()),
        ("model", "num_heads", "4".into()),
        ("model", "prepend_cls_token", false.into()),
        ("model", "num_experts", 4.into()),
        ("optimizer", "learning_rate", serde_json::json!([{"schedular": "Linear"}])),
        ("train_input", "data_processor", "DummyDataProcessor".into()),
        ("train_input", "mixture", serde_json::json!([{"data_dir": "a", "weigth": 1.0}])),
        ("runconfig", "mode", "training".into()),
    ] {
        assert!(!accepts(section, key, value.clone()), "{section}.{key}: {value}");
    }
    let mut incomplete = document.clone();
    incomplete["sparsity"] = serde_json::json!({"param_filter": "*linear_layer.weight"});
    assert!(!validator.is_valid(&incomplete));
}
