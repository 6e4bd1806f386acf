//! Checks that the generated definitions equal the files and follow the API conventions.

use std::path::Path;

use millrace_crds::{ApplianceStatus, TrainJobStatus, definitions, internal_definitions};
use serde_json::{Value, json};

use crate::schemas::{all, of};

/// Keys for which the public model zoo allows several shapes, which no API server can distinguish, and the params of
/// later phases, whose schema would be a second copy. Nothing else is open.
const OPEN: &[&str] = &[
    "spec.laterPhases.[]",
    "spec.params.csconfig",
    "spec.params.eval_input.buckets",
    "spec.params.eval_input.data_dir",
    "spec.params.eval_input.data_file",
    "spec.params.eval_input.data_files",
    "spec.params.eval_input.micro_batch_size",
    "spec.params.eval_input.mixture.[].data_dir",
    "spec.params.eval_input.src_data_dir",
    "spec.params.eval_input.tgt_data_dir",
    "spec.params.eval_input.transforms.[].size",
    "spec.params.model.embedding_initializer",
    "spec.params.model.ffn_initializer",
    "spec.params.model.ffn_output_layer_initializer",
    "spec.params.model.initializer",
    "spec.params.model.output_layer_initializer",
    "spec.params.optimizer.eps",
    "spec.params.optimizer.learning_rate",
    "spec.params.optimizer.loss_scaling_factor",
    "spec.params.optimizer.params.[].params",
    "spec.params.predict_input",
    "spec.params.runconfig.debug_args",
    "spec.params.runconfig.fabric_type_blacklist",
    "spec.params.runconfig.ini",
    "spec.params.runconfig.job_labels",
    "spec.params.runconfig.mount_dirs",
    "spec.params.runconfig.python_paths",
    "spec.params.runconfig.wsc_log_level",
    "spec.params.sparsity.drop_fraction",
    "spec.params.sparsity.param_filter",
    "spec.params.sparsity.param_name_patterns",
    "spec.params.train_input.buckets",
    "spec.params.train_input.data_dir",
    "spec.params.train_input.data_file",
    "spec.params.train_input.data_files",
    "spec.params.train_input.micro_batch_size",
    "spec.params.train_input.mixture.[].data_dir",
    "spec.params.train_input.src_data_dir",
    "spec.params.train_input.tgt_data_dir",
    "spec.params.train_input.transforms.[].size",
];

fn assert_none(instruction: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{instruction}:\n{}", found.join("\n"));
}

fn where_not(is_met: impl Fn(&str, &Value) -> bool) -> Vec<String> {
    all().into_iter().filter(|(path, schema)| !is_met(path, schema)).map(|(path, _)| path).collect()
}

#[test]
fn generated_files_are_up_to_date() {
    for definition in definitions().into_iter().chain(internal_definitions()) {
        let name = definition.metadata.name.clone().unwrap();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml"));
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        let types = serde_saphyr::to_string(&definition).unwrap();
        assert!(file == types, "{name}.yaml is stale: run `cargo xtask generate`");
    }
}

#[test]
fn every_field_is_described() {
    let nameless = |path: &str| path.is_empty() || path.ends_with("[]") || path.ends_with('*');
    let described = |schema: &Value| {
        schema["description"].as_str().is_some_and(|text| text.ends_with('.') || text.contains("\n- "))
    };
    assert_none(
        "say what these are, in a sentence",
        where_not(|path, schema| nameless(path) || path == "status" || described(schema)),
    );
}

#[test]
fn strings_lists_maps_and_integers_are_bounded() {
    let bounded = |schema: &Value| {
        let has = |key: &str| schema.get(key).is_some();
        let free = has("enum") || schema["format"] == "date-time";
        match schema["type"].as_str() {
            Some("string") => free || has("maxLength"),
            Some("array") => has("maxItems"),
            Some("object") if has("additionalProperties") => has("maxProperties"),
            Some("integer") => schema["format"] == "int32" || (has("minimum") && has("maximum")),
            None if has("x-kubernetes-int-or-string") => has("maxLength") && has("pattern"),
            _ => true,
        }
    };
    assert_none("bound these", where_not(|_, schema| bounded(schema)));
}

