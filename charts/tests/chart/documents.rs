//! What the chart says of itself: values, their schema, the dashboard, versions.

use std::collections::BTreeSet;

use millrace_crds::{Appliance, definitions};
use serde_json::{Value, json};

use crate::tools::{read, root, yaml};

/// Fields of an Appliance that the values have elsewhere, or that the operator knows by itself.
const FIELDS_NOT_IN_VALUES: &[&str] = &["image", "imagePullPolicy", "imagePullSecrets"];

pub fn schema() -> Value {
    serde_json::from_str(&read("values.schema.json")).unwrap()
}

/// What a reference in the values' schema stands for.
fn resolved<'a>(all: &'a Value, schema: &'a Value) -> &'a Value {
    let reference = schema.pointer("/allOf/0/$ref").and_then(Value::as_str);
    reference.map_or(schema, |path| all.pointer(path.trim_start_matches('#')).unwrap())
}

/// Paths of all properties in `schema`, by `.`, items of lists included; `all` is where references lead.
pub fn paths(all: &Value, schema: &Value, at: &str, found: &mut BTreeSet<String>) {
    let schema = resolved(all, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}{name}");
        found.insert(path.clone());
        paths(all, property, &format!("{path}."), found);
    }
    if schema["items"].is_object() {
        paths(all, &schema["items"], at, found);
    }
}

/// Whether it is the chart that says what this value means. What some are made of is Kubernetes', and shown by an example.
pub fn is_documented_here(path: &str) -> bool {
    path != "global" && !["resources.", "tolerations.", "pullSecrets."].iter().any(|of| path.contains(of))
}

/// A key of values.yaml, set or commented out.
struct Key {
    path: String,
    described: bool,
}

/// The keys of values.yaml, by its indentation. A comment that begins with one word and a colon is a key that is left
/// out.
fn keys() -> Vec<Key> {
    let text = read("values.yaml");
    let mut found = Vec::new();
    let mut parents: Vec<(usize, &str)> = Vec::new();
    let mut comment = false;
    for line in text.lines() {
        let words = line.trim_start();
        let key = words.strip_prefix("# ").unwrap_or(words);
        // Keys in a key that is left out are indented within the comment.
        let indent = line.len() - words.len() + (key.len() - key.trim_start().len());
        let name = key.trim_start().split_once(':').map(|(name, _)| name);
        match name.filter(|name| !name.is_empty() && name.chars().all(char::is_alphanumeric)) {
            Some(name) => {
                parents.retain(|(of, _)| *of < indent);
                parents.push((indent, name));
                let path: Vec<&str> = parents.iter().map(|(_, name)| *name).collect();
                let described = comment || words.trim_start_matches('#').contains("  # ");
                found.push(Key { path: path.join("."), described });
                comment = false;
            }
            None => comment = words.starts_with('#'),
        }
    }
    found
}

/// Finds what is not described, or takes anything.
fn check(all: &Value, schema: &Value, at: &str, wrong: &mut Vec<String>) {
    let closed = schema["additionalProperties"] == false || schema["additionalProperties"].is_object();
    if schema["type"] == "object" && !closed && at != ".global" {
        wrong.push(format!("{at} takes anything"));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}.{name}");
        if !property["description"].as_str().is_some_and(|text| text.ends_with('.')) {
            wrong.push(format!("{path} is not described"));
        }
        check(all, resolved(all, property), &path, wrong);
    }
    if schema["items"].is_object() {
        check(all, &schema["items"], at, wrong);
    }
}

#[test]
fn every_value_is_described_in_the_schema_and_in_the_file() {
    let all = schema();
    let mut wrong = Vec::new();
    check(&all, &all, "", &mut wrong);
    assert!(wrong.is_empty(), "{wrong:#?}");

    let keys = keys();
    let mut known = BTreeSet::new();
    paths(&all, &all, "", &mut known);
    let undescribed: Vec<&str> =
        keys.iter().filter(|key| known.contains(&key.path) && !key.described).map(|key| &*key.path).collect();
    assert!(undescribed.is_empty(), "say in values.yaml what these are: {undescribed:?}");
    let there: BTreeSet<&str> = keys.iter().map(|key| &*key.path).collect();
    let missing: Vec<&String> =
        known.iter().filter(|path| is_documented_here(path) && !there.contains(path.as_str())).collect();
    assert!(missing.is_empty(), "values.yaml has no line for {missing:?}");
}

