//! Tests the JSON schemas of the document types.
#![cfg(feature = "schema")]

use millrace_params::{InputParams, MachineDocument, ModelParams, OptimizerParams, Params, RunParams};
use serde_json::Value;

/// Adds the path of every property without a description.
fn undescribed(at: &str, schema: &Value, found: &mut Vec<String>) {
    let Value::Object(map) = schema else { return };
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    if property.get("description").and_then(Value::as_str).is_none_or(str::is_empty) {
                        found.push(format!("{at}.{name}"));
                    }
                    undescribed(&format!("{at}.{name}"), property, found);
                }
            }
            (_, Value::Object(_)) => undescribed(&format!("{at}/{key}"), value, found),
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
    for (section, keys) in [
        ("InputParams", InputParams::KEYS),
        ("ModelParams", ModelParams::KEYS),
        ("OptimizerParams", OptimizerParams::KEYS),
        ("RunParams", RunParams::KEYS),
    ] {
        let properties = schema["$defs"][section]["properties"].as_object().unwrap();
        assert_eq!(properties.len(), keys.len(), "{section}");
        assert!(keys.iter().all(|key| properties.contains_key(*key)), "{section}");
    }
}