#[test]
fn only_unions_and_later_phases_are_left_open() {
    let open = |schema: &Value| schema.get("x-kubernetes-preserve-unknown-fields").is_some();
    assert_eq!(where_not(|_, schema| !open(schema)), OPEN);
    assert_none(
        "an API server wants a type here",
        where_not(|_, schema| {
            open(schema) || schema.get("type").is_some() || schema.get("x-kubernetes-int-or-string").is_some()
        }),
    );
    for forbidden in ["anyOf", "oneOf", "allOf", "not", "$ref", "title"] {
        assert_none(forbidden, where_not(|path, schema| path.is_empty() || schema.get(forbidden).is_none()));
    }
}

#[test]
fn params_have_no_defaults_and_may_hold_nulls() {
    let inside = |path: &str| path.starts_with("spec.params.");
    assert_none(
        "defaults",
        where_not(|path, schema| !(inside(path) || path.starts_with("status")) || schema.get("default").is_none()),
    );
    let optional = |path: &str| inside(path) && !path.ends_with("[]");
    assert_none("absent or null is the same", where_not(|path, schema| !optional(path) || schema["nullable"] == true));
    let elsewhere = |path: &str| !inside(path) && path != "status";
    assert_none("no nulls here", where_not(|path, schema| !elsewhere(path) || schema["nullable"] != true));
}

#[test]
fn status_follows_the_api_conventions() {
    assert_none("no phase", where_not(|path, _| !path.ends_with("phase") && !path.ends_with("Phase")));
    for (path, schema) in all() {
        if path == "status" {
            assert!(schema.get("required").is_none(), "every field of a status is optional: {}", schema["required"]);
            let conditions = &schema["properties"]["conditions"];
            assert_eq!(conditions["x-kubernetes-list-type"], "map");
            assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
        }
        assert_ne!(schema.get("required"), Some(&json!(["status"])), "a new object has no status");
    }
    // The first field; a definition sorts its fields by name.
    let condition = json!({
        "type": "Accepted", "status": "True", "reason": "Understood", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({"conditions": [condition], "observedGeneration": 1, "attempt": 1, "grants": [{"uid": "u"}]});
    let job: TrainJobStatus = serde_json::from_value(status.clone()).unwrap();
    let appliance: ApplianceStatus = serde_json::from_value(status).unwrap();
    for text in [serde_json::to_string(&job).unwrap(), serde_json::to_string(&appliance).unwrap()] {
        assert!(text.starts_with(r#"{"conditions":[{"#), "{text}");
    }
}

#[test]
fn columns_and_scale_find_their_fields() {
    let [appliance, job] = definitions().map(|definition| serde_json::to_value(definition).unwrap());
    for (definition, columns) in [
        (
            &job,
            [
                "State",
                "Step",
                "Of",
                "Loss",
                "Rate",
                "CSX",
                "Restarts",
                "Age",
                "Queue",
                "Priority",
                "Attempt",
                "Next",
                "Checkpoint",
                "Updated",
                "Observed",
            ]
            .as_slice(),
        ),
        (&appliance, &["Systems", "Used", "Waiting", "Observed", "Age"]),
    ] {
        let paths: Vec<String> = of(definition).into_iter().map(|(path, _)| format!(".{path}")).collect();
        let version = &definition["spec"]["versions"][0];
        let defined = version["additionalPrinterColumns"].as_array().unwrap();
        assert_eq!(defined.iter().map(|column| column["name"].as_str().unwrap()).collect::<Vec<_>>(), columns);
        for column in defined {
            let path = column["jsonPath"].as_str().unwrap();
            assert!(!path.contains("[-1"), "{path}: a condition has no fixed place");
            let path = path.replace(r#"[?(@.type=="Succeeded")]"#, ".[]");
            assert!(paths.contains(&path) || path == ".metadata.creationTimestamp", "{path}");
        }
        for path in version["subresources"]["scale"].as_object().into_iter().flat_map(|scale| scale.values()) {
            assert!(paths.contains(&path.as_str().unwrap().to_owned()), "{path}");
        }
    }
    assert_eq!(job["spec"]["names"]["shortNames"], json!(["tj"]));
    assert_eq!((&job["spec"]["scope"], &appliance["spec"]["scope"]), (&json!("Namespaced"), &json!("Cluster")));
}