#[test]
fn appliance_values_are_fields_of_appliance() {
    let all = schema();
    let mut values = BTreeSet::new();
    paths(&all, &all["properties"]["appliance"], "", &mut values);
    values.remove("create");

    let definition = definitions().into_iter().find(|definition| definition.spec.names.kind == "Appliance").unwrap();
    let definition = serde_json::to_value(definition).unwrap();
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut fields = BTreeSet::new();
    paths(&Value::Null, spec, "", &mut fields);
    fields.retain(|path| !FIELDS_NOT_IN_VALUES.contains(&path.split('.').next().unwrap()));
    assert_eq!(values, fields);
}

/// The defaults that values.yaml names are those that hold.
#[test]
fn defaults_in_comments_are_true() {
    let mut text = String::new();
    for line in read("values.yaml").lines() {
        match line.strip_prefix("    # ") {
            Some(key) if key.contains("  # ") => text.push_str(&format!("    {key}\n")),
            _ if line.starts_with("  ") && line.ends_with(": {}") => {
                text.push_str(&format!("{}\n", &line[..line.len() - 3]))
            }
            _ => text.push_str(&format!("{line}\n")),
        }
    }
    let mut spec = yaml(&text)["appliance"].take();
    let fields = spec.as_object_mut().unwrap();
    fields.retain(|name, value| !value.is_null() && name != "create" && name != "resources");
    fields.remove("systems");
    let storage = fields["storage"].as_object_mut().unwrap();
    for example in ["storageClassName", "bucket"] {
        storage.remove(example);
    }
    let of = |spec: &Value| -> Appliance {
        let head = json!({"apiVersion": "millrace.dev/v1alpha1", "kind": "Appliance", "metadata": {"name": "default"}, "spec": spec});
        serde_json::from_value(head).unwrap()
    };
    let (written, default) = (of(&spec), of(&json!({})));
    assert_eq!(written.spec.machine.resolve().unwrap(), default.spec.machine.resolve().unwrap());
    assert_eq!(written.spec.storage, default.spec.storage);
    assert!(fields_named(&spec) > 15, "{spec}");
}

fn fields_named(value: &Value) -> usize {
    value.as_object().map_or(1, |fields| fields.values().map(fields_named).sum())
}

#[test]
fn dashboard_queries_existing_metrics() {
    let dashboard: Value = serde_json::from_str(&read("files/dashboard.json")).unwrap();
    let sources = sources();
    let mut shown = BTreeSet::new();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(panel["description"].as_str().unwrap().ends_with('.'), "{} is not described", panel["title"]);
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let ours = ["millrace_", "controller_runtime_", "leader_election_"];
            shown.extend(words.filter(|word| ours.iter().any(|prefix| word.starts_with(prefix))));
        }
    }
    assert!(shown.len() > 10, "{shown:?}");
    for metric in shown {
        let name = metric.trim_end_matches("_bucket").trim_end_matches("_count");
        assert!(sources.iter().any(|source| source.contains(name)), "nothing measures {metric}");
    }
}

/// The sources that define metrics.
fn sources() -> Vec<String> {
    let mut found = Vec::new();
    let mut next = vec![root()];
    while let Some(folder) = next.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() && !path.is_symlink() && !name.starts_with('.') && !["target", "tests"].contains(&&*name) {
                next.push(path);
            } else if name.starts_with("metric") && name.ends_with(".rs") {
                found.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    found
}

#[test]
fn chart_has_version_of_product() {
    let chart = yaml(&read("Chart.yaml"));
    for key in ["version", "appVersion"] {
        assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key}");
    }
}
